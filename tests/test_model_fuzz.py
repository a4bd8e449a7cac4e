"""Files that nobody meant: whatever bytes stand there, the answer is a spec or a UserError, and soon."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_files import LLAMA, gguf_bytes, gguf_string, header_of, llama_tensors, small_gguf, write_folder, write_raw
from nearpeak.models.families import FAMILIES
from nearpeak.models.gguf_config import ARCHITECTURES
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec

QUICK = settings(
    max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def read_or_refuse(path: Path) -> ModelSpec | None:
    """The spec, whose account must be exact, or None with a one-line error."""
    refusal = ""
    try:
        spec = read_model(str(path))
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert len(refusal) < 5000
        return None
    assert spec.parameters == sum(stored.parameters for stored in spec.stored.values())
    assert spec.active_parameters <= spec.parameters
    assert spec.layers >= 0
    return spec


@QUICK
@given(data=st.data())
def test_any_value_for_any_key(tmp_path: Path, data: st.DataObject) -> None:
    """Keys that the families ask for, with values of every kind and near misses."""
    keys = st.sampled_from([
        *LLAMA, "head_dim", "layer_types", "num_experts", "num_local_experts", "num_experts_per_tok", "kv_lora_rank",
        "moe_intermediate_size", "sliding_window", "n_embd", "n_layer", "n_head", "n_positions", "d_model", "n_heads",
        "n_layers", "attn_config", "text_config", "quantization_config", "architectures", "id2label", "num_labels",
        "depths", "hidden_sizes", "image_size", "patch_size", "layers", "input", "per_layer_config", "full_attn_idxs",
        "mlp_only_layers", "decoder_sparse_step", "linear_num_key_heads", "linear_num_value_heads",
    ])  # fmt: skip
    config: dict[str, Any] = {**LLAMA, **data.draw(st.dictionaries(keys, VALUES, max_size=6))}
    config["model_type"] = data.draw(st.sampled_from(sorted(FAMILIES)) | VALUES)
    (tmp_path / "config.json").write_text(json.dumps(config))
    read_or_refuse(tmp_path)


@QUICK
@given(data=st.data())
def test_near_misses_of_every_known_config(tmp_path: Path, data: st.DataObject) -> None:
    """The configs of all known models with one to three keys changed: factors, lengths of lists, other kinds."""
    files = sorted(file.name for file in (resources.files("nearpeak.models") / "data").iterdir())
    text = (resources.files("nearpeak.models") / "data" / data.draw(st.sampled_from(files))).read_text()
    config = json.loads(text)["config"]
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        old = config[key]
        changed = VALUES
        if isinstance(old, list):
            changed |= st.just(old[:-1]) | st.just(old * 2) | st.lists(st.integers(0, 2**41), max_size=len(old) + 1)
        elif isinstance(old, (int, float)):
            changed |= st.sampled_from([0, 1, -old, old + 1, old * 1000, 10**12, 1e308, 1e-300])
        config[key] = data.draw(changed)
    (tmp_path / "config.json").write_text(json.dumps(config))
    read_or_refuse(tmp_path)


@QUICK
@given(data=st.data())
def test_any_number_for_any_key_of_a_gguf_file(tmp_path: Path, data: st.DataObject) -> None:
    architecture = data.draw(st.sampled_from(sorted(ARCHITECTURES)))
    names = ["block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count",
             "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window",
             "attention.sliding_window_pattern", "expert_count", "expert_used_count", "expert_feed_forward_length",
             "expert_shared_feed_forward_length", "attention.kv_lora_rank", "rope.dimension_count", "ssm.inner_size",
             "ssm.time_step_rank", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "shortconv.l_cache",
             "nextn_predict_layers", "attention.key_length_swa", "leading_dense_block_count"]  # fmt: skip
    numbers = st.sampled_from([0, 1, 2, 4, 8, 32, 64, -1, 2**31 - 1, -(2**31)])
    keys = [("general.architecture", 8, gguf_string(architecture))]
    for name in names:
        kind = data.draw(st.sampled_from(["number", "number", "number", "list", "text", "none"]))
        if kind == "number":
            keys.append((f"{architecture}.{name}", 5, struct.pack("<i", data.draw(numbers))))
        elif kind == "list":
            values = data.draw(st.lists(numbers, max_size=3))
            keys.append((f"{architecture}.{name}", 9, struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)))
        elif kind == "text":
            keys.append((f"{architecture}.{name}", 8, gguf_string("x")))
    tensors = [("token_embd.weight", (32, 96), 1, 0), ("blk.0.ffn_up.weight", (32, 64), 1, 6144),
               ("position_embd.weight", (32, 8), 1, 10240)]  # fmt: skip
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(keys, tensors, 10752))
    read_or_refuse(path)


@QUICK
@given(text=st.text(max_size=60) | VALUES.map(lambda value: json.dumps(value)), raw=st.binary(max_size=60))
def test_any_text_for_a_config(tmp_path: Path, text: str, raw: bytes) -> None:
    for content in (text.encode("utf-8", "surrogatepass"), raw):
        (tmp_path / "config.json").write_bytes(content)
        assert read_or_refuse(tmp_path) is None


@QUICK
@given(data=st.data())
def test_changed_bytes_of_a_safetensors_header(tmp_path: Path, data: st.DataObject) -> None:
    header = header_of(llama_tensors())
    raw = bytearray(json.dumps(header).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    folder = write_folder(tmp_path)
    size = max(entry["data_offsets"][1] for entry in header.values())
    write_raw(folder / "model.safetensors", bytes(raw), size + data.draw(st.sampled_from([0, 0, -1, 1, -100])))
    read_or_refuse(folder)


@QUICK
@given(data=st.data())
def test_any_entry_for_a_tensor(tmp_path: Path, data: st.DataObject) -> None:
    header: dict[str, Any] = header_of(llama_tensors())
    size = max(entry["data_offsets"][1] for entry in header.values())
    name = data.draw(st.sampled_from(sorted(header)) | st.text(max_size=5))
    whole = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    entries = st.fixed_dictionaries({key: VALUES | st.just(good) for key, good in whole.items()})
    header[name] = data.draw(VALUES | entries)
    folder = write_folder(tmp_path)
    write_raw(folder / "model.safetensors", json.dumps(header).encode(), size)
    read_or_refuse(folder)


@QUICK
@given(data=st.data())
def test_changed_bytes_of_a_gguf_file(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(small_gguf())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 2000))
        kind = data.draw(st.sampled_from(["byte", "u32", "u64", "cut"]))
        if kind == "cut":
            del raw[at:]
            break
        code, most = {"byte": ("<B", 2**8), "u32": ("<I", 2**32), "u64": ("<Q", 2**64)}[kind]
        value = data.draw(st.sampled_from([0, 1, 2, 31, 255, most - 1, most // 2]) | st.integers(0, most - 1))
        new = struct.pack(code, value % most)
        raw[at : at + len(new)] = new
    path = tmp_path / "x.gguf"
    path.write_bytes(bytes(raw))
    read_or_refuse(path)


@QUICK
@given(raw=st.binary(max_size=200))
def test_any_bytes_behind_the_magic(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.gguf"
    for start in (b"", b"GGUF", b"GGUF\3\0\0\0"):
        path.write_bytes(start + raw)
        assert read_or_refuse(path) is None


@QUICK
@given(table=VALUES, file=st.text(max_size=12))
def test_any_index(tmp_path: Path, table: Any, file: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for content in (table, {"weight_map": table}, {"weight_map": {"a": file + ".safetensors"}}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
        assert read_or_refuse(tmp_path) is None


@QUICK
@given(name=st.text(max_size=30))
def test_any_name(name: str) -> None:
    with suppress(UserError):
        assert read_model(name).parameters > 0
