"""What a train step does beside its forward pass: gradients of inputs and weights, adapters, what is computed twice,
the optimizer's update, and the activations that are kept between."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearpeak.limits.activations import Keeping, block_input, keeping, kept_bytes, selected_bytes
from nearpeak.limits.forward import Forward, Piece, Product
from nearpeak.limits.maps import has_adapter, trained_parameters
from nearpeak.limits.memory import OPTIMIZER_BYTES
from nearpeak.limits.precision import number_bytes
from nearpeak.limits.weights import is_head
from nearpeak.records.limit import Op
from nearpeak.records.model_spec import Attention, Convolution, Linear, Part, Table, Vector
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training

PACKED_STATE = {"adamw_8bit_paged": 2.0}  # bytes moved, though they lie in host memory


@dataclass
class Flow:
    """Whether gradients must reach the inputs of what comes next, by stream. Below the first trained weight of a stream
    none are needed: neither gradients of inputs nor, for frozen maps, any backward pass at all.

    reached   of the piece before: name of a map: whether what it gives needs a gradient
    """

    live: dict[str, bool]
    reached: dict[str, bool]

    def of(self, stream: str) -> bool:
        return self.live.get(stream, False)

    def needs(self, *names: str) -> bool:
        return any(self.reached.get(name, False) for name in names)


def train_ops(forward: Forward, training: Training) -> tuple[Op, ...]:
    """Forward and backward pass of each part in one op, then kept activations and the update."""
    flow = Flow({}, {})
    first = [_Step(forward, training, piece, flow) for piece in forward.pieces]
    steps: list[Op] = []
    for step in first:
        piece = step.piece
        rest = _Step(forward, training, piece, flow) if piece.part.count > 1 else step
        if rest.flop == step.flop:
            steps.append(step.op(piece.part.count))
        else:
            named = replace(step.op(1), name=f"{piece.name} (first)")
            steps += [named, rest.op(piece.part.count - 1)]
    return (*steps, kept(forward, training), update(forward, training))


class _Step:
    """One piece, forward and backward."""

    def __init__(self, forward: Forward, training: Training, piece: Piece, flow: Flow) -> None:
        self.forward, self.training, self.piece = forward, training, piece
        self.flop: dict[str, float] = {}
        self.read, self.written = piece.read, 0.0
        self.again = _again(piece, training)
        self.walk(flow)

    def walk(self, flow: Flow) -> None:
        """Products of one level read the same tensor; what comes of them goes to the next level."""
        part, training = self.piece.part, self.training
        live = flow.of(part.stream)
        reads = part.reads if isinstance(part, Attention) else None
        other = flow.of(reads) if reads else live
        if training.method == "full" and isinstance(part, Table | Vector):
            flow.live[part.stream] = True
            self.written += part.parameters * number_bytes(training.gradient)
            return
        after = live
        reached: dict[str, bool] = {}
        for level in sorted({p.map.level if p.map else 0 for p in self.piece.products}):
            before = after
            for product in self.piece.products:
                if (product.map.level if product.map else 0) != level:
                    continue
                needed = other if product.map and product.map.source == "reads" else before
                reached[product.name] = self.product(product, needed, flow)
                after = reached[product.name] or after
        flow.live[part.stream], flow.reached = after, reached

    def product(self, product: Product, live: bool, flow: Flow) -> bool:
        """Adds one product's passes; says whether gradients flow from here on."""
        training = self.training
        if product.kind == "state":
            self.add(product.precision, product.flop * (1 + self.again + 2 * live))
            return live
        if product.kind == "scores":
            self.add(product.precision, product.flop * (1 + self.again + self.scores_back(flow)))
            return live
        full = training.method == "full"
        self.add(product.precision, product.flop * (1 + self.again + live + full))
        self.read += product.bytes * (1 + (self.again > 0) + live)
        if full:
            size = product.map.parameters if product.map else self.piece.part.active
            self.written += size * number_bytes(training.gradient)
        if full or product.map is None or not has_adapter(product.name, training):
            return live or full
        one, rank = product.map, training.rank
        down, up = (2.0 * product.rows * one.used * rank * n for n in (one.inputs, one.outputs))
        self.add(self.forward.wide, (down + up) * (2 + self.again) + up + down * live)
        self.written += one.copies * rank * (one.inputs + one.outputs) * number_bytes(training.gradient)
        return True

    def scores_back(self, flow: Flow) -> float:
        """Backward pass of the scores, in forward passes: 2 where queries, keys and values all need gradients (four
        products of the forward's two), and one product more where the scores are computed again (flash attention: five
        products; Dao 2023, FlashAttention-2, section 3)."""
        part = self.piece.part
        assert isinstance(part, Attention)
        share = part.value_dim / (part.head_dim + part.value_dim)
        query, key = flow.needs("q", "q_up"), flow.needs("k", "kv_up")
        value = key if part.keys_are_values else flow.needs("v", "kv_up")
        if not (query or key or value):
            return 0.0
        back = share * (value + (query or key)) + (1 - share) * (query + key)
        return back + (1 - share) * (self.training.recompute != "none")

    def add(self, precision: str, flop: float) -> None:
        self.flop[precision] = self.flop.get(precision, 0.0) + flop

    def op(self, count: int) -> Op:
        """Passed: the forward pass's activations, and twice as many backward."""
        piece = self.piece
        ahead = sum(p.flop for p in piece.products)
        total = sum(self.flop.values())
        note = f"{piece.note}; × {total / ahead:.4g} for forward and backward" if ahead else piece.note
        return Op(piece.name, count, self.flop, self.read, self.written, piece.passed * (3 + self.again), note)


def _again(piece: Piece, training: Training) -> float:
    """Forward passes beside the first: blocks twice with full recomputation, half of their products with selective."""
    part = piece.part
    if isinstance(part, Linear | Convolution | Table) or (isinstance(part, Vector) and part.count == 1):
        return 0.0
    if training.recompute == "full":
        return 1.0
    if training.recompute == "selective" and not any(p.kind == "scores" for p in piece.products):
        return 0.5
    return 0.0


def kept(forward: Forward, training: Training) -> Op:
    """Activations that the backward pass needs, written once and read once: those of fused kernels, no less."""
    work, total = forward.workload, 0.0
    how = keeping(replace(work, training=replace(training, fused=True)), Layout())
    for part in forward.spec.parts:
        each = _kept(forward, part, training, how)
        items = isinstance(part, Convolution) or (isinstance(part, Linear) and part.once)
        total += part.count * each * (work.batch if items else forward.rows(part.stream))
    note = f"activations kept for the backward pass, recomputation: {training.recompute}"
    return Op("kept activations", 1, {}, total, total, 0.0, note)


def _kept(forward: Forward, part: Part, training: Training, how: Keeping) -> float:
    if isinstance(part, Linear) and is_head(part):
        return how.size * part.inputs if how.full else 0.0
    inside = not isinstance(part, Linear | Convolution | Table) and (part.count > 1 or not isinstance(part, Vector))
    if training.recompute == "full" and inside:
        return block_input(part, how)
    if training.recompute == "selective" and inside:
        return selected_bytes(part, how)
    seen = forward.keys(part) if isinstance(part, Attention) else 0
    return kept_bytes(part, how, forward.widths.get(part.stream, 0), seen)


def update(forward: Forward, training: Training) -> Op:
    """Gradients and optimizer state read; state, weights and fp32 copies written. No FLOPs: it adds and multiplies
    element by element."""
    work = forward.workload
    count = trained_parameters(forward.spec, training)
    gradient = number_bytes(training.gradient)
    weight = forward.size
    if training.method == "full" and work.weights != "stored":
        weight = number_bytes(work.weights)
    state = PACKED_STATE.get(training.optimizer, OPTIMIZER_BYTES[training.optimizer])
    copies = 4.0 if training.master and weight < 4 else 0.0
    read = count * (gradient + state + (copies or weight))
    written = count * (state + copies + weight)
    note = f"{count} trained parameters: gradients of {gradient:g} bytes, optimizer of {state:g}, copies of {copies:g}"
    return Op("update", 1, {}, read, written, 0.0, note)
