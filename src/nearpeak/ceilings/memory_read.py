"""How fast device memory can be read: the ceiling of decoding, where every token reads all weights."""

from __future__ import annotations

from dataclasses import replace

import torch

from nearpeak.ceilings.bandwidth import Way, bandwidth_ceiling, buffer_bytes, memory_kernels, random_words
from nearpeak.ceilings.bench import Bench
from nearpeak.ceilings.judge import impossible_bandwidth
from nearpeak.records.ceiling import Ceiling

METHOD = "memory_read/1"


def measure(bench: Bench) -> list[Ceiling]:
    size = buffer_bytes(bench, 1)
    words = random_words(size, bench.torch_device)
    ceiling = bandwidth_ceiling(bench, "memory_read", METHOD, reading_ways(bench, words))
    return [replace(ceiling, invalid=impossible_bandwidth(ceiling, bench.spec))]


def reading_ways(bench: Bench, words: torch.Tensor) -> list[Way]:
    """Sums on a GPU by our kernel; on a CPU, and where Triton does not work, the cheapest reductions that torch has."""
    size = words.numel() * 4
    wide = words.view(torch.int64)
    if bench.is_cpu:
        return [Way("torch.amax of int64", (size,), size, lambda: wide.amax())]
    kernels, why_not = memory_kernels(bench.torch_device)
    if kernels is None:
        floats = words.view(torch.float32)
        return [Way(f"torch.sum of fp32 (no Triton: {why_not})", (size,), size, lambda: floats.sum())]
    ways = []
    for loads in (4, 8, 16):
        partial = torch.empty(kernels.partial_count(words.numel(), loads), dtype=torch.int32, device=words.device)
        ways.append(Way(f"triton sum, {loads} loads", (size,), size, _read(kernels.read_sum, words, partial, loads)))
    return ways


def _read(read_sum, words, partial, loads):  # type: ignore[no-untyped-def]
    return lambda: read_sum(words, partial, loads)
