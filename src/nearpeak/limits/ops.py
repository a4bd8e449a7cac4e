"""A workload as pieces: FLOPs by precision, compulsory bytes, counts. docs/limits.md states the conventions."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.limits.memory import OPTIMIZER_BYTES, trained_parameters
from nearpeak.limits.pairs import pairs
from nearpeak.limits.precision import number_bytes
from nearpeak.limits.weights import mean_bits, part_bytes
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Op
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
from nearpeak.records.workload import Training, Workload


def ops_of(spec: ModelSpec, workload: Workload) -> tuple[Op, ...]:
    """All pieces of one step, in the order of the forward pass; a train step's update comes last.

    A multiply-add is two FLOPs; only products count (no norms, no softmax, no activation function). Raises UserError
    for an unknown precision, or a phase that the model does not have.
    """
    if workload.phase == "train" and workload.training is None:
        raise UserError("a train step needs to know its method: full, lora or qlora")
    if workload.phase in ("prefill", "decode") and spec.task == "encode":
        raise UserError(f"{spec.name} gives one answer an item: it has no {workload.phase}; its phase is encode")
    work = _Work(spec, workload)
    ops = [op for part in spec.parts for op in work.ops(part)]
    if workload.training:
        ops = [work.trained(op) for op in ops] + [work.update(workload.training)]
    return tuple(ops)


class _Work:
    """One workload on one model."""

    def __init__(self, spec: ModelSpec, workload: Workload) -> None:
        self.spec, self.workload = spec, workload
        self.precision = "nf4" if workload.training and workload.training.method == "qlora" else workload.weights
        self.stored_bits = mean_bits(spec, "stored") if spec.stored else 16.0
        self.size = number_bytes(workload.compute)

    def positions(self, stream: str) -> int:
        """Of all sequences together."""
        return self.workload.batch * self.length(stream)

    def length(self, stream: str) -> int:
        """New positions a sequence; a stream of fixed length was read once, before the first token is decoded."""
        fixed = self.spec.streams.get(stream)
        if fixed is None:
            return self.workload.tokens
        return 0 if self.workload.phase == "decode" else fixed

    def ops(self, part: Part) -> list[Op]:
        if self.length(part.stream) == 0 and not (isinstance(part, Attention) and part.reads):
            return []
        if isinstance(part, Attention):
            return self.attention(part)
        if isinstance(part, Experts):
            return [self.experts(part)]
        if isinstance(part, FeedForward):
            return [self.feed_forward(part)]
        if isinstance(part, Linear):
            return [self.linear(part)]
        if isinstance(part, Recurrent):
            return self.recurrent(part)
        if isinstance(part, Convolution):
            return [self.convolution(part)]
        if isinstance(part, Table):
            rows = self.positions(part.stream) * part.width
            return [self.op(part, "", {}, read=rows * self.size, passed=rows * self.size, note="rows looked up")]
        return [self.op(part, "", {}, read=self.weights(part), note="added or multiplied")]

    def op(self, part: Part, suffix: str, flop: dict[str, float], read: float = 0.0, written: float = 0.0,
           passed: float = 0.0, note: str = "") -> Op:  # fmt: skip
        name = f"{part.stream} {part.name}{suffix}" if len(self.spec.streams) > 1 else part.name + suffix
        return Op(name, part.count, flop, read, written, passed, note)

    def weights(self, part: Part) -> float:
        return part_bytes(part, self.precision, self.stored_bits)

    def product(self, flop: float) -> dict[str, float]:
        return {self.workload.compute: flop}

    def linear(self, part: Linear) -> Op:
        """Logits are asked for at the last position alone, but in training at every one."""
        every = self.workload.phase in ("train", "encode") and not part.once
        rows = self.positions(part.stream) if every else self.workload.batch
        if part.name != "head" and not part.once:
            rows = self.positions(part.stream)
        read = self.weights(part)
        if part.tied:  # its bytes are the table's, which the lookup hardly reads
            read = part_bytes(replace(part, tied=False), self.precision, self.stored_bits)
        passed = rows * (part.inputs + part.outputs) * self.size
        note = f"2 · {rows} positions · {part.inputs} · {part.outputs}"
        return self.op(part, "", self.product(2.0 * rows * part.active), read, 0.0, passed, note)

    def feed_forward(self, part: FeedForward) -> Op:
        rows = self.positions(part.stream)
        passed = rows * (2 * part.width + 2 * part.matrices * part.hidden) * self.size
        note = f"2 · {rows} positions · {part.width} · {part.hidden} · {part.matrices}"
        return self.op(part, "", self.product(2.0 * rows * part.active), self.weights(part), 0.0, passed, note)

    def experts(self, part: Experts) -> Op:
        """Each position picks its experts by chance: experts · (1 − (1 − chosen ÷ experts)^positions) are read."""
        rows = self.positions(part.stream)
        touched = part.experts * (1 - (1 - part.chosen / part.experts) ** rows)
        whole = self.weights(part)
        routed = part.experts * (part.one_expert + part.bias) / max(part.parameters, 1) * whole
        read = whole - routed + routed * touched / part.experts
        hidden = part.chosen * part.hidden + part.shared_hidden
        passed = rows * ((2 + 2 * part.chosen) * part.width + 6 * hidden) * self.size
        note = f"2 · {rows} positions · {part.active} active; {touched:.1f} of {part.experts} experts read"
        return self.op(part, "", self.product(2.0 * rows * part.active), read, 0.0, passed, note)

    def attention(self, part: Attention) -> list[Op]:
        """The maps, then scores and what is read of the cache."""
        rows = self.positions(part.stream)
        sources = rows
        if part.reads:
            sources = self.positions(part.reads)
        shapes = part.linear_shapes
        from_source = {"k", "v", "kv_down"}
        flop = sum(2.0 * (sources if name in from_source else rows) * i * o for name, (i, o) in shapes.items())
        maps = self.op(
            part, " maps", self.product(flop), self.weights(part), 0.0,
            sum(rows * (i + o) for i, o in shapes.values()) * self.size,
            " + ".join(f"{name} {i}×{o}" for name, (i, o) in shapes.items()) + f", 2 · {rows} positions",
        )  # fmt: skip
        return [maps, self.scores(part)]

    def scores(self, part: Attention) -> Op:
        work = self.workload
        new = self.length(part.stream)
        fixed = self.spec.streams.get(part.reads or part.stream)
        keys = fixed if part.reads and fixed else None
        context = 0 if keys or fixed else work.context
        seen = new * keys if keys else pairs(new, context, part.window, part.causal)
        absorbed = part.latent is not None and work.phase == "decode"
        if absorbed and part.latent:
            # queries meet the latents themselves: kv_rank + rotary for the score, kv_rank for the sum
            each = part.heads * (2 * part.latent.kv_rank + part.latent.rotary)
        else:
            each = part.heads * (part.head_dim + part.value_dim)
        length = keys or (min(new + context, part.window + new - 1) if part.window else new + context)
        size = number_bytes(work.cache)
        cached = (part.causal or part.reads) and self.spec.task != "encode" and not work.training
        read = work.batch * part.cached * (length - (0 if keys else new)) * size if cached else 0.0
        written = work.batch * part.cached * new * size if cached and not keys else 0.0
        numbers = work.batch * (new * part.heads * (part.head_dim + part.value_dim) + length * part.cached)
        note = f"2 · {work.batch} · {each} · {seen} pairs of positions"
        return self.op(part, " scores", self.product(2.0 * work.batch * each * seen), max(read, 0.0), written,
                       numbers * self.size, note)  # fmt: skip

    def recurrent(self, part: Recurrent) -> list[Op]:
        rows = self.positions(part.stream)
        maps = self.op(
            part, " maps", self.product(2.0 * rows * part.active), self.weights(part), 0.0,
            sum(rows * (i + o) for i, o in part.shapes.values()) * self.size, f"2 · {rows} positions · {part.active}",
        )  # fmt: skip
        state = self.workload.batch * part.state * 4.0  # states are kept in fp32
        kept = 0.0 if self.workload.training else state
        return [maps, self.op(part, " state", self.product(rows * part.state_flop), kept, kept, 2 * state, "state")]

    def convolution(self, part: Convolution) -> Op:
        outputs = self.workload.batch * part.positions
        numbers = outputs * part.outputs
        note = f"2 · {outputs} outputs · {part.active}"
        return self.op(part, "", self.product(2.0 * outputs * part.active), self.weights(part), 0.0,
                       2.0 * numbers * self.size, note)  # fmt: skip

    # --- training ---

    def trained(self, op: Op) -> Op:
        """Forward, backward, and what is computed twice.

        A product's backward pass is two products of its size, one where its weight is frozen. Flash attention computes
        the scores again in its backward pass: 2.5 forward passes in place of 2. Weights are read in both passes, once
        more where blocks are computed again.
        """
        training = self.workload.training
        assert training is not None
        scores = op.name.endswith(" scores")
        frozen = training.method != "full" and not scores
        backward = 1.0 if frozen else 2.0
        again = 1.0 if training.recompute == "full" and not op.name.endswith("head") else 0.0
        if scores and training.recompute == "attention":
            backward += 0.5
        passes = 1 + backward + again
        flop = {name: count * passes for name, count in op.flop.items()}
        note = f"{op.note}; × {passes:g} for forward and backward"
        return replace(op, flop=flop, read=op.read * (2 + again), written=0.0, passed=op.passed * passes, note=note)

    def update(self, training: Training) -> Op:
        """Gradients written and read, optimizer state and weights read and written, the adapters' products among it."""
        count = trained_parameters(self.spec, training)
        gradient = number_bytes(training.gradient)
        state = OPTIMIZER_BYTES[training.optimizer] + (4.0 if training.master and self.size < 4 else 0.0)
        flop: dict[str, float] = {}
        if training.method != "full":
            flop = self.product(6.0 * count * self.positions(next(iter(self.spec.streams))))
        kept = count * (state + self.size)
        note = f"{count} trained parameters: gradients of {gradient:g} bytes, optimizer of {state:g}"
        return Op("update", 1, flop, kept + count * gradient, kept + count * gradient, 0.0, note)


def model_flop(spec: ModelSpec, workload: Workload, convention: str = "causal") -> float:
    """FLOPs of one training step (3 × forward) as the literature counts them, for all positions.

    causal      6 · (parameters in products) + 6 · layers · width · length: attention counted half (Megatron-Bridge)
    full        6 · (parameters in products) + 12 · layers · width · length (Llama-style; PaLM, appendix B)
    all         6 · all parameters + 12 · layers · width · length (llm-foundry)
    Raises UserError for another convention.
    """
    if convention not in ("causal", "full", "all"):
        raise UserError(f"no FLOP convention {convention!r}: causal, full or all")
    positions = workload.batch * workload.tokens
    products = sum(p.count * p.active for p in spec.parts) if convention != "all" else spec.parameters
    scores = 0.0
    for part in spec.parts:
        if isinstance(part, Attention):
            seen = workload.tokens / (2 if convention == "causal" and part.causal else 1)
            scores += part.count * 2.0 * part.heads * (part.head_dim + part.value_dim) * seen
    return positions * (6.0 * products + 3.0 * scores)
