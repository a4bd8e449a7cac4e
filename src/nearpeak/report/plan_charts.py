"""The charts of a plan: memory by part against capacity, and speed against context and batch with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nearpeak.records.plan import Candidate, Estimate, Plan
from nearpeak.report.charts import INK, SERIES, SPEC, fits, plain_axes, ticks
from nearpeak.report.plan_words import PARTS, cards, gib, scale, shown

COLOURS = dict(zip(PARTS, SERIES, strict=False))
WORDS = {"kv": "KV cache and other state", "overhead": "allocator and context"}
LONGEST = 34


@dataclass(frozen=True)
class Curve:
    """Speed of one choice of cards over context or batch; a point that does not fit, or has no speed, is None."""

    label: str
    points: tuple[tuple[int, Estimate | None], ...]

    @property
    def drawn(self) -> bool:
        """Whether it has two points at least, as a line needs."""
        return sum(e is not None and fits(e.value) for _, e in self.points) > 1


def memory_bars(figure: Any, plan: Plan) -> None:
    """A bar a candidate: the parts of the fullest device one after the other, before its capacity in grey."""
    rows = shown(plan)
    most = max(max(c.memory.total, c.memory.capacity) for c in rows) / 2**30
    axes = plain_axes(figure, "GiB of the fullest device")
    axes.set(xlim=(0, most * 1.22), ylim=(len(rows) - 0.45, -0.6))
    used = [part for part in PARTS if any(getattr(c.memory, part) for c in rows)]
    for row, c in enumerate(rows):
        axes.barh(row, c.memory.capacity / 2**30, 0.78, color=SPEC)
        start = 0.0
        for part in used:
            size = getattr(c.memory, part) / 2**30
            axes.barh(row, size, 0.46, left=start, color=COLOURS[part])
            start += size
        end = max(c.memory.total, c.memory.capacity) / 2**30
        axes.annotate(_total(c), (end, row), (5, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(rows)), [_clip(f"{place}. {cards(c.gpu, c.count)}") for place, c in enumerate(rows, 1)])
    axes.grid(True, axis="x", lw=0.6)
    ticks(axes.xaxis, lambda v: f"{v:g}", log=False)
    for part in used:
        axes.barh([-9], [1], color=COLOURS[part], label=WORDS.get(part, part))
    axes.barh([-9], [1], color=SPEC, label="capacity")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, handlelength=1.2)


def speed_curves(figure: Any, curves: Sequence[Curve], axis: str, what: str, asked: int | None) -> None:
    """One line a choice of cards, both axes logarithmic, its 80 % interval as a band, what was asked dotted."""
    axes = plain_axes(figure, axis)
    kept = [c for c in curves if c.drawn]  # the others keep their colours: a card has the same one in each chart
    values = [v for c in kept for _, e in c.points if e for v in (e.low, e.high)]
    unit_of = scale(values, what)
    xs = sorted({x for c in kept for x, e in c.points if e})
    axes.set(xscale="log", yscale="log", xlim=(xs[0] / 1.15, xs[-1] * 1.15))
    axes.set_ylim(min(values) / unit_of.factor / 1.25, max(values) / unit_of.factor * 1.25)
    axes.set_ylabel(unit_of.unit)
    for place, (colour, curve) in enumerate(zip(SERIES, curves, strict=False)):
        if not curve.drawn:
            continue
        there = [(x, e) for x, e in curve.points if e]
        x = [x for x, _ in there]
        low, value, high = ([getattr(e, f) / unit_of.factor for _, e in there] for f in ("low", "value", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.1, lw=0)
        # the first is the widest and lies lowest: lines one over the other (replicas, one sequence) all stay visible
        width = 1.4 + 0.6 * (len(curves) - 1 - place)
        axes.plot(x, value, "o-", color=colour, lw=width, ms=width + 2, label=_clip(curve.label))
    if asked and xs[0] <= asked <= xs[-1]:
        axes.axvline(asked, color=INK, lw=0.8, ls=":")
    axes.grid(True, lw=0.6)
    round_ones = [x for x in xs if x & (x - 1) == 0]
    axes.set_xticks(round_ones[:: 1 + len(round_ones) // 9], minor=False)
    axes.xaxis.set_major_formatter(lambda v, _: f"{v / 1024:g}k" if v >= 1024 else f"{v:g}")
    axes.minorticks_off()
    _round_ticks(axes.yaxis, max(values) / min(values))
    figure.legend(loc="outside upper left", ncols=2, frameon=False, handlelength=1.6)


def _round_ticks(axis: Any, span: float) -> None:
    """1, 2 and 5 of each power of ten; more of them where the largest value is under 8 times the smallest."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    between = (1.0, 2.0, 5.0) if span > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(base=10, subs=between, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _total(c: Candidate) -> str:
    text = f"{gib(c.memory.total)} of {gib(c.memory.capacity)}"
    lack = c.memory.total - c.memory.capacity
    return text if lack <= 0 else f"{text}, {gib(lack)} short"


def _clip(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
