"""How fast device memory can be written."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import torch

from nearpeak.ceilings.bandwidth import Way, bandwidth_ceiling, buffer_bytes
from nearpeak.ceilings.bench import Bench
from nearpeak.ceilings.judge import impossible_bandwidth
from nearpeak.records.ceiling import Ceiling

METHOD = "memory_write/1"


def measure(bench: Bench) -> list[Ceiling]:
    size = buffer_bytes(bench, 1)
    words = torch.empty(size // 4, dtype=torch.int32, device=bench.torch_device)
    ceiling = bandwidth_ceiling(bench, "memory_write", METHOD, _ways(bench, words))
    return [replace(ceiling, invalid=impossible_bandwidth(ceiling.burst or 0.0, bench.spec))]


def _ways(bench: Bench, words: torch.Tensor) -> list[Way]:
    """Each call writes another value, so that no write finds its own data in place."""
    size, values = words.numel() * 4, count(1)
    ways = [Way("torch fill_", (size,), size, lambda: words.fill_(next(values) & 0x7FFFFFFF))]
    if not bench.is_cpu:
        try:
            from nearpeak.kernels.memory import write_ramp
        except ImportError:
            return ways
        ways.append(Way("triton stores", (size,), size, lambda: write_ramp(words, next(values) & 0x7FFFFFFF)))
    return ways
