"""What every ceiling needs to measure itself: the device, its sensors, and how much time there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from nearpeak.hardware.sensors import Sensors
from nearpeak.records.ceiling import Ceiling, Load
from nearpeak.records.device import Device
from nearpeak.records.errors import first_line
from nearpeak.records.spec import Spec
from nearpeak.timing.sensor_window import SensorWindow
from nearpeak.timing.statistics import median, spread
from nearpeak.timing.sustained import Settling, Sustained, sustain
from nearpeak.timing.timer import Work, time_calls, warm_up


@dataclass(frozen=True)
class Effort:
    """How long things run, in seconds. The settlings are None where the clock is not waited for (--quick).

    rest            idle before a burst, so that its clock is not yet held down by what ran before
    burst           length of the timed train; longest_call: a shape whose single product takes longer is left out
    sustained       a product, after a rest; brief: what settles at once: memory, links, and the next shape of a product
                    right after, the card still hot
    """

    rest: float
    warm_up: float
    burst: float
    longest_call: float
    sustained: Settling | None
    brief: Settling | None


# Seen on an H200: after 0.6 s of rest a full matmul load ran 60 to 80 ms before its power cap lowered the clock, after
# 0.1 s only 20 ms; the lower clock had settled within 1.5 s. Memory and links settle at once.
GPU = Effort(0.6, 0.02, 0.04, 0.1, Settling(1.5, 3.0, 2.1, rest=0.6), Settling(1.0, 1.0, 2.1))
GPU_QUICK = replace(GPU, sustained=None, brief=None)
CPU = Effort(0.0, 0.2, 1.0, 0.8, Settling(1.5, 3.0, 2.1), Settling(1.0, 1.0, 2.1))
CPU_QUICK = Effort(0.0, 0.1, 0.4, 0.2, None, None)
FEW_CALLS = 10


@dataclass(frozen=True)
class Burst:
    """per_second: calls a second, by the median of `samples` timings."""

    per_second: float
    spread: float
    samples: int
    load: Load


@dataclass(frozen=True)
class Bench:
    """One device, ready to be measured. `progress` is told what is going on."""

    device: Device
    torch_device: torch.device
    sensors: Sensors
    spec: Spec | None
    quick: bool
    progress: Callable[[str], None] = field(default=lambda text: None)

    @property
    def is_cpu(self) -> bool:
        return bool(self.torch_device.type == "cpu")

    @property
    def effort(self) -> Effort:
        if self.is_cpu:
            return CPU_QUICK if self.quick else CPU
        return GPU_QUICK if self.quick else GPU

    def burst(self, work: Work, at_least: int = 5) -> Burst:
        """Median rate of single calls, timed in one short train of `at_least` so many after a warm-up.

        On a GPU a train of few calls is run twice and the faster counts: the power cap may act on the last of them,
        and of seven calls three slow ones move the median.
        """
        first = self._train(work, at_least)
        if self.is_cpu or first.samples >= FEW_CALLS:
            return first
        return max(first, self._train(work, at_least), key=lambda burst: burst.per_second)

    def _train(self, work: Work, at_least: int) -> Burst:
        effort = self.effort
        time.sleep(effort.rest)
        with SensorWindow(self.sensors, interval=0.01) as window:
            seconds = warm_up(work, self.torch_device, effort.warm_up)
            count = min(max(round(effort.burst / seconds), at_least), 100)
            timings = time_calls(work, self.torch_device, count)
        return Burst(1 / median(timings), spread(timings), count, window.load())

    def sustained(self, work: Work, seconds_per_call: float, wait: Settling | None) -> Sustained | None:
        """The rate once clock and power have settled; None where they are not waited for."""
        if wait is None:
            return None
        return sustain(work, self.torch_device, self.sensors, seconds_per_call, wait)

    def other_processes(self) -> tuple[str, ...] | None:
        seen = self.sensors.processes().value
        return seen if isinstance(seen, tuple) else None

    def free_bytes(self) -> int:
        """Memory that may be taken: all that torch sees as free on a GPU, a third of what is available on the host."""
        if self.is_cpu:
            return int((self.device.memory_available.number or self.device.memory.number or 2**31) / 3)
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        kept = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return int(free) + int(kept)  # what torch's own store holds unused is free to torch alone


def limited_by(held: Sustained | None) -> str | None:
    """What the driver says held the clock back, or None."""
    return ", ".join(held.load.throttle) if held and held.load.throttle else None


def energy_per_unit(held: Sustained | None, units_per_call: int) -> tuple[float | None, str | None]:
    """Joules per FLOP or byte over the held window, or None and why."""
    if held is None:
        return None, "energy needs a sustained run"
    if held.load.energy_j is None:
        return None, held.load.missing["energy_j"]
    # Mean power ÷ mean rate: the sensors' window and the batches in it differ in length by part of a batch.
    return held.load.energy_j / held.load.seconds / (held.calls * units_per_call / held.seconds), None


class NotMeasured(Exception):
    """This ceiling cannot be had on this device; the text says why."""


@dataclass(frozen=True)
class Skipped:
    """One ceiling of several that could not be had; the others stand."""

    what: str
    why: str


def why(error: Exception) -> str:
    """An error in one line; its type is named where its text alone would say little."""
    text, name = first_line(error), type(error).__name__
    own_words = isinstance(error, NotMeasured | MemoryError | ArithmeticError | RuntimeError) or text == name
    return text if own_words else f"{name}: {text}"


QUICK = "--quick does not wait until the clock has settled"
Measure = Callable[[Bench], Sequence[Ceiling | Skipped]]
