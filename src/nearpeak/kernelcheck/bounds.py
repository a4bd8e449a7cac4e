"""The least time that each part of a GPU needs for what a trace has counted: load/store units, caches, memory, issue.

The model of the load/store units: a multiprocessor serves one pass a clock. A request to global memory takes a pass for
each 128-byte line it touches (or for each 128 bytes it delivers), one to shared memory a pass for each wavefront, and
both at least 32 ÷ (load/store units) clocks. That a line costs one clock is published nowhere; it was inferred from two
kernels, the plain fp32 product with threads along rows and its mended twin. On an H200 (132 multiprocessors, taken to
run at 1.98 GHz) 17.2 and 3.2 clocks are measured per step where the model says 17 and 3; on an A6000 (84, taken to run
at 1.8 GHz; times of the public ladder github.com/siboehm/SGEMM_CUDA) 31 and 4.9 where it says 34 and 4. Tags could
be looked up four a clock (an NVIDIA engineer about Volta on the developer forums). Units per multiprocessor: NVIDIA's
architecture whitepapers; for sm_103 and sm_120 assumed to be those of their predecessors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nearpeak.kernelcheck.access import LineAccess, Traffic
from nearpeak.kernelcheck.request_cost import CACHE_LINE
from nearpeak.kernelcheck.trace_records import Trace

SCHEDULERS, WARP = 4, 32
_MANY_UNITS = ("sm_70", "sm_80", "sm_90", "sm_100", "sm_103")  # 32 load/store units; others 16


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
    return Bounds(
        load_store=sum(passes(line, chip) for line in lines) * clocks,
        cache=scale * imbalance * sum(t.windowed for t in traffic) / chip.cache if chip.cache else 0.0,
        memory=sum(t.memory for t in traffic) / chip.memory,
        issue=float(trace.issues.sum()) / SCHEDULERS * clocks,
        flop=flop,
        launch=chip.launch or 0.0,
    )


def coalesced(line: LineAccess) -> LineAccess:
    """The line as if neighbouring threads touched neighbouring elements."""
    return replace(line, sectors=line.least, cache_lines=line.least_lines, stride=line.width)


def without_conflicts(line: LineAccess) -> LineAccess:
    return replace(
        line, wavefronts=line.least_wavefronts, merged=max(line.requests, line.merged / line.conflict_degree)
    )
