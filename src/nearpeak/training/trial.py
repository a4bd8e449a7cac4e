"""A short trial: the same steps under each candidate's settings, in turn, on copies that are thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from nearpeak.timing.statistics import median

ROUNDS, STEPS = 3, 2
HOPELESS = 0.6
"""Of the best rate: what is slower than that after a round is not tried again."""


@dataclass(frozen=True)
class Candidate:
    """Settings that only a measurement can choose between."""

    precision: str
    threads: int
    channels_last: bool


@dataclass(frozen=True)
class Tried:
    """rate: images a second, the median of the rounds; None where there was nothing to compare."""

    candidate: Candidate
    rate: float | None


def try_all(
    every: Sequence[Candidate], prepare: Callable[[Candidate], Callable[[], int]], synchronize: Callable[[], None]
) -> tuple[Tried, ...]:
    """prepare: a candidate → a function that runs one step and says how many images it had.

    Candidates take turns, since a shared machine changes from second to second. Random numbers drawn meanwhile do not
    count: the generators are put back.
    """
    if len(every) == 1:
        return (Tried(every[0], None),)
    with unchanged_generators():
        steps = []
        for one in every:
            with threads(one.threads):
                step = prepare(one)
                step()  # primitives are made, memory is taken
            steps.append(step)
        rates: list[list[float]] = [[] for _ in every]
        for _ in range(ROUNDS):
            best = max((max(found) for found in rates if found), default=0.0)
            for one, step, found in zip(every, steps, rates, strict=True):
                if found and found[0] < HOPELESS * best:
                    continue
                with threads(one.threads):
                    synchronize()
                    start = time.perf_counter()
                    images = sum(step() for _ in range(STEPS))
                    synchronize()
                    found.append(images / (time.perf_counter() - start))
    return tuple(Tried(one, median(found)) for one, found in zip(every, rates, strict=True))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch's threads for products, put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def unchanged_generators() -> Iterator[None]:
    """torch's generators afterwards as they were, of the CPU and of GPUs in use."""
    cpu = torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
