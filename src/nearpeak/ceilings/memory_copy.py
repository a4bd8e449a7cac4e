"""How fast device memory can be copied; the bytes are those read and those written."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import torch

from nearpeak.ceilings.bandwidth import Way, bandwidth_ceiling, buffer_bytes, random_words
from nearpeak.ceilings.bench import Bench
from nearpeak.ceilings.judge import impossible_bandwidth
from nearpeak.records.ceiling import Ceiling

METHOD = "memory_copy/1"


def measure(bench: Bench) -> list[Ceiling]:
    """Two sources take turns, so that what is written changes."""
    size = buffer_bytes(bench, 3)
    sources = [random_words(size, bench.torch_device) for _ in range(2)]
    target, turns = torch.empty_like(sources[0]), cycle(sources)
    ways = [Way("torch copy_", (size,), 2 * size, lambda: target.copy_(next(turns)))]
    ceiling = bandwidth_ceiling(bench, "memory_copy", METHOD, ways)
    if not any(torch.equal(source, target) for source in sources):
        raise ArithmeticError("the copy does not equal its source")
    return [replace(ceiling, invalid=impossible_bandwidth(ceiling, bench.spec))]
