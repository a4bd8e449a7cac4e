"""GGUF files for the tests, written by the gguf library from tensors of transformers. What llama.cpp's converter does
to names, order of rows and norms is spelled out here once more, and not by the code that is tested."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "olmo2": "olmo2",
    "smollm3": "smollm3", "gpt2": "gpt2",
}  # fmt: skip

Tensors = dict[str, np.ndarray]
Kind = Callable[[str, tuple[int, ...]], str]  # name in the GGUF file, shape → name of a type of the gguf library


def read_folder(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """config.json, and all tensors in fp32, read by the safetensors library."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {name: tensor.float().numpy() for name, tensor in load_file(file).items()}
    return config, tensors


def write_gguf(folder: Path, path: Path, kind: str | Kind = "F32", extra: Mapping[str, Any] | None = None,
               permute: bool | None = None) -> Path:  # fmt: skip
    """A folder of safetensors as one GGUF file. kind: type of matrices; extra: keys below the architecture's name;
    permute: whether rows of q and k are reordered (None: as the converter does)."""
    import gguf

    config, tensors = read_folder(folder)
    architecture = ARCHITECTURES[config["model_type"]]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(number, layers)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**keys_of(config), **(extra or {})}.items():
        name = f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    if permute is None:
        permute = architecture in ("llama", "smollm3")
    stacks: dict[str, list[np.ndarray]] = {}
    for name, tensor in [*converted(config, tensors, permute), *rope_tensors(config)]:
        ours = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        if ".experts." in name:
            stacks.setdefault(ours, []).append(tensor)
        else:
            add(writer, ours, tensor, kind)
    for ours, several in stacks.items():
        add(writer, ours, np.stack(several), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: Any, name: str, tensor: np.ndarray, kind: str | Kind) -> None:
    """Vectors and norms stay fp32, as the converter leaves them."""
    import gguf

    chosen = kind if isinstance(kind, str) else kind(name, tensor.shape)
    if tensor.ndim < 2 or "norm" in name or "_inp" in name or "position" in name:
        chosen = "F32"
    number = gguf.GGMLQuantizationType[chosen]
    packed = gguf.quants.quantize(np.ascontiguousarray(tensor, np.float32), number)
    writer.add_tensor(name, packed, raw_dtype=number)


def converted(config: Mapping[str, Any], tensors: Tensors, permute: bool) -> list[tuple[str, np.ndarray]]:
    """Each tensor as it is written, still under transformers' name; experts one by one, in order."""
    kind = config["model_type"]
    found = []
    for name, tensor in sorted(tensors.items(), key=lambda item: [int(x) if x.isdigit() else x for x in
                                                                   re.split(r"(\d+)", item[0])]):  # fmt: skip
        if permute and (match := re.search(r"self_attn\.([qk])_proj\.(weight|bias)$", name)):
            heads = config["num_attention_heads"] if match[1] == "q" else config["num_key_value_heads"]
            new = np.empty_like(tensor)
            half = tensor.shape[0] // heads // 2
            for head in range(heads):
                for row in range(half):
                    start = head * 2 * half
                    new[start + 2 * row] = tensor[start + row]
                    new[start + 2 * row + 1] = tensor[start + half + row]
            tensor = new
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        if kind == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
            tensor = tensor.T
        if match := re.match(r"(.*\.experts)\.\d+\.(.*)", name):
            name = f"{match[1]}.{match[2]}"
            name = re.sub(r"model\.layers\.(\d+)\.block_sparse_moe\.", r"layers.\1.feed_forward.", name)
        found.append((name, tensor))
    return found


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters of the layers that see everything."""
    rope = config.get("rope_parameters") or {}
    return rope.get("full_attention", rope)


def rope_tensors(config: Mapping[str, Any]) -> list[tuple[str, np.ndarray]]:
    """What the converter writes for Llama 3 and for Phi-3's long context."""
    rope = rope_of(config)
    if rope.get("rope_type") == "longrope":
        return [
            (f"rope_factors_{one}.weight", np.array(rope[f"{one}_factor"], np.float32)) for one in ("long", "short")
        ]
    if rope.get("rope_type") != "llama3":
        return []
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, factors = rope["original_max_position_embeddings"], []
    for j in range(0, dim, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (j / dim)
        smooth = (original / wave - low) / (high - low)
        smooth = min(1.0, max(0.0, smooth))
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return [("rope_freqs.weight", np.array(factors, np.float32))]


def keys_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as the converter writes them."""
    if config["model_type"] == "gpt2":
        return {
            "block_count": config["n_layer"], "context_length": config["n_positions"],
            "embedding_length": config["n_embd"], "feed_forward_length": 4 * config["n_embd"],
            "attention.head_count": config["n_head"], "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        }  # fmt: skip
    keys: dict[str, Any] = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }  # fmt: skip
    dim = config.get("head_dim")
    if dim:
        keys |= {"attention.key_length": dim, "attention.value_length": dim}
    dim = dim or config["hidden_size"] // config["num_attention_heads"]
    rope = rope_of(config)
    if config["model_type"] != "gemma2":
        keys["rope.freq_base"] = float(rope["rope_theta"])
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        for name in ("beta_fast", "beta_slow"):
            if rope.get(name) is not None:
                keys[f"rope.scaling.yarn_{name}"] = float(rope[name])
    if config["model_type"] in ("llama", "mistral", "mixtral", "smollm3"):
        keys |= {"rope.dimension_count": dim, "vocab_size": config["vocab_size"]}
    if config["model_type"] == "phi3":
        rotary = int(rope.get("partial_rotary_factor", 1.0) * dim)
        original = config["original_max_position_embeddings"]
        keys |= {"rope.dimension_count": rotary, "rope.scaling.original_context_length": original}
        if kind == "longrope":
            scale = config["max_position_embeddings"] / original
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
        keys["attention.sliding_window"] = config.get("sliding_window") or 0
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    if config.get("moe_intermediate_size"):
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if config["model_type"] == "mistral" and config.get("sliding_window"):
        keys["attention.sliding_window"] = config["sliding_window"]
    if config["model_type"].startswith("gemma"):
        keys["attention.sliding_window"] = config["sliding_window"]
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(name):
                keys[name] = float(config[name])
        local = (config.get("rope_parameters") or {}).get("sliding_attention")
        if config["model_type"] == "gemma3_text" and local:
            keys["rope.freq_base_swa"] = float(local["rope_theta"])
    return keys
