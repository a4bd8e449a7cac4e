"""Statistics, the timer on the CPU, the sensor window, and running until settled."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fake_sensors import FakeSensors
from nearpeak.timing.sensor_window import SensorWindow, counter_slope
from nearpeak.timing.statistics import median, percentile, spread
from nearpeak.timing.sustained import Settling, settle_seconds, sustain
from nearpeak.timing.timer import batches, time_calls, warm_up

CPU = torch.device("cpu")


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=30), st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    import numpy

    assert percentile(values, share) == pytest.approx(numpy.quantile(values, share), rel=1e-9)


def test_spread_is_p90_less_p10_over_the_median() -> None:
    assert spread([float(v) for v in range(1, 12)]) == pytest.approx((10 - 2) / 6)
    assert spread([3.0]) == 0


def test_no_values_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_calls_are_timed_without_what_runs_before_them() -> None:
    seconds = time_calls(lambda: time.sleep(0.002), CPU, 5, before=lambda: time.sleep(0.02))
    assert len(seconds) == 5
    assert 0.002 <= median(seconds) < 0.015


def test_warm_up_leaves_the_first_call_out() -> None:
    calls = iter([0.2] + [0.001] * 1000)
    assert warm_up(lambda: time.sleep(next(calls)), CPU, 0.02) < 0.05


def test_batches_run_without_end_until_closed() -> None:
    counted = 0

    def work() -> None:
        nonlocal counted
        counted += 1

    running = batches(work, CPU, 7)
    assert next(running) > 0
    assert next(running) > 0
    running.close()
    assert counted == 14


def test_energy_counter_slope_ignores_lag_and_step_size() -> None:
    # 300 W; the counter moves every 0.1 s, the window begins and ends in the middle of a step
    seen = [(t / 100, 300 * (int(t / 10) / 10)) for t in range(5, 236)]
    assert counter_slope(seen) == pytest.approx(300, rel=1e-6)


def test_energy_counter_that_stands_still_or_wraps_gives_nothing() -> None:
    assert counter_slope([(t / 10, 5.0) for t in range(30)]) is None
    assert counter_slope([(0.0, 90.0), (1.0, 95.0), (2.0, 1.0), (3.0, 4.0)]) is None


def test_window_says_what_the_sensors_said() -> None:
    clocks = iter([1.98e9, 1.5e9] + [1.4e9] * 10_000)
    start = time.perf_counter()
    sensors = FakeSensors(
        {
            "clock": lambda: next(clocks),
            "power": lambda: 250.0,
            "energy": lambda: 250.0 * (time.perf_counter() - start),
            "temperature": lambda: 60.0,
            "throttle": lambda: ("power cap",),
        }
    )
    with SensorWindow(sensors) as window:
        time.sleep(2.05)
    load = window.load()
    assert load.seconds == pytest.approx(2.05, abs=0.2)
    assert load.clock_hz == 1.4e9
    assert load.clock_max_hz == 1.98e9
    assert load.power_w == pytest.approx(250)
    assert load.energy_j == pytest.approx(250 * load.seconds, rel=0.02)
    assert load.throttle == ("power cap",)
    assert load.missing == {}


def test_short_window_has_no_energy_and_says_why() -> None:
    with SensorWindow(FakeSensors({"energy": time.perf_counter})) as window:
        time.sleep(0.05)
    load = window.load()
    assert load.energy_j is None
    assert "2 s" in load.missing["energy_j"]


def test_short_window_has_no_power_and_says_why() -> None:
    """The sensor lags: a burst of 40 ms on an H200 read 119 W while the card drew 700."""
    with SensorWindow(FakeSensors({"power": lambda: 119.0})) as window:
        time.sleep(0.04)
    load = window.load()
    assert load.power_w is None
    assert "lag" in load.missing["power_w"]


def test_dead_sensors_leave_reasons_and_no_zeros() -> None:
    with SensorWindow(FakeSensors()) as window:
        pass
    load = window.load()
    for name in ("clock_hz", "clock_max_hz", "power_w", "temperature_c", "throttle", "energy_j"):
        assert getattr(load, name) is None
        assert load.missing[name]


def test_power_samples_stand_in_for_a_missing_counter() -> None:
    with SensorWindow(FakeSensors({"power": lambda: 100.0})) as window:
        time.sleep(2.05)
    load = window.load()
    assert load.energy_j == pytest.approx(100 * load.seconds)
    assert "power samples" in (load.energy_scope or "")


def test_sustained_waits_until_the_rate_has_settled() -> None:
    """A device that slows from 5 to 20 ms a call after half a second: the figure is the slow one, not the average."""
    start = time.perf_counter()

    def work() -> None:
        time.sleep(0.005 if time.perf_counter() - start < 0.5 else 0.02)

    ran = sustain(work, CPU, FakeSensors(), 0.005, Settling(at_least=1.5, at_most=4.0, hold=1.0))
    assert 30 < ran.calls_per_s <= 50
    assert 0 <= ran.wander < 1


def test_settle_time_is_when_the_rate_first_came_within_one_percent() -> None:
    assert settle_seconds([1.0, 1.1, 1.2, 1.25, 1.25], calls=10, final_rate=8.0, within=0.01) == pytest.approx(4.55)
    assert settle_seconds([1.25, 1.25], calls=10, final_rate=8.0, within=0.01) == 1.25
