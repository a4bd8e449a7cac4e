"""Timing beside the library, the limit, the share, and what is refused as no speed at all."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fake_kernels import kernel, matmul
from fake_sensors import FakeSensors, device
from nearpeak.ceilings import bench, needed
from nearpeak.ceilings import matmul as matmul_ceiling
from nearpeak.ceilings.bench import Bench, Burst, Effort
from nearpeak.kernelcheck.fast import time_kernel, wall_disagrees
from nearpeak.kernelcheck.limit import limit_of, share_of
from nearpeak.kernelcheck.ops import OPS
from nearpeak.records.ceiling import Load
from profiles import bare_gpu, cpu_only, h200

H200 = h200().devices[0]
CPU = torch.device("cpu")
BRIEF = Effort(0.0, 0.005, 0.02, 0.8, None, None)


def cube(n: int) -> dict[str, int]:
    return {"m": n, "n": n, "k": n}


def test_a_large_product_is_held_against_its_matmul_ceiling() -> None:
    limit = limit_of(OPS["matmul"], cube(4096), "fp32", H200)
    assert limit.seconds == pytest.approx(2 * 4096**3 / 50.5e12)
    assert limit.ceiling == "matmul fp32 (sums in fp32), burst"
    assert limit.byte_seconds == pytest.approx(3 * 4 * 4096**2 / 4.48e12)
    half = limit_of(OPS["matmul_nt"], cube(8192), "fp16", H200, accumulate="fp16")
    assert half.seconds == pytest.approx(2 * 8192**3 / 762e12)


def test_work_longer_than_settling_is_held_against_the_sustained_ceiling() -> None:
    limit = limit_of(OPS["matmul"], {"m": 2**17, "n": 2**17, "k": 2**16}, "bf16", H200)
    assert limit.ceiling == "matmul bf16 (sums in fp32), sustained"
    assert limit.seconds == pytest.approx(2 * 2**50 / 663e12)


def test_bytes_come_from_the_memory_or_the_cache() -> None:
    copy, n = OPS["copy"], 2**28
    large = limit_of(copy, {"n": n}, "fp32", H200)
    assert large.seconds == pytest.approx(8 * n / 4.48e12)
    assert large.ceiling == "memory read, burst"
    small = limit_of(copy, {"n": 2**20}, "fp32", H200)
    assert small.in_cache
    assert small.seconds == pytest.approx(2**23 / 7.9e12)
    assert small.ceiling == "cache read, burst"
    # Flushed before, it comes from memory, whatever its size.
    cold = limit_of(copy, {"n": 2**20}, "fp32", H200, cold=True)
    assert cold.seconds == pytest.approx(2**23 / 4.48e12)
    assert not cold.in_cache


def test_a_missing_ceiling_is_named() -> None:
    cpu = cpu_only().devices[0]
    small = limit_of(OPS["copy"], {"n": 1000}, "fp32", cpu)  # fits the cache, whose ceiling nobody measured
    assert small.seconds is None
    assert small.missing == ("cache read",)
    share, why = share_of(small, 1e-3)
    assert share is None
    assert "cache read not measured" in (why or "")
    tf32 = limit_of(OPS["matmul"], cube(4096), "tf32", cpu)
    assert "matmul tf32 (sums in fp32)" in tf32.missing
    nothing = limit_of(OPS["copy"], {"n": 2**30}, "fp32", dataclasses.replace(bare_gpu().devices[0], ceilings=()))
    assert nothing.seconds is None


@given(st.floats(1e-9, 1e3))
def test_a_share_is_never_above_one(seconds: float) -> None:
    limit = limit_of(OPS["matmul"], cube(4096), "bf16", H200)
    share, why = share_of(limit, seconds)
    assert limit.seconds is not None
    if seconds >= limit.seconds:
        assert share == limit.seconds / seconds
        assert why is None
    else:
        assert share is None
        assert ("the ceiling is too low" if seconds * 1.2 > limit.seconds else "not all done") in (why or "")


@given(st.sampled_from(sorted(OPS)), st.integers(1, 4000), st.booleans())
def test_more_work_never_has_a_lower_limit(name: str, n: int, cold: bool) -> None:
    op = OPS[name]
    one = limit_of(op, dict.fromkeys(op.sizes, n), "bf16", H200, cold=cold).seconds
    two = limit_of(op, dict.fromkeys(op.sizes, 2 * n), "bf16", H200, cold=cold).seconds
    assert one is not None
    assert two is not None
    # Larger than the cache means slower, too, never faster.
    assert two >= one


def test_times_of_no_sense_have_no_share() -> None:
    limit = limit_of(OPS["matmul"], cube(64), "bf16", H200)
    assert share_of(limit, 0.0)[0] is None
    assert share_of(limit, float("nan"))[0] is None


@pytest.mark.parametrize(
    ("wall", "events", "launch", "refused"),
    [
        (1.05e-3, 1e-3, 5e-6, False),
        (20e-6, 3e-6, 12e-6, False),  # a small kernel: starting it takes longer than running it
        (1e-3, 4e-6, 12e-6, True),  # on another stream
        (100e-6, 30e-6, None, False),
        (300e-6, 30e-6, None, True),
    ],
)
def test_the_hosts_clock_against_events(wall: float, events: float, launch: float | None, refused: bool) -> None:
    why = wall_disagrees(wall, events, launch)
    assert (why is not None) is refused
    assert why is None or "another stream" in why


def test_a_kernel_is_timed_beside_the_library() -> None:
    sizes = {"m": 96, "n": 96, "k": 96}
    tensors = {"a": torch.randn(96, 96), "b": torch.randn(96, 96), "c": torch.empty(96, 96)}

    def slow(t, s):  # type: ignore[no-untyped-def]
        time.sleep(0.002)
        matmul(t, s)

    watts = {"clock": lambda: 3e9, "power": lambda: 100.0}
    call = kernel(slow).bind(tensors, sizes)
    speed = time_kernel(
        call, lambda: torch.mm(tensors["a"], tensors["b"]), CPU, FakeSensors(watts), cache_bytes=2**18, effort=BRIEF
    )
    assert speed.library is not None
    assert speed.kernel.warm > 0.002
    assert speed.kernel.cold > 0.002
    assert speed.kernel.warm > speed.library.warm
    assert speed.kernel.train == 1
    assert speed.load.clock_hz == 3e9
    assert speed.energy_j == pytest.approx(100.0 * speed.kernel.warm, rel=0.5)
    assert (speed.launch_s, speed.wall_s, speed.refused) == (None, None, None)


def test_short_work_is_timed_in_trains() -> None:
    tensors = {"x": torch.randn(8), "y": torch.empty(8)}
    call = kernel(lambda t, s: t["y"].copy_(t["x"])).bind(tensors, {"n": 8})
    speed = time_kernel(call, None, CPU, FakeSensors(), cache_bytes=2**18, effort=BRIEF, energy=False)
    assert speed.kernel.train > 1
    assert "trains" in speed.notes[0]
    assert speed.library is None
    assert (speed.energy_j, speed.energy_missing) == (None, "not asked for")


def test_a_queue_with_a_clock_of_its_own() -> None:
    call = kernel(lambda t, s: None).bind({}, {})
    call.seconds = lambda samples: (0.25,) * samples  # type: ignore[method-assign]
    speed = time_kernel(call, None, CPU, FakeSensors(), cache_bytes=2**18, effort=BRIEF, energy=False)
    assert speed.kernel.warm == speed.kernel.cold == 0.25
    assert "own clock" in speed.notes[0]


def test_needed_ceilings_are_measured_where_no_profile_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_ceiling, "CPU_SHAPES", ((64, 64, 64),))
    monkeypatch.setattr(matmul_ceiling, "product_error", lambda *_: 1e-7)
    monkeypatch.setattr(bench, "CPU_QUICK", BRIEF)
    monkeypatch.setattr(Bench, "burst", lambda self, work, at_least=5: Burst(1e3, 0.0, 5, Load(1.0)))
    one = Bench(device(), CPU, FakeSensors(), None, True)
    profile = needed.measure_needed(one, ("fp32", "fp32"))
    assert [c.kind for c in profile.ceilings] == ["matmul", "memory_read", "cache_read"]
    assert profile.ceilings[0].burst == 2 * 64**3 * 1e3
    assert limit_of(OPS["matmul"], cube(64), "fp32", profile).seconds
    without = needed.measure_needed(one, ("tf32", "fp32"))
    assert "a GPU format" in without.skipped["matmul tf32"]


@pytest.mark.gpu
def test_work_on_another_stream_is_no_speed() -> None:
    gpu = torch.device("cuda:0")
    tensors = {name: torch.randn(2048, 2048, device=gpu) for name in "abc"}
    other = torch.cuda.Stream(gpu)

    def aside(t, s):  # type: ignore[no-untyped-def]
        with torch.cuda.stream(other):
            torch.mm(t["a"], t["b"], out=t["c"])

    def plain(t, s):  # type: ignore[no-untyped-def]
        torch.mm(t["a"], t["b"], out=t["c"])

    def timed(function):  # type: ignore[no-untyped-def]
        return time_kernel(kernel(function).bind(tensors, cube(2048)), None, gpu, FakeSensors(), energy=False)

    assert "another stream" in (timed(aside).refused or "")
    speed = timed(plain)
    assert speed.refused is None
    assert speed.launch_s is not None
    assert speed.launch_s < speed.kernel.warm
