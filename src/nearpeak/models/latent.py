"""DeepSeek-V2, V3: multi-head latent attention, shared experts, first layers dense (arXiv 2405.04434, 2412.19437)."""

from __future__ import annotations

from nearpeak.models import pieces as build
from nearpeak.models.architecture import Architecture, Piece, Tensor
from nearpeak.models.config import Config
from nearpeak.models.decoder import LAYER, Mixture, Shape, Style, decoder
from nearpeak.records.model_spec import Attention, Latent

MTP = "multi-token prediction; engines load it for speculative decoding alone"

REFUSED = {"mlp_bias": (False, "feed-forwards with biases are not read")}


def deepseek_v2(config: Config) -> Architecture:
    """V2 and V2-Lite."""
    return decoder(config, _style("deepseek2", correction=False))


def deepseek_v3(config: Config) -> Architecture:
    """V3 and R1: the router's scores are corrected by a number an expert."""
    return decoder(config, _style("deepseek3", correction=True))


def _style(family: str, correction: bool) -> Style:
    def mixture(config: Config, shape: Shape) -> Mixture:
        config.must_be("moe_layer_freq", 1, "layers between those with experts are not read; 1 is")
        first = config.count("first_k_dense_replace", 0)
        if first > shape.layers:
            raise config.error("first_k_dense_replace", f"is {first} of {shape.layers} layers")
        shared, hidden = config.count("n_shared_experts", 0), config.size("moe_intermediate_size")
        names = build.ExpertNames(
            shared="shared_experts", correction="gate.e_score_correction_bias" if correction else ""
        )
        return Mixture(
            tuple(range(first, shape.layers)), hidden, config.size("n_routed_experts"),
            config.size("num_experts_per_tok"), names, shared * hidden,
        )  # fmt: skip

    aside = {"model.layers.{n}.": MTP}
    return Style(family, mixture=mixture, mixers=_latent_attention, aside=aside, refused=REFUSED)


def _latent_attention(config: Config, shape: Shape, by_kind: dict[str, build.Layers]) -> list[Piece]:
    layers = by_kind.pop("full_attention", ())
    kv_rank, rotary = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    plain, value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    q_rank = config.optional_size("q_lora_rank") or 0
    bias = config.flag("attention_bias", False)
    heads, width = shape.heads, shape.width
    stem, gguf = f"{LAYER}.self_attn", "blk.{i}.attn"
    head_dim = plain + rotary
    before: list[Tensor] = []
    if q_rank:
        before += build.weights(f"{stem}.q_a_proj", width, q_rank, f"{gguf}_q_a", bias)
        before.append(Tensor(f"{stem}.q_a_layernorm.weight", (q_rank,), f"{gguf}_q_a_norm.weight"))
        before += build.weights(f"{stem}.q_b_proj", q_rank, heads * head_dim, f"{gguf}_q_b")
    else:
        before += build.weights(f"{stem}.q_proj", width, heads * head_dim, f"{gguf}_q")
    before += build.weights(f"{stem}.kv_a_proj_with_mqa", width, kv_rank + rotary, f"{gguf}_kv_a_mqa", bias)
    before.append(Tensor(f"{stem}.kv_a_layernorm.weight", (kv_rank,), f"{gguf}_kv_a_norm.weight"))
    out = build.weights(f"{stem}.o_proj", heads * value, width, f"{gguf}_output", bias)
    together = build.weights(f"{stem}.kv_b_proj", kv_rank, heads * (plain + value), f"{gguf}_kv_b")
    apart = (  # newer GGUF files, whose engine keeps the latent compressed
        Tensor("", (heads, kv_rank, plain), f"{gguf}_k_b.weight"),
        Tensor("", (heads, value, kv_rank), f"{gguf}_v_b.weight"),
    )
    biases = (q_rank if q_rank else 0) + kv_rank + rotary + width if bias else 0
    part = Attention(
        "attention", len(layers), "text", width=width, heads=heads, kv_heads=heads, head_dim=head_dim,
        value_dim=value, bias=biases, norms=q_rank + kv_rank, latent=Latent(kv_rank, rotary, q_rank),
    )  # fmt: skip
    otherwise = ((*before, *apart, *out),)
    return [Piece(part, (*before, *together, *out), layers, otherwise=otherwise)]
