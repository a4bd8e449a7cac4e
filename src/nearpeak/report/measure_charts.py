"""The charts of a machine profile as inline SVG: roofline, the three peaks, and dots on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nearpeak.records.ceiling import Ceiling
from nearpeak.records.machine_profile import DeviceProfile
from nearpeak.report import units
from nearpeak.report.charts import BURST, INK, SERIES, SPEC, SUSTAINED, fits, plain_axes, ticks
from nearpeak.report.measure_table import MARKS, best, name, spec_rate
from nearpeak.report.units import ABSENT


def roofline(figure: Any, ridges: Sequence[tuple[Ceiling, float, str]]) -> None:
    points = sorted(((best(c)[0] or 0.0, ridge, c) for c, ridge, _ in ridges), key=lambda p: p[0])
    bandwidth = points[0][0] / points[0][1]
    left, right = 10 ** math.floor(math.log10(min(p[1] for p in points) / 3)), max(p[1] for p in points) * 12
    low, high = math.log10(bandwidth * left), math.log10(points[-1][0] * 2)
    axes = plain_axes(figure, "FLOP per byte")
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(10**low, 10**high))
    axes.plot([left, points[-1][1]], [bandwidth * left, points[-1][0]], color=INK, lw=1.6, zorder=3)
    axes.annotate(f"memory read {units.byte_rate(bandwidth)}", (left * 2.2, bandwidth * left * 2.2), (10, -4),
                  textcoords="offset points", va="top", color=INK)  # fmt: skip
    heights = _apart([(math.log10(p[0]) - low) / (high - low) for p in points], 0.062)
    for i, ((rate, ridge, c), height) in enumerate(zip(points, heights, strict=True)):
        colour, at = SERIES[i % len(SERIES)], (math.log10(rate) - low) / (high - low)
        axes.plot([ridge, right], [rate, rate], color=colour, lw=1.4)
        axes.plot([ridge], [rate], "o", color=colour, ms=5, zorder=4)
        axes.plot([1, 1.02, 1.03], [at, height, height], color=colour, lw=1, transform=axes.transAxes, clip_on=False)
        text = f"{_clip(c)}  {units.flop_rate(rate, c.precision)}, ridge {units.digits(ridge)}"
        axes.text(1.036, height, text, transform=axes.transAxes, va="center", color=INK)
    axes.grid(True, lw=0.6)
    ticks(axes.xaxis, lambda v: f"{v:g}")
    ticks(axes.yaxis, lambda v: units.quantity(v, "FLOP/s").replace(".00 ", " ").replace(".0 ", " "))


def peaks(figure: Any, d: DeviceProfile, products: Sequence[Ceiling]) -> None:
    scale = units.column([c.burst for c in products], "FLOP/s")
    values = [(spec_rate(d, c), c.burst or 0.0, c.sustained if fits(c.sustained) else None) for c in products]
    known = [v for s, b, u in values for v in (s.value if s else None, b, u) if v and fits(v)]
    wide = max(known) / min(known) > 200
    integers = " (integers: OP)" if any(units.flop_unit(c.precision) == "OP" for c in products) else ""
    axes = plain_axes(figure, scale.unit + integers + (", logarithmic" if wide else ""))
    least = 10 ** math.floor(math.log10(min(known) / scale.factor) - 0.3) if wide else 0.0
    axes.set(xscale="log" if wide else "linear", xlim=(least, max(known) / scale.factor * (4 if wide else 1.09)))
    for row, (spec, burst, sustained) in enumerate(values):
        bars = ((SPEC, spec.value if spec else None, MARKS[spec.provenance] if spec else ""), (BURST, burst, ""))
        for i, (colour, value, mark) in enumerate((*bars, (SUSTAINED, sustained, ""))):
            if value is not None:
                y = row + (i - 1) * 0.27
                axes.barh(y, value / scale.factor - least, 0.25, left=least, color=colour)
                axes.annotate(scale.text(value) + mark, (value / scale.factor, y), (4, 0), textcoords="offset points",
                              va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(products)), [_clip(c) for c in products])
    axes.set_ylim(len(products) - 0.45, -0.55)
    axes.grid(True, axis="x", lw=0.6)
    ticks(axes.xaxis, lambda v: f"{v:g}", log=wide)
    settled = any(v[2] for v in values)
    there = ((SPEC, "spec", any(v[0] for v in values)), (BURST, "burst", True), (SUSTAINED, "sustained", settled))
    for colour, word, shown in there:
        axes.barh([-9], [1], color=colour, label=word if shown else None)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, handlelength=1.2)


def dots(
    figure: Any, products: Sequence[Ceiling], values: Sequence[float | None], factor: float, unit: str
) -> None:  # fmt: skip
    """One value a precision on a logarithmic axis, written beside its dot; read by position, not by length."""
    axes, known = plain_axes(figure, unit), [math.log10(v * factor) for v in values if v]
    low, high = min(known) - 0.3, max(known) + 0.3
    axes.set(xscale="log", xlim=(10**low, 10 ** (high + 0.28 * (high - low))), ylim=(len(values) - 0.4, -0.6))
    for row, value in enumerate(values):
        axes.plot([value * factor] if value else [], [row] if value else [], "o", color=SUSTAINED, ms=6)
        text = units.error(value) if factor == 1 else units.digits(value * factor) if value else ABSENT
        place = (value * factor if value else 10**low, row)
        axes.annotate(text, place, (8, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(values)), [_clip(c) for c in products])
    axes.grid(True, lw=0.6)
    ticks(axes.xaxis, lambda v: f"1e{math.log10(v):.0f}" if v < 0.005 else f"{v:g}")


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights moved so that neighbours are `gap` apart, each as near to its own place as that allows."""
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + gap) if found else height)
    for i in range(len(found) - 1, -1, -1):
        found[i] = min(found[i], (found[i + 1] if i + 1 < len(found) else 1.0 + gap) - gap)
    return found


def _clip(c: Ceiling) -> str:
    """A label of at most 24 characters."""
    text = name(c)
    return text if len(text) <= 24 else text[:23] + "…"
