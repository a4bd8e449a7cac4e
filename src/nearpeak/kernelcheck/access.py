"""What the memory accesses of a trace cost, per source line: sectors, cache lines, strides, conflicts, idle threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nearpeak.kernelcheck.request_cost import SECTOR, WARP, bank_passes, distinct, filled, sectors_and_lines
from nearpeak.kernelcheck.trace_records import Access, Trace


@dataclass(frozen=True)
class LineAccess:
    """All accesses of one source line to one buffer. Counts are of the whole grid, extrapolated from the traced blocks.

    element, width      bytes of one element, and that a thread moves at once
    requests            warp instructions
    sectors, least      32-byte sectors they touch, and the fewest that could hold the bytes they ask for
    cache_lines         128-byte lines they touch; least_lines likewise
    wavefronts, least_wavefronts   passes through shared memory's banks, and without conflicts; `merged` is a lower
                                   bound of
                        the passes, as if all phases of a wide access were served together
    stride              bytes from a thread's address to its neighbour's, the most frequent; None where no two are
                        active
    active              share of the 32 threads that take part
    successive          share of requests in which each thread moves on by just one access: they could be one wide
                        access
    unique_bytes, unique_sectors_bytes   bytes that a block asks for and the sectors they lie in, each once, times
                                         blocks
    """

    file: str
    line: int
    kind: str
    space: str
    buffer: str
    element: int
    width: int
    requests: float
    sectors: float = 0.0
    least: float = 0.0
    cache_lines: float = 0.0
    least_lines: float = 0.0
    wavefronts: float = 0.0
    least_wavefronts: float = 0.0
    merged: float = 0.0
    stride: int | None = None
    active: float = 1.0
    successive: float = 0.0
    unique_bytes: float = 0.0
    unique_sector_bytes: float = 0.0

    @property
    def coalescing(self) -> float:
        """Sectors moved ÷ sectors needed: 1 is best, 8 the worst for 4-byte elements."""
        return self.sectors / self.least if self.least else 1.0

    @property
    def conflict_degree(self) -> float:
        """Passes through shared memory ÷ passes without bank conflicts: 1 is best, 32 the worst."""
        return self.wavefronts / self.least_wavefronts if self.least_wavefronts else 1.0

    @property
    def sector_use(self) -> float:
        """Share of the fetched sectors that the block uses sooner or later: low where the layout is at fault."""
        return self.unique_bytes / self.unique_sector_bytes if self.unique_sector_bytes else 1.0

    @property
    def could_be_wide(self) -> bool:
        """Whether each thread reads or writes successive elements one by one, where one access could move 16 bytes."""
        return self.successive > 0.5 and self.width < 16

    def in_words(self) -> str:
        """ "neighbouring threads read a 4096 elements (16384 bytes) apart"."""
        verb = {"read": "read", "write": "write", "atomic": "update"}[self.kind]
        if self.stride is None:
            return f"single threads {verb} {self.buffer}"
        if self.stride == 0:
            return f"neighbouring threads {verb} the same element of {self.buffer}"
        if self.stride == self.width:
            return f"neighbouring threads {verb} neighbouring elements of {self.buffer}"
        apart = abs(self.stride) / self.element
        distance = f"{apart:g} elements ({abs(self.stride)} bytes)"
        return f"neighbouring threads {verb} elements of {self.buffer} that lie {distance} apart"


@dataclass(frozen=True)
class Traffic:
    """Bytes of one buffer in the whole grid.

    requested      sum over all requests of their sectors: what the second-level cache serves without a first-level
                   cache
    windowed       what it serves if a block's first-level cache keeps each sector as long as it has room
    once           each sector once a block; `memory`: at least so much comes from memory, never more than the buffer
    needed         likewise, but only the bytes that threads ask for
    """

    buffer: str
    kind: str
    requested: float
    windowed: float
    once: float
    memory: float
    needed: float


@dataclass(frozen=True)
class AccessReport:
    """lines: by cost, the dearest first; traffic of global buffers; idle: {source line: share of idle threads}."""

    lines: tuple[LineAccess, ...]
    traffic: tuple[Traffic, ...]
    idle: dict[int, float]


def analyse(trace: Trace, l1_bytes: float = 128 * 1024) -> AccessReport:
    """Analyse a trace. `l1_bytes`: first-level cache that one block has to itself (cache ÷ resident blocks)."""
    groups: dict[tuple[Any, ...], list[Access]] = defaultdict(list)
    for a in trace.accesses:
        groups[a.instruction.file, a.line, a.kind, a.space, a.buffer, a.width].append(a)
    lines = [_line(accesses) for accesses in groups.values()]
    by_buffer: dict[tuple[str, str], list[Access]] = defaultdict(list)
    for a in trace.accesses:
        if a.space == "global":
            by_buffer[a.buffer, a.kind].append(a)
    traffic = tuple(_traffic(accesses, trace.sizes, l1_bytes) for accesses in by_buffer.values())
    cost = sorted(lines, key=lambda x: -(x.cache_lines + x.merged))
    return AccessReport(tuple(cost), traffic, _idle(trace))


def _sampled(access: Access, most: int = 4096) -> Access:
    """The access, or where it was made very often every so-manieth time, each standing for the others."""
    every = -(-len(access.weight) // most) | 1  # odd, so that all warps have their turn
    if every == 1:
        return access
    names = ("addresses", "active", "block", "warp", "step", "weight")
    chosen = {name: getattr(access, name)[::every] for name in names}
    chosen["weight"] = chosen["weight"] * (access.weight.sum() / chosen["weight"].sum())
    return replace(access, **chosen)


def _idle(trace: Trace) -> dict[int, float]:
    issues: dict[int, float] = defaultdict(float)
    lanes: dict[int, float] = defaultdict(float)
    for i, count, active in zip(trace.instructions, trace.issues, trace.lanes, strict=True):
        issues[i.line] += count
        lanes[i.line] += active
    return {line: float(1 - lanes[line] / (WARP * n)) for line, n in issues.items() if n}


def _line(accesses: Sequence[Access]) -> LineAccess:
    first = accesses[0]
    totals: dict[str, float] = defaultdict(float)
    for a in map(_sampled, accesses):
        totals["requests"] += float(a.weight.sum())
        totals["lanes"] += float((a.weight * a.active.sum(axis=1)).sum())
        addresses = filled(a)
        if a.space == "global":
            counted = ("sectors", "cache_lines", "least", "least_lines")
            for name, count in zip(counted, sectors_and_lines(addresses, a.width), strict=True):
                totals[name] += float((a.weight * count).sum())
        elif a.space == "shared":
            for name, count in zip(
                ("wavefronts", "least_wavefronts", "merged"), bank_passes(addresses, a.active, a.width), strict=True
            ):
                totals[name] += float((a.weight * count).sum())
    lanes = totals.pop("lanes")
    unique, unique_sectors = _unique(accesses) if first.space == "global" else (0.0, 0.0)
    return LineAccess(
        first.instruction.file,
        first.line,
        first.kind,
        first.space,
        first.buffer,
        first.element,
        first.width,
        **totals,
        stride=_stride(accesses),
        active=lanes / (WARP * totals["requests"]),
        successive=_successive(accesses),
        unique_bytes=unique,
        unique_sector_bytes=unique_sectors,
    )


def _unique(accesses: Sequence[Access]) -> tuple[float, float]:
    """(bytes, bytes of their sectors) that the blocks touch, each once a block, times the blocks they stand for."""
    width, total, sectors = accesses[0].width, 0.0, 0.0
    for block in {int(b) for a in accesses for b in np.unique(a.block)}:
        chosen = [(a, a.block == block) for a in accesses]
        touched = np.unique(np.concatenate([a.addresses[rows][a.active[rows]] for a, rows in chosen]))
        weight = next(float(a.weight[rows][0]) for a, rows in chosen if rows.any())
        total += weight * len(touched) * width
        sectors += weight * len(np.unique(touched // SECTOR)) * SECTOR
    return total, sectors


def _stride(accesses: Sequence[Access]) -> int | None:
    """The most frequent distance of neighbouring threads, in bytes."""
    steps = []
    for a in accesses:
        some = slice(None, None, max(1, len(a.addresses) // 256))
        both = a.active[some, 1:] & a.active[some, :-1]
        steps.append((a.addresses[some, 1:] - a.addresses[some, :-1])[both])
    values, counts = np.unique(np.concatenate(steps), return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else None


def _successive(accesses: Sequence[Access]) -> float:
    """Share of requests that follow one of the same warp with each thread one access further on."""
    block, warp, step = (np.concatenate([getattr(a, n) for a in accesses]) for n in ("block", "warp", "step"))
    order = np.lexsort((step, warp, block))[: 8192 * 4]
    addresses = np.concatenate([filled(a) for a in accesses])[order]
    if len(order) < 2:
        return 0.0
    same = (block[order][1:] == block[order][:-1]) & (warp[order][1:] == warp[order][:-1])
    onward = ((addresses[1:] - addresses[:-1]) == accesses[0].width).all(axis=1)
    return float((same & onward).mean())


def _traffic(accesses: Sequence[Access], sizes: dict[str, int], l1_bytes: float) -> Traffic:
    requested = windowed = 0.0
    for a in map(_sampled, accesses):
        requested += float((a.weight * distinct(filled(a) // SECTOR)).sum()) * SECTOR
    for block in {int(b) for a in accesses for b in np.unique(a.block)}:
        rows = [a.block == block for a in accesses]
        step = np.concatenate(
            [np.repeat(a.step[r], WARP)[a.active[r].ravel()] for a, r in zip(accesses, rows, strict=True)]
        )
        sector = np.concatenate([a.addresses[r][a.active[r]] // SECTOR for a, r in zip(accesses, rows, strict=True)])
        weight = next(float(a.weight[r][0]) for a, r in zip(accesses, rows, strict=True) if r.any())
        windowed += weight * _windowed(step, sector, l1_bytes / SECTOR) * SECTOR
    width = [_unique([a for a in accesses if a.width == w]) for w in {a.width for a in accesses}]
    needed, once = (sum(w[k] for w in width) for k in (0, 1))
    size = float(sizes.get(accesses[0].buffer, 0)) or once
    if accesses[0].kind != "read":  # stores go through to the second level, request by request
        windowed = requested
    return Traffic(
        accesses[0].buffer,
        accesses[0].kind,
        requested,
        min(windowed, requested),
        once,
        min(once, size),
        min(needed, size),
    )


def _windowed(step: Any, sector: Any, room: float) -> float:
    """Sectors fetched when a cache of so many sectors forgets everything each time it is full: a simple stand-in for
    LRU."""
    order = np.argsort(step, kind="stable")
    sector, pieces = sector[order], 1
    while True:
        counts = [len(np.unique(part)) for part in np.array_split(sector, pieces)]
        if max(counts) <= room or pieces >= 4096 or pieces * WARP >= len(sector):
            return float(sum(counts))
        pieces *= 2
