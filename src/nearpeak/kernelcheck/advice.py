"""From the facts about a kernel to causes: what wastes time, in which line, what to do, and what that would give.

Each prediction is a pair of seconds. The low one is the least time that the parts of the GPU (`bounds`) need after the
fix, the part that then takes longest deciding; the high one assumes that the kernel reaches 70 % of that, or the
share that it reaches of its bound now, whichever is worse. Without a measured time the gain is held against the bounds
as the least time that the kernel takes now, and as the most against memory that no cache spares scattered accesses.
Gains of several causes do not add up: check again after each fix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from nearpeak.kernelcheck import causes
from nearpeak.kernelcheck.access import AccessReport
from nearpeak.kernelcheck.bounds import Bounds, Chip, bounds, unjoined
from nearpeak.kernelcheck.causes import NOTABLE, Candidate, Situation
from nearpeak.kernelcheck.occupancy import Occupancy, Waves
from nearpeak.kernelcheck.trace_records import Trace

REACHED = 0.7  # share of a bound that a kernel without special care reaches
WORTH = 0.9  # a cause is named if its fix may bring the time under this share of what it is
HEALTHY = 0.9


@dataclass(frozen=True)
class Facts:
    """What is known of a kernel. Seconds, bytes, FLOP, bytes a second; None: not known.

    measured, limit   of a run; without a measurement the bounds stand in for it
    flop, compulsory  the op's FLOPs, and the bytes that it must read and write
    flop_per_s        the ceiling for the op's precision
    matmul, precision whether the op is a product, and of what
    matrix_units      whether the code orders work of the matrix units (mma, wgmma, …)
    spills            bytes of local memory a thread that the compiler needed
    """

    trace: Trace
    report: AccessReport
    chip: Chip
    occupancy: Occupancy | None = None
    waves: Waves | None = None
    measured: float | None = None
    limit: float | None = None
    flop: float = 0.0
    compulsory: float = 0.0
    flop_per_s: float | None = None
    matmul: bool = False
    precision: str = "fp32"
    matrix_units: bool = False
    spills: int = 0


@dataclass(frozen=True)
class Cause:
    """name: "access pattern", "layout", "bank conflicts", "no matrix units", "little reuse", "idle threads",
    "uneven grid", "few warps", "spills", "launch". file, line: where; 0 where no line is to blame.
    seconds: predicted (low, high) after the fix; gain: now ÷ after, (low, high); model: how that was had."""

    name: str
    what: str
    file: str
    line: int
    fix: str
    seconds: tuple[float, float]
    gain: tuple[float, float]
    model: str

    @property
    def where(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}" if self.line else ""


@dataclass(frozen=True)
class Advice:
    """causes: the surest gain first. bounds: of the kernel as it is. explained: the largest bound ÷ the measured time
    (None without one): far below 1, the kernel mostly waits, for latencies that the model does not see. note: one
    line."""

    causes: tuple[Cause, ...]
    bounds: Bounds | None
    explained: float | None
    note: str


def advise(facts: Facts) -> Advice:
    """The causes, and what they were judged by."""
    traced = facts.trace.stopped is None
    imbalance = facts.waves.imbalance if facts.waves else 1.0
    flop = facts.flop / facts.flop_per_s if facts.flop_per_s else 0.0
    scale = _scale(facts, imbalance)
    before = bounds(facts.chip, facts.report.lines, facts.report.traffic, facts.trace, scale, imbalance, flop)
    if not traced:
        before = Bounds(flop=flop, memory=facts.compulsory / facts.chip.memory, launch=before.launch)
    now = facts.measured if facts.measured is not None else before.most
    explained = before.most / facts.measured if facts.measured else None
    if facts.limit is not None and facts.measured is not None and facts.limit >= HEALTHY * facts.measured:
        return Advice((), before, explained, f"healthy: {facts.limit / facts.measured:.0%} of the limit")
    situation = Situation(facts.trace, facts.report, facts.chip, before, scale, imbalance, flop, now)
    slowest = now if facts.measured is not None or not traced else max(now, _slowest(situation, facts))
    found = [_cause(c, situation, facts, slowest) for make in _makers(facts, traced) for c in make(situation)]
    kept = sorted((c for c in found if c), key=lambda c: (c.seconds[1], c.seconds[0]))
    return Advice(tuple(kept), before if traced else None, explained, _note(facts, kept))


def _makers(facts: Facts, traced: bool) -> list[Callable[[Situation], list[Candidate]]]:
    makers: list[Callable[[Situation], list[Candidate]]] = []
    if traced:
        makers += [causes.access_pattern, causes.layout, causes.bank_conflicts, causes.idle_threads]
        if facts.flop > 8 * facts.compulsory > 0 and not facts.matrix_units:
            makers.append(causes.little_reuse)
        if facts.waves:
            makers.append(lambda s: causes.uneven_grid(s, facts.waves))
    if facts.matmul and not facts.matrix_units:
        makers.append(lambda s: causes.no_matrix_units(s, facts.precision))
    if facts.occupancy and facts.measured is not None:
        makers.append(lambda s: causes.few_warps(s, facts.occupancy))
    if facts.spills:
        makers.append(lambda s: causes.spills(s, facts.spills))
    makers.append(causes.launch)
    return makers


def _scale(facts: Facts, imbalance: float) -> float:
    """Whole work ÷ traced work where the trace was cut: by the op's FLOPs; where they tell nothing, by the measured
    time, as if the largest bound explained it; 1 without either."""
    if not facts.trace.cut:
        return 1.0
    done = causes.traced_flop(facts.trace)
    if facts.flop and done:
        return max(1.0, facts.flop / done)
    part = bounds(facts.chip, facts.report.lines, facts.report.traffic, facts.trace, 1.0, imbalance).most
    return max(1.0, facts.measured / part) if facts.measured and part else 1.0


def _slowest(s: Situation, facts: Facts) -> float:
    """Seconds that the kernel may take as it is, where nobody measured them: the bounds are the least."""
    resident = facts.occupancy.blocks if facts.occupancy else 1
    memory = unjoined(s.chip, causes.scattered(s), s.report.traffic, s.trace, resident)
    return memory * s.scale / REACHED if memory > NOTABLE * s.before.memory else 0.0


def _cause(candidate: Candidate, s: Situation, facts: Facts, slowest: float) -> Cause | None:
    """The candidate with its prediction, or None where it would gain too little. slowest: what it may take now."""
    reached = s.before.most / s.now
    low = candidate.after.most * min(1.0, 1 / reached)
    worst = candidate.after if candidate.worst is None else candidate.worst
    high = worst.most / min(REACHED, reached) + s.before.launch * (worst.by != "the launch")
    if candidate.sure is not None:
        low, high = candidate.sure
    if facts.limit is not None:
        low = max(low, facts.limit)
    if low > WORTH * s.now or (candidate.sure is None and high >= s.now and low > 0.5 * s.now):
        return None
    high = max(low, min(high, s.now))
    model = (
        candidate.model or f"{candidate.after.by} would need {candidate.after.most * 1e3:.3g} ms; now {s.before.by}: "
    )
    if not candidate.model:
        model += f"{s.before.most * 1e3:.3g} ms"
    return Cause(
        candidate.name,
        candidate.what,
        candidate.file,
        candidate.line,
        candidate.fix,
        (low, high),
        (s.now / high, slowest / low),
        model,
    )


def _note(facts: Facts, found: list[Cause]) -> str:
    if facts.trace.stopped:
        return f"{facts.trace.stopped}: what the code accesses was not judged"
    if facts.trace.cut and not facts.flop and facts.measured is None:
        return "only the beginning of the kernel's loops was traced: times are too low, what is named still holds"
    if not found:
        return "nothing that this tool can see wastes more than 10 %"
    if len(found) == 1:
        return "fix it, then check again: the next cause shows only then"
    return "gains of several causes do not add up: fix the first, then check again"
