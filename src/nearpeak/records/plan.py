"""What `nearpeak plan` answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearpeak.records.limit import Limit
from nearpeak.records.workload import Workload

SCHEMA = "nearpeak.plan/1"


@dataclass(frozen=True)
class Estimate:
    """A prediction with its 80 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device. kv counts all growing and fixed state; overhead: allocator and the context."""

    weights: int
    kv: int
    activations: int
    gradients: int
    optimizer: int
    overhead: int
    capacity: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.gradients + self.optimizer + self.overhead


@dataclass(frozen=True)
class Layout:
    """How a model lies over devices: their product is the number of devices (expert parallel lies within the others).

    data           replicas; sharded: those that share weights, gradients and optimizer (FSDP) among them
    tensor, pipeline, context, expert   degrees of parallelism
    micro_batch    sequences at once a replica; micro_batches a step
    """

    data: int = 1
    sharded: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    micro_batch: int = 1
    micro_batches: int = 1


@dataclass(frozen=True)
class Measured:
    """A row that someone measured: the nearest to a claim, so that it can be checked."""

    text: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Term:
    """One part of the seconds of a step: the limit, what efficiency adds to it, fixed costs, communication, a bubble.

    note   the arithmetic in words: "limit 3.35 ms ÷ 0.79 (llama.cpp, 4-bit, RTX 4090)"
    """

    name: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Step:
    """Where the seconds of one step of a candidate go. Its speed is tokens ÷ the sum of its terms.

    phase   of the workload: "prefill", "decode", "encode", "train"
    tokens  that one step gives, by all devices together
    limit   of one step on all devices; None where it has none
    """

    phase: str
    tokens: float
    terms: tuple[Term, ...]
    limit: Limit | None = None

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.terms)


@dataclass(frozen=True)
class Candidate:
    """One choice of devices for the workload. What it cannot give is None with its reason in `missing`.

    steps   what each speed is made of, for --explain
    """

    gpu: str
    count: int
    fits: bool
    memory: Memory
    layout: Layout
    prefill_tokens_per_s: Estimate | None
    decode_tokens_per_s: Estimate | None
    train_tokens_per_s: Estimate | None
    joules_per_token: float | None
    cost_per_million_tokens: float | None
    bound_by: str
    nearest_measured: Measured | None
    rates: str
    notes: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All candidates, best first, and the advice in one sentence. ranking: the rule by which they are ordered, in
    words; empty where there is one alone."""

    schema: str
    model: dict[str, object]
    workload: dict[str, object]
    workloads: tuple[Workload, ...]
    candidates: tuple[Candidate, ...]
    advice: str
    notes: tuple[str, ...] = ()
    ranking: str = ""


@dataclass(frozen=True)
class Variation:
    """The same question with one thing changed, and what the same cards (or more of them) then give.

    axis    "context", "batch", "users", "precision", "count" or "task"; value: what it was changed to
    """

    axis: str
    value: int | str
    candidate: Candidate
