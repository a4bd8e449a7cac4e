"""Where in a checkpoint of transformers each parameter of a Decoder lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nearpeak.networks.decoder_shape import DecoderShape


@dataclass(frozen=True)
class Source:
    """How one of our parameters is made of tensors of the checkpoint.

    names       one; or one an expert, stacked in this order
    rows        which of its rows (for experts: rows of each), None for all
    transposed  the checkpoint has (inputs, outputs); `rows` counts after turning
    otherwise   the same from another layout, where the checkpoint has that one
    """

    names: tuple[str, ...]
    rows: tuple[int, int] | None = None
    transposed: bool = False
    otherwise: Source | None = None


def sources_of(shape: DecoderShape) -> dict[str, Source]:
    """Parameter of Decoder(shape) → where it comes from. A tied head has no entry: it is the embedding."""
    found: dict[str, Source] = {}
    pairs = _gpt2(shape) if shape.family == "gpt2" else _llama_like(shape)
    for ours, source in pairs:
        found[ours] = source
    return found


def _llama_like(shape: DecoderShape) -> Iterator[tuple[str, Source]]:
    yield "embed.weight", Source(("model.embed_tokens.weight",))
    yield "norm.weight", Source(("model.norm.weight",))
    if not shape.tied:
        yield "head.weight", Source(("lm_head.weight",))
    for number, layer in enumerate(shape.layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        for mine, other in _norms(shape).items():
            yield f"{ours}.{mine}.weight", Source((f"{theirs}.{other}.weight",))
        yield from _attention(shape, ours, theirs)
        yield from _experts(shape, ours, theirs) if layer.sparse else _feed_forward(shape, ours, theirs)


def _norms(shape: DecoderShape) -> dict[str, str]:
    first, second = "input_layernorm", "post_attention_layernorm"
    if shape.norm_order == "before":
        return {"attention_norm": first, "feed_forward_norm": second}
    after = {"attention_post_norm": second, "feed_forward_post_norm": "post_feedforward_layernorm"}
    if shape.norm_order == "after":
        return after
    return {"attention_norm": first, "feed_forward_norm": "pre_feedforward_layernorm", **after}


def _attention(shape: DecoderShape, ours: str, theirs: str) -> Iterator[tuple[str, Source]]:
    ours, theirs = f"{ours}.attention", f"{theirs}.self_attn"
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    cuts = {"q": (0, queries), "k": (queries, queries + keys), "v": (queries + keys, queries + 2 * keys)}
    for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
        for name, rows in cuts.items():
            if shape.family == "phi3":
                yield f"{ours}.{name}.{kind}", Source((f"{theirs}.qkv_proj.{kind}",), rows)
            else:
                yield f"{ours}.{name}.{kind}", Source((f"{theirs}.{name}_proj.{kind}",))
    for kind in ("weight", "bias") if shape.o_bias else ("weight",):
        yield f"{ours}.o.{kind}", Source((f"{theirs}.o_proj.{kind}",))
    for name in ("q_norm", "k_norm") if shape.qk_norm else ():
        yield f"{ours}.{name}.weight", Source((f"{theirs}.{name}.weight",))


def _feed_forward(shape: DecoderShape, ours: str, theirs: str) -> Iterator[tuple[str, Source]]:
    for kind in ("weight", "bias") if shape.mlp_bias else ("weight",):
        for place, name in enumerate(("gate", "up", "down")):
            mine = f"{ours}.feed_forward.{name}.{kind}"
            if shape.family == "phi3" and name != "down":
                rows = place * shape.hidden, (place + 1) * shape.hidden
                yield mine, Source((f"{theirs}.mlp.gate_up_proj.{kind}",), rows)
            else:
                yield mine, Source((f"{theirs}.mlp.{name}_proj.{kind}",))


def _experts(shape: DecoderShape, ours: str, theirs: str) -> Iterator[tuple[str, Source]]:
    """One tensor for each expert, as most files have it, or all of a layer in one, gate above up."""
    assert shape.experts is not None, "sparse layers have experts"
    mixtral = shape.family == "mixtral"
    stem = f"{theirs}.block_sparse_moe" if mixtral else f"{theirs}.mlp"
    parts = {"gate": "w1", "up": "w3", "down": "w2"} if mixtral else {n: f"{n}_proj" for n in ("gate", "up", "down")}
    yield (
        f"{ours}.experts.router.weight",
        Source((f"{stem}.gate.weight",), otherwise=Source((f"{theirs}.mlp.gate.weight",))),
    )
    hidden = shape.experts.hidden
    cuts = {"gate": (0, hidden), "up": (hidden, 2 * hidden), "down": None}
    for name, theirs_is in parts.items():
        fused = f"{theirs}.mlp.experts.{'down_proj' if name == 'down' else 'gate_up_proj'}"
        each = tuple(f"{stem}.experts.{expert}.{theirs_is}.weight" for expert in range(shape.experts.experts))
        yield f"{ours}.experts.{name}.weight", Source(each, otherwise=Source((fused,), cuts[name]))


def _gpt2(shape: DecoderShape) -> Iterator[tuple[str, Source]]:
    yield "embed.weight", Source(("transformer.wte.weight",))
    yield "position.weight", Source(("transformer.wpe.weight",))
    for kind in ("weight", "bias"):
        yield f"norm.{kind}", Source((f"transformer.ln_f.{kind}",))
    if not shape.tied:
        yield "head.weight", Source(("lm_head.weight",))
    for number in range(len(shape.layers)):
        ours, theirs = f"layers.{number}", f"transformer.h.{number}"
        for kind in ("weight", "bias"):
            turned = kind == "weight"
            yield f"{ours}.attention_norm.{kind}", Source((f"{theirs}.ln_1.{kind}",))
            yield f"{ours}.feed_forward_norm.{kind}", Source((f"{theirs}.ln_2.{kind}",))
            for place, name in enumerate("qkv"):
                rows = place * shape.width, (place + 1) * shape.width
                yield f"{ours}.attention.{name}.{kind}", Source((f"{theirs}.attn.c_attn.{kind}",), rows, turned)
            yield f"{ours}.attention.o.{kind}", Source((f"{theirs}.attn.c_proj.{kind}",), transposed=turned)
            yield f"{ours}.feed_forward.up.{kind}", Source((f"{theirs}.mlp.c_fc.{kind}",), transposed=turned)
            yield f"{ours}.feed_forward.down.{kind}", Source((f"{theirs}.mlp.c_proj.{kind}",), transposed=turned)
