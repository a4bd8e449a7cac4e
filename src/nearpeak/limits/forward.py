"""The products of a forward pass, part by part: one small function for each kind of part.

A multiply-add is two FLOPs; only products count (no norms, no softmax, no activation function). docs/limits.md states
the conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from nearpeak.limits.activations import widths
from nearpeak.limits.maps import Map, maps_of
from nearpeak.limits.memory import STATE_BYTES, kept_in
from nearpeak.limits.pairs import pairs
from nearpeak.limits.precision import number_bytes, wide
from nearpeak.limits.weights import Widths, is_head, matrix_parameters, untied
from nearpeak.records.model_spec import (
    Attention,
    Convolution,
    Experts,
    FeedForward,
    Linear,
    ModelSpec,
    Part,
    Recurrent,
    Table,
)
from nearpeak.records.workload import Workload


@dataclass(frozen=True)
class Product:
    """One linear map, convolution, or the scores or state of a mixer, in one piece of a part.

    kind     "weight", "scores" or "state"; map: its linear map, None for scores, states and convolutions
    rows     positions that pass it, of all sequences; flop: 2 · rows · inputs · outputs · (experts used)
    bytes    of its weight, as far as it is read
    """

    kind: str
    name: str
    flop: float
    precision: str
    rows: float = 0.0
    bytes: float = 0.0
    map: Map | None = None


@dataclass(frozen=True)
class Piece:
    """One piece of a part at work: an op of a forward pass, its products by themselves.

    read, written   compulsory bytes beside the products' weights: vectors, cache, states, rows of a table
    passed          activations in and out, each product by itself
    """

    part: Part
    name: str
    products: tuple[Product, ...]
    read: float = 0.0
    written: float = 0.0
    passed: float = 0.0
    note: str = ""


class Forward:
    """One workload's forward pass on one model."""

    def __init__(self, spec: ModelSpec, workload: Workload) -> None:
        self.spec, self.workload = spec, workload
        self.bits = Widths(spec, kept_in(workload))
        self.size = max(2.0, number_bytes(workload.compute))  # activations stay at 16 bits beside narrow products
        self.cache = number_bytes(workload.cache)
        self.narrow, self.wide = workload.compute, wide(workload.compute)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for part in self.spec.parts for piece in self.of(part))

    def of(self, part: Part) -> tuple[Piece, ...]:
        """Nothing where the part's stream has no new positions: a fixed one was read before the first decode."""
        if not self.length(part.stream):
            return ()
        if isinstance(part, Attention):
            return self.attention(part), self.scores(part)
        if isinstance(part, Recurrent):
            return self.recurrent(part), self.state(part)
        if isinstance(part, FeedForward):
            return (self.feed_forward(part),)
        if isinstance(part, Experts):
            return (self.experts(part),)
        if isinstance(part, Linear):
            return (self.linear(part),)
        if isinstance(part, Convolution):
            return (self.convolution(part),)
        return (self.table(part) if isinstance(part, Table) else self.vector(part),)

    # --- positions ---

    def length(self, stream: str) -> int:
        """New positions a sequence."""
        fixed = self.spec.streams.get(stream)
        if fixed is None:
            return self.workload.tokens
        return 0 if self.workload.phase == "decode" else fixed

    def rows(self, stream: str) -> int:
        """New positions of all sequences."""
        return self.workload.batch * self.length(stream)

    def name(self, part: Part, suffix: str = "") -> str:
        return f"{part.stream} {part.name}{suffix}" if len(self.spec.streams) > 1 else part.name + suffix

    # --- kinds of part ---

    def product(self, part: Part, one: Map, rows: float, read: float = 1.0, precision: str = "") -> Product:
        """read: how many of the map's copies are read."""
        flop = 2.0 * rows * one.inputs * one.outputs * one.used
        size = one.inputs * one.outputs * self.bits.matrix(part) * read if rows else 0.0
        return Product("weight", one.name, flop, precision or self.narrow, rows, size, one)

    def vectors(self, part: Part) -> float:
        """Bytes of one piece's biases and norms."""
        return (part.parameters - matrix_parameters(part)) * self.bits.vector

    def piece(self, part: Part, suffix: str, products: tuple[Product, ...], note: str, passed: float = 0.0) -> Piece:
        """With the activations that each of its maps takes in and gives out."""
        for product in products:
            if product.map:
                passed += product.rows * product.map.used * (product.map.inputs + product.map.outputs) * self.size
        return Piece(part, self.name(part, suffix), products, self.vectors(part), 0.0, passed, note)

    def linear(self, part: Linear) -> Piece:
        """The head gives logits for the last position of a prefill, unless all are asked for; for each in training."""
        work = self.workload
        rows = self.rows(part.stream)
        if part.once or (is_head(part) and work.phase == "prefill" and work.logits == "last"):
            rows = work.batch
        whole = untied(part)
        products = tuple(self.product(whole, m, rows, precision=self.wide) for m in maps_of(part))
        return self.piece(part, "", products, f"2 · {rows} positions · {part.inputs} · {part.outputs}")

    def feed_forward(self, part: FeedForward) -> Piece:
        rows = self.rows(part.stream)
        products = tuple(self.product(part, m, rows) for m in maps_of(part))
        note = f"2 · {rows} positions · {part.width} · {part.hidden} · {part.matrices} maps"
        return self.piece(part, "", products, note)

    def experts(self, part: Experts) -> Piece:
        """Each position picks by chance: of E experts, k a position, T positions read E · (1 − (1 − k/E)^T)."""
        rows = self.rows(part.stream)
        touched = part.experts * (1 - (1 - part.chosen / part.experts) ** rows)
        products = tuple(
            self.product(part, m, rows, touched if m.copies > 1 else 1, self.wide if m.name == "router" else "")
            for m in maps_of(part)
        )
        note = f"2 · {rows} positions · {part.active} active; {touched:.1f} of {part.experts} experts read"
        return self.piece(part, "", products, note)

    def attention(self, part: Attention) -> Piece:
        """The projections. Keys and values of cross-attention come from the other stream, once a sequence."""
        rows = self.rows(part.stream)
        source = self.rows(part.reads) if part.reads else rows
        keys = rows if self.absorbed(part) else self.workload.batch * self.keys(part)
        by_source = {"own": rows, "reads": source, "keys": keys}
        products = tuple(self.product(part, m, by_source[m.source]) for m in maps_of(part))
        shapes = " + ".join(f"{name} {i}·{o}" for name, (i, o) in part.linear_shapes.items())
        note = f"2 · {rows} positions · ({shapes})" + (f", {source} of {part.reads}" if part.reads else "")
        return self.piece(part, " maps", products, note)

    def keys(self, part: Attention) -> int:
        """Positions a sequence that queries look at."""
        other = self.spec.streams.get(part.reads or part.stream)
        return other if other else self.workload.context + self.workload.tokens

    def seen(self, part: Attention) -> int:
        """Pairs of positions of one sequence."""
        new = self.length(part.stream)
        if part.reads:
            return new * self.keys(part)
        return pairs(new, 0 if self.spec.streams.get(part.stream) else self.workload.context, part.window, part.causal)

    def absorbed(self, part: Attention) -> bool:
        """Whether MLA's queries meet the latents themselves: where that takes fewer FLOPs than to expand every latent
        into keys and values again. So it is in decoding; not in prefill and training (DeepSeek-V2, section 2.1.2)."""
        if part.latent is None or self.workload.training:
            return False
        expand = part.latent.kv_rank * part.heads * (part.head_dim - part.latent.rotary + part.value_dim)
        context = self.keys(part) - self.length(part.stream)
        plain = part.heads * (part.head_dim + part.value_dim) * self.seen(part) + expand * context
        return self.pair_products(part, True) * self.seen(part) < plain

    @staticmethod
    def pair_products(part: Attention, absorbed: bool) -> int:
        """Multiply-adds a pair: score and weighted sum of every head."""
        if absorbed and part.latent:
            return part.heads * (2 * part.latent.kv_rank + part.latent.rotary)
        return part.heads * (part.head_dim + part.value_dim)

    def scores(self, part: Attention) -> Piece:
        """Compulsory: earlier positions' cache is read (a window's no further than it sees), new ones' written."""
        work, new, seen, absorbed = self.workload, self.length(part.stream), self.seen(part), self.absorbed(part)
        each = self.pair_products(part, absorbed)
        read = written = 0
        if (part.causal or part.reads) and self.spec.task != "encode" and not work.training:
            if part.reads:  # keys of the other stream are made with it, and read ever after
                made = self.length(part.reads)
                read, written = (0 if made else self.keys(part)), made
            else:
                read, written = (min(work.context, part.window - 1) if part.window else work.context), new
        alive = min(self.keys(part), part.window + new - 1) if part.window else self.keys(part)
        numbers = new * part.heads * (part.head_dim + part.value_dim) + alive * part.cached
        note = f"2 · {work.batch} · {each} · {seen} pairs of positions" + (", latents absorbed" if absorbed else "")
        return Piece(
            part, self.name(part, " scores"), (Product("scores", "scores", 2.0 * work.batch * each * seen, self.wide),),
            work.batch * part.cached * read * self.cache, work.batch * part.cached * written * self.cache,
            work.batch * numbers * self.size, note,
        )  # fmt: skip

    def recurrent(self, part: Recurrent) -> Piece:
        rows = self.rows(part.stream)
        products = tuple(self.product(part, m, rows) for m in maps_of(part))
        return self.piece(part, " maps", products, f"2 · {rows} positions · {part.active}")

    def state(self, part: Recurrent) -> Piece:
        """A state of fixed size is read and written once a step and sequence."""
        rows = self.rows(part.stream)
        moved = 0.0 if self.workload.training else self.workload.batch * part.state * STATE_BYTES
        product = Product("state", "state", rows * part.state_flop, self.wide)
        passed = 2.0 * rows * sum(part.shapes[name][1] for name in list(part.shapes)[:-1]) * self.size
        note = f"{rows} positions · {part.state_flop:g} FLOPs; a state of {part.state} numbers"
        return Piece(part, self.name(part, " state"), (product,), moved, moved, passed, note)

    def convolution(self, part: Convolution) -> Piece:
        """passed: outputs, and inputs taken to be as many positions."""
        outputs = self.workload.batch * part.positions
        weight = part.active * self.bits.matrix(part)
        product = Product("weight", part.name, 2.0 * outputs * part.active, self.wide, outputs, weight)
        note = f"2 · {outputs} outputs · {part.active // part.outputs} · {part.outputs}"
        return self.piece(part, "", (product,), note, outputs * (part.inputs + part.outputs) * self.size)

    def table(self, part: Table) -> Piece:
        """Rows looked up, no FLOPs."""
        rows = self.rows(part.stream)
        read = min(rows, part.rows) * part.width * self.bits.matrix(part)
        return Piece(part, self.name(part), (), read, 0.0, rows * part.width * self.size, f"{rows} rows looked up")

    def vector(self, part: Part) -> Piece:
        """A norm takes in and gives out the hidden state."""
        width = self.widths.get(part.stream, 0) if part.name.endswith("norm") else 0
        passed = 2.0 * self.rows(part.stream) * width * self.size
        return Piece(part, self.name(part), (), self.vectors(part), 0.0, passed, "element by element")

    @cached_property
    def widths(self) -> dict[str, int]:
        return widths(self.spec)
