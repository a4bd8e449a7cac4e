"""Bytes that one piece of a model keeps, a position, from its forward pass for its backward pass.

Counted tensor by tensor, as autograd saves them (docs/limits.md derives each sum; the method is that of Korthikanti et
al. 2022, "Reducing activation recomputation in large transformer models", section 4, for today's blocks).
"""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.limits.maps import has_adapter, maps_of
from nearpeak.limits.precision import number_bytes
from nearpeak.records.model_spec import (
    Attention,
    Convolution,
    Experts,
    FeedForward,
    Linear,
    ModelSpec,
    Part,
    Recurrent,
    Vector,
)
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training, Workload

ROUTER_NUMBERS = 3  # logits, their softmax and the sorted weights, in fp32


@dataclass(frozen=True)
class Keeping:
    """How a training step keeps activations.

    size       bytes of a number of the products; hidden: of the residual stream (fp32 under autocast)
    split      devices that heads and hidden units are split over; hidden_split: norms and hidden states too
    """

    training: Training
    size: float
    hidden: float
    split: int = 1
    hidden_split: int = 1

    @property
    def autocast(self) -> bool:
        return self.hidden > self.size

    @property
    def full(self) -> bool:
        return self.training.method == "full"

    @property
    def eager(self) -> bool:
        return not self.training.fused


def keeping(workload: Workload, layout: Layout) -> Keeping:
    """What follows from a train step's workload and layout."""
    training = workload.training
    assert training is not None
    size = number_bytes(workload.compute) if number_bytes(workload.compute) >= 2 else 2.0
    autocast = training.method != "qlora" and workload.weights in ("fp32", "f32") and size < 4
    split = layout.tensor if training.sequence_parallel else 1
    return Keeping(training, size, 4.0 if autocast else size, layout.tensor, split)


def kept_bytes(part: Part, how: Keeping, width: int, seen: float) -> float:
    """Of one piece, a position (of a convolution or a head of the whole item: an item).

    width   of the hidden state of the part's stream, 0 where it has none; seen: positions that attention looks at
    """
    if isinstance(part, Attention):
        return _attention(part, how, seen)
    if isinstance(part, FeedForward):
        return _inputs(part, how) + _hidden(part, how, part.hidden, part.gated)
    if isinstance(part, Experts):
        hidden = part.chosen * part.hidden + part.shared_hidden
        copies = 3 if how.eager else 2  # gathered for experts, given back by them, and that times its weight
        routed = copies * part.chosen * part.width * how.size / how.hidden_split
        routed += 4.0 * ROUTER_NUMBERS * part.experts
        return _inputs(part, how) + routed + _hidden(part, how, hidden, part.gated)
    if isinstance(part, Recurrent):
        return how.size * sum(inputs + outputs for inputs, outputs in part.shapes.values()) / how.split
    if isinstance(part, Vector):
        return _norm(part, how, width) if part.name.endswith("norm") else 0.0
    if isinstance(part, Convolution):
        return 2 * how.size * part.outputs * part.positions  # before and after its norm or activation function
    if isinstance(part, Linear):
        return how.size * part.inputs if how.full else 0.0
    return 0.0


def block_input(part: Part, how: Keeping) -> float:
    """Bytes a position that a block computed twice keeps: its input. 0 for parts that begin no block."""
    if isinstance(part, Attention) and not part.reads:
        return how.hidden * part.width / how.hidden_split
    if isinstance(part, Recurrent):
        return how.hidden * next(iter(part.shapes.values()))[0] / how.hidden_split
    return 0.0


def selected_bytes(part: Part, how: Keeping) -> float:
    """A position, where a block keeps its input, every second product and what attention gives (torchtitan's choice by
    operation), and computes the rest again."""
    if isinstance(part, Attention | FeedForward | Experts | Recurrent):
        products = sum(m.used * m.outputs for m in maps_of(part) if m.name != "router")
        given = part.heads * part.value_dim if isinstance(part, Attention) else 0
        return block_input(part, how) + how.size * (products / 2 + given) / how.split
    return 0.0


def _norm(part: Vector, how: Keeping, width: int) -> float:
    """RMSNorm of plain modules: its input in fp32, and the normed input, which its weight's gradient needs. LayerNorm
    (weight and bias, one kernel) and fused norms: the input alone."""
    each = 4.0 + (how.hidden if how.full else 0.0) if how.eager and part.size == width else how.hidden
    return each * width / how.hidden_split


def _inputs(part: Part, how: Keeping) -> float:
    """The tensor that a piece's first maps read.

    A trained map keeps it: once for all of them, but under autocast each map makes its own copy. A frozen map does not.
    An adapter does: peft's are fp32 and copy it each for itself, fused ones share it.
    """
    first = [m for m in maps_of(part) if m.level == 0 and m.name not in ("router", "shared_gate")]
    readers = first if how.full else [m for m in first if has_adapter(m.name, how.training)]
    if not readers:
        return 0.0
    if how.full or how.training.fused:
        copies = len(readers) if how.autocast and how.eager else 1
        return how.size * copies * max(m.inputs for m in readers) / how.hidden_split
    return (how.size if how.autocast else 4.0) * sum(m.inputs for m in readers) / how.hidden_split


def _between(part: Part, how: Keeping, name: str, numbers: float) -> float:
    """The input of a piece's last map, where an adapter on it keeps a copy of its own."""
    if not has_adapter(name, how.training) or not how.eager:
        return 0.0
    return (how.size if how.autocast else 4.0) * numbers / how.split


def _attention(part: Attention, how: Keeping, seen: float) -> float:
    """Queries, keys and values, what comes out, and its softmax's sums (fp32, one a head). Kept scores: fp32 softmax
    and its 16-bit copy."""
    heads, dims = part.heads, part.head_dim + part.value_dim
    shared = heads if how.eager or part.latent else part.kv_heads
    numbers = heads * (part.head_dim + part.value_dim * (3 if part.gate else 1)) / how.split
    numbers += shared * dims / min(how.split, shared)
    total = how.size * numbers + 4.0 * heads / how.split
    if part.norms and not part.latent:
        normed = (heads + part.kv_heads) * part.head_dim
        total += normed * (4.0 + (how.size if how.full else 0.0) if how.eager else how.size) / how.split
    if part.latent:
        latents = part.latent.kv_rank + part.latent.q_rank
        total += latents * (how.size + (4.0 + how.size if how.eager else how.size))
    if how.training.recompute == "none":
        total += (4.0 + (how.size if how.size < 4 else 0.0)) * heads * seen / how.split
    return total + _inputs(part, how) + _between(part, how, "o", heads * part.value_dim)


def _hidden(part: Part, how: Keeping, hidden: float, gated: bool) -> float:
    """Of a gated feed-forward: gate, its activation, up, and their product (the last map's input). Fused: the
    activation is computed again. Of a plain one: before and after the activation function."""
    down = has_adapter("down", how.training)
    numbers = (3.0 if how.eager else 2.0) if gated else 1.0
    if how.full or (down and how.training.fused):
        numbers += 1.0
    return how.size * numbers * hidden / how.split + _between(part, how, "down", hidden)


def widths(spec: ModelSpec) -> dict[str, int]:
    """Width of each stream's hidden state; 0 where it has none (a CNN's)."""
    found: dict[str, int] = {}
    for part in spec.parts:
        if isinstance(part, Attention | FeedForward | Experts):
            found.setdefault(part.stream, part.width)
        elif isinstance(part, Recurrent):
            found.setdefault(part.stream, next(iter(part.shapes.values()))[0])
    return found
