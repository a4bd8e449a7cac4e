"""How fast the last-level cache can be read: the ceiling of work whose data stays in it."""

from __future__ import annotations

import torch

from nearpeak.ceilings.bandwidth import Way, bandwidth_ceiling, memory_kernels, random_words
from nearpeak.ceilings.bench import Bench, NotMeasured
from nearpeak.records.ceiling import Ceiling

METHOD = "cache_read/1"
# Shares of the cache that the working set takes: part of a cache may be set aside or far from half of the cores.
SHARES = (0.25, 0.5)
ROUNDS = 256
PROGRAMS_PER_UNIT = 8


def measure(bench: Bench) -> list[Ceiling]:
    cache = bench.device.cache.number
    if not cache:
        raise NotMeasured(f"the size of the last-level cache is not known: {bench.device.cache.reason}")
    way_of = _on_cpu if bench.is_cpu else _on_gpu
    ways = [way_of(bench, int(cache * share)) for share in SHARES]
    return [bandwidth_ceiling(bench, "cache_read", METHOD, ways)]


def _on_cpu(bench: Bench, size: int) -> Way:
    wide = random_words(size // 8 * 8, bench.torch_device).view(torch.int64)
    rounds = max(1, 2**28 // size)  # enough work a call that starting it does not count

    def work() -> None:
        for _ in range(rounds):
            wide.amax()

    return Way("torch.amax of int64", (size,), wide.numel() * 8 * rounds, work)


def _on_gpu(bench: Bench, size: int) -> Way:
    kernels, why_not = memory_kernels(bench.torch_device)
    if kernels is None:
        raise NotMeasured(f"reading past the first-level cache needs Triton: {why_not}")
    tile = kernels.BLOCK * 8 * 4
    words = random_words(max(size // tile, 1) * tile, bench.torch_device)
    programs = (bench.device.units or 64) * PROGRAMS_PER_UNIT
    partial = torch.empty(programs, dtype=torch.int32, device=bench.torch_device)
    total = kernels.read_sum_cached(words, partial, 1)
    shape = (words.numel() * 4,)
    how = "triton sum past the first-level cache"
    return Way(how, shape, total * ROUNDS, lambda: kernels.read_sum_cached(words, partial, ROUNDS))
