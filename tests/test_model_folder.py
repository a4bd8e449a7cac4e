"""Folders: the exact account, quantised weights, shards; what is refused, naming tensor or key with both numbers."""

from __future__ import annotations

import json
import math
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from model_files import LLAMA, header_of, llama_tensors, write_folder, write_raw, write_safetensors, write_sharded
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec

TOTAL = sum(math.prod(shape) for _, shape in llama_tensors().values())


def refused(folder: Path, *words: str) -> str:
    """The error of reading it, which must hold these words and a line on what to do."""
    with pytest.raises(UserError) as caught:
        read_model(str(folder))
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


def read(folder: Path) -> ModelSpec:
    return read_model(str(folder))


def test_a_plain_folder(tmp_path: Path) -> None:
    spec = read(write_folder(tmp_path / "tiny-llama"))
    assert spec.name == "tiny-llama"
    assert spec.parameters == TOTAL
    assert spec.weight_bytes == 2 * TOTAL
    assert set(spec.stored) == {"bf16"}
    assert spec.context == 64
    assert spec.config["num_key_value_heads"] == 2
    assert spec.notes == ()


def test_mixed_dtypes_are_told_apart(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.norm.weight"] = ("F32", (32,))
    spec = read(write_folder(tmp_path, tensors=tensors))
    assert spec.stored["fp32"].parameters == 32
    assert spec.stored["fp32"].bytes == 128
    assert spec.weight_bytes == 2 * TOTAL + 64


def test_a_path_comes_before_a_known_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "llama-3.1-8b")
    monkeypatch.chdir(tmp_path)
    assert read_model("llama-3.1-8b").parameters == TOTAL
    assert read_model("llama-3.1-70b").parameters == 70_553_706_496


def test_400_gb_answer_in_a_blink(tmp_path: Path) -> None:
    config = {**LLAMA, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 63,
              "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
    folder = write_sharded(tmp_path, llama_tensors(config), 90, config=config)
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size > 400e9
    start = time.process_time()
    spec = read(folder)
    assert time.process_time() - start < 1.0
    assert spec.parameters > 200e9
    assert 2 * spec.parameters == spec.weight_bytes


def test_ten_thousand_experts_answer_in_a_blink(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "qwen3_moe", "head_dim": 8, "num_experts": 256, "num_experts_per_tok": 8,
              "moe_intermediate_size": 16, "num_hidden_layers": 40}  # fmt: skip
    tensors = {name: held for name, held in llama_tensors(config).items() if ".mlp." not in name}
    for layer in range(40):
        stem = f"model.layers.{layer}"
        tensors |= {f"{stem}.self_attn.{name}_norm.weight": ("BF16", (8,)) for name in "qk"}
        tensors[f"{stem}.mlp.gate.weight"] = ("BF16", (256, 32))
        for expert in range(256):
            for name, shape in (("gate", (16, 32)), ("up", (16, 32)), ("down", (32, 16))):
                tensors[f"{stem}.mlp.experts.{expert}.{name}_proj.weight"] = ("BF16", shape)
    folder = write_sharded(tmp_path, tensors, 5, config=config)
    start = time.process_time()
    spec = read(folder)
    assert time.process_time() - start < 2.0
    assert spec.active_parameters < spec.parameters / 5


# Shards


@pytest.mark.parametrize("index", [True, False])
def test_shards(tmp_path: Path, index: bool) -> None:
    assert read(write_sharded(tmp_path, llama_tensors(), 3, index)).parameters == TOTAL


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path, llama_tensors(), 3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors", "missing")
    (folder / "model.safetensors.index.json").unlink()
    refused(folder, "model-00002-of-00003.safetensors", "1 of 3")


@pytest.mark.parametrize("file", [
    "../../etc/passwd", "/etc/passwd", "..\\x.safetensors", "sub/x.safetensors", "../x.safetensors", ".safetensors",
    "x.bin", "", "\0.safetensors", 7, None, ["a"],
])  # fmt: skip
def test_an_index_that_names_no_file_of_the_folder(tmp_path: Path, file: Any) -> None:
    folder = write_sharded(tmp_path, llama_tensors(), 2)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["model.norm.weight"] = file
    index.write_text(json.dumps(table))
    refused(folder, "model.norm.weight", "same folder")


def test_an_index_and_headers_that_contradict_each_other(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path, llama_tensors(), 2)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    kept = dict(table["weight_map"])
    del table["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(table))
    refused(folder, "model.norm.weight", "does not name it")
    table["weight_map"] = {**kept, "ghost.weight": "model-00001-of-00002.safetensors"}
    index.write_text(json.dumps(table))
    refused(folder, "ghost.weight", "missing")
    swapped = {"model-00001-of-00002.safetensors": "model-00002-of-00002.safetensors",
               "model-00002-of-00002.safetensors": "model-00001-of-00002.safetensors"}  # fmt: skip
    table["weight_map"] = {**kept, "model.norm.weight": swapped[kept["model.norm.weight"]]}
    index.write_text(json.dumps(table))
    refused(folder, "model.norm.weight", "puts it in")
    table["weight_map"] = {}
    index.write_text(json.dumps(table))
    refused(folder, "weight_map")


def test_a_link_into_a_cache_is_followed_and_one_to_itself_is_not(tmp_path: Path) -> None:
    real = write_folder(tmp_path / "real")
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in ("config.json", "model.safetensors"):
        (linked / name).symlink_to(real / name)
    assert read(linked).parameters == TOTAL
    (linked / "config.json").unlink()
    (linked / "config.json").symlink_to(linked / "config.json")
    refused(linked, "config.json")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(tmp_path / "a", "link")


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    refused(folder, "model.safetensors", "no plain file")


# The header


def damaged(tmp_path: Path, change: Any) -> Path:
    """A folder whose one header was changed."""
    folder = write_folder(tmp_path)
    header = header_of(llama_tensors())
    data = max(entry["data_offsets"][1] for entry in header.values())
    changed = change(header)
    write_raw(folder / "model.safetensors", json.dumps(header if changed is None else changed).encode(), data)
    return folder


Q = "model.layers.0.self_attn.q_proj.weight"


def _set(key: str, value: Any) -> Any:
    return lambda header: header[Q].__setitem__(key, value)


@pytest.mark.parametrize(("change", "words"), [
    (_set("dtype", "F17"), ("F17",)),
    (_set("dtype", 3), ("dtype",)),
    (_set("dtype", "F32"), ("bytes",)),
    (_set("shape", [32, -32]), ("shape",)),
    (_set("shape", [32, 32.0]), ("shape",)),
    (_set("shape", [True, 32]), ("shape",)),
    (_set("shape", "x"), ("shape",)),
    (_set("shape", [1] * 33), ("shape",)),
    (_set("shape", [2**70, 1]), ("shape",)),
    (_set("shape", [64, 32]), ("bytes",)),
    (_set("data_offsets", [5, 3]), ("before it begins",)),
    (_set("data_offsets", [-1, 3]), ("data_offsets",)),
    (_set("data_offsets", [0, 2**63]), ("data_offsets",)),
    (_set("data_offsets", [0]), ("data_offsets",)),
    (_set("data_offsets", None), ("data_offsets",)),
    (_set("data_offsets", [0, 2048]), ("overlaps",)),
    (_set("data_offsets", [10**9, 10**9 + 2048]), ("cut off",)),
    (_set("more", 1), ("exactly",)),
    (lambda header: header.__setitem__(Q, 7), ("exactly",)),
    (lambda header: {name: entry for name, entry in header.items() if "embed" not in name}, ("hole",)),
    (lambda header: [header], ("object",)),
])  # fmt: skip
def test_a_damaged_header(tmp_path: Path, change: Any, words: tuple[str, ...]) -> None:
    refused(damaged(tmp_path, change), "model.safetensors", *words)


def test_bytes_behind_the_last_tensor(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")
    refused(folder, "model.safetensors", "end at byte")


def test_a_key_that_stands_twice_and_numbers_that_are_none(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    entry = '{"dtype":"F32","shape":[],"data_offsets":[0,4]}'
    write_raw(folder / "model.safetensors", f'{{"a":{entry},"a":{entry}}}'.encode(), 4)
    refused(folder, "'a'", "twice")
    write_raw(folder / "model.safetensors", b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', 4)
    refused(folder, "NaN")
    write_raw(folder / "model.safetensors", b"[" * 100_000, 0)
    refused(folder, "model.safetensors")
    write_raw(folder / "model.safetensors", b"\xff\xfe{}", 0)
    refused(folder, "UTF-8")


def test_lengths_of_the_header_that_cannot_be(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    path = folder / "model.safetensors"
    for length in (2**64 - 1, 100_000_001, 10_000):
        write_raw(path, b"{}", 0, length)
        refused(folder, "model.safetensors", f"{length:,}")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(folder, "Git LFS")
    path.write_bytes(b"\0\0\0")
    refused(folder, "too short")
    path.write_bytes(b"")
    refused(folder, "too short")


def test_a_file_cut_at_every_byte_of_its_header(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {**LLAMA, "num_hidden_layers": 1},
                          llama_tensors({**LLAMA, "num_hidden_layers": 1}))  # fmt: skip
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    places = sorted({*range(40), *range(0, 8 + length, 5), *range(length - 20, 8 + length), len(whole) - 1})
    for at in places:
        path.write_bytes(whole[:at])
        refused(folder, "model.safetensors")


# Config against tensors


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {**LLAMA, "intermediate_size": 72}, llama_tensors())
    refused(folder, "model.layers.0.mlp.gate_proj.weight", "[64, 32]", "[72, 32]")
    write_folder(tmp_path, {**LLAMA, "vocab_size": 100}, llama_tensors())
    refused(folder, "model.embed_tokens.weight", "[96, 32]", "[100, 32]")
    write_folder(tmp_path, {**LLAMA, "num_key_value_heads": 4}, llama_tensors())
    refused(folder, "k_proj", "[16, 32]", "[32, 32]")


@pytest.mark.parametrize(("layers", "there"), [(3, 2), (1, 2)])
def test_another_number_of_layers(tmp_path: Path, layers: int, there: int) -> None:
    folder = write_folder(tmp_path, {**LLAMA, "num_hidden_layers": layers}, llama_tensors())
    refused(folder, f"the config has {layers} layers", f"hold {there}")


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", Q, "model.embed_tokens.weight"])
def test_a_missing_tensor(tmp_path: Path, name: str) -> None:
    tensors = llama_tensors()
    del tensors[name]
    refused(write_folder(tmp_path, tensors=tensors), name, "missing")


def test_a_tensor_of_no_part(tmp_path: Path) -> None:
    tensors = {**llama_tensors(), "model.layers.1.self_attn.q_proj.bias": ("BF16", (32,))}
    refused(write_folder(tmp_path, tensors=tensors), "model.layers.1.self_attn.q_proj.bias", "no part of a llama")


def test_tensors_that_are_no_parameters_are_noted(tmp_path: Path) -> None:
    tensors = {**llama_tensors(), "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (4,))}
    spec = read(write_folder(tmp_path, tensors=tensors))
    assert spec.parameters == TOTAL
    assert any("no parameters (1 tensor, 4 numbers, 16 bytes)" in note for note in spec.notes)


def test_a_tied_head_that_is_stored_again_is_counted_once(tmp_path: Path) -> None:
    spec = read(write_folder(tmp_path, {**LLAMA, "tie_word_embeddings": True}, llama_tensors()))
    assert spec.parameters == TOTAL - 96 * 32
    assert spec.weight_bytes == 2 * spec.parameters
    assert any("lm_head.weight" in note and "stored again" in note for note in spec.notes)


def test_gpt2_as_it_was_first_published(tmp_path: Path) -> None:
    """Names without "transformer.", and a mask stored in each layer."""
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 12}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "wte.weight": ("F32", (50, 16)), "wpe.weight": ("F32", (12, 16)),
        "ln_f.weight": ("F32", (16,)), "ln_f.bias": ("F32", (16,)),
    }  # fmt: skip
    for layer in range(2):
        for name, shape in {
            "attn.c_attn.weight": (16, 48), "attn.c_attn.bias": (48,), "attn.c_proj.weight": (16, 16),
            "attn.c_proj.bias": (16,), "mlp.c_fc.weight": (16, 64), "mlp.c_fc.bias": (64,),
            "mlp.c_proj.weight": (64, 16), "mlp.c_proj.bias": (16,), "ln_1.weight": (16,), "ln_1.bias": (16,),
            "ln_2.weight": (16,), "ln_2.bias": (16,), "attn.bias": (1, 1, 12, 12),
        }.items():  # fmt: skip
            tensors[f"h.{layer}.{name}"] = ("F32", shape)
    spec = read(write_folder(tmp_path, config, tensors))
    assert spec.parameters == 50 * 16 + 12 * 16 + 32 + 2 * (12 * 16 * 16 + 13 * 16)
    assert any("2 tensors, 288 numbers" in note for note in spec.notes)


def test_the_layer_for_multi_token_prediction_is_noted(tmp_path: Path) -> None:
    config = {
        **LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 2, "num_key_value_heads": 4,
    }  # fmt: skip
    tensors = {name: held for name, held in llama_tensors().items() if "self_attn" not in name}
    for layer in range(2):
        for name, shape in {
            "q_proj": (48, 32), "kv_a_proj_with_mqa": (20, 32), "kv_a_layernorm": (16,), "kv_b_proj": (64, 16),
            "o_proj": (32, 32),
        }.items():  # fmt: skip
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = ("BF16", shape)
    bare = read(write_folder(tmp_path, config, tensors))
    tensors["model.layers.2.eh_proj.weight"] = ("BF16", (32, 64))
    tensors["model.layers.2.embed_tokens.weight"] = ("BF16", (96, 32))
    spec = read(write_folder(tmp_path, config, tensors))
    assert spec.parts == bare.parts
    assert any("multi-token prediction" in note and "2 tensors" in note for note in spec.notes)


# Quantised folders


def quantised(folder: Path, pack: Any, quantization: dict[str, Any]) -> ModelSpec:
    """A Llama whose maps in the layers were replaced by what `pack` makes of (outputs, inputs)."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in llama_tensors().items():
        if "_proj." in name:
            tensors |= {f"{name.removesuffix('.weight')}.{last}": held for last, held in pack(*shape).items()}
        else:
            tensors[name] = (dtype, shape)
    return read(write_folder(folder, {**LLAMA, "quantization_config": quantization}, tensors))


PACKED = 2 * (32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32)  # numbers in the maps of both layers


@pytest.mark.parametrize(("method", "pack", "quantization", "dtype", "bits"), [
    ("gptq", lambda out, inputs: {
        "qweight": ("I32", (inputs // 8, out)), "qzeros": ("I32", (inputs // 16, out // 8)),
        "scales": ("F16", (inputs // 16, out)), "g_idx": ("I32", (inputs,)),
    }, {"quant_method": "gptq", "bits": 4, "group_size": 16}, "int4", 4),
    ("gptq 8", lambda out, inputs: {
        "qweight": ("I32", (inputs // 4, out)), "qzeros": ("I32", (1, out // 4)), "scales": ("F16", (1, out)),
    }, {"quant_method": "gptq", "bits": 8}, "int8", 8),
    ("awq", lambda out, inputs: {
        "qweight": ("I32", (inputs, out // 8)), "qzeros": ("I32", (inputs // 16, out // 8)),
        "scales": ("F16", (inputs // 16, out)),
    }, {"quant_method": "awq", "bits": 4, "version": "gemm"}, "int4", 4),
    ("nf4", lambda out, inputs: {
        "weight": ("U8", (out * inputs // 2, 1)), "weight.absmax": ("U8", (out * inputs // 64,)),
        "weight.quant_map": ("F32", (16,)), "weight.nested_absmax": ("F32", (1,)),
        "weight.nested_quant_map": ("F32", (256,)), "weight.quant_state.bitsandbytes__nf4": ("U8", (80,)),
    }, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", 4),
    ("bitsandbytes 8", lambda out, inputs: {
        "weight": ("I8", (out, inputs)), "SCB": ("F32", (out,)), "weight_format": ("U8", ()),
    }, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
    ("fp8", lambda out, inputs: {
        "weight": ("F8_E4M3", (out, inputs)), "weight_scale_inv": ("F32", (1, 1)),
    }, {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8),
    ("compressed-tensors int4", lambda out, inputs: {
        "weight_packed": ("I32", (out, inputs // 8)), "weight_scale": ("BF16", (out, inputs // 16)),
        "weight_shape": ("I64", (2,)),
    }, {"quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}, "int4", 4),
    ("compressed-tensors fp8", lambda out, inputs: {
        "weight": ("F8_E4M3", (out, inputs)), "weight_scale": ("BF16", (out, 1)),
    }, {"quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8", 8),
    ("compressed-tensors nvfp4", lambda out, inputs: {
        "weight_packed": ("U8", (out, inputs // 2)), "weight_scale": ("F8_E4M3", (out, inputs // 16)),
        "weight_global_scale": ("F32", (1,)), "input_global_scale": ("F32", (1,)),
    }, {"quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}}}, "nvfp4", 4),
    ("modelopt nvfp4", lambda out, inputs: {
        "weight": ("U8", (out, inputs // 2)), "weight_scale": ("F8_E4M3", (out, inputs // 16)),
        "weight_scale_2": ("F32", ()), "input_scale": ("F32", ()),
    }, {"quant_method": "modelopt"}, "nvfp4", 4),
], ids=lambda value: value if isinstance(value, str) else None)  # fmt: skip
def test_quantised_folders(
    tmp_path: Path, method: str, pack: Any, quantization: dict[str, Any], dtype: str, bits: int
) -> None:
    spec = quantised(tmp_path, pack, quantization)
    assert spec.parameters == TOTAL
    assert spec.stored[dtype].parameters == PACKED
    header = json.loads((tmp_path / "model.safetensors").read_bytes()[8:].split(b"}}", 1)[0] + b"}}")
    held = sum(entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items()
               if "_proj." in name)  # fmt: skip
    assert spec.stored[dtype].bytes == held > PACKED * bits // 8
    assert spec.weight_bytes == held + 2 * (TOTAL - PACKED)


def test_mxfp4_of_gpt_oss(tmp_path: Path) -> None:
    config = {
        **LLAMA, "model_type": "gpt_oss", "num_hidden_layers": 1, "head_dim": 8, "num_local_experts": 4,
        "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 8,
        "layer_types": ["full_attention"], "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    tensors = {name: held for name, held in llama_tensors({**LLAMA, "num_hidden_layers": 1}).items()
               if ".mlp." not in name}  # fmt: skip
    stem = "model.layers.0"
    for name, size in (("q", 32), ("k", 16), ("v", 16), ("o", 32)):
        tensors[f"{stem}.self_attn.{name}_proj.bias"] = ("BF16", (size,))
    tensors |= {
        f"{stem}.self_attn.sinks": ("BF16", (4,)), f"{stem}.mlp.router.weight": ("BF16", (4, 32)),
        f"{stem}.mlp.router.bias": ("BF16", (4,)),
        f"{stem}.mlp.experts.gate_up_proj_blocks": ("U8", (4, 64, 1, 16)),
        f"{stem}.mlp.experts.gate_up_proj_scales": ("U8", (4, 64, 1)),
        f"{stem}.mlp.experts.gate_up_proj_bias": ("BF16", (4, 64)),
        f"{stem}.mlp.experts.down_proj_blocks": ("U8", (4, 32, 1, 16)),
        f"{stem}.mlp.experts.down_proj_scales": ("U8", (4, 32, 1)),
        f"{stem}.mlp.experts.down_proj_bias": ("BF16", (4, 32)),
    }  # fmt: skip
    spec = read(write_folder(tmp_path, config, tensors))
    assert spec.stored["mxfp4"].parameters == 4 * 3 * 32 * 32
    assert spec.stored["mxfp4"].bytes == 4 * 3 * 32 * 32 * 17 // 32
    tensors[f"{stem}.mlp.experts.down_proj_scales"] = ("U8", (4, 16, 1))
    refused(write_folder(tmp_path, config, tensors), "down_proj_blocks", "2,048", "64")


def test_quantisation_that_is_refused(tmp_path: Path) -> None:
    refused(write_folder(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "hqq"}}), "hqq", "gptq")
    refused(write_folder(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 5}}), "bits", "5")
    packed = {**llama_tensors(), Q: ("I32", (32, 32))}
    refused(write_folder(tmp_path, tensors=packed), Q, "int32")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "awq"}}))
    refused(tmp_path, "quantization_config")


# config.json


@pytest.mark.parametrize(("text", "words"), [
    ("[1, 2]", ("a list",)),
    ("", ("no valid JSON",)),
    ("null", ("null",)),
    ("7", ("a number",)),
    ('{"model_type": "llama"', ("no valid JSON",)),
    ('{"model_type": "llama", "model_type": "gpt2"}', ("model_type", "twice")),
    ('{"model_type": "llama", "hidden_size": NaN}', ("NaN",)),
    ('{"model_type": "llama", "hidden_size": Infinity}', ("Infinity",)),
    ('{"a":' * 50_000 + "1" + "}" * 50_000, ("nested",)),
    ("9" * 5000, ("JSON",)),
    ("{}", ("model_type",)),
    ('{"model_type": 3}', ("model_type",)),
    ('{"model_type": "lama"}', ("lama", "llama")),
    ('{"model_type": "' + "x" * 10_000 + '"}', ("xxx",)),
])  # fmt: skip
def test_a_config_that_is_none(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    (tmp_path / "config.json").write_text(text)
    assert len(refused(tmp_path, "config.json", *words)) < 4000


@pytest.mark.parametrize(("key", "value", "words"), [
    ("hidden_size", None, ("missing",)),
    ("hidden_size", "32", ("whole number",)),
    ("hidden_size", 32.5, ("whole number",)),
    ("hidden_size", True, ("whole number",)),
    ("hidden_size", -32, ("-32",)),
    ("hidden_size", 0, ("0",)),
    ("hidden_size", 10**4000, ("bits",)),
    ("hidden_size", 1e300, ("whole number",)),
    ("hidden_size", [32], ("a list",)),
    ("num_hidden_layers", 10**9, ("layers",)),
    ("num_attention_heads", 6, ("hidden_size", "32", "6")),
        ("num_attention_heads", 5, ("num_key_value_heads", "2", "5")),
    ("num_key_value_heads", 3, ("num_attention_heads", "4", "3")),
    ("tie_word_embeddings", "no", ("true or false",)),
    ("layer_types", ["full_attention"], ("1 entries for 2",)),
    ("layer_types", ["full_attention", "mamba"], ("mamba",)),
    ("layer_types", "full", ("list of texts",)),
    ("torch_dtype", "int7", ("int7",)),
])  # fmt: skip
def test_a_key_that_cannot_be(tmp_path: Path, key: str, value: Any, words: tuple[str, ...]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, key: value}))
    refused(tmp_path, "config.json", key, *words)


def test_experts_that_cannot_be(tmp_path: Path) -> None:
    moe = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}
    (tmp_path / "config.json").write_text(json.dumps(moe))
    refused(tmp_path, "num_experts_per_tok", "5", "4")


def test_a_setting_with_other_arithmetic_is_refused_by_name(tmp_path: Path) -> None:
    gemma = {**LLAMA, "model_type": "gemma3_text", "use_bidirectional_attention": True, "head_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps(gemma))
    refused(tmp_path, "use_bidirectional_attention")


def test_a_config_alone_is_enough_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "some_new_key": 7}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    spec = read(tmp_path)
    assert spec.parameters == TOTAL
    assert spec.weight_bytes == 2 * TOTAL
    assert any("pickled" in note for note in spec.notes)
    assert any("some_new_key" in note for note in spec.notes)


def test_other_folders(tmp_path: Path) -> None:
    refused(tmp_path, "config.json", "empty")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "adapter")
    refused(write_safetensors(tmp_path / "x.safetensors", {}) and tmp_path / "x.safetensors", "its folder")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path / "notes.txt", "no model file")
