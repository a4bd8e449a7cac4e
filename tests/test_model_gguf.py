"""GGUF files: those of the gguf library's writer, with its own names for each tensor, and damaged ones byte by byte."""

from __future__ import annotations

import logging
import re
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from model_files import gguf_bytes, gguf_string, small_gguf
from nearpeak.models.gguf_header import TYPES, read_gguf_header
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Attention, Recurrent

SMALL_TOTAL = 2 * 96 * 32 + 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 64)


def refused(path: Path, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        read_model(str(path))
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


def small(tmp_path: Path, name: str = "small.gguf", **changes: Any) -> Path:
    path = tmp_path / name
    path.write_bytes(small_gguf(**changes))
    return path


# The library's writer


def _number_keys(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """Metadata as llama.cpp's converter writes it for each architecture."""
    layers = config.get("num_hidden_layers") or config["n_layer"]
    width = config.get("hidden_size") or config["n_embd"]
    keys: dict[str, Any] = {
        "block_count": layers, "embedding_length": width, "context_length": 64,
        "attention.head_count": config.get("num_attention_heads") or config["n_head"],
    }  # fmt: skip
    if architecture == "gpt2":
        keys["feed_forward_length"] = 4 * width
    if "intermediate_size" in config:
        keys["feed_forward_length"] = config["intermediate_size"]
    if "num_key_value_heads" in config:
        keys["attention.head_count_kv"] = config["num_key_value_heads"]
    if config.get("head_dim"):
        keys["attention.key_length"] = keys["attention.value_length"] = config["head_dim"]
    if config.get("sliding_window"):
        keys["attention.sliding_window"] = config["sliding_window"]
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
        keys["expert_feed_forward_length"] = config.get("moe_intermediate_size") or config["intermediate_size"]
    if "shared_expert_intermediate_size" in config:
        keys["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if "linear_num_value_heads" in config:
        keys |= {
            "ssm.conv_kernel": 4, "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": config["linear_num_value_heads"],
            "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        }  # fmt: skip
    if architecture == "lfm2":
        full = config["full_attn_idxs"]
        keys["attention.head_count_kv"] = [2 if layer in full else 0 for layer in range(layers)]
        keys["shortconv.l_cache"] = 3
        keys["feed_forward_length"] = 32  # 48 · 2 ÷ 3, rounded up to 8
    if architecture == "deepseek2":
        keys |= {
            "attention.kv_lora_rank": config["kv_lora_rank"], "rope.dimension_count": config["qk_rope_head_dim"],
            "attention.key_length": 20, "attention.value_length": 12, "leading_dense_block_count": 1,
            "expert_shared_count": config["n_shared_experts"], "attention.q_lora_rank": config["q_lora_rank"] or 0,
        }  # fmt: skip
    if architecture == "gemma4":
        keys |= {
            "attention.key_length": 16, "attention.value_length": 16, "attention.key_length_swa": 12,
            "attention.value_length_swa": 12,
            "attention.sliding_window_pattern": [True] * 5 + [False] * 2,
            "attention.head_count_kv": [2] * 5 + [1] * 2,
        }  # fmt: skip
    if architecture == "llama4":
        keys |= {"feed_forward_length": 40, "expert_feed_forward_length": 48, "interleave_moe_layer_step": 2}
    return keys


CASES = {  # of tests/test_model_families.py → architecture
    "llama": "llama", "llama tied, biases, head_dim": "llama", "mixtral": "llama", "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next",
    "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "gemma2": "gemma2", "gemma3": "gemma3", "gemma4": "gemma4",
    "phi3": "phi3", "gpt_oss": "gpt-oss", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "smollm3": "smollm3", "olmo2": "olmo2", "starcoder2": "starcoder2", "minimax_m2": "minimax-m2", "lfm2": "lfm2",
    "llama4": "llama4", "gpt2": "gpt2", "bert": "bert",
}  # fmt: skip

# what llama.cpp has no key for
OTHER: dict[str, dict[str, Any]] = {"qwen3_moe": {"mlp_only_layers": []}, "llama4": {"attention_chunk_size": 8192}}


def _written(path: Path, case: str) -> int:
    """A GGUF file of a tiny random model: names by the library's map from transformers' names, shapes as its converter
    lays them out. Returns how many parameters it has."""
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    transformers = pytest.importorskip("transformers")
    from test_model_families import CASES as MODELS

    logging.getLogger("transformers").setLevel(logging.ERROR)
    kind, config = getattr(transformers, MODELS[case][0]), {**MODELS[case][1], **OTHER.get(case, {})}
    folder = path.parent / "hf"
    model = kind(kind.config_class(**config))
    model.save_pretrained(folder)
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "np") as file:
        tensors = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    architecture = CASES[case]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(number, layers)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in _number_keys(architecture, {**config}).items():
        name = f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_token_list(["a", "b", "c"] * 40)
    writer.add_bool("general.some_flag", True)
    total, stacks = 0, {}
    for name, shape in tensors.items():
        if re.search(r"inv_freq|layer_scalar|pooler|position_ids", name):
            continue
        total += int(np.prod(shape))
        for plain, sizes in _converted(name, shape, architecture):
            stem = re.sub(r"\.experts\.\d+\.", ".experts.", plain)
            ours = names.get_name(stem, try_suffixes=(".weight", ".bias"))
            assert ours, f"{stem} has no name in the library's map"
            if stem == plain:
                writer.add_tensor(ours, np.zeros(sizes, np.float32))
            else:
                stacks.setdefault(ours, []).append(sizes)
    for ours, several in stacks.items():
        writer.add_tensor(ours, np.zeros((len(several), *several[0]), np.float32))
    writer.add_tensor("rope_freqs.weight", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return total


def _converted(name: str, shape: list[int], architecture: str) -> list[tuple[str, list[int]]]:
    """What llama.cpp's converter makes of one tensor of transformers."""
    if architecture == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
        return [(name, shape[::-1])]
    if ".conv1d." in name or name.endswith("conv.conv.weight"):
        return [(name, [shape[0], shape[2]])]
    if name.endswith("A_log"):
        return [(name, shape)]
    if name.endswith("dt_bias"):
        return [(name.replace("dt_bias", "dt_proj.bias"), shape)]
    if name.endswith("shared_expert_gate.weight"):
        return [(name, shape[1:])]
    if name.endswith("e_score_correction_bias"):
        return [(name.replace("e_score_correction_bias", "e_score_correction.bias"), shape)]
    if name.endswith("in_proj_qkvz.weight"):  # as of 2026 split into q, k, v and the gate
        gate = 4 * 8
        stem = name.removesuffix("in_proj_qkvz.weight")
        sizes = {"qkv": [shape[0] - gate, shape[1]], "z": [gate, shape[1]]}
        return [(f"{stem}in_proj_{part}.weight", size) for part, size in sizes.items()]
    if name.endswith(".sinks"):
        return [(name + ".weight", shape)]
    if architecture in ("gpt-oss", "qwen35moe", "llama4") and "experts." in name:
        inputs_first = architecture in ("gpt-oss", "llama4")
        bias = name.endswith("_bias")
        stem, last = name.rsplit(".", 1)
        suffix = ".bias" if bias else ".weight"
        if last.startswith("gate_up_proj"):
            half = [shape[0], shape[-1 if bias or inputs_first else 1] // 2]
            rows = [] if bias else [shape[1 if inputs_first else 2]]
            return [(f"{stem}.{part}_proj{suffix}", half + rows) for part in ("gate", "up")]
        if last.startswith("down_proj"):
            turned = inputs_first and not bias
            return [(f"{stem}.down_proj{suffix}", [shape[0], shape[2], shape[1]] if turned else shape)]
    return [(name, shape)]


@pytest.mark.parametrize("case", CASES)
def test_files_of_the_library_s_writer(case: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    total = _written(path, case)
    spec = read_model(str(path))
    assert spec.parameters == total
    assert spec.weight_bytes == 4 * total
    plain = read_model(str(tmp_path / "hf"))
    skipped = sum(part.count * part.parameters for part in plain.parts if part.name == "pooler")
    assert plain.parameters - skipped == total
    mine = {part for part in spec.parts if isinstance(part, (Attention, Recurrent)) and "norm" not in part.name
            and not isinstance(part, Recurrent)}  # fmt: skip
    theirs = {part for part in plain.parts if isinstance(part, Attention)}
    assert mine == theirs
    assert spec.active_parameters == plain.active_parameters - skipped
    assert not [note for note in spec.notes if "does not know" in note], spec.notes


def test_block_sizes_are_the_library_s() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: sizes for kind, (_, *sizes) in TYPES.items()} == {kind: list(sizes) for kind, sizes in theirs.items()}


# Bytes of our own


def test_a_small_file(tmp_path: Path) -> None:
    spec = read_model(str(small(tmp_path)))
    assert spec.name == "small"
    assert spec.parameters == SMALL_TOTAL
    assert spec.stored["fp16"].bytes == 2 * SMALL_TOTAL
    assert spec.context == 64
    assert read_model(str(tmp_path)).parameters == SMALL_TOTAL  # a folder with one file


def test_a_tied_head_is_one_that_is_not_there(tmp_path: Path) -> None:
    data = small_gguf()
    header = read_gguf_header(small(tmp_path))
    tensors, at = [], 0
    for name, weight in header.tensors.items():
        if name != "output.weight":
            tensors.append((name, tuple(reversed(weight.shape or ())), 1, at))
            at += -(-weight.bytes // 32) * 32
    keys = [("general.architecture", 8, gguf_string("llama"))]
    keys += [(key, 4, struct.pack("<I", value)) for key, value in header.metadata.items() if isinstance(value, int)]
    path = tmp_path / "tied.gguf"
    path.write_bytes(gguf_bytes(keys, tensors, at))
    assert len(data) > at
    assert read_model(str(path)).parameters == SMALL_TOTAL - 96 * 32


def test_a_file_cut_at_every_byte_of_its_header(tmp_path: Path) -> None:
    path = small(tmp_path)
    whole = path.read_bytes()
    header = read_gguf_header(path)
    data = sum(-(-weight.bytes // 32) * 32 for weight in header.tensors.values())
    start = len(whole) - data
    for at in sorted(
        {*range(64), *range(0, start, 5), *range(start - 40, start + 1), start + data // 2, start + data - 1}
    ):
        path.write_bytes(whole[:at])
        refused(path, "small.gguf")


@pytest.mark.parametrize(("changes", "words"), [
    ({"version": 1}, ("version 1",)),
    ({"version": 4}, ("version 4",)),
    ({"version": 3 << 24}, ("big-endian",)),
    ({"counts": (2**63, 7)}, ("tensors", f"{2**63:,}")),
    ({"counts": (21, 2**40)}, ("keys", f"{2**40:,}")),
    ({"counts": (22, 7)}, ("",)),
    ({"counts": (20, 7)}, ("missing",)),
    ({"keys": [("llama.block_count", 4, struct.pack("<I", 2))]}, ("llama.block_count", "twice")),
    ({"keys": [("general.alignment", 4, struct.pack("<I", 48))]}, ("alignment", "48")),
    ({"keys": [("general.alignment", 4, struct.pack("<I", 0))]}, ("alignment", "0")),
    ({"keys": [("general.alignment", 8, gguf_string("x"))]}, ("alignment",)),
    ({"keys": [("a", 13, b"")]}, ("'a'", "type 13")),
    ({"keys": [("a", 9, struct.pack("<IQ", 8, 2**60))]}, ("'a'", "room")),
    ({"keys": [("a", 9, struct.pack("<IQ", 4, 2**60))]}, ("'a'", "room")),
    ({"keys": [("a", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 0))]}, ("'a'", "array of type 9")),
    ({"keys": [("a", 8, struct.pack("<Q", 2**62))]}, ("'a'", "text")),
    ({"keys": [("a", 8, struct.pack("<Q", 2) + b"\xff\xfe")]}, ("'a'", "UTF-8")),
    ({"tensors": [("output.weight", (32, 96), 1, 0)]}, ("output.weight", "twice")),
    ({"tensors": [("x", (32, 1), 1, 0)]}, ("'", "inside tensor")),
    ({"tensors": [("x", (32, 1), 1, 7)]}, ("'x'", "7")),
    ({"tensors": [("x", (32, 1), 1, 2**63 - 32)]}, ("'x'", "cut off")),
    ({"tensors": [("x", (32,), 99, 0)]}, ("'x'", "type 99")),
    ({"tensors": [("x", (33,), 2, 0)]}, ("'x'", "33", "32")),
    ({"tensors": [("x", (0, 32), 1, 0)]}, ("'x'", "shape")),
    ({"tensors": [("x", (2**40, 2**40), 1, 0)]}, ("'x'", "shape")),
    ({"tensors": [("x", (1, 1, 1, 1, 1), 1, 0)]}, ("'x'", "5 dimensions")),
    ({"numbers": {"llama.block_count": 3}}, ("3 layers", "2")),
    ({"numbers": {"llama.embedding_length": 64}}, ("token_embd.weight", "[96, 32]", "[96, 64]")),
    ({"numbers": {"llama.feed_forward_length": 96}}, ("ffn_gate", "[64, 32]", "[96, 32]")),
    ({"numbers": {"llama.attention.head_count": 5}}, ("num_key_value_heads", "5")),
    ({"shapes": {"output_norm": (16,)}}, ("output_norm.weight", "[16]", "[32]")),
    ({"shapes": {"blk.0.extra": (16,)}}, ("blk.0.extra.weight", "no part")),
])  # fmt: skip
def test_damaged_files(tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(small(tmp_path, **changes), "small.gguf", *words)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGML" + b"\0" * 100)
    refused(path, "GGML")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(path, "Git LFS")
    path.write_bytes(b"")
    refused(path, "cut off")
    path.write_bytes(gguf_bytes([("general.architecture", 8, gguf_string("lama"))], [], 0))
    refused(path, "lama", "llama")
    path.write_bytes(gguf_bytes([("general.name", 8, gguf_string("lama"))], [], 0))
    refused(path, "general.architecture")
    refused(tmp_path / "none.gguf", "does not exist")


def _parts(folder: Path, count: int, **changes: Any) -> Path:
    """The small model in several files."""
    header = read_gguf_header(small(folder, "whole.gguf"))
    (folder / "whole.gguf").unlink()
    names = list(header.tensors)
    first = folder / f"big-00001-of-{count:05d}.gguf"
    for number in range(count):
        keys = [("split.no", 2, struct.pack("<H", changes.get("numbers", range(count))[number])),
                ("split.count", 2, struct.pack("<H", count)),
                ("split.tensors.count", 5, struct.pack("<i", changes.get("total", len(names))))]  # fmt: skip
        if number == 0:
            keys.append(("general.architecture", 8, gguf_string("llama")))
            keys += [(key, 4, struct.pack("<I", v)) for key, v in header.metadata.items() if isinstance(v, int)]
        tensors, at = [], 0
        for name in names[number::count]:
            weight = header.tensors[name]
            tensors.append((name, tuple(reversed(weight.shape or ())), 1, at))
            at += -(-weight.bytes // 32) * 32
        (folder / f"big-{number + 1:05d}-of-{count:05d}.gguf").write_bytes(gguf_bytes(keys, tensors, at))
    return first


def test_a_model_in_several_files(tmp_path: Path) -> None:
    first = _parts(tmp_path, 3)
    assert read_model(str(first)).parameters == SMALL_TOTAL
    assert read_model(str(first.with_name("big-00002-of-00003.gguf"))).parameters == SMALL_TOTAL
    assert read_model(str(tmp_path)).parameters == SMALL_TOTAL
    first.with_name("big-00003-of-00003.gguf").unlink()
    refused(first, "big-00003-of-00003.gguf", "missing")


def test_parts_that_do_not_fit_together(tmp_path: Path) -> None:
    refused(_parts(tmp_path, 2, numbers=[0, 0]), "says it is part 0")
    refused(_parts(tmp_path, 2, total=20), "20", "21")
    first = _parts(tmp_path, 2)
    first.rename(tmp_path / "other.gguf")
    refused(tmp_path / "other.gguf", "NAME-00001-of-00002.gguf")


def test_a_large_vocabulary_is_passed_over_quickly(tmp_path: Path) -> None:
    token = gguf_string("a token of usual length")
    tokens = ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 300_000) + token * 300_000)
    scores = ("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 300_000) + b"\0" * 1_200_000)
    path = small(tmp_path, keys=[tokens, scores])
    start = time.process_time()
    assert read_model(str(path)).parameters == SMALL_TOTAL
    assert time.process_time() - start < 1.0
