"""The charts of a checked kernel: the roofline with the kernel on it, and its times beside what they could be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nearpeak.report import units
from nearpeak.report.charts import BURST, INK, MUTED, SERIES, SPEC, SUSTAINED, plain_axes, ticks

KERNEL, LIBRARY, AFTER, STEP = SERIES[1], SUSTAINED, SERIES[2], MUTED
NAME = 0.28  # of the roofline's width that the longest name and rate take


@dataclass(frozen=True)
class Point:
    """One dot of the roofline: FLOP/s at the op's FLOP per byte, or at its own."""

    label: str
    rate: float
    colour: str
    intensity: float | None = None


@dataclass(frozen=True)
class Bar:
    """One row of times. high: the end of an interval, for what is predicted; None for what is one number."""

    label: str
    seconds: float
    colour: str
    high: float | None = None


def kernel_roofline(
    figure: Any,
    intensity: float,
    points: Sequence[Point],
    flop_rate: float | None,
    byte_rate: float | None,
    memory: str,
    steps: Sequence[Point] = (),
) -> None:
    """What the device allows at each FLOP per byte, and where the kernel and the library are. Rates in FLOP/s, B/s.

    steps   of a ladder, all at one intensity
    """
    roof = min(r for r in (flop_rate, byte_rate and byte_rate * intensity) if r)
    ridge = flop_rate / byte_rate if flop_rate and byte_rate else intensity
    every = [ridge, intensity, *(p.intensity or intensity for p in steps)]
    left, right = min(every) / 30, max(every) * 30
    rates = [roof, *(p.rate for p in (*points, *steps))]
    axes = plain_axes(figure, "FLOP per byte that the op must read or write")
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(rates) / 4, max(rates) * 4))
    if byte_rate:
        end = ridge if flop_rate else right
        axes.plot([left, end], [byte_rate * left, byte_rate * end], color=INK, lw=1.6)
        low = max(left, min(rates) / 4 / byte_rate) * 1.3
        axes.annotate(f"{memory} {units.byte_rate(byte_rate)}", (low, byte_rate * low), (12, 0),
                      textcoords="offset points", va="center", color=INK)  # fmt: skip
    if flop_rate:
        start = ridge if byte_rate else left
        axes.plot([start, right], [flop_rate, flop_rate], color=INK, lw=1.6)
        axes.annotate(f"products {units.flop_rate(flop_rate)}", (right, flop_rate), (0, 5),
                      textcoords="offset points", ha="right", color=INK)  # fmt: skip
    axes.plot([intensity, intensity], [min(rates) / 4, max(rates) * 4], color=MUTED, lw=0.8, ls=":")
    span = math.log10(max(rates) / min(rates) * 16)
    # Names stand on the right of their dots, or on the left where they would cover the other group's.
    further = math.log10(max((p.intensity or intensity for p in steps), default=intensity) / intensity)
    near = bool(steps) and 0 < further < NAME * math.log10(right / left)
    for group, on_the_left, size in ((points, near, 7), (steps, further <= 0, 5)):
        for p, height in zip(*_one_under_the_other(group, math.log10(roof), 0.065 * span), strict=True):
            x = p.intensity or intensity
            axes.plot([x], [p.rate], "o", color=p.colour, ms=size, zorder=size)
            axes.annotate(f"{p.label} {units.flop_rate(p.rate)}", (x, 10**height), (-9 if on_the_left else 9, 0),
                          textcoords="offset points", va="center", ha="right" if on_the_left else "left",
                          color=MUTED if p.colour == STEP else INK)  # fmt: skip
    axes.grid(True, lw=0.6)
    ticks(axes.xaxis, lambda v: f"{v:g}")
    ticks(axes.yaxis, lambda v: units.quantity(v, "FLOP/s").replace(".00 ", " ").replace(".0 ", " "))


def _one_under_the_other(points: Sequence[Point], roof: float, apart: float) -> tuple[list[Point], list[float]]:
    """The points from the highest down, and how high their labels are: below the roof, so far apart that none covers
    another. Logarithms."""
    ordered, heights, last = sorted(points, key=lambda p: -p.rate), [], roof
    for p in ordered:
        last = min(math.log10(p.rate), last - apart)
        heights.append(last)
    return ordered, heights


def times(figure: Any, bars: Sequence[Bar]) -> None:
    """Times as bars from the left; a predicted one as the interval that it lies in."""
    ends = [end for b in bars for end in (b.seconds, b.high) if end]
    scale = units.column(ends, "s")
    wide = max(ends) / min(ends) > 30
    least = 10 ** math.floor(math.log10(min(ends) / scale.factor) - 0.1) if wide else 0.0
    axes = plain_axes(figure, scale.unit + (", logarithmic" if wide else ""))
    room = (max(ends) / scale.factor / least) ** 0.35 if wide else 1.28
    axes.set(xscale="log" if wide else "linear", xlim=(least or 0.0, max(ends) / scale.factor * room))
    for row, b in enumerate(bars):
        low, high = b.seconds / scale.factor, (b.high or b.seconds) / scale.factor
        start = least if b.high is None else low
        axes.barh(row, max(high - start, 0.004 * high), 0.62, left=start, color=b.colour)
        text = units.seconds(b.seconds) + (f" to {units.seconds(b.high)}" if b.high else "")
        axes.annotate(text, (high, row), (5, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(bars)), [b.label if len(b.label) <= 40 else b.label[:39] + "…" for b in bars])
    axes.set_ylim(len(bars) - 0.45, -0.6)
    axes.grid(True, axis="x", lw=0.6)
    ticks(axes.xaxis, lambda v: f"{v:g}", log=wide)


def bars_of(
    speed: dict[str, Any] | None, limit: float | None, modelled: float | None, causes: Sequence[dict[str, Any]]
) -> list[Bar]:
    """The rows of `times`: measured where there was a run, else the model's least time; then each fix."""
    bars: list[Bar] = []
    if speed:
        for name, timing, warm, cold in (("kernel", speed["kernel"], KERNEL, KERNEL), ("library", speed["library"],
                                         LIBRARY, BURST)):  # fmt: skip
            if timing:
                bars += [Bar(f"{name}, warm", timing["warm"], warm), Bar(f"{name}, cold", timing["cold"], cold)]
    elif modelled:
        bars.append(Bar("now, at least, by the model", modelled, KERNEL))
    if limit:
        bars.append(Bar("limit", limit, SPEC))
    bars += [
        Bar(f"after fix {n}: {c['name']}", c["seconds"][0], AFTER, c["seconds"][1]) for n, c in enumerate(causes, 1)
    ]
    return [b for b in bars if b.seconds > 0]
