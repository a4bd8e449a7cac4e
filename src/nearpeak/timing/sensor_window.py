"""Sample a device's sensors while something runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType

from nearpeak.hardware.sensors import Sensors
from nearpeak.records.ceiling import Load
from nearpeak.records.reading import Reading
from nearpeak.timing.statistics import median

POWER_AT_LEAST_S = 0.5  # a card's power sensor lags by about 0.1 s: seen on an H200, 119 W in a burst that drew 700
ENERGY_AT_LEAST_S = 2.0  # below this the counter's own step (about 0.1 s) is too large a part of the window


@dataclass
class _Samples:
    """What the thread saw of one sensor: (seconds, number) pairs, or why there are none."""

    seen: list[tuple[float, float]] = field(default_factory=list)
    scope: str = "device"
    how: str = ""
    reason: str = "no sample was taken"

    def add(self, at: float, reading: Reading) -> None:
        if reading.number is None:
            self.reason = reading.reason or f"{reading.how} gave no number"
        else:
            self.seen.append((at, reading.number))
            self.scope, self.how = reading.scope, reading.how

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.seen]


class SensorWindow:
    """`with SensorWindow(sensors) as window: …`; afterwards `window.load()` says what the sensors said meanwhile.

    The thread starts with the block and ends with it; a sensor that refuses leaves its reason and nothing else.
    """

    def __init__(self, sensors: Sensors, interval: float = 0.02) -> None:
        self._sensors = sensors
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)
        self._clock, self._power, self._temperature, self._energy = _Samples(), _Samples(), _Samples(), _Samples()
        self._throttle: set[str] = set()
        self._throttle_reason: str | None = "no sample was taken"
        self._seconds = 0.0

    def __enter__(self) -> SensorWindow:
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.perf_counter() - self._start
        self._stop.set()
        self._thread.join()

    def load(self) -> Load:
        """Medians and means of the samples, a reason in `missing` for each that could not be had."""
        missing: dict[str, str] = {}
        joules, scope = self._joules(missing)
        for name, samples in (
            ("clock_hz", self._clock),
            ("clock_max_hz", self._clock),
            ("power_w", self._power),
            ("temperature_c", self._temperature),
        ):
            if not samples.seen:
                missing[name] = samples.reason
        if self._throttle_reason is not None:
            missing["throttle"] = self._throttle_reason
        watts = sum(self._power.values) / len(self._power.seen) if self._power.seen else None
        if watts is not None and self._seconds < POWER_AT_LEAST_S:
            watts = None
            missing["power_w"] = f"a window of {self._seconds:.2f} s; the sensor lags and needs {POWER_AT_LEAST_S:g} s"
        return Load(
            seconds=self._seconds,
            clock_hz=median(self._clock.values) if self._clock.seen else None,
            clock_max_hz=max(self._clock.values) if self._clock.seen else None,
            power_w=watts,
            temperature_c=max(self._temperature.values) if self._temperature.seen else None,
            throttle=tuple(sorted(self._throttle)) if self._throttle_reason is None else None,
            energy_j=joules,
            energy_scope=scope,
            missing=missing,
        )

    def _sample_until_stopped(self) -> None:
        while True:
            at = time.perf_counter()
            self._clock.add(at, self._sensors.clock())
            self._power.add(at, self._sensors.power())
            self._energy.add(at, self._sensors.energy())
            self._temperature.add(at, self._sensors.temperature())
            held_back = self._sensors.throttle_reasons()
            if isinstance(held_back.value, tuple):
                self._throttle.update(held_back.value)
                self._throttle_reason = None
            elif self._throttle_reason is not None:
                self._throttle_reason = held_back.reason or f"{held_back.how} gave no list"
            if self._stop.wait(self._interval):
                return

    def _joules(self, missing: dict[str, str]) -> tuple[float | None, str | None]:
        """Energy of the window: the counter's slope, else mean power × seconds."""
        if not self._energy.seen and not self._power.seen:
            missing["energy_j"] = self._energy.reason
            return None, None
        if self._seconds < ENERGY_AT_LEAST_S:
            missing["energy_j"] = f"a window of {self._seconds:.2f} s; energy needs {ENERGY_AT_LEAST_S:g} s and more"
            return None, None
        watts = counter_slope(self._energy.seen)
        if watts is not None:
            return watts * self._seconds, f"{self._energy.scope}, by its energy counter"
        if self._power.seen:
            watts = sum(self._power.values) / len(self._power.seen)
            return watts * self._seconds, f"{self._power.scope}, mean of {len(self._power.seen)} power samples"
        missing["energy_j"] = self._energy.reason if not self._energy.seen else "the energy counter stood still"
        return None, None


def counter_slope(seen: list[tuple[float, float]]) -> float | None:
    """Watts of a counter that moves in steps (about every 0.1 s): slope from its first step to its last.

    Taken between the steps, the counter's lag and step size leave the result; from window edge to window edge they
    would be off by up to one step. None where it stepped less than twice or went backwards (a wrapped counter).
    """
    steps = [(at, value) for (_, before), (at, value) in pairwise(seen) if value != before]
    if len(steps) < 2 or any(b[1] < a[1] for a, b in pairwise(steps)):
        return None
    (first_at, first), (last_at, last) = steps[0], steps[-1]
    return (last - first) / (last_at - first_at)
