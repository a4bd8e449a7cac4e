"""Decoders that are Llama with differences: one Style a family, one function for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nearpeak.models import pieces as build
from nearpeak.models.architecture import Architecture, Piece
from nearpeak.models.config import Config

LAYER = "model.layers.{i}"
LLAMA_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
ROOTS = ("model.", "", "model.language_model.", "language_model.model.", "model.text_model.")
ROTARY = (r"(.*\.)?rotary_emb\.inv_freq", r"rope_freqs\.weight", r"(.*\.)?rope_factors_(long|short)\.weight")


@dataclass(frozen=True)
class Shape:
    """The sizes that every one of them has."""

    layers: int
    width: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Mixture:
    """Which layers have experts, and their sizes."""

    layers: build.Layers
    hidden: int
    experts: int
    chosen: int
    names: build.ExpertNames = field(default_factory=build.ExpertNames)
    shared_hidden: int = 0
    fused: bool = False
    build: Callable[[Shape, Mixture], Piece] | None = None


Mixer = Callable[[Config, Shape, dict[str, build.Layers]], list[Piece]]


@dataclass(frozen=True)
class Style:
    """How a family differs from Llama.

    tied         where config.json is silent
    bias         letters of "qkvo" that have a bias always; bias_key: a key that says whether `bias_letters` have one
    mlp_bias     key that says whether the feed-forward's maps have one
    qk_norm      "", "head" or "width"; gate: of attention's output, from the query's map
    norms        of a layer: name below the layer, name in GGUF; norm_bias: LayerNorms
    kinds        kind of each layer ("full_attention", "sliding_attention", …) where config.json has no layer_types
    window_key   how many positions a sliding layer sees
    mixture      which layers have experts; None: none
    mixers       pieces for kinds of layers that it knows and takes out of the mapping
    refused      settings that would need other arithmetic: key, the value that it may have, why
    ignored      tensors that are no parameters; aside: prefixes of tensors that are not counted, and why; "{n}" stands
                 for the number of layers
    defaults     what the family's own code takes where config.json is silent
    """

    family: str
    tied: bool = False
    bias: str = ""
    bias_key: str = ""
    bias_letters: str = "qkvo"
    bias_default: bool = False
    mlp_bias: str = ""
    mlp_bias_default: bool = False
    qk_norm: str = ""
    gate: bool = False
    norms: Mapping[str, str] = field(default_factory=lambda: LLAMA_NORMS)
    norm_bias: bool = False
    names: build.AttentionNames = field(default_factory=lambda: build.AttentionNames(f"{LAYER}.self_attn"))
    sinks: str = ""
    kinds: Callable[[Config, int], list[str]] | None = None
    window_key: str = "sliding_window"
    mixture: Callable[[Config, Shape], Mixture | None] | None = None
    mixers: Mixer | None = None
    feed_forward: Callable[[Config, Shape, build.Layers, bool], list[Piece]] | None = None
    final_norm: str = "model.norm"
    final_norm_gguf: str = "output_norm"
    defaults: Mapping[str, int | bool] = field(default_factory=dict)
    refused: Mapping[str, tuple[object, str]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    aside: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def decoder(config: Config, style: Style) -> Architecture:
    """The pieces of one model. Raises UserError naming the key that is missing, wrong or in contradiction."""
    config.defaults = {**style.defaults, **config.defaults}
    for key, (value, why) in style.refused.items():
        config.must_be(key, value, why)
    shape = read_shape(config, style)
    kinds = layer_kinds(config, shape.layers, style)
    pieces = [build.table("embedding", "model.embed_tokens.weight", shape.vocab, shape.width)]
    pieces += _mixers(config, shape, kinds, style)
    pieces += _feed_forwards(config, shape, style)
    for name, gguf in style.norms.items():
        pieces.append(
            build.norm("norm", f"{LAYER}.{name}", shape.width, f"blk.{{i}}.{gguf}", build.every(shape.layers),
                       style.norm_bias)
        )  # fmt: skip
    pieces.append(build.norm("final_norm", style.final_norm, shape.width, style.final_norm_gguf, bias=style.norm_bias))
    tied = config.flag("tie_word_embeddings", style.tied)
    pieces += heads(config, shape.width, shape.vocab, tied)
    return Architecture(
        style.family,
        "generate",
        tuple(pieces),
        {"text": None},
        config.optional_size("max_position_embeddings"),
        roots=ROOTS,
        duplicates={"lm_head.weight": "model.embed_tokens.weight"} if tied else {},
        ignored=(*ROTARY, *style.ignored),
        aside={key.replace("{n}", str(shape.layers)): why for key, why in style.aside.items()},
        notes=style.notes,
    )


def heads(config: Config, width: int, vocab: int, tied: bool, bias: bool = False) -> list[Piece]:
    """The head over the vocabulary, unless `architectures` names a model without one; a classifier if it is there."""
    first = config.architecture() or "ForCausalLM"
    generates = first.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    count = config.labels()
    pieces = [build.linear("classifier", "score", width, count, once=True, optional=True,
                           expected=first.endswith("ForSequenceClassification"))]  # fmt: skip
    if generates:
        pieces.append(build.head(width, vocab, tied, bias=bias))
    elif not tied:
        pieces.append(replace(build.head(width, vocab, False, bias=bias), optional=True, expected=False))
    return pieces


def read_shape(config: Config, style: Style) -> Shape:
    """Layers, widths and heads, held against each other."""
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", heads)
    config.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    head_dim = config.optional_size("head_dim")
    if head_dim is None:
        config.divides("num_attention_heads", heads, "hidden_size", width)
        head_dim = width // heads
    return Shape(config.layers("num_hidden_layers"), width, config.size("vocab_size"), heads, kv_heads, head_dim)


def layer_kinds(config: Config, layers: int, style: Style) -> list[str]:
    """What each layer mixes positions with."""
    if config.has("layer_types"):
        return list(config.texts("layer_types", layers))
    if style.kinds:
        return style.kinds(config, layers)
    return ["full_attention"] * layers


def _mixers(config: Config, shape: Shape, kinds: list[str], style: Style) -> list[Piece]:
    by_kind = {kind: build.where(kinds, kind) for kind in dict.fromkeys(kinds)}
    bias = style.bias
    if style.bias_key and config.flag(style.bias_key, style.bias_default):
        bias += style.bias_letters
    pieces = style.mixers(config, shape, by_kind) if style.mixers else []
    for kind in ("full_attention", "sliding_attention", "chunked_attention"):
        layers = by_kind.pop(kind, ())
        if layers:
            key = {"sliding_attention": style.window_key, "chunked_attention": "attention_chunk_size"}.get(kind)
            pieces.append(
                build.attention(
                    style.names, layers, shape.width, shape.heads, shape.kv_heads, shape.head_dim, bias=bias,
                    norm=style.qk_norm, sinks=style.sinks, window=config.size(key) if key else None, gate=style.gate,
                )
            )  # fmt: skip
    if by_kind:
        raise config.error("layer_types", f"names {next(iter(by_kind))!r}, which {style.family} has no such layer for")
    return pieces


def _feed_forwards(config: Config, shape: Shape, style: Style) -> list[Piece]:
    mixture = style.mixture(config, shape) if style.mixture else None
    dense = build.every(shape.layers)
    pieces: list[Piece] = []
    if mixture:
        dense = tuple(sorted(set(dense) - set(mixture.layers)))
    if dense:
        bias = bool(style.mlp_bias) and config.flag(style.mlp_bias, style.mlp_bias_default)
        if style.feed_forward:
            pieces += style.feed_forward(config, shape, dense, bias)
        else:
            hidden = config.size("intermediate_size")
            pieces.append(build.gated(f"{LAYER}.mlp", dense, shape.width, hidden, bias=bias))
    if mixture and mixture.layers:
        if mixture.chosen > mixture.experts:
            raise config.error("num_experts_per_tok", f"is {mixture.chosen} of {mixture.experts} experts")
        pieces.append(mixture.build(shape, mixture) if mixture.build else _experts(shape, mixture))
    return pieces


def _experts(shape: Shape, mixture: Mixture) -> Piece:
    return build.experts(
                mixture.names, mixture.layers, shape.width, mixture.hidden, mixture.experts, mixture.chosen,
                shared_hidden=mixture.shared_hidden, fused=mixture.fused,
    )  # fmt: skip
