"""Decoders whose layers are not all attention: gated delta rule (Qwen3-Next, Qwen3.5), short convolution (LFM2)."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.models import mixtures
from nearpeak.models import pieces as build
from nearpeak.models.architecture import Piece, Tensor
from nearpeak.models.config import Config
from nearpeak.models.decoder import LAYER, Mixer, Shape, Style
from nearpeak.models.llama_like import one_in
from nearpeak.records.model_spec import Recurrent

QWEN_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
LFM2_NORMS = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm"}
MTP = "multi-token prediction; engines load it for speculative decoding alone"


def _delta_rule(together: bool) -> Mixer:
    """Gated DeltaNet (arXiv 2412.06464). together: q, k, v and gate in one map, as Qwen3-Next stores them."""

    def mixers(config: Config, shape: Shape, by_kind: dict[str, build.Layers]) -> list[Piece]:
        layers = by_kind.pop("linear_attention", ())
        if not layers:
            return []
        keys, values = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
        config.divides("linear_num_key_heads", keys, "linear_num_value_heads", values)
        key_dim, value_dim = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
        taps = config.size("linear_conv_kernel_dim")
        key_width, value_width, width = keys * key_dim, values * value_dim, shape.width
        channels = 2 * key_width + value_width
        stem, gguf = f"{LAYER}.linear_attn", "blk.{i}"
        split = (
            *build.weights(f"{stem}.in_proj_qkv", width, channels, f"{gguf}.attn_qkv"),
            *build.weights(f"{stem}.in_proj_z", width, value_width, f"{gguf}.attn_gate"),
            *build.weights(f"{stem}.in_proj_b", width, values, f"{gguf}.ssm_beta"),
            *build.weights(f"{stem}.in_proj_a", width, values, f"{gguf}.ssm_alpha"),
        )
        joined = (
            *build.weights(f"{stem}.in_proj_qkvz", width, channels + value_width, f"{gguf}.ssm_in"),
            *build.weights(f"{stem}.in_proj_ba", width, 2 * values, f"{gguf}.ssm_ba"),
        )
        in_gguf = (  # Qwen3-Next as llama.cpp converts it now
            Tensor("", (channels, width), f"{gguf}.attn_qkv.weight"),
            Tensor("", (value_width, width), f"{gguf}.attn_gate.weight"),
            Tensor("", (2 * values, width), f"{gguf}.ssm_ba.weight"),
        )
        rest = (
            Tensor(f"{stem}.conv1d.weight", (channels, 1, taps), f"{gguf}.ssm_conv1d.weight"),
            Tensor(f"{stem}.dt_bias", (values,), f"{gguf}.ssm_dt.bias"),
            Tensor(f"{stem}.A_log", (values,), f"{gguf}.ssm_a"),
            Tensor(f"{stem}.norm.weight", (value_dim,), f"{gguf}.ssm_norm.weight"),
            *build.weights(f"{stem}.out_proj", value_width, width, f"{gguf}.ssm_out"),
        )
        shapes = {
            "qkv": (width, channels), "z": (width, value_width), "ba": (width, 2 * values), "out": (value_width, width),
        }  # fmt: skip
        # each head: decay the state, read what it predicts for the key, add the correction, read for the query
        update = 7.0 * values * key_dim * value_dim
        part = Recurrent(
            "linear_attention", len(layers), "text", shapes=shapes, others=channels * taps + 2 * values + value_dim,
            state=values * key_dim * value_dim + channels * (taps - 1), state_flop=update + 2.0 * channels * taps,
        )  # fmt: skip
        first = joined if together else split
        others = ((*in_gguf, *rest),) if together else ()
        return [Piece(part, (*first, *rest), layers, otherwise=others)]

    return mixers


def _short_convolution(config: Config, shape: Shape, by_kind: dict[str, build.Layers]) -> list[Piece]:
    """in (three parts), two gates, a convolution over a few positions, out."""
    layers = by_kind.pop("conv", ())
    if not layers:
        return []
    taps, width, bias = config.size("conv_L_cache"), shape.width, config.flag("conv_bias", False)
    stem, gguf = f"{LAYER}.conv", "blk.{i}.shortconv"
    tensors = [
        *build.weights(f"{stem}.in_proj", width, 3 * width, f"{gguf}.in_proj", bias),
        Tensor(f"{stem}.conv.weight", (width, 1, taps), f"{gguf}.conv.weight"),
        *build.weights(f"{stem}.out_proj", width, width, f"{gguf}.out_proj", bias),
    ]
    if bias:
        tensors.append(Tensor(f"{stem}.conv.bias", (width,), f"{gguf}.conv.bias"))
    part = Recurrent(
        "short_convolution", len(layers), "text", shapes={"in": (width, 3 * width), "out": (width, width)},
        others=width * taps + (5 * width if bias else 0), state=width * (taps - 1),
        state_flop=2.0 * width * taps + 2.0 * width,
    )  # fmt: skip
    return [Piece(part, tuple(tensors), layers)]


def _lfm2_kinds(config: Config, layers: int) -> list[str]:
    full = frozenset(config.sizes("full_attn_idxs", tuple(range(layers)), least=0))
    return ["full_attention" if layer in full else "conv" for layer in range(layers)]


def _lfm2_feed_forward(config: Config, shape: Shape, layers: build.Layers, bias: bool) -> list[Piece]:
    hidden = config.size("block_ff_dim" if config.has("block_ff_dim") else "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", True):  # as its own code rounds
        hidden = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * hidden / 3))
        multiple = config.size("block_multiple_of", 256)
        hidden = max(1, multiple * -(-hidden // multiple))
    return [build.gated(f"{LAYER}.feed_forward", layers, shape.width, hidden, names=("w1", "w3", "w2"))]


_QWEN = {"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
_LINEAR = one_in("full_attention_interval", 4, "linear_attention")

STYLES: dict[str, Style] = {
    "qwen3_next": Style(
        "qwen3next", bias_key="attention_bias", qk_norm="head", gate=True, norms=QWEN_NORMS, kinds=_LINEAR,
        mixture=mixtures.qwen_shared, mixers=_delta_rule(together=True), defaults=_QWEN, aside={"mtp.": MTP},
    ),
    "qwen3_5_text": Style(
        "qwen35", bias_key="attention_bias", qk_norm="head", gate=True, norms=QWEN_NORMS, kinds=_LINEAR,
        mixers=_delta_rule(together=False), defaults=_QWEN, aside={"mtp.": MTP},
    ),
    "lfm2": Style(
        "lfm2", tied=True, qk_norm="head", norms=LFM2_NORMS, kinds=_lfm2_kinds, mixers=_short_convolution,
        feed_forward=_lfm2_feed_forward, final_norm="model.embedding_norm", final_norm_gguf="token_embd_norm",
        names=build.AttentionNames(f"{LAYER}.self_attn", o="out_proj", q_norm="q_layernorm", k_norm="k_layernorm"),
        defaults={"conv_L_cache": 3, "vocab_size": 65536, "num_key_value_heads": 8},
    ),
}  # fmt: skip
STYLES["qwen3_5_moe_text"] = replace(
    STYLES["qwen3_5_text"], family="qwen35moe", mixture=mixtures.qwen_shared_fused,
    defaults={**_QWEN, "num_experts_per_tok": 8},
)  # fmt: skip
