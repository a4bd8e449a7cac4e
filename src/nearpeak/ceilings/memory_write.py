"""How fast device memory can be written."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import torch

from nearpeak.ceilings.bandwidth import Way, bandwidth_ceiling, buffer_bytes, memory_kernels
from nearpeak.ceilings.bench import Bench
from nearpeak.ceilings.judge import impossible_bandwidth
from nearpeak.records.ceiling import Ceiling

METHOD = "memory_write/1"


def measure(bench: Bench) -> list[Ceiling]:
    size = buffer_bytes(bench, 1)
    words = torch.empty(size // 4, dtype=torch.int32, device=bench.torch_device)
    ceiling = bandwidth_ceiling(bench, "memory_write", METHOD, _ways(bench, words))
    return [replace(ceiling, invalid=impossible_bandwidth(ceiling, bench.spec))]


def _ways(bench: Bench, words: torch.Tensor) -> list[Way]:
    """Each call writes other values, so that no write finds its own data in place."""
    size, values = words.numel() * 4, count(1)
    if not bench.is_cpu:
        kernels, _ = memory_kernels(bench.torch_device)
        if kernels:
            return [Way("triton stores", (size,), size, lambda: kernels.write_random(words, next(values) & 0x7FFFFFFF))]
    return [Way("torch fill_", (size,), size, lambda: words.fill_(next(values) & 0x7FFFFFFF))]
