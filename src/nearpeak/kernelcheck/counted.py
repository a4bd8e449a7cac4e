"""What the hardware's counters say of a kernel: beside the traced access pattern, and alone where nothing was traced.

Pure: counters and facts in, comparisons and causes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nearpeak.kernelcheck.advice import Cause, Facts
from nearpeak.kernelcheck.causes import NOTABLE
from nearpeak.kernelcheck.counters import Counters
from nearpeak.kernelcheck.cubin import Resources

FACTOR = 1.5  # counted and traced figures further apart than this are said to differ
_LITTLE = 0.5  # a sector of which threads use less is badly used; a GPU with fewer of its warps has few
SECTOR_BYTES, FULL = 32, 4  # sectors of a request in which each thread of a warp reads its own 4-byte word
_HEALTHY = 0.9  # share of the limit from which on nothing is worth a cause, as in the advice
# What a warp waits for, in plain words (NVIDIA, Nsight Compute's "Kernel Profiling Guide", "Warp Scheduler States").
WAITS = {
    "long_scoreboard": "memory",
    "short_scoreboard": "shared memory or special functions",
    "lg_throttle": "a place in the queue to memory",
    "mio_throttle": "a place in the queue to shared memory",
    "tex_throttle": "a place in the queue to textures",
    "barrier": "other warps at a barrier",
    "membar": "a memory fence",
    "math_pipe_throttle": "a free arithmetic unit",
    "gmma": "the matrix units",
    "wait": "the result of the instruction before",
    "branch_resolving": "a branch",
    "no_instruction": "its next instruction to be fetched",
    "imc_miss": "constants",
    "dispatch_stall": "the dispatcher",
    "drain": "its last stores",
    "sleeping": "its own sleep",
    "misc": "other things",
}


@dataclass(frozen=True)
class Comparison:
    """One figure. unit: "B", "share", or "" for a plain number. traced None: a trace cannot tell. note: what a
    difference of more than FACTOR means, else ""."""

    what: str
    unit: str
    counted: float
    traced: float | None = None
    note: str = ""


def compare(counters: Counters, facts: Facts, used: Resources, copies: bool = False) -> tuple[Comparison, ...]:
    """Every counter that was read, with the traced or computed figure beside it where there is one.

    copies   the kernel copies to shared memory without registers: such reads are counted apart, and not compared
    """
    found = [*_moved(counters, facts), *_requests(counters, facts, copies), *_multiprocessor(counters, facts, used)]
    return tuple(found)


def _differ(counted: float, traced: float | None) -> bool:
    return traced is not None and (counted > FACTOR * traced or counted * FACTOR < traced)


def _compared(
    what: str, unit: str, counted: float | None, traced: float | None, more: str, less: str
) -> list[Comparison]:
    if counted is None:
        return []
    note = ""
    if traced is not None and _differ(counted, traced):
        times = f"{counted / traced:.2g} times the traced figure: " if traced else ""
        note = times + (more if counted > traced else less)
    return [Comparison(what, unit, counted, traced, note)]


_NOT_ALIKE = "the traced blocks do not stand for the whole grid"


def _moved(counters: Counters, facts: Facts) -> Iterator[Comparison]:
    """Bytes, and how many times those that the op needs."""
    traced = facts.trace.stopped is None and not facts.trace.cut
    traffic = facts.report.traffic
    read = sum(t.memory for t in traffic if t.kind == "read") if traced else None
    written = sum(t.memory for t in traffic if t.kind != "read") if traced else None
    again = "the caches lose data before it is used again (the trace counts each byte once)"
    yield from _compared("read from memory", "B", counters.memory_read, read, again, _NOT_ALIKE)
    yield from _compared("written to memory", "B", counters.memory_written, written, "parts of sectors are written one "
                         "by one", "the rest was still in the second-level cache when the kernel ended")  # fmt: skip
    if counters.memory_read is not None and counters.memory_written is not None and facts.compulsory:
        both = counters.memory_read + counters.memory_written
        traced_both = read + written if read is not None and written is not None else None
        yield Comparison("moved ÷ needed by the op", "", both / facts.compulsory,
                         traced_both / facts.compulsory if traced_both is not None else None)  # fmt: skip
    through = sum(t.windowed for t in traffic) if traced else None
    yield from _compared("through the second-level cache", "B", counters.cache_bytes, through,
                         "the first-level caches spare less than the model of them says",
                         "the first-level caches spare more than the model of them says")  # fmt: skip


def _requests(counters: Counters, facts: Facts, copies: bool) -> Iterator[Comparison]:
    """How many sectors a warp's request touches, and what banks cost."""
    whole = facts.trace.stopped is None
    for kind, requests, sectors, use in (
        ("read", counters.read_requests, counters.read_sectors, counters.read_use),
        ("write", counters.write_requests, counters.write_sectors, counters.write_use),
    ):
        if requests and sectors is not None:
            lines = [x for x in facts.report.lines if x.space == "global" and x.kind == kind]
            asked = sum(x.requests for x in lines)
            traced = (
                sum(x.sectors for x in lines) / asked if whole and asked and not (copies and kind == "read") else None
            )
            yield from _compared(f"sectors a {kind} request", "", sectors / requests, traced, _NOT_ALIKE, _NOT_ALIKE)
            if use is not None:
                yield Comparison(f"of each sector, used by a {kind}", "share", use)
    if counters.shared_passes and counters.bank_conflicts is not None:
        lines = [x for x in facts.report.lines if x.space == "shared"]
        least = sum(x.least_wavefronts for x in lines)
        traced = sum(x.wavefronts for x in lines) / least if whole and least else None
        free = max(counters.shared_passes - counters.bank_conflicts, 1.0)
        yield from _compared("bank passes ÷ without conflicts", "", counters.shared_passes / free, traced,
                             "some are waits for other traffic in the same unit", _NOT_ALIKE)  # fmt: skip
    if counters.local_sectors:
        yield Comparison("read from local memory (spills)", "B", counters.local_sectors * SECTOR_BYTES)


def _multiprocessor(counters: Counters, facts: Facts, used: Resources) -> Iterator[Comparison]:
    fit = facts.occupancy.share if facts.occupancy else None
    yield from _compared("warps at a time, of those a multiprocessor holds", "share", counters.occupancy, fit,
                         "more than was computed", "blocks end unevenly, or are too few")  # fmt: skip
    registers, other = float(used.registers) if used.registers else None, "another compilation ran"
    yield from _compared("registers a thread", "", counters.registers, registers, other, other)
    issues, lanes = float(facts.trace.issues.sum()), float(facts.trace.lanes.sum())
    traced = lanes / issues if facts.trace.stopped is None and issues else None
    yield from _compared("active threads of a warp's 32", "", counters.threads, traced, _NOT_ALIKE, _NOT_ALIKE)
    for what, value in (("issue slots used", counters.issue), ("matrix units busy", counters.matrix_units)):
        if value is not None:
            yield Comparison(what, "share", value)
    for reason, warps in counters.stalls:
        yield Comparison(f"warps waiting for {WAITS.get(reason, reason)}", "", warps)


def causes_of(counters: Counters, facts: Facts) -> tuple[Cause, ...]:
    """Faults that counters alone show, in the words of the traced ones. What mending gives lies between the op's own
    limit and nothing: counters tell what is wasted, not what it costs."""
    now, limit = facts.measured, facts.limit
    if now is None or not limit or limit >= _HEALTHY * now:
        return ()
    model = "between the op's own limit and no gain: counters tell what is wasted, not what it costs"
    return tuple(
        Cause(name, what, "", 0, fix, (limit, now), (1.0, now / limit), model)
        for name, what, fix in _faults(counters, facts)
    )


def _faults(counters: Counters, facts: Facts) -> Iterator[tuple[str, str, str]]:
    """(name, what, fix)."""
    for kind, requests, sectors, use in (
        ("read", counters.read_requests, counters.read_sectors, counters.read_use),
        ("write", counters.write_requests, counters.write_sectors, counters.write_use),
    ):
        # Words that a whole warp shares use little of a sector too; they touch few sectors.
        if requests and sectors is not None and use is not None and use < _LITTLE and sectors > FULL * requests:
            yield (
                "access pattern",
                f"a warp's {kind} touches {sectors / requests:.0f} sectors of 32 bytes and uses {use:.0%} (counted)",
                "let neighbouring threads touch neighbouring elements; where reads and writes run along different "
                "directions, turn a tile round in shared memory",
            )
    if counters.shared_passes and (counters.bank_conflicts or 0) > (1 - 1 / NOTABLE) * counters.shared_passes:
        part = (counters.bank_conflicts or 0) / counters.shared_passes
        yield (
            "bank conflicts",
            f"{part:.0%} of the passes through shared memory are repeated for bank conflicts (counted)",
            "pad the rows of the tile by one element, or permute its columns by the row (XOR)",
        )
    if counters.threads is not None and counters.threads < 32 / NOTABLE:
        yield (
            "idle threads",
            f"of a warp's 32 threads {counters.threads:.0f} are active on average (counted)",
            "branch by warp, not by thread: the same work for all threads of a warp, and blocks of whole warps",
        )
    busy = max(counters.issue or 0.0, counters.matrix_units or 0.0)
    if counters.occupancy is not None and counters.occupancy < _LITTLE and busy < _LITTLE:
        waits = (
            f", and mostly wait for {WAITS.get(counters.stalls[0][0], counters.stalls[0][0])}"
            if counters.stalls
            else ""
        )
        yield (
            "few warps",
            f"{counters.occupancy:.0%} of the warps that a multiprocessor holds are there on average (counted){waits}",
            "use smaller tiles or fewer registers, or give each thread more independent work",
        )
    if counters.local_sectors:
        yield (
            "spills",
            f"{counters.local_sectors * SECTOR_BYTES:.3g} bytes are read back from local memory (counted)",
            "use smaller tiles or a larger register limit; index small arrays by constants only",
        )
