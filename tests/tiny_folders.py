"""Folders of tiny random models of every family that runs, written by transformers itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

_SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 80, "max_position_embeddings": 128, "pad_token_id": None,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


def _rope(kind: str = "default", theta: float = 5000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
_LONG = {
    "original_max_position_embeddings": 32, "max_position_embeddings": 128,
    **_rope("longrope", partial_rotary_factor=0.75, long_factor=[1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
            short_factor=[1.0, 1.0, 1.25, 1.5, 1.5, 2.0], original_max_position_embeddings=32),
}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _rope()),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True, **_rope()}),
    "llama head_dim": ("Llama", {"head_dim": 32, "num_key_value_heads": 1, **_rope()}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, **_rope()}),
    "llama linear": ("Llama", _rope("linear", factor=3.0)),
    "llama 3": ("Llama", _LLAMA3),
    "llama yarn": ("Llama", _rope("yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=16.0)),
    "mistral": ("Mistral", {"sliding_window": 6, **_rope()}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, **_rope()}),
    "qwen2": ("Qwen2", _rope(theta=1e6)),
    "qwen2 yarn": ("Qwen2", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True, **_rope()}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 32, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                               "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1, **_rope()}),
    "gemma2": ("Gemma2", {"head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32, "num_hidden_layers": 4,
                          "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", {"head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32, "num_hidden_layers": 7,
                          "tie_word_embeddings": True, "rope_parameters": {
                              "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "phi3": ("Phi3", {"sliding_window": 9, **_rope()}),
    "phi4": ("Phi3", {"tie_word_embeddings": True, **_LONG}),
    "olmo2": ("Olmo2", _rope()),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": True, **_rope()}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 80}),
}  # fmt: skip


def tiny(case: str, **more: Any) -> Any:
    """A random model of transformers in fp32. Norms and biases are drawn too, so that a lost one shows."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    name, changes = CASES[case]
    config = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")
    shape = {"bos_token_id": 1, "eos_token_id": 2} if name == "GPT2" else _SHAPE
    kind = getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    model = kind(config(**{**shape, **changes, **more})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)  # so that attention is no mere average
    return model


def save_tiny(
    folder: Path, case: str, dtype: torch.dtype = torch.float32, more: dict[str, Any] | None = None, **how: Any
) -> Any:
    """The same, also written to `folder`. more: changes of its config."""
    model = tiny(case, **(more or {})).to(dtype)
    model.save_pretrained(folder, **how)
    return model
