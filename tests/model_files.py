"""Model files for the tests: headers as asked for, data as a hole in the file, so that hundreds of GB cost nothing."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "I64": 64, "I32": 32, "I8": 8, "U8": 8, "BOOL": 8}

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def llama_tensors(config: Mapping[str, Any] = LLAMA, dtype: str = "BF16") -> dict[str, tuple[str, tuple[int, ...]]]:
    """name → dtype and shape of a Llama, spelled out here and not by the code that is tested."""
    width, hidden, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = width // config["num_attention_heads"]
    keys = config["num_key_value_heads"] * head_dim
    found = {
        "model.embed_tokens.weight": (vocab, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocab, width),
    }
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}"
        found |= {
            f"{stem}.self_attn.q_proj.weight": (width, width), f"{stem}.self_attn.k_proj.weight": (keys, width),
            f"{stem}.self_attn.v_proj.weight": (keys, width), f"{stem}.self_attn.o_proj.weight": (width, width),
            f"{stem}.mlp.gate_proj.weight": (hidden, width), f"{stem}.mlp.up_proj.weight": (hidden, width),
            f"{stem}.mlp.down_proj.weight": (width, hidden), f"{stem}.input_layernorm.weight": (width,),
            f"{stem}.post_attention_layernorm.weight": (width,),
        }  # fmt: skip
    return {name: (dtype, shape) for name, shape in found.items()}


def header_of(tensors: Tensors) -> dict[str, Any]:
    """The header of a safetensors file with these tensors, one behind the other."""
    at, header = 0, {}
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return header


def write_safetensors(path: Path, tensors: Tensors) -> int:
    """A file whose data is a hole; its size."""
    header = header_of(tensors)
    data = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    return write_raw(path, json.dumps({"__metadata__": {"format": "pt"}, **header}).encode(), data)


def write_raw(path: Path, header: bytes, data: int, length: int | None = None) -> int:
    """A file with this header and `data` bytes of hole; `length` is what its first eight bytes say."""
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header) if length is None else length) + header)
        size = 8 + len(header) + data
        file.truncate(size)
    return size


def write_folder(folder: Path, config: Mapping[str, Any] = LLAMA, tensors: Tensors | None = None) -> Path:
    """config.json and model.safetensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", llama_tensors(config) if tensors is None else tensors)
    return folder


def write_sharded(
    folder: Path, tensors: Tensors, count: int, index: bool = True, config: Mapping[str, Any] = LLAMA
) -> Path:
    """The same in several files, with an index or without."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names, table = list(tensors), {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        mine = names[number::count]
        write_safetensors(folder / file, {name: tensors[name] for name in mine})
        table |= dict.fromkeys(mine, file)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return folder


def gguf_string(text: str) -> bytes:
    """As a GGUF file has it."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_bytes(
    keys: list[tuple[str, int, bytes]],
    tensors: list[tuple[str, tuple[int, ...], int, int]],
    data: int,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file byte by byte. keys: name, type, value as it lies; tensors: name, sizes (rows last), type, offset."""
    tensor_count, key_count = counts or (len(tensors), len(keys))
    out = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count)
    for name, kind, value in keys:
        out += gguf_string(name) + struct.pack("<I", kind) + value
    for name, sizes, kind, offset in tensors:
        out += gguf_string(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        out += struct.pack("<IQ", kind, offset)
    out += b"\0" * (-len(out) % 32)
    return out + b"\0" * data


def small_gguf(**changes: Any) -> bytes:
    """A Llama of two layers in F16, with changes: version, counts, extra keys or tensors, data."""

    def u32(value: int) -> bytes:
        return struct.pack("<I", value)

    keys = [("general.architecture", 8, gguf_string("llama"))]
    for name, value in {
        "llama.block_count": 2, "llama.embedding_length": 32, "llama.context_length": 64,
        "llama.feed_forward_length": 64, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        **changes.pop("numbers", {}),
    }.items():  # fmt: skip
        keys.append((name, 4, u32(value)))
    shapes = {"token_embd": (32, 96), "output_norm": (32,), "output": (32, 96)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_q": (32, 32), "attn_k": (32, 16), "attn_v": (32, 16), "attn_output": (32, 32),
                "ffn_gate": (32, 64), "ffn_up": (32, 64), "ffn_down": (64, 32), "attn_norm": (32,), "ffn_norm": (32,),
            }.items()
        }  # fmt: skip
    shapes |= changes.pop("shapes", {})
    at, tensors = 0, []
    for name, shape in shapes.items():
        tensors.append((f"{name}.weight", shape, 1, at))
        at += -(-math.prod(shape) * 2 // 32) * 32
    keys += changes.pop("keys", [])
    tensors += changes.pop("tensors", [])
    return gguf_bytes(keys, tensors, changes.pop("data", at), **changes)
