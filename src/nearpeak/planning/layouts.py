"""Ways to lay a model over cards: every one that divides, in short lists, without those that cannot win."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nearpeak.planning.facts import ModelFacts
from nearpeak.records.plan import Layout

MOST_TENSOR = 8  # beyond one machine's cards each all-reduce would cross the network
LONG = 32768  # positions from which splitting a sequence over cards is worth its messages


def divisors(number: int) -> list[int]:
    """All of them, the smallest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def inference_layouts(facts: ModelFacts, count: int, engine: str, linked: bool, node: int = 8) -> tuple[Layout, ...]:
    """Layouts of `count` cards: tensor, pipeline and replicas; experts spread over replicas.

    llama.cpp splits by layers only. Cards without a link share nothing: replicas alone.
    """
    found = []
    for tensor in tensors(facts, count, node) if engine != "llama.cpp" and linked else [1]:
        for pipeline in divisors(count // tensor):
            if pipeline > facts.layers or (pipeline > 1 and not linked):
                continue
            data = count // tensor // pipeline
            found.append(Layout(data=data, tensor=tensor, pipeline=pipeline))
            spread = data * tensor
            if (
                data > 1
                and facts.expert_count
                and facts.expert_count % spread == 0
                and engine != "llama.cpp"
                and linked
            ):
                found.append(Layout(data=data, tensor=tensor, pipeline=pipeline, expert=spread))
    return tuple(found)


def tensors(facts: ModelFacts, count: int, node: int = 8) -> list[int]:
    """Degrees of tensor parallelism that divide heads, key-value heads (or are a multiple of them: they are then kept
    twice), and the feed-forward's width."""
    if not facts.heads:
        return [1]
    return [
        n
        for n in divisors(count)
        if n <= min(MOST_TENSOR, node)
        and facts.heads % n == 0
        and (facts.kv_heads % n == 0 or n % max(1, facts.kv_heads) == 0)
        and (facts.hidden % n == 0 if facts.hidden else True)
    ]


def training_layouts(
    facts: ModelFacts, count: int, batch: int, sequence: int, linked: bool, node: int = 8, packed: bool = False
) -> Iterator[Layout]:
    """Layouts of `count` cards for a step of `batch` sequences, the plainest first: replicas that share their states
    (and plain replicas), then tensor, pipeline and context parallelism. Each with every micro-batch from the largest
    power of two that divides a replica's share down to 1. packed: 4-bit weights, which no trainer splits inside a
    matrix (bitsandbytes and torchao shard them)."""
    options = []
    for tensor in tensors(facts, count, node) if linked and not packed else [1]:
        for pipeline in divisors(count // tensor):
            if pipeline > max(1, facts.layers) or (pipeline > 1 and not linked):
                continue
            for context in divisors(count // tensor // pipeline):
                if context > 1 and (sequence < LONG or sequence % (2 * context) or not linked):
                    continue
                data = count // tensor // pipeline // context
                if data > batch or batch % data:
                    continue
                options.append((tensor * context, pipeline, tensor, context, data))
    for _, pipeline, tensor, context, data in sorted(options):
        share = batch // data
        spreads = {data * context, 1} if linked else {1}
        for sharded in sorted(spreads, reverse=True):
            for expert in expert_degrees(facts, data * tensor):
                micro = 1 << (share.bit_length() - 1)
                while micro:
                    if share % micro == 0 and share // micro >= (pipeline if pipeline > 1 and share >= pipeline else 1):
                        yield Layout(data, sharded, tensor, pipeline, context, expert, micro, share // micro)
                    micro //= 2


def expert_degrees(facts: ModelFacts, spread: int) -> list[int]:
    """1, and the largest spread of experts that divides them."""
    if not facts.expert_count:
        return [1]
    fitting = [n for n in divisors(spread) if facts.expert_count % n == 0 and n <= 64]
    return sorted({1, fitting[-1]})
