"""How fast a kernel is, cold and warm, beside the library's function in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch

from nearpeak.ceilings import bench
from nearpeak.ceilings.bench import Effort
from nearpeak.hardware.sensors import Sensors
from nearpeak.kernelcheck.kernel import Call
from nearpeak.records.ceiling import Load
from nearpeak.timing.sensor_window import SensorWindow
from nearpeak.timing.statistics import median, spread
from nearpeak.timing.sustained import Settling, sustain
from nearpeak.timing.timer import HEAD_START_CYCLES, Work, synchronize, time_calls, warm_up

SHORT_S = 50e-6  # shorter work is timed in trains
TRAIN_S, LONGEST_TRAIN = 500e-6, 100
QUEUE_S = 2e-3  # in which the host must have queued a train: the timer holds the GPU back a little longer
ROUNDS = 2  # of A B B A, for warm and for cold each
COLD_SAMPLES, FEWEST, MOST = 5, 3, 25  # in each of the four parts of a round
UNKNOWN_CACHE = 128 * 2**20
ENERGY = Settling(0.3, 1.0, 2.1)
# By the host's clock a call may take so many times what events and starting it explain, and so much more.
WALL_FACTOR, WALL_SLACK = 3.0, 30e-6


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: medians, and (p90 − p10) ÷ median. train: calls that one warm sample is the mean of."""

    warm: float
    warm_spread: float
    warm_samples: int
    cold: float
    cold_spread: float
    cold_samples: int
    train: int


@dataclass(frozen=True)
class Speed:
    """What timing gave.

    launch_s   what it costs the host to start one call; None on the CPU and with a queue's own clock
    wall_s     seconds a call by the host's clock, many in a row, the device waited for; None likewise
    load       what the sensors said during the warm runs
    energy_j   joules of one call, held for 2 s and more; energy_scope what they cover; energy_missing why None
    refused    why these figures are no speed at all, else None
    """

    kernel: Timing
    library: Timing | None
    launch_s: float | None
    wall_s: float | None
    load: Load
    energy_j: float | None
    energy_scope: str | None
    energy_missing: str | None
    refused: str | None
    notes: tuple[str, ...]


class _Runner:
    """One thing to time. seconds: of so many calls, each after `before`; by the queue's own clock where it has one."""

    def __init__(self, work: Work, device: torch.device, own: Callable[[int], tuple[float, ...] | None] | None) -> None:
        self.work, self._device, self._own = work, device, own
        self.once, self.train, self.count = 0.0, 1, FEWEST
        self.warm: list[float] = []
        self.cold: list[float] = []

    def prepare(self, effort: Effort) -> None:
        """Warm up, and settle how many calls are timed at once."""
        warm_up(self.work, self._device, effort.warm_up)
        self.once = max(median(self._seconds(FEWEST)), 1e-9)
        if self._own is None and self.once < SHORT_S:
            self.train = max(1, min(LONGEST_TRAIN, ceil(TRAIN_S / self.once), int(QUEUE_S / self._launch_cost())))
        self.count = min(MOST, max(FEWEST, round(effort.burst / 4 / (self.once * self.train))))

    def _launch_cost(self) -> float:
        """Seconds of the host to start one call; on the CPU those of the call."""
        synchronize(self._device)
        start = time.perf_counter()
        for _ in range(FEWEST):
            self.work()
        seconds = (time.perf_counter() - start) / FEWEST
        synchronize(self._device)
        return max(seconds, 1e-9)

    def run_warm(self) -> None:
        if self.train == 1:
            self.warm += self._seconds(self.count)
            return

        def whole() -> None:
            for _ in range(self.train):
                self.work()

        # One train at a time: a queue has room for about a thousand launches.
        self.warm += [time_calls(whole, self._device, 1)[0] / self.train for _ in range(self.count)]

    def run_cold(self, flush: Work) -> None:
        if self._own is None:
            self.cold += time_calls(self.work, self._device, COLD_SAMPLES, before=flush)
            return
        for _ in range(COLD_SAMPLES):
            flush()
            self.cold += self._own(1) or ()

    def timing(self) -> Timing:
        return Timing(
            median(self.warm),
            spread(self.warm),
            len(self.warm),
            median(self.cold),
            spread(self.cold),
            len(self.cold),
            self.train,
        )

    def _seconds(self, samples: int) -> tuple[float, ...]:
        own = self._own(samples) if self._own is not None else None
        return time_calls(self.work, self._device, samples) if own is None else own


def time_kernel(
    call: Call,
    library: Work | None,
    device: torch.device,
    sensors: Sensors,
    *,
    cache_bytes: float | None = None,
    effort: Effort | None = None,
    energy: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Speed:
    """Kernel and library, A B B A after a rest, first warm, then with the cache flushed before each call.

    library      the library's function on the same inputs, ready to be called, torch's precision switches set
    cache_bytes  of the device's last-level cache: twice as many are written to flush it
    effort       rest and lengths, by default those of the ceilings: trains so short that no power cap acts
    """
    effort = effort or (bench.CPU_QUICK if device.type == "cpu" else bench.GPU_QUICK)
    own_clock = call.seconds(1) is not None
    kernel = _Runner(_finished(call) if own_clock else call.run, device, call.seconds if own_clock else None)
    runners = [kernel] if library is None else [kernel, _Runner(library, device, None)]
    turns = [*runners, *reversed(runners)]
    notes = ["timed by the queue's own clock"] if own_clock else []
    progress("timing, warm")
    with SensorWindow(sensors, interval=0.01) as window:
        for _ in range(ROUNDS):
            time.sleep(effort.rest)
            for runner in runners:
                runner.prepare(effort)
            for runner in turns:
                runner.run_warm()
    progress("timing, cold")
    flush = flusher(device, cache_bytes)
    for _ in range(ROUNDS):
        time.sleep(effort.rest)
        for runner in turns:
            runner.run_cold(flush)
    launch_s, wall_s = (None, None) if own_clock or device.type == "cpu" else _host_costs(call.run, device, kernel.once)
    timing = kernel.timing()
    if timing.train > 1:
        notes.append(
            f"warm times are means over trains of {timing.train} calls; a cold time is of one, with some µs of events"
        )
    refused = wall_disagrees(wall_s, timing.warm, launch_s) if wall_s is not None else None
    joules: float | None = None
    scope: str | None = None
    why: str | None = refused or "not asked for"
    if energy and refused is None:
        progress("energy")
        joules, scope, why = _energy(kernel.work, device, sensors, timing.warm)
    return Speed(
        kernel=timing,
        library=runners[1].timing() if library is not None else None,
        launch_s=launch_s,
        wall_s=wall_s,
        load=window.load(),
        energy_j=joules,
        energy_scope=scope,
        energy_missing=why,
        refused=refused,
        notes=tuple(notes),
    )


def flusher(device: torch.device, cache_bytes: float | None) -> Work:
    """Writes a buffer of twice the last-level cache, so that nothing of the op's data is left in it."""
    size = 2 * int(cache_bytes or UNKNOWN_CACHE)
    buffer = torch.empty(max(size, 2**20), dtype=torch.int8, device=device)
    return lambda: buffer.zero_()


def wall_disagrees(wall: float, by_events: float, launch: float | None) -> str | None:
    """Why the events' time cannot be all of the work, or None. Seconds a call."""
    explained = max(by_events, launch or 0.0)
    if wall <= WALL_FACTOR * explained + WALL_SLACK:
        return None
    return (
        f"a call takes {wall * 1e6:.4g} µs by the host's clock, waiting for the whole device, but "
        f"{by_events * 1e6:.4g} µs by events on its stream: the work runs on another stream, or is put off; launch on "
        "torch's current stream"
    )


def _finished(call: Call) -> Work:
    def run() -> None:
        call.run()
        call.outputs()

    return run


def _host_costs(run: Work, device: torch.device, once: float) -> tuple[float, float]:
    """Seconds of the host to start one call, and seconds a call by its clock when the device is waited for."""
    calls = max(5, min(200, round(0.02 / once)))
    with torch.cuda.device(device):
        synchronize(device)
        torch.cuda._sleep(HEAD_START_CYCLES)
        start = time.perf_counter()
        for _ in range(20):
            run()
        launch = (time.perf_counter() - start) / 20
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize(device)
        return launch, (time.perf_counter() - start) / calls


def _energy(
    work: Work, device: torch.device, sensors: Sensors, seconds: float
) -> tuple[float | None, str | None, str | None]:
    """Joules of one call, what they cover, or why there are none."""
    held = sustain(work, device, sensors, seconds, ENERGY)
    if held.load.energy_j is None:
        return None, None, held.load.missing["energy_j"]
    return held.load.energy_j / held.load.seconds / held.calls_per_s, held.load.energy_scope, None
