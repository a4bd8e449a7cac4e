"""Decoders with experts: which layers have them, how many, and where they lie."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.models import pieces as build
from nearpeak.models.architecture import Piece, Tensor
from nearpeak.models.config import Config
from nearpeak.models.decoder import LAYER, Mixture, Shape, Style
from nearpeak.models.llama_like import every_layer, every_second, upper_layers
from nearpeak.records.model_spec import Experts

MIXTRAL = build.ExpertNames(f"{LAYER}.block_sparse_moe", gate="w1", up="w3", down="w2")


def _mixtral(config: Config, shape: Shape) -> Mixture:
    return Mixture(
        build.every(shape.layers), config.size("intermediate_size"), config.size("num_local_experts", 8),
        config.size("num_experts_per_tok", 2), MIXTRAL,
    )  # fmt: skip


def sparse_layers(config: Config, layers: int) -> build.Layers:
    """Qwen: every decoder_sparse_step-th layer, but none of mlp_only_layers."""
    step = config.size("decoder_sparse_step", 1)
    dense = frozenset(config.sizes("mlp_only_layers", (), least=0))
    return tuple(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _qwen3_moe(config: Config, shape: Shape) -> Mixture:
    return Mixture(
        sparse_layers(config, shape.layers), config.size("moe_intermediate_size"),
        config.size(config.either("num_experts", "num_local_experts")), config.size("num_experts_per_tok"),
    )  # fmt: skip


def qwen_shared(config: Config, shape: Shape) -> Mixture:
    """Qwen2-MoE and Qwen3-Next: one feed-forward that every position passes, with a gate of its own."""
    names = build.ExpertNames(shared="shared_expert", shared_gate="shared_expert_gate")
    shared = config.size("shared_expert_intermediate_size")
    return replace(_qwen3_moe(config, shape), names=names, shared_hidden=shared)


def qwen_shared_fused(config: Config, shape: Shape) -> Mixture:
    """Qwen3.5-MoE: as qwen_shared, its files hold all experts of a layer in one tensor."""
    return replace(qwen_shared(config, shape), fused=True)


def _minimax(config: Config, shape: Shape) -> Mixture:
    config.must_be("use_qk_norm", True, "MiniMax-M2 without norms of queries and keys is not read")
    config.must_be("qk_norm_type", "per_layer", "only norms over all heads together are read")
    return replace(_mixtral(config, shape), names=replace(MIXTRAL, correction="e_score_correction_bias"))


def _gpt_oss(config: Config, shape: Shape) -> Mixture:
    return replace(
        _mixtral(config, shape), experts=config.size("num_local_experts"), chosen=config.size("num_experts_per_tok"),
        build=_gpt_oss_experts,
    )  # fmt: skip


def _gpt_oss_experts(shape: Shape, mixture: Mixture) -> Piece:
    """All maps have biases, the router too; gate and up lie interleaved in one tensor."""
    count, hidden, width = mixture.experts, mixture.hidden, shape.width
    stem, blk = f"{LAYER}.mlp", "blk.{i}.ffn"
    router = build.weights(f"{stem}.router", width, count, f"{blk}_gate_inp", bias=True)
    tensors = (
        Tensor(f"{stem}.experts.gate_up_proj", (count, width, 2 * hidden)),
        Tensor(f"{stem}.experts.gate_up_proj_bias", (count, 2 * hidden)),
        Tensor(f"{stem}.experts.down_proj", (count, hidden, width)),
        Tensor(f"{stem}.experts.down_proj_bias", (count, width)),
    )
    sizes = {"gate": (hidden, width), "up": (hidden, width), "down": (width, hidden)}
    in_gguf = tuple(Tensor("", size, f"{blk}_{name}_exps.weight", count) for name, size in sizes.items())
    in_gguf += tuple(Tensor("", size[:1], f"{blk}_{name}_exps.bias", count) for name, size in sizes.items())
    part = Experts(
        "experts", len(mixture.layers), "text", width=width, hidden=hidden, experts=count, chosen=mixture.chosen,
        router_bias=count, bias=2 * hidden + width,
    )  # fmt: skip
    return Piece(part, router + tensors, mixture.layers, otherwise=(router + in_gguf,))


def _llama4(config: Config, shape: Shape) -> Mixture:
    step = config.size("interleave_moe_layer_step", 1)
    layers = config.sizes("moe_layers", tuple(range(step - 1, shape.layers, step)), least=0)
    if len(set(layers)) != len(layers) or max(layers, default=0) >= shape.layers:
        raise config.error("moe_layers", f"lists a layer twice, or one beyond the {shape.layers} layers")
    hidden = config.size("intermediate_size")
    return Mixture(
        layers, hidden, config.size("num_local_experts"), config.size("num_experts_per_tok", 1), LLAMA4, hidden,
        build=_llama4_experts,
    )  # fmt: skip


def _llama4_experts(shape: Shape, mixture: Mixture) -> Piece:
    """Stored (experts, inputs, outputs)."""
    made = build.experts(
        mixture.names, mixture.layers, shape.width, mixture.hidden, mixture.experts, mixture.chosen,
        shared_hidden=mixture.shared_hidden,
    )  # fmt: skip
    each = [tensor for tensor in made.tensors if "{e}" in tensor.name]
    around = tuple(tensor for tensor in made.tensors if "{e}" not in tensor.name)
    stem = f"{mixture.names.stem}.experts"
    together = (
        Tensor(f"{stem}.gate_up_proj", (mixture.experts, shape.width, 2 * mixture.hidden)),
        Tensor(f"{stem}.down_proj", (mixture.experts, mixture.hidden, shape.width)),
    )
    return replace(made, tensors=around + together, otherwise=((*around, *each),))


def _llama4_dense(config: Config, shape: Shape, layers: build.Layers, bias: bool) -> list[Piece]:
    return [build.gated(f"{LAYER}.feed_forward", layers, shape.width, config.size("intermediate_size_mlp"))]


def _llama4_kinds(config: Config, layers: int) -> list[str]:
    """Layers with rotary positions see one chunk of the text, those without see all."""
    step = config.size("no_rope_layer_interval", 4)
    rotary = config.sizes("no_rope_layers", (), least=0) or tuple(int((i + 1) % step != 0) for i in range(layers))
    if len(rotary) != layers:
        raise config.error("no_rope_layers", f"has {len(rotary)} entries for {layers} layers")
    return ["chunked_attention" if there else "full_attention" for there in rotary]


GPT_OSS_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
LLAMA4 = build.ExpertNames(f"{LAYER}.feed_forward", router="router", shared="shared_expert")
_GPT_OSS = {"head_dim": 64, "sliding_window": 128, "num_experts_per_tok": 4}

STYLES: dict[str, Style] = {
    "mixtral": Style("mixtral", kinds=every_layer, mixture=_mixtral),
    "qwen2_moe": Style("qwen2moe", bias_key="qkv_bias", bias_default=True, bias_letters="qkv", mixture=qwen_shared),
    "qwen3_moe": Style(
        "qwen3moe", bias_key="attention_bias", qk_norm="head", kinds=upper_layers, mixture=_qwen3_moe,
        defaults={"num_experts_per_tok": 8},
    ),
    "minimax_m2": Style("minimax-m2", qk_norm="width", mixture=_minimax),
    "gpt_oss": Style(
        "gpt-oss", bias_key="attention_bias", bias_default=True, sinks="sinks", norms=GPT_OSS_NORMS,
        kinds=every_second, mixture=_gpt_oss, defaults=_GPT_OSS,
    ),
    "llama4_text": Style(
        "llama4", bias_key="attention_bias", kinds=_llama4_kinds, mixture=_llama4, feed_forward=_llama4_dense,
        defaults={"head_dim": 128, "attention_chunk_size": 8192, "num_key_value_heads": 8},
        notes=("Layers that see one chunk of the text are counted as a window of the chunk's length.",),
    ),
}  # fmt: skip
