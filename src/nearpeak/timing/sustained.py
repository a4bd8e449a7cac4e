"""Run one piece of work until clock and power have settled, then hold it there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearpeak.hardware.sensors import Sensors
from nearpeak.records.ceiling import Load
from nearpeak.timing.sensor_window import SensorWindow
from nearpeak.timing.statistics import median
from nearpeak.timing.timer import Work, batches

if TYPE_CHECKING:
    import torch

BATCH_S = 0.25
SETTLED_BATCHES = 6  # so many batches in a row …
SETTLED_WITHIN = 0.01  # … within this of one another count as settled


@dataclass(frozen=True)
class Settling:
    """How long the load runs before the figure is taken, in seconds; rest: idle before it."""

    at_least: float
    at_most: float
    hold: float
    rest: float = 0.0


@dataclass(frozen=True)
class Sustained:
    """calls_per_s: median over the batches held, `calls` calls in `seconds`; settle_s: as `settle_seconds` says.

    wander: how far the held batches lie apart, (slowest ÷ fastest) − 1. A rate that never settles shows here.
    """

    calls_per_s: float
    calls: int
    seconds: float
    settle_s: float
    wander: float
    load: Load


def sustain(work: Work, device: torch.device, sensors: Sensors, seconds_per_call: float, wait: Settling) -> Sustained:
    """Load the device without a gap: first until its rate has settled, then for `wait.hold` seconds with sensors on."""
    time.sleep(wait.rest)
    calls = max(1, round(BATCH_S / seconds_per_call))
    settling: list[float] = []
    held: list[float] = []
    running = batches(work, device, calls)
    try:
        while not _settled(settling, wait):
            settling.append(next(running))
        with SensorWindow(sensors) as window:
            while sum(held) < wait.hold:
                held.append(next(running))
    finally:
        running.close()  # type: ignore[attr-defined]
    rate = calls / median(held)
    wander = max(held) / min(held) - 1
    settle = settle_seconds(settling + held, calls, rate, within=max(SETTLED_WITHIN, wander))
    return Sustained(rate, calls * len(held), sum(held), settle, wander, window.load())


def _settled(seconds: Sequence[float], wait: Settling) -> bool:
    elapsed = sum(seconds)
    if elapsed >= wait.at_most:
        return True
    last = seconds[-SETTLED_BATCHES:]
    steady = len(last) == SETTLED_BATCHES and max(last) / min(last) - 1 < SETTLED_WITHIN
    return elapsed >= wait.at_least and steady


def settle_seconds(batch_seconds: Sequence[float], calls: int, final_rate: float, within: float) -> float:
    """Seconds to the end of the first batch whose rate is `within` of the final rate: one batch (0.25 s) at least.

    within  1 %, or as far as the rate goes on wandering where that is more
    """
    elapsed = 0.0
    for seconds in batch_seconds:
        elapsed += seconds
        if abs(calls / seconds / final_rate - 1) <= within:
            break
    return elapsed
