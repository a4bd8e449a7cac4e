"""Calls seen in a forward pass → parts. Pure: no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from nearpeak.records.model_spec import Attention, Convolution, Linear, Part, Table


@dataclass(frozen=True)
class Call:
    """One call of one of torch's functions.

    kind       "linear", "convolution", "embedding", "attention", "whole attention" (with its maps)
    weight     name of the parameter; bias likewise, None where there is none or it is no parameter
    shape      linear: inputs, outputs; convolution: inputs, outputs, kernel…; embedding: rows, width;
               attention: heads, KV heads, head_dim, value_dim; whole: heads, widths of queries, keys, values
    positions  an item; of a convolution: of what comes out. once: there was no dimension of positions
    reads      positions that attention's keys have; flat: positions hold the batch too
    held       all parameters of a whole attention; biases: how many numbers of them are biases
    """

    kind: str
    weight: str | None
    bias: str | None
    shape: tuple[int, ...]
    positions: int
    groups: int = 1
    once: bool = False
    reads: int = 0
    causal: bool = False
    flat: bool = False
    held: tuple[str, ...] = ()
    biases: int = 0


def parts_of(calls: list[Call], stream: str, length: int) -> tuple[list[Part], set[str], dict[str, int | None]]:
    """Parts in the order of the calls, names of the parameters that they hold, and streams with their positions.

    The three or four maps around an attention become one part with it, where their sizes fit. A parameter that is used
    again is held by its first use, the others are tied. length: positions of the input.
    """
    folded = _fold(calls)
    attentions = ("attention", "whole attention")
    usual = Counter(call.positions for call, _ in folded if call.kind in attentions or not call.once)
    if stream == "image":
        main = next((call.positions for call, _ in folded if call.kind in attentions), 1)
    else:
        main = length if usual[length] else max(usual, key=lambda n: usual[n], default=1)
    streams: dict[str, int | None] = {stream: main}
    used: set[str] = set()
    parts: list[Part] = []

    def name_of(positions: int, call: Call) -> str:
        if call.once or call.flat or positions == main or call.kind in ("embedding", "convolution"):
            return stream
        streams[f"{stream}/{positions}"] = positions
        return f"{stream}/{positions}"

    for call, around in folded:
        where = name_of(call.positions, call)
        made = _part(call, around, where, used, name_of)
        if made is not None:
            parts.append(made)
        used |= {key for one in (call, *around) for key in (one.weight, one.bias, *one.held) if key}
    return _grouped(parts), used, streams


def _part(
    call: Call, around: tuple[Call, ...], stream: str, used: set[str], name_of: Callable[[int, Call], str]
) -> Part | None:
    tied = call.weight in used
    bias = call.bias is not None and call.bias not in used
    if call.kind == "linear":
        inputs, outputs = call.shape
        return Linear(
            _short(call.weight), 1, stream, inputs=inputs, outputs=outputs, bias=bias, tied=tied, once=call.once
        )
    if call.kind == "convolution":
        inputs, outputs, *kernel = call.shape
        return None if tied else Convolution(
            _short(call.weight), 1, stream, inputs=inputs, outputs=outputs, kernel=tuple(kernel),
            positions=call.positions, groups=call.groups, bias=bias,
        )  # fmt: skip
    if call.kind == "embedding":
        rows, width = call.shape
        return None if tied else Table(_short(call.weight), 1, stream, rows=rows, width=width)
    if call.kind == "whole attention":
        return None if tied else _whole_attention(call, stream, name_of)
    return _attention(call, around, stream, name_of)


def _whole_attention(call: Call, stream: str, name_of: Callable[[int, Call], str]) -> Attention:
    heads, width, key_width, _ = call.shape
    reads = name_of(call.reads, call) if call.reads != call.positions else None
    return Attention(
        "attention", 1, stream, width=width, heads=heads, kv_heads=heads, head_dim=width // heads,
        value_dim=width // heads, causal=call.causal, reads=reads,
        key_width=key_width if key_width != width else None, bias=call.biases,
    )  # fmt: skip


def _attention(call: Call, around: tuple[Call, ...], stream: str, name_of: Callable[[int, Call], str]) -> Attention:
    heads, kv_heads, head_dim, value_dim = call.shape
    reads = name_of(call.reads, call) if call.reads != call.positions else None
    width = key_width = biases = 0
    if around:
        first, last = around[0], around[-1]
        width, key_width = first.shape[0], around[1].shape[0] if len(around) == 4 else 0
        biases = sum(one.shape[1] for one in around if one.bias)
        outside = around[1].shape[1] if len(around) == 4 else (first.shape[1] - heads * head_dim) // 2
        kv_heads = outside // head_dim  # before they were repeated for each query head
        assert last.shape[1] == width
    return Attention(
        "attention", 1, stream, width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim,
        causal=call.causal, reads=reads, key_width=key_width if key_width not in (0, width) else None, bias=biases,
    )  # fmt: skip


def _fold(calls: list[Call]) -> list[tuple[Call, tuple[Call, ...]]]:
    """Each call with those that it takes in: an attention its maps before and the one behind."""
    taken: dict[int, tuple[int, ...]] = {}
    gone: set[int] = set()
    weights = Counter(call.weight for call in calls)
    for at, call in enumerate(calls):
        if call.kind != "attention":
            continue
        around = _around(calls, at, gone, weights)
        if around:
            taken[at] = around
            gone |= set(around)
    return [
        (call, tuple(calls[other] for other in taken.get(at, ()))) for at, call in enumerate(calls) if at not in gone
    ]


def _around(calls: list[Call], at: int, gone: set[int], weights: Counter[str | None]) -> tuple[int, ...]:
    """Numbers of q, k, v, o, or of one map for the first three and o; empty where the sizes do not fit."""
    heads, _, head_dim, value_dim = calls[at].shape

    def free(number: int) -> bool:
        return (
            0 <= number < len(calls) and number not in gone and calls[number].kind == "linear"
            and weights[calls[number].weight] == 1
        )  # fmt: skip

    if not free(at + 1) or calls[at + 1].shape[0] != heads * value_dim:
        return ()
    width = calls[at + 1].shape[1]
    before = at  # tables of relative positions may be looked up in between
    while before > 0 and calls[before - 1].kind == "embedding":
        before -= 1
    if free(before - 1) and head_dim == value_dim and calls[before - 1].shape[0] == width:
        rest, odd = divmod(calls[before - 1].shape[1] - heads * head_dim, 2 * head_dim)
        if not odd and rest >= 1 and heads % rest == 0:
            return before - 1, at + 1
    three = (before - 3, before - 2, before - 1)
    if all(free(number) for number in three):
        q, k, v = (calls[number].shape for number in three)
        keys, odd = divmod(k[1], head_dim)
        values = v[1] // value_dim if v[1] % value_dim == 0 else 0
        fits = q == (width, heads * head_dim) and not odd and keys == values and keys >= 1 and heads % keys == 0
        if fits and k[0] == v[0]:
            return (*three, at + 1)
    return ()


def _short(key: str | None) -> str:
    """ "model.layers.0.mlp.up_proj.weight" → "up_proj"."""
    names = [name for name in (key or "").split(".") if not name.isdigit()]
    names = names[:-1] if names and names[-1] in ("weight", "bias") else names
    return names[-1] if names else "layer"


def _grouped(parts: list[Part]) -> list[Part]:
    """Equal parts as one with a count, in the place of the first."""
    counts = Counter(parts)
    return [replace(part, count=count) for part, count in counts.items()]
