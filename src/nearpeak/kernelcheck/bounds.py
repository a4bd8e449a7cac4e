"""The least time that each part of a GPU needs for what a trace has counted: load/store units, caches, memory, issue.

The model of the load/store units: a multiprocessor serves one pass a clock. A request to global memory takes a pass for
each 128-byte line it touches (or for each 128 bytes it delivers), one to shared memory a pass for each wavefront, and
both at least 32 ÷ (load/store units) clocks. That a line costs one clock is published nowhere; it was inferred from two
kernels, the plain fp32 product with threads along rows and its mended twin. On an H200 (132 multiprocessors, taken to
run at 1.98 GHz) 17.2 and 3.2 clocks are measured per step where the model says 17 and 3; on an A6000 (84, taken to run
at 1.8 GHz; times of the public ladder github.com/siboehm/SGEMM_CUDA) 31 and 4.9 where it says 34 and 4. Tags could
be looked up four a clock (an NVIDIA engineer about Volta on the developer forums). Units per multiprocessor: NVIDIA's
architecture whitepapers; for sm_103, sm_110, sm_120 and sm_121 assumed to be those of their predecessors.

The model of memory: bytes at the rate of reading, and where reads and writes alternate somewhat longer, because the bus
has to turn round: an H200 copies at 4.305 TB/s where it reads at 4.598 (benchmarks/results/measure-h200/first.json).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from nearpeak.kernelcheck.access import LineAccess, Traffic
from nearpeak.kernelcheck.occupancy import unified_cache
from nearpeak.kernelcheck.request_cost import CACHE_LINE
from nearpeak.kernelcheck.trace_records import Trace

SCHEDULERS, WARP = 4, 32
_MANY_UNITS = ("sm_70", "sm_80", "sm_90", "sm_100", "sm_103")  # 32 load/store units; others 16
TURNAROUND = 4.598 / 4.305 - 1  # how much longer a byte takes where as many are read as written


@dataclass(frozen=True)
class Chip:
    """The GPU that the kernel runs on, as measured or from its data sheet; SI units. None: not known, so no bound.

    memory, cache    bytes a second from memory and from the last-level cache; launch: seconds that a launch costs
    """

    architecture: str
    multiprocessors: int
    clock_hz: float
    memory: float
    cache: float | None = None
    launch: float | None = None

    @property
    def load_store_units(self) -> int:
        return 32 if self.architecture.rstrip("af") in _MANY_UNITS else 16

    @property
    def pass_clocks(self) -> float:
        """Clocks that a request takes at least."""
        return WARP / self.load_store_units


def passes(line: LineAccess, chip: Chip) -> float:
    """Clocks of a multiprocessor's load/store units for all requests of a line, in the whole grid."""
    least = line.requests * chip.pass_clocks
    if line.space == "shared":
        return max(line.merged, least)
    delivered = line.requests * line.active * WARP * line.width / CACHE_LINE if line.stride != 0 else 0.0
    return max(line.cache_lines, delivered if line.width > 4 else 0.0, least)


@dataclass(frozen=True)
class Bounds:
    """Seconds that each part needs at least; `flop` is the op's arithmetic at its ceiling, `launch` a launch."""

    load_store: float = 0.0
    cache: float = 0.0
    memory: float = 0.0
    issue: float = 0.0
    flop: float = 0.0
    launch: float = 0.0

    def parts(self) -> dict[str, float]:
        return {
            "the load/store units": self.load_store,
            "the second-level cache": self.cache,
            "memory": self.memory,
            "instruction issue": self.issue,
            "arithmetic": self.flop,
            "the launch": self.launch,
        }

    @property
    def most(self) -> float:
        return max(self.parts().values())

    @property
    def by(self) -> str:
        """The part that takes longest."""
        return max(self.parts(), key=lambda name: self.parts()[name])


def bounds(
    chip: Chip,
    lines: Iterable[LineAccess],
    traffic: Iterable[Traffic],
    trace: Trace,
    scale: float = 1.0,
    imbalance: float = 1.0,
    flop: float = 0.0,
) -> Bounds:
    """Bounds of a traced kernel. scale: whole work ÷ traced work, where the trace was cut; imbalance: of the
    multiprocessors; flop: seconds that the op's arithmetic takes at its ceiling."""
    clocks = scale * imbalance / (chip.multiprocessors * chip.clock_hz)
    traffic = tuple(traffic)
    return Bounds(
        load_store=sum(passes(line, chip) for line in lines) * clocks,
        cache=scale * imbalance * sum(t.windowed for t in traffic) / chip.cache if chip.cache else 0.0,
        memory=memory_seconds(chip, traffic),
        issue=float(trace.issues.sum()) / SCHEDULERS * clocks,
        flop=flop,
        launch=chip.launch or 0.0,
    )


def memory_seconds(chip: Chip, traffic: Iterable[Traffic]) -> float:
    """Seconds that memory needs for the traffic, the turning round of its bus included."""
    read = written = 0.0
    for t in traffic:
        read, written = (read + t.memory, written) if t.kind == "read" else (read, written + t.memory)
    if not read + written:
        return 0.0
    mixed = 2 * min(read, written) / (read + written)
    return (read + written) / chip.memory * (1 + TURNAROUND * mixed)


def unjoined(chip: Chip, bad: Iterable[LineAccess], traffic: Iterable[Traffic], trace: Trace, resident: int) -> float:
    """Seconds that memory needs at worst: where no cache joins the parts of sectors that the lines `bad` touch.

    Each store of a part then reads the sector and writes it back (memory moves whole sectors). Reads come from memory
    again where the cache lines that all resident blocks touch at a time do not fit in the first-level cache.
    """
    at_fault = {(line.buffer, line.kind) for line in bad}
    room = unified_cache(chip.architecture) - 1024 * resident
    worst: list[Traffic] = []
    for t in traffic:
        if (t.buffer, t.kind) in at_fault and (t.kind != "read" or _at_a_time(trace, t) * resident > room):
            t = replace(t, memory=t.requested)
            worst += [replace(t, kind="read")] if t.kind != "read" else []
        worst.append(t)
    return memory_seconds(chip, worst)


def _at_a_time(trace: Trace, t: Traffic) -> int:
    """Bytes of the cache lines that one request of every warp of a block touches."""
    most = 0
    for a in trace.accesses:
        if (a.buffer, a.kind) == (t.buffer, t.kind):
            rows = np.flatnonzero(a.block == a.block[0])
            rows = rows[np.unique(a.warp[rows], return_index=True)[1]]
            most = max(most, len(np.unique(a.addresses[rows][a.active[rows]] // CACHE_LINE)))
    return most * CACHE_LINE


def coalesced(line: LineAccess) -> LineAccess:
    """The line as if neighbouring threads touched neighbouring elements."""
    return replace(line, sectors=line.least, cache_lines=line.least_lines, stride=line.width)


def without_conflicts(line: LineAccess) -> LineAccess:
    return replace(
        line, wavefronts=line.least_wavefronts, merged=max(line.requests, line.merged / line.conflict_degree)
    )
