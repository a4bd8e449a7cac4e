"""How fast device memory can be copied; the bytes are those read and those written."""

from __future__ import annotations

from dataclasses import replace

import torch

from nearpeak.ceilings.bandwidth import Way, bandwidth_ceiling, buffer_bytes, random_words
from nearpeak.ceilings.bench import Bench
from nearpeak.ceilings.judge import impossible_bandwidth
from nearpeak.records.ceiling import Ceiling

METHOD = "memory_copy/1"


def measure(bench: Bench) -> list[Ceiling]:
    size = buffer_bytes(bench, 2)
    source = random_words(size, bench.torch_device)
    target = torch.empty_like(source)
    ways = [Way("torch copy_", (size,), 2 * size, lambda: target.copy_(source))]
    ceiling = bandwidth_ceiling(bench, "memory_copy", METHOD, ways)
    if not torch.equal(source, target):
        raise ArithmeticError("the copy does not equal its source")
    return [replace(ceiling, invalid=impossible_bandwidth(ceiling.burst or 0.0, bench.spec))]
