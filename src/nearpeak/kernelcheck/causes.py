"""The faults that the facts about a kernel can show, one function each: it names the lines and gives the bounds after
a fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath

from nearpeak.kernelcheck.access import AccessReport, LineAccess, Traffic, analyse
from nearpeak.kernelcheck.axes import with_axes_swapped
from nearpeak.kernelcheck.bounds import Bounds, Chip, bounds, coalesced, passes, without_conflicts
from nearpeak.kernelcheck.occupancy import Occupancy, Waves, launch_bound
from nearpeak.kernelcheck.ptx_matrix import flop_a_thread
from nearpeak.kernelcheck.trace_records import Trace

NOTABLE = 1.25  # more than a quarter above the least possible is worth a look
_MATRIX_FROM = {"fp16": 70, "int8": 75, "bf16": 80, "tf32": 80, "fp64": 80, "fp8": 89, "fp4": 100}
_NO_FP64_MATRIX = (86, 87, 89, 103, 110, 120, 121)  # CUDA Programming Guide 13, table 33, as are those above
_FIRST_TRY = 0.3  # share of the ceiling that a first kernel with matrix units reaches: an assumption, not measured


@dataclass(frozen=True)
class Situation:
    """A kernel as it is: its facts, its bounds, and the seconds it takes now."""

    trace: Trace
    report: AccessReport
    chip: Chip
    before: Bounds
    scale: float
    imbalance: float
    flop: float
    now: float

    def after(self, lines: Iterable[LineAccess] | None = None, traffic: Iterable[Traffic] | None = None) -> Bounds:
        """The bounds with some lines or traffic replaced."""
        return bounds(
            self.chip,
            self.report.lines if lines is None else lines,
            self.report.traffic if traffic is None else traffic,
            self.trace,
            self.scale,
            self.imbalance,
            self.flop,
        )


@dataclass(frozen=True)
class Candidate:
    """A fault with its fix. after: the bounds once fixed; worst: if it goes less well; sure: (low, high) seconds
    where the bounds cannot say; model: how the prediction was had, where the bounds do not say it."""

    name: str
    what: str
    fix: str
    file: str
    line: int
    after: Bounds
    worst: Bounds | None = None
    sure: tuple[float, float] | None = None
    model: str = ""


def _places(lines: Iterable[LineAccess]) -> str:
    return "; ".join(f"{PurePath(x.file).name}:{x.line}: {x.in_words()}" for x in lines)


def scattered(s: Situation) -> list[LineAccess]:
    """Global accesses that touch clearly more sectors and cache lines than their bytes need, the dearest first. A few
    words that whole groups of threads share are no fault: nothing is gained by joining them."""
    found = [
        x
        for x in s.report.lines
        if x.space == "global"
        and x.kind != "atomic"
        and x.coalescing > NOTABLE
        and x.cache_lines > NOTABLE * x.least_lines
        and x.sectors > 4 * x.requests
    ]
    return sorted(found, key=lambda x: -passes(x, s.chip))


def _whole(x: LineAccess) -> bool:
    """Whether the sectors are used in full sooner or later, so that the order of the threads is at fault, not the
    layout."""
    return x.sector_use > 0.6


def _coalesced_traffic(s: Situation, lines: Iterable[LineAccess]) -> list[Traffic]:
    """The traffic if these lines' requests touched the fewest sectors: stores need not repeat sectors any more."""
    at_fault = {(x.buffer, x.kind) for x in lines}
    return [
        replace(t, requested=t.once, windowed=min(t.windowed, t.once)) if (t.buffer, t.kind) in at_fault else t
        for t in s.report.traffic
    ]


_SWAP = (
    "exchange the roles of threadIdx.x and threadIdx.y (with the block's and the grid's extents), so that threadIdx.x "
    "runs along the direction in which memory is contiguous"
)
_DEAL = (
    "deal the elements out in turn: thread 0 the first, thread 1 the second, …, so that the threads of a warp touch "
    "neighbouring elements; a run of elements of its own is for the threads of a CPU"
)
_STAGE = (
    "let threadIdx.x run along the direction in which memory is contiguous; where reads and writes run along different "
    "directions, bring a tile into shared memory (rows padded by one element) and turn it round there"
)
_TILE = (
    "let a block bring a tile of each operand into shared memory and use each number there many times; then let each "
    "thread compute several outputs from registers"
)
_REGISTER_TILE = (
    "let each thread compute several outputs (8×8, say), so that a number read from shared memory once is used several "
    "times from a register"
)
_PAD = (
    "pad the rows of the tile by one element, or permute its columns by the row (XOR): the threads then use all banks"
)


def access_pattern(s: Situation) -> list[Candidate]:
    """Neighbouring threads far apart in memory: exchange the axes, deal the elements out in turn, or turn a tile round
    in shared memory, whichever the trace shows to help."""
    bad = [x for x in scattered(s) if _whole(x)]
    if not bad:
        return []
    first = bad[0]
    got, enough = first.sectors / first.requests, first.least / first.requests
    what = f"{_places(bad)} ({got:.0f} sectors of 32 bytes a warp where {enough:.0f} would do)"
    traffic = _coalesced_traffic(s, bad)
    ideal = s.after([coalesced(x) if x in bad else x for x in s.report.lines], traffic)
    if (swapped := with_axes_swapped(s.trace)) is not None:
        report = analyse(swapped)
        after = bounds(s.chip, report.lines, report.traffic, s.trace, s.scale, s.imbalance, s.flop)
        good = after.most < 2 * ideal.most and after.load_store < 2 * ideal.load_store
        if good and after.most < s.before.most / NOTABLE:
            return [Candidate("access pattern", what, _SWAP, first.file, first.line, after)]
    if all(x.successive > 0.5 for x in bad):
        return [Candidate("access pattern", what, _DEAL, first.file, first.line, ideal)]
    staged = [replace(y := coalesced(x), cache_lines=y.cache_lines + 2 * x.requests) for x in bad]
    rest = [x for x in s.report.lines if x not in bad]
    return [Candidate("access pattern", what, _STAGE, first.file, first.line, s.after([*rest, *staged], traffic))]


def layout(s: Situation) -> list[Candidate]:
    """Sectors of which the kernel never uses more than a part: structures of which one field is read."""
    result = []
    for x in (x for x in scattered(s) if not _whole(x)):
        used = x.sector_use
        traffic = [
            replace(t, requested=t.requested * used, windowed=t.windowed * used, once=t.needed, memory=t.needed)
            if t.buffer == x.buffer
            else t
            for t in s.report.traffic
        ]
        what = f"{_places([x])}; of each 32-byte sector of {x.buffer} only {used * 32:.0f} bytes are ever used"
        fix = f"keep what is used of {x.buffer} in an array of its own (a structure of arrays)"
        after = s.after([coalesced(y) if y is x else y for y in s.report.lines], traffic)
        result.append(Candidate("layout", what, fix, x.file, x.line, after))
    return result


def bank_conflicts(s: Situation) -> list[Candidate]:
    """Threads of a warp that want different words of one bank of shared memory."""
    bad = [x for x in s.report.lines if x.space == "shared" and x.conflict_degree > NOTABLE]
    if not bad:
        return []
    bad.sort(key=lambda x: x.least_wavefronts - x.wavefronts)
    first = bad[0]
    what = (
        f"threads of a warp want different words of the same bank of shared memory: {_places(bad)} "
        f"({first.conflict_degree:.0f} passes instead of 1)"
    )
    after = s.after([without_conflicts(x) if x in bad else x for x in s.report.lines])
    return [Candidate("bank conflicts", what, _PAD, first.file, first.line, after)]


def little_reuse(s: Situation) -> list[Candidate]:
    """An op in which each number is needed many times, bound by the fetching of numbers: tiles. Only once the access
    pattern is right, for that comes first."""
    if s.before.by != "the load/store units" or access_pattern(s) or bank_conflicts(s):
        return []
    first = max(s.report.lines, key=lambda x: passes(x, s.chip))
    ideal = replace(s.before, load_store=0.0, cache=0.0, issue=min(s.before.issue, s.flop))
    if first.space == "global":
        lines = [replace(x, cache_lines=x.requests) if x.space == "global" else x for x in s.report.lines]
        worst, fix = s.after(lines), _TILE
    else:
        worst, fix = replace(s.before, load_store=s.before.load_store / 2), _REGISTER_TILE
    what = f"each multiply-add fetches its numbers anew: {_places([first])}"
    model = f"between the op's own limit and 70 % of what {worst.load_store * 1e3:.3g} ms of the load/store units allow"
    return [Candidate("little reuse", what, fix, first.file, first.line, ideal, worst, model=model)]


def no_matrix_units(s: Situation, precision: str) -> list[Candidate]:
    """A product in a precision that the GPU's matrix units can do, done without them."""
    number = int(s.chip.architecture.split("_")[-1].rstrip("af") or 0)
    least = _MATRIX_FROM.get(precision)
    if least is None or number < least or (precision == "fp64" and number in _NO_FP64_MATRIX) or not s.flop:
        return []
    arithmetic = [s.trace.issues[n] * _flop_of(s.trace, n) for n in range(len(s.trace.instructions))]
    i = s.trace.instructions[arithmetic.index(max(arithmetic))]
    best = max(s.flop, s.before.memory)
    return [
        Candidate(
            "no matrix units",
            f"the product in {precision} is done one multiply-add a thread; the matrix units stand idle",
            "use the matrix units: wmma or mma.sync, wgmma on Hopper, or tl.dot in Triton",
            i.file,
            i.line,
            s.before,
            sure=(best, best / _FIRST_TRY),
            model="between the ceiling of the precision and 30 % of it",
        )
    ]


def idle_threads(s: Situation) -> list[Candidate]:
    """Warps of which a part of the threads waits while the others take another branch."""
    issues, active = float(s.trace.issues.sum()), float(s.trace.lanes.sum())
    share = active / (32 * issues) if issues else 1.0
    if share > 1 / NOTABLE:
        return []
    lost: dict[tuple[str, int], float] = {}
    for i, issued, lanes in zip(s.trace.instructions, s.trace.issues, s.trace.lanes, strict=True):
        lost[i.file, i.line] = lost.get((i.file, i.line), 0.0) + float(32 * issued - lanes)
    file, line = max(lost, key=lambda place: lost[place])
    what = f"on average {1 - share:.0%} of a warp's threads stand idle, most in line {line}, where others branch off"
    fix = "branch by warp, not by thread: the same work for all threads of a warp, and blocks of whole warps"
    return [Candidate("idle threads", what, fix, file, line, replace(s.before, issue=s.before.issue * share))]


def uneven_grid(s: Situation, waves: Waves | None) -> list[Candidate]:
    """Multiprocessors without work, from the start or in the last round."""
    if waves is None or waves.imbalance < 1.1:
        return []
    what = f"the last round of blocks leaves multiprocessors idle ({waves.waves:.1f} rounds)"
    if waves.idle:
        what = f"{waves.idle} of {s.chip.multiprocessors} multiprocessors get no block"
    fix = "start a multiple of the number of multiprocessors, or more and smaller blocks, or split the longest loop"
    return [Candidate("uneven grid", what, fix, "", 0, replace(s, imbalance=1.0).after())]


def few_warps(s: Situation, occupancy: Occupancy | None) -> list[Candidate]:
    """Too few warps to wait for memory and arithmetic side by side, where the bounds do not explain the time."""
    if occupancy is None or occupancy.share > 0.5 or s.before.most > 0.7 * s.now:
        return []
    at_a_time = f"{occupancy.warps} warps at a time on a multiprocessor ({occupancy.share:.0%})"
    what = f"{at_a_time}, limited by {occupancy.limited_by}: too few to hide waiting"
    fixes = {
        "registers": "use fewer registers a thread (__launch_bounds__, smaller tiles)",
        "shared memory": "use less shared memory a block",
    }
    fix = fixes.get(occupancy.limited_by, "use larger blocks") + ", or give each thread more independent work"
    model = "between the largest bound and no gain: waiting is not modelled"
    return [Candidate("few warps", what, fix, "", 0, s.before, sure=(s.before.most, s.now), model=model)]


def spills(s: Situation, local_bytes: int) -> list[Candidate]:
    """Registers that did not fit."""
    what = (
        f"each thread keeps {local_bytes} bytes in local memory: spilled registers, or an array indexed by a variable"
    )
    fix = "use smaller tiles or a larger register limit; index small arrays by constants only (unrolled loops)"
    model = "between the largest bound and no gain: the traffic of spills is not traced"
    return [Candidate("spills", what, fix, "", 0, s.before, sure=(s.before.most, s.now), model=model)]


def launch(s: Situation) -> list[Candidate]:
    """A run so short that starting it counts."""
    cost = s.chip.launch
    if not cost or not launch_bound(s.now, cost):
        return []
    rest = max(v for name, v in s.before.parts().items() if name != "the launch")
    what = f"a launch costs {cost * 1e6:.1f} µs, a run takes {s.now * 1e6:.1f} µs"
    fix = "do more in one launch: join it with its neighbours, give it larger inputs, or record a CUDA graph"
    sure = (rest, max(rest, s.now - cost / 2))
    return [Candidate("launch", what, fix, "", 0, s.before, sure=sure, model="the run without the cost of a launch")]


def _flop_of(trace: Trace, n: int) -> float:
    i = trace.instructions[n]
    if products := flop_a_thread(i):
        return products
    kinds = [m for m in i.modifiers if m in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")]
    if not kinds or i.opcode not in ("fma", "mad", "add", "sub", "mul"):
        return 0.0
    return (2.0 if i.opcode in ("fma", "mad") else 1.0) * (2.0 if kinds[-1].endswith("x2") else 1.0)


def traced_flop(trace: Trace) -> float:
    """FLOPs that the trace has seen, extrapolated to the grid."""
    return float(sum(trace.lanes[n] * _flop_of(trace, n) for n in range(len(trace.instructions))))
