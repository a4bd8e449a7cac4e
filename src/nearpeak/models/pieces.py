"""The pieces that most families are built of. Sizes in, a part and its tensors out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nearpeak.models.architecture import Piece, Tensor
from nearpeak.records.model_spec import Attention, Convolution, Experts, FeedForward, Linear, Table, Vector

Layers = tuple[int, ...]


def table(
    name: str, tensor: str, rows: int, width: int, gguf: str = "token_embd.weight", stream: str = "text"
) -> Piece:
    """An embedding."""
    return Piece(Table(name, 1, stream, rows=rows, width=width), (Tensor(tensor, (rows, width), gguf),))


def vector(
    name: str, tensor: str, shape: tuple[int, ...], gguf: str = "", layers: Layers = (0,), stream: str = "text"
) -> Piece:
    """Parameters of any shape that are added or multiplied element by element."""
    one = Tensor(tensor, shape, gguf)
    return Piece(Vector(name, len(layers), stream, size=one.parameters), (one,), layers)


def norm(
    name: str,
    stem: str,
    width: int,
    gguf: str = "",
    layers: Layers = (0,),
    bias: bool = False,
    stream: str = "text",
) -> Piece:
    """RMSNorm (a weight) or LayerNorm (weight and bias). stem: the name before ".weight"."""
    tensors = [Tensor(f"{stem}.weight", (width,), gguf and f"{gguf}.weight")]
    if bias:
        tensors.append(Tensor(f"{stem}.bias", (width,), gguf and f"{gguf}.bias"))
    return Piece(Vector(name, len(layers), stream, size=width * len(tensors)), tuple(tensors), layers)


def linear(
    name: str,
    stem: str,
    inputs: int,
    outputs: int,
    *,
    gguf: str = "",
    layers: Layers = (0,),
    bias: bool = False,
    once: bool = False,
    stream: str = "text",
    optional: bool = False,
    expected: bool = True,
) -> Piece:
    """One linear map that is no attention's and no feed-forward's."""
    tensors = weights(stem, inputs, outputs, gguf, bias)
    part = Linear(name, len(layers), stream, inputs=inputs, outputs=outputs, bias=bias, once=once)
    return Piece(part, tensors, layers, optional=optional, expected=expected)


def head(width: int, vocab: int, tied: bool, tensor: str = "lm_head.weight", bias: bool = False) -> Piece:
    """The output head; where it is tied, its weight is the embedding's."""
    tensors = [] if tied else [Tensor(tensor, (vocab, width), "output.weight")]
    if bias:
        tensors.append(Tensor(tensor.removesuffix("weight") + "bias", (vocab,), "output.bias"))
    return Piece(Linear("head", 1, "text", inputs=width, outputs=vocab, bias=bias, tied=tied), tuple(tensors))


def weights(
    stem: str, inputs: int, outputs: int, gguf: str = "", bias: bool = False, transposed: bool = False
) -> tuple[Tensor, ...]:
    """Weight and bias of one linear map. transposed: stored as (inputs, outputs), as GPT-2 does."""
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    both = [Tensor(f"{stem}.weight", shape, gguf and f"{gguf}.weight", transposed=transposed)]
    if bias:
        both.append(Tensor(f"{stem}.bias", (outputs,), gguf and f"{gguf}.bias"))
    return tuple(both)


@dataclass(frozen=True)
class AttentionNames:
    """Where the maps of an attention lie, below `stem`. fused: one map for q, k and v (then they have no own)."""

    stem: str
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    o: str = "o_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    fused: str = ""
    transposed: bool = False


def attention(
    names: AttentionNames,
    layers: Layers,
    width: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    bias: str = "",
    norm: str = "",
    sinks: str = "",
    window: int | None = None,
    causal: bool = True,
    reads: str | None = None,
    name: str = "",
    stream: str = "text",
    gguf: str = "blk.{i}.attn",
    gate: bool = False,
    keys_are_values: bool = False,
    key_width: int | None = None,
) -> Piece:
    """MHA, GQA and MQA.

    bias    letters of "qkvo" that have one; norm: "" none, "head": of head_dim, "width": of all heads together
    sinks   name of a number a head that takes part in the softmax (gpt-oss)
    gate    the query's map gives a gate of the same size too (Qwen3-Next); keys_are_values: there is no map v
    """
    queries, keys = heads * head_dim, kv_heads * head_dim
    outputs = {"q": 2 * queries if gate else queries, "k": keys, "v": keys}
    if keys_are_values:
        del outputs["v"]
    tensors: list[Tensor] = []
    if names.fused:
        total = queries + 2 * keys
        fused = f"{names.stem}.{names.fused}"
        tensors += weights(fused, width, total, f"{gguf}_qkv", "q" in bias, names.transposed)
    else:
        for letter, size in outputs.items():
            stem = f"{names.stem}.{getattr(names, letter)}"
            source = width if letter == "q" else key_width or width
            tensors += weights(stem, source, size, f"{gguf}_{letter}", letter in bias, names.transposed)
    out = f"{names.stem}.{names.o}"
    tensors += weights(out, queries, width, f"{gguf}_output", "o" in bias, names.transposed)
    biases = sum(size for letter, size in {**outputs, "o": width}.items() if letter in bias)
    norms = 0
    if norm:
        sizes = (head_dim, head_dim) if norm == "head" else (queries, keys)
        norms = sum(sizes)
        for letter, size, stem in zip("qk", sizes, (names.q_norm, names.k_norm), strict=True):
            tensors.append(Tensor(f"{names.stem}.{stem}.weight", (size,), f"{gguf}_{letter}_norm.weight"))
    if sinks:
        tensors.append(Tensor(f"{names.stem}.{sinks}", (heads,), f"{gguf}_sinks.weight"))
        biases += heads
    part = Attention(
        name or ("window_attention" if window else "attention"), len(layers), stream,
        width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim, causal=causal,
        window=window, reads=reads, bias=biases, norms=norms, gate=gate, keys_are_values=keys_are_values,
        key_width=key_width,
    )  # fmt: skip
    return Piece(part, tuple(tensors), layers)


def gated(
    stem: str,
    layers: Layers,
    width: int,
    hidden: int,
    *,
    bias: bool = False,
    fused: str = "",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    name: str = "feed_forward",
    stream: str = "text",
    gguf: str = "blk.{i}.ffn",
) -> Piece:
    """gate and up (in one map where `fused` names it), an activation, down."""
    gate, up, down = names
    if fused:
        into = weights(f"{stem}.{fused}", width, 2 * hidden, f"{gguf}_up", bias)
    else:
        into = weights(f"{stem}.{gate}", width, hidden, f"{gguf}_gate", bias)
        into += weights(f"{stem}.{up}", width, hidden, f"{gguf}_up", bias)
    out = weights(f"{stem}.{down}", hidden, width, f"{gguf}_down", bias)
    biases = 2 * hidden + width if bias else 0
    part = FeedForward(name, len(layers), stream, width=width, hidden=hidden, gated=True, bias=biases)
    return Piece(part, into + out, layers)


def plain(
    into: str,
    out: str,
    layers: Layers,
    width: int,
    hidden: int,
    *,
    bias: bool = True,
    transposed: bool = False,
    name: str = "feed_forward",
    stream: str = "text",
    gguf: str = "blk.{i}.ffn",
) -> Piece:
    """One map up, an activation, one map down."""
    tensors = weights(into, width, hidden, f"{gguf}_up", bias, transposed)
    tensors += weights(out, hidden, width, f"{gguf}_down", bias, transposed)
    biases = hidden + width if bias else 0
    part = FeedForward(name, len(layers), stream, width=width, hidden=hidden, gated=False, bias=biases)
    return Piece(part, tensors, layers)


@dataclass(frozen=True)
class ExpertNames:
    """Where a mixture lies below the layer: stem of all, router, the three maps of one expert, fused ones."""

    stem: str = "model.layers.{i}.mlp"
    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    correction: str = ""  # name of a number an expert that corrects the router's scores
    shared: str = ""  # name of the feed-forward that every position passes
    shared_gate: str = ""


def experts(
    names: ExpertNames,
    layers: Layers,
    width: int,
    hidden: int,
    count: int,
    chosen: int,
    *,
    shared_hidden: int = 0,
    fused: bool = False,
) -> Piece:
    """A router and gated experts; one tensor each expert, or (as some files have them) one for all of a layer."""
    stem = names.stem
    around: list[Tensor] = list(weights(f"{stem}.{names.router}", width, count, "blk.{i}.ffn_gate_inp"))
    if names.correction:
        around.append(Tensor(f"{stem}.{names.correction}", (count,), "blk.{i}.exp_probs_b.bias"))
    if shared_hidden:
        for letter, into, out in (
            ("gate", width, shared_hidden),
            ("up", width, shared_hidden),
            ("down", shared_hidden, width),
        ):
            around += weights(f"{stem}.{names.shared}.{letter}_proj", into, out, f"blk.{{i}}.ffn_{letter}_shexp")
    if names.shared_gate:
        around += weights(f"{stem}.{names.shared_gate}", width, 1, "blk.{i}.ffn_gate_inp_shexp")
    each = [
        Tensor(f"{stem}.experts.{{e}}.{names.gate}.weight", (hidden, width), "blk.{i}.ffn_gate_exps.weight", count),
        Tensor(f"{stem}.experts.{{e}}.{names.up}.weight", (hidden, width), "blk.{i}.ffn_up_exps.weight", count),
        Tensor(f"{stem}.experts.{{e}}.{names.down}.weight", (width, hidden), "blk.{i}.ffn_down_exps.weight", count),
    ]
    together = [
        Tensor(f"{stem}.experts.gate_up_proj", (count, 2 * hidden, width)),
        Tensor(f"{stem}.experts.down_proj", (count, width, hidden)),
    ]
    part = Experts(
        "experts", len(layers), "text", width=width, hidden=hidden, experts=count, chosen=chosen,
        shared_hidden=shared_hidden, shared_gate=width if names.shared_gate else 0,
        router_bias=count if names.correction else 0,
    )  # fmt: skip
    first, second = (together, each) if fused else (each, together)
    return Piece(part, tuple(around + first), layers, otherwise=(tuple(around + second),))


def convolution(
    name: str,
    stem: str,
    inputs: int,
    outputs: int,
    kernel: tuple[int, ...],
    positions: int,
    stream: str,
    *,
    groups: int = 1,
    bias: bool = True,
) -> Piece:
    """One convolution, positions: outputs an item."""
    tensors = [Tensor(f"{stem}.weight", (outputs, inputs // groups, *kernel))]
    if bias:
        tensors.append(Tensor(f"{stem}.bias", (outputs,)))
    part = Convolution(
        name, 1, stream, inputs=inputs, outputs=outputs, kernel=kernel, positions=positions, groups=groups, bias=bias
    )
    return Piece(part, tuple(tensors))


def every(count: int) -> Layers:
    """Layers 0 to count − 1."""
    return tuple(range(count))


def where(kinds: Iterable[object], kind: object) -> Layers:
    """Numbers of the layers of one kind."""
    return tuple(number for number, found in enumerate(kinds) if found == kind)
