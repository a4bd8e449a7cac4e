"""The weights of folders and GGUF files against transformers, the safetensors library and the gguf library."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gguf_files import write_gguf
from model_files import write_sharded
from nearpeak.models.checkpoint import open_checkpoint
from nearpeak.models.gguf_header import TYPES
from nearpeak.models.gguf_tensors import unpacked
from nearpeak.models.mapped_file import MappedFile
from nearpeak.models.tensor_files import open_tensors
from nearpeak.records.errors import UserError
from tiny_folders import CASES, save_tiny

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")


def refused(path: Path, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        open_checkpoint(path)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found


# A GGUF file means what the folder means that it was made from


@pytest.mark.parametrize("case", CASES)
def test_a_gguf_file_means_what_its_folder_means(tmp_path: Path, case: str) -> None:
    """Tensors equal one by one; and transformers, given the keys and tensors that we read, gives the same logits at
    short and long positions. Reports: vllm-metal#480, tensai#37, transformers#31766, nurl#584 (rows of q and k)."""
    model = save_tiny(tmp_path / "folder", case)
    folder = open_checkpoint(tmp_path / "folder")
    file = open_checkpoint(write_gguf(tmp_path / "folder", tmp_path / "x.gguf"))
    assert set(folder.held) == set(file.held)
    for name in folder.held:
        a, b = folder.read(name), file.read(name)
        assert a.shape == b.shape == file.weight(name).shape
        # Gemma's norms lose what lies below the last digit of 1 + w
        torch.testing.assert_close(b, a, rtol=0, atol=2**-23 if "norm" in name else 0)
    again = tmp_path / "again"
    again.mkdir()
    save_file({name: file.read(name).contiguous().clone() for name in file.held}, again / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    (again / "config.json").write_text(json.dumps({**file.config, "pad_token_id": None}))
    other = type(model).from_pretrained(again).eval()
    ids = torch.randint(3, 80, (1, 100))
    one, two = logits(model, ids), logits(other, ids)
    error = ((one - two).norm() / one.norm()).item()
    assert not error > 2e-6
    assert one.std() > 0.1


def test_rows_that_were_not_reordered_are_seen(tmp_path: Path) -> None:
    """The comparison above can fail: a Llama written without its reordering gives other tensors."""
    save_tiny(tmp_path / "folder", "llama")
    folder = open_checkpoint(tmp_path / "folder")
    file = open_checkpoint(write_gguf(tmp_path / "folder", tmp_path / "x.gguf", permute=False))
    name = "model.layers.1.self_attn.k_proj.weight"
    a, b = folder.read(name).flatten(), file.read(name).flatten()
    assert torch.nn.functional.cosine_similarity(a, b, 0) < 0.9
    assert torch.equal(folder.read("model.norm.weight"), file.read("model.norm.weight"))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("case", ["llama", "qwen2", "mixtral", "gpt2"])
def test_packed_files(tmp_path: Path, case: str, kind: str) -> None:
    """The file holds what the gguf library makes of the tensors: reading it gives what the library unpacks."""
    save_tiny(tmp_path / "folder", case)
    folder, path = open_checkpoint(tmp_path / "folder"), write_gguf(tmp_path / "folder", tmp_path / "x.gguf", kind)
    file = open_checkpoint(path)
    most = {"F16": 5e-4, "BF16": 4e-3, "Q8_0": 0.01, "Q4_0": 0.15, "Q4_1": 0.12, "Q5_0": 0.08, "Q5_1": 0.06}[kind]
    packed = 0
    for name in folder.held:
        a, b = folder.read(name), file.read(name)
        error = ((a - b.float()).norm() / a.norm()).item()
        assert not error > most, name
        packed += error > 0
        assert torch.equal(file.read(name, torch.bfloat16), b.to(torch.bfloat16))
    assert packed > 5
    reader = gguf.GGUFReader(path)
    raw = next(
        tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_down.weight" or "down_exps" in tensor.name
    )
    values = gguf.quants.dequantize(raw.data, raw.tensor_type)
    assert np.array_equal(open_tensors(path).read(raw.name, torch.float32).numpy(), values)


# Every type of the gguf library


def _one_tensor(path: Path, number: int, data: bytes, rows: int, columns: int) -> Path:
    """A GGUF file of a small Llama, whose first feed-forward is of this type and holds these bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"block_count": 1, "context_length": 64, "embedding_length": columns, "feed_forward_length": rows,
                       "attention.head_count": 4, "attention.head_count_kv": 4}.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    shapes = {"token_embd": (8, columns), "output_norm": (columns,), "blk.0.attn_norm": (columns,),
              "blk.0.ffn_norm": (columns,), "blk.0.ffn_gate": (rows, columns), "blk.0.ffn_down": (columns, rows),
              **{f"blk.0.attn_{x}": (columns, columns) for x in ("q", "k", "v", "output")}}  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    kind = gguf.GGMLQuantizationType(number)
    array = np.frombuffer(data, np.uint8).reshape(rows, -1)
    writer.add_tensor("blk.0.ffn_up.weight", array, raw_shape=array.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("number", [number for number, (_, block, _) in TYPES.items() if block > 1])
def test_every_packed_type_with_random_bytes(tmp_path: Path, number: int) -> None:
    """Equal to the library, infinities and all; and what it does not unpack is refused by its name."""
    name, block, size = TYPES[number]
    rows, columns = 33, 768
    data = np.random.default_rng().integers(0, 256, rows * columns // block * size, np.uint8)
    path = _one_tensor(tmp_path / "x.gguf", number, data.tobytes(), rows, columns)
    if name not in unpacked():
        refused(path, "blk.0.ffn_up.weight", name, "does not unpack")
        return
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(data.reshape(rows, -1), gguf.GGMLQuantizationType(number))
    up = "model.layers.0.mlp.up_proj.weight"
    file = open_checkpoint(path)
    assert np.array_equal(file.read(up).numpy(), wanted, equal_nan=True)
    part = file.files.read("blk.0.ffn_up.weight", torch.float32, slice(7, 20))
    assert np.array_equal(part.numpy(), wanted[7:20], equal_nan=True)
    half = file.read(up, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half.isnan(), torch.from_numpy(wanted).isnan())


def test_enough_types_are_unpacked() -> None:
    assert {"q4_0", "q4_k", "q6_k", "iq4_nl", "iq1_s", "tq1_0", "mxfp4", "q8_0"} <= unpacked()


def test_a_large_packed_tensor_takes_little_more_memory_than_its_result(tmp_path: Path) -> None:
    rows, columns = 4096, 2048
    data = np.random.default_rng().integers(0, 100, rows * columns // 32 * 34, np.uint8).tobytes()
    path = _one_tensor(tmp_path / "x.gguf", 8, data, rows, columns)
    del data
    file = open_tensors(path)
    tracemalloc.start()
    out = file.read("blk.0.ffn_up.weight", torch.bfloat16)
    _, peak = tracemalloc.get_traced_memory()  # numpy's alone: torch's result is not seen
    tracemalloc.stop()
    assert out.shape == (rows, columns)
    assert peak < 16 << 20


# safetensors


def test_a_folder_is_mapped_without_copies(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", torch.bfloat16)
    checkpoint = open_checkpoint(tmp_path)
    file = MappedFile(tmp_path / "model.safetensors")
    raw = load_file(tmp_path / "model.safetensors")
    assert set(raw) == set(checkpoint.held)
    for name, wanted in raw.items():
        one, two = checkpoint.read(name), checkpoint.read(name, torch.bfloat16)
        assert torch.equal(one, wanted)
        assert one.data_ptr() == two.data_ptr()
        assert torch.equal(checkpoint.read(name, torch.float32), wanted.float())
    file.read_ahead(0, 1000)
    with pytest.raises(UserError, match="has changed"):
        file.raw(0, 1 << 40)


def test_shards(tmp_path: Path) -> None:
    """With an index and without. Reports: sglang#32279, nano-vllm#264 (a missing one goes unnoticed)."""
    save_tiny(tmp_path / "one", "llama")
    save_tiny(tmp_path / "many", "llama", max_shard_size="60KB")
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 2
    for index in (True, False):
        if not index:
            (tmp_path / "many/model.safetensors.index.json").unlink()
        many = open_checkpoint(tmp_path / "many")
        for file in files:
            for name, wanted in load_file(file).items():
                assert torch.equal(many.read(name), wanted)
    files[1].unlink()
    refused(tmp_path / "many", files[1].name, "missing")
    for file in files[2:] + files[:1]:
        file.unlink()
    refused(tmp_path / "many", "no .safetensors file")


def test_a_missing_shard_of_an_index(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", max_shard_size="60KB")
    first = sorted(tmp_path.glob("*.safetensors"))[0]
    first.unlink()
    refused(tmp_path, first.name, "missing", "tensors there")


def _rewrite(folder: Path, change: Any) -> dict[str, torch.Tensor]:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return tensors


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    name = "model.layers.1.post_attention_layernorm.weight"
    _rewrite(tmp_path, lambda tensors: tensors.pop(name))
    refused(tmp_path, name, "missing", "[64]")


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    _rewrite(tmp_path, lambda tensors: tensors.update({"model.layers.1.self_attn.sinks": torch.zeros(4)}))
    refused(tmp_path, "model.layers.1.self_attn.sinks", "belongs to no part")


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    name = "model.layers.0.mlp.up_proj.weight"
    _rewrite(tmp_path, lambda tensors: tensors.update({name: torch.zeros(64, 96)}))
    refused(tmp_path, name, "[64, 96]", "[96, 64]")


def test_a_dtype_that_is_not_run_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    name = "model.layers.0.mlp.up_proj.weight"
    _rewrite(tmp_path, lambda tensors: tensors.update({name: tensors[name].double()}))
    refused(tmp_path, name, "fp64", "bf16")
    _rewrite(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    refused(tmp_path, name, "fp8")


@pytest.mark.parametrize(
    "method", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "awq", "bits": 4}, {"quant_method": "fp8"},
               {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_algo": "NVFP4"}, "x"],
)  # fmt: skip
def test_quantised_folders_are_refused_by_name(tmp_path: Path, method: Any) -> None:
    save_tiny(tmp_path, "llama")
    change_config(tmp_path, quantization_config=method)
    named = next(iter(method.values())) if isinstance(method, dict) else "quantization_config"
    refused(tmp_path, str(named), "quantization_config", "GGUF")


def test_quantised_folders_without_a_word_in_the_config(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    name = "model.layers.0.mlp.up_proj"
    _rewrite(tmp_path, lambda tensors: tensors.update({f"{name}.qweight": torch.zeros(8, 96, dtype=torch.int32)}))
    refused(tmp_path, "GPTQ or AWQ", f"{name}.qweight")
    (tmp_path / "quantize_config.json").write_text("{}")
    refused(tmp_path, "GPTQ", "quantize_config.json")


def test_what_holds_no_weights(tmp_path: Path) -> None:
    refused(tmp_path, "config.json")
    save_tiny(tmp_path, "llama")
    refused(tmp_path / "model.safetensors", "name its folder")
    refused(tmp_path / "nothing", "holds no weights")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refused(tmp_path, "pickled")


def test_a_model_without_a_head(tmp_path: Path) -> None:
    from nearpeak.models.read import read_model

    save_tiny(tmp_path, "llama")
    _rewrite(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    change_config(tmp_path, architectures=["LlamaModel"])
    assert read_model(str(tmp_path)).task == "encode"
    refused(tmp_path, "no head")


# Report: vllm#53019, Qwen3-VL-Embedding#89


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("head", ["absent", "equal", "other"])
def test_a_tied_head_is_what_the_files_say(tmp_path: Path, says: bool, head: str) -> None:
    save_tiny(tmp_path, "llama")
    embedding = "model.embed_tokens.weight"

    def change(tensors: dict[str, torch.Tensor]) -> None:
        if head == "absent":
            del tensors["lm_head.weight"]
        elif head == "equal":
            tensors["lm_head.weight"] = tensors[embedding].clone()

    tensors = _rewrite(tmp_path, change)
    change_config(tmp_path, tie_word_embeddings=says)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config["tie_word_embeddings"] is (head != "other")
    assert ("lm_head.weight" in checkpoint.held) is (head == "other")
    if head == "other":
        assert torch.equal(checkpoint.read("lm_head.weight"), tensors["lm_head.weight"])
    contradicts = says == (head == "other")
    assert any("lm_head.weight" in note for note in checkpoint.notes) is contradicts
    assert any("lm_head.weight" in note for note in checkpoint.spec.notes) is (
        contradicts or (says and head == "equal")
    )


def test_a_gguf_file_with_a_second_copy_of_its_embedding(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    _rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    checkpoint = open_checkpoint(write_gguf(tmp_path, tmp_path / "x.gguf"))
    assert checkpoint.config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in checkpoint.held


def test_holes_instead_of_weights(tmp_path: Path) -> None:
    """A file of 40 GB of nothing: opening it reads headers alone."""
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
              "max_position_embeddings": 8192, "tie_word_embeddings": False}  # fmt: skip
    from model_files import llama_tensors

    write_sharded(tmp_path, llama_tensors(config), 4, config=config)
    tensors = open_tensors(tmp_path)
    assert sum(weight.bytes for weight in tensors.weights.values()) == 16_060_522_496
