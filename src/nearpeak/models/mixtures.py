"""Decoders with experts: which layers have them, how many, and where they lie."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.models import pieces as build
from nearpeak.models.config import Config
from nearpeak.models.decoder import LAYER, Mixture, Shape, Style
from nearpeak.models.llama_like import every_layer, upper_layers

MIXTRAL = build.ExpertNames(f"{LAYER}.block_sparse_moe", gate="w1", up="w3", down="w2")


def _mixtral(config: Config, shape: Shape) -> Mixture:
    return Mixture(
        build.every(shape.layers), config.size("intermediate_size"), config.size("num_local_experts", 8),
        config.size("num_experts_per_tok", 2), MIXTRAL,
    )  # fmt: skip


def sparse_layers(config: Config, layers: int) -> build.Layers:
    """Qwen: every decoder_sparse_step-th layer, but none of mlp_only_layers."""
    step = config.size("decoder_sparse_step", 1)
    dense = config.sizes("mlp_only_layers", (), least=0)
    return tuple(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _qwen3_moe(config: Config, shape: Shape) -> Mixture:
    return Mixture(
        sparse_layers(config, shape.layers), config.size("moe_intermediate_size"), config.size("num_experts"),
        config.size("num_experts_per_tok"),
    )  # fmt: skip


def qwen_shared(config: Config, shape: Shape) -> Mixture:
    """Qwen2-MoE and Qwen3-Next: one feed-forward that every position passes, with a gate of its own."""
    names = build.ExpertNames(shared="shared_expert", shared_gate="shared_expert_gate")
    shared = config.size("shared_expert_intermediate_size")
    return replace(_qwen3_moe(config, shape), names=names, shared_hidden=shared)


def _minimax(config: Config, shape: Shape) -> Mixture:
    return replace(_mixtral(config, shape), names=replace(MIXTRAL, correction="e_score_correction_bias"))


STYLES: dict[str, Style] = {
    "mixtral": Style("mixtral", kinds=every_layer, mixture=_mixtral),
    "qwen2_moe": Style("qwen2moe", bias_key="qkv_bias", bias_default=True, bias_letters="qkv", mixture=qwen_shared),
    "qwen3_moe": Style(
        "qwen3moe", bias_key="attention_bias", qk_norm="head", kinds=upper_layers, mixture=_qwen3_moe,
        defaults={"num_experts": 128, "num_experts_per_tok": 8},
    ),
    "minimax_m2": Style("minimax-m2", qk_norm="width", mixture=_minimax),
}  # fmt: skip
