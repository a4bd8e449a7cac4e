"""What the memory and transfer ceilings share: bytes a call, burst and sustained, the best of several ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nearpeak.ceilings.bench import QUICK, Bench, energy_per_unit, limited_by, why
from nearpeak.records.ceiling import Ceiling, Conditions, Kind
from nearpeak.timing.timer import Work, synchronize

AT_LEAST = 20  # timings; no power cap cuts these trains short, and pageable memory needs that many for a steady median


@dataclass(frozen=True)
class Way:
    """One way of moving `bytes` a call; shape: the bytes of the data set, for the record."""

    how: str
    shape: tuple[int, ...]
    bytes: int
    work: Work


def bandwidth_ceiling(
    bench: Bench, kind: Kind, method: str, ways: list[Way], notes: dict[str, str] | None = None
) -> Ceiling:
    """Burst of every way; the best one sustained as well. The invalidity is for the caller to judge."""
    label = kind.replace("_", " ")
    bench.progress(f"{label}, burst")
    bursts = [(way, bench.burst(way.work, AT_LEAST)) for way in ways]
    way, burst = max(bursts, key=lambda pair: pair[0].bytes * pair[1].per_second)
    if not bench.quick:
        bench.progress(f"{label}, sustained")
    held = bench.sustained(way.work, 1 / burst.per_second, bench.effort.brief)
    joules, why_not = energy_per_unit(held, way.bytes)
    missing = {"error": "only products have an error"}
    if why_not:
        missing["energy_per_unit"] = why_not
    if held is None:
        missing["sustained"] = QUICK
    return Ceiling(
        kind=kind,
        precision=None,
        accumulate=None,
        burst=way.bytes * burst.per_second,
        sustained=way.bytes * held.calls_per_s if held else None,
        unit="B/s",
        spread=burst.spread,
        error=None,
        energy_per_unit=joules,
        conditions=Conditions(
            method=method,
            how=way.how,
            shape=way.shape,
            samples=burst.samples,
            sustained_shape=way.shape if held else (),
            burst=burst.load,
            sustained=held.load if held else None,
            settle_s=held.settle_s if held else None,
            wander=held.wander if held else None,
            limited_by=limited_by(held),
            other_processes=bench.other_processes(),
            notes=notes or {},
            missing=missing,
        ),
    )


def memory_kernels(device: torch.device) -> tuple[Any, str | None]:
    """Our Triton kernels (nearpeak.kernels.memory), or None and why: it may be missing, or lack a C compiler."""
    try:
        from nearpeak.kernels import memory

        words = torch.zeros(memory.BLOCK, dtype=torch.int32, device=device)
        memory.read_sum(words, torch.empty_like(words[:1]), 1)
        synchronize(device)
    except Exception as error:
        return None, why(error)
    return memory, None


def buffer_bytes(bench: Bench, buffers: int) -> int:
    """How large each of `buffers` arrays is: 4 GiB on a GPU, 16 caches (512 MiB at least) on a CPU, or less.

    Always many times the last-level cache, so that the cache is cold whatever ran before. Raises MemoryError with the
    numbers where that cannot be.
    """
    wanted = max(2**29, 16 * int(bench.device.cache.number or 0)) if bench.is_cpu else 2**32
    size = min(wanted, bench.free_bytes() // (buffers + 1)) // 2**20 * 2**20
    cache = int(bench.device.cache.number or 0)
    if size < max(8 * cache, 64 * 2**20):
        raise MemoryError(
            f"{buffers} arrays of {size / 2**20:.0f} MiB fit, too small beside a cache of {cache / 2**20:.0f} MiB"
        )
    return size


def random_words(size: int, device: torch.device) -> torch.Tensor:
    """`size` bytes of random int32. Generated block by block: torch's generator would need several times the memory."""
    words = torch.empty(size // 4, dtype=torch.int32, device=device)
    for block in words.split(2**26):
        block.random_()
    return words
