"""The most multiply-adds a second, in every precision that the device has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import torch

from nearpeak.ceilings.bench import QUICK, Bench, Burst, Skipped, energy_per_unit, limited_by, why
from nearpeak.ceilings.judge import impossible_matmul, spec_clock
from nearpeak.ceilings.precisions import Precision, precisions_of
from nearpeak.ceilings.product_error import product_error
from nearpeak.ceilings.products import exactly, product, random_operand, result_dtype, routine
from nearpeak.records.ceiling import Ceiling, Conditions
from nearpeak.timing.sustained import Sustained
from nearpeak.timing.timer import Work

METHOD = "matmul/1"  # raised whenever shapes, data or timing change, so that old figures stay comparable

Shape = tuple[int, int, int]
GPU_SHAPES: tuple[Shape, ...] = (
    (4096, 4096, 4096),
    (2048, 2048, 13312),
    (8192, 8192, 8192),
    (8192, 8192, 16384),
    (16384, 16384, 16384),
)
CPU_SHAPES: tuple[Shape, ...] = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096))
EMULATED_SHAPES: tuple[Shape, ...] = ((256, 256, 256), (1024, 1024, 1024))
SUSTAINED_SHAPES = 2  # the best of the bursts run sustained as well: the largest shape need not be the best when hot


@dataclass
class _Product:
    """What one precision gave so far."""

    precision: Precision
    bursts: dict[Shape, Burst]
    sustained: dict[Shape, Sustained]

    def best(self) -> tuple[Shape, Burst]:
        return max(self.bursts.items(), key=lambda item: flop(item[0]) * item[1].per_second)


def measure(bench: Bench) -> list[Ceiling | Skipped]:
    """Bursts of all precisions first, while the device is cool; then each held until clock and power settle.

    A precision that is absent, or that fails, is skipped with its reason; the others stand.
    """
    found: list[Ceiling | Skipped] = []
    bursts, held = [], []
    for precision in precisions_of(bench.device):
        if reason := left_out(precision, bench.quick):
            found.append(Skipped(label(precision), reason))
            continue
        bench.progress(f"{label(precision)}, burst")
        with _or_skip(precision, found):
            bursts.append(_Product(precision, _bursts(bench, precision), {}))
    for one in bursts:
        with _or_skip(one.precision, found):
            if not bench.quick and not one.precision.emulated:
                bench.progress(f"{label(one.precision)}, sustained")
                one.sustained.update(_sustained(bench, one))
            held.append(one)
    for one in held:
        with _or_skip(one.precision, found):
            found.append(_ceiling(bench, one))
    return found


def burst_of(bench: Bench, precision: Precision) -> Ceiling:
    """The burst of one precision alone, for who needs no more."""
    return _ceiling(bench, _Product(precision, _bursts(bench, precision), {}))


def label(precision: Precision) -> str:
    return f"matmul {precision.name} (sums in {precision.accumulate})"


def left_out(precision: Precision, quick: bool) -> str | None:
    """Why a precision is not measured, or None. Those without units of their own are slow: not with --quick."""
    if precision.absent is None and quick and precision.emulated:
        return f"--quick leaves out what is emulated: {precision.emulated}"
    return precision.absent


@contextmanager
def _or_skip(precision: Precision, found: list[Ceiling | Skipped]) -> Iterator[None]:
    """An error inside becomes a Skipped: a library without one product must not cost the others."""
    try:
        yield
    except Exception as error:
        found.append(Skipped(label(precision), why(error)))


def flop(shape: Shape) -> int:
    """2·m·n·k: a multiply and an add for each."""
    m, n, k = shape
    return 2 * m * n * k


def _bursts(bench: Bench, precision: Precision) -> dict[Shape, Burst]:
    """Each shape of the list, in turn, up to the first whose single product would take too long or too much memory."""
    bursts: dict[Shape, Burst] = {}
    shapes = EMULATED_SHAPES if precision.emulated else CPU_SHAPES if bench.is_cpu else GPU_SHAPES
    for shape in shapes:
        known = max((flop(s) * b.per_second for s, b in bursts.items()), default=None)
        if known and flop(shape) / known > bench.effort.longest_call:
            break
        if _bytes(precision.name, shape) > bench.free_bytes():
            break
        with exactly(precision.name, precision.accumulate):
            bursts[shape] = bench.burst(_work(bench, precision, shape))
    if not bursts:
        raise MemoryError(
            f"the smallest product, {shapes[0]}, needs {_bytes(precision.name, shapes[0]) / 2**20:.0f} MiB; "
            f"{bench.free_bytes() / 2**20:.0f} MiB are free"
        )
    return bursts


def _sustained(bench: Bench, one: _Product) -> dict[Shape, Sustained]:
    """The shapes that were best in bursts, one after the other. The first settles after a rest, the next from hot."""
    ranked = sorted(one.bursts, key=lambda shape: flop(shape) * one.bursts[shape].per_second, reverse=True)
    wait, held = bench.effort.sustained, {}
    for shape in ranked[: 1 if bench.is_cpu else SUSTAINED_SHAPES]:
        with exactly(one.precision.name, one.precision.accumulate):
            work = _work(bench, one.precision, shape)
            ran = bench.sustained(work, 1 / one.bursts[shape].per_second, wait)
        if ran is not None:
            held[shape] = ran
        wait = bench.effort.brief
    return held


def _work(bench: Bench, precision: Precision, shape: Shape) -> Work:
    """One product a call, on random operands; two A's take turns so that C changes from call to call."""
    (m, n, k), name, device = shape, precision.name, bench.torch_device
    firsts = cycle([random_operand(m, k, name, device) for _ in range(2)])
    second = random_operand(n, k, name, device)
    out = None if name in ("int8", "fp8") else torch.empty(m, n, dtype=result_dtype(name), device=device)
    multiply = product(name, precision.accumulate, device, out)
    return lambda: multiply(next(firsts), second)


def _bytes(precision: str, shape: Shape) -> int:
    """Two A's, B and C, and the wider copy that an operand is drawn in."""
    m, n, k = shape
    drawn = 4 * max(m, n) * k
    return (2 * m * k + n * k) * _size(precision) + 4 * m * n + drawn


def _size(precision: str) -> int:
    return {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}.get(precision, 1)


def _ceiling(bench: Bench, one: _Product) -> Ceiling:
    precision, (shape, burst) = one.precision, one.best()
    best_held = max(one.sustained, key=lambda s: flop(s) * one.sustained[s].calls_per_s, default=None)
    held = one.sustained[best_held] if best_held else None
    burst_rate = flop(shape) * burst.per_second
    held_rate = flop(best_held) * held.calls_per_s if best_held and held else None
    missing: dict[str, str] = {}
    if held_rate is None:
        missing["sustained"] = QUICK if bench.quick else "emulated: no units whose clock could settle"
    joules, why_not = energy_per_unit(held, flop(best_held) if best_held else 0)
    if why_not:
        missing["energy_per_unit"] = why_not
    error = product_error(precision.name, precision.accumulate, bench.torch_device)
    if error is None:
        missing["error"] = "integer products are exact"
    rate = bench.spec.rate(precision.name, precision.accumulate) if bench.spec else None
    clock = spec_clock(rate, bench.spec, bench.device) if rate and bench.spec else None
    clocks = [load.clock_max_hz for load in (burst.load, held.load if held else None) if load and load.clock_max_hz]
    return Ceiling(
        kind="matmul",
        precision=precision.name,
        accumulate=precision.accumulate,
        burst=burst_rate,
        sustained=held_rate,
        unit="FLOP/s",
        spread=burst.spread,
        error=error,
        energy_per_unit=joules,
        conditions=Conditions(
            method=METHOD,
            how=routine(precision.name),
            shape=shape,
            samples=burst.samples,
            sustained_shape=best_held or (),
            burst=burst.load,
            sustained=held.load if held else None,
            settle_s=next(iter(one.sustained.values())).settle_s if one.sustained else None,
            wander=held.wander if held else None,
            limited_by=limited_by(held),
            emulated=precision.emulated,
            other_processes=bench.other_processes(),
            missing=missing,
        ),
        invalid=impossible_matmul(max(burst_rate, held_rate or 0.0), rate, max(clocks, default=None), clock),
    )
