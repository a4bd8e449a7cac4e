"""A plan as text: what fits and how fast, how it lies in memory, the advice, and what the claim rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nearpeak.records.plan import Plan, Variation
from nearpeak.report import units
from nearpeak.report.plan_lines import sections
from nearpeak.report.plan_words import (
    PARTS,
    cards,
    estimate,
    fits,
    gib,
    item,
    layout_words,
    more_line,
    shown,
    speeds,
    title,
    training,
)
from nearpeak.report.units import ABSENT

PART_WORDS = {
    "kv": "KV, state",
    "activations": "activ-\nations",
    "gradients": "grad-\nients",
    "optimizer": "opti-\nmizer",
}


@dataclass(frozen=True)
class Block:
    """A table. wraps: the columns whose words may go over several lines; left: those that are words."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str]
    wraps: frozenset[str]


def render(plan: Plan, variations: Sequence[Variation], console: Console) -> None:
    """Print both tables and the lines under them."""
    model, workload = title(plan)
    say(console, model, "bold")
    say(console, workload)
    console.print()
    if plan.candidates:
        show(console, speed_block(plan))
        if more := more_line(plan):
            say(console, more, "dim")
        console.print()
    say(console, plan.advice, "bold" if fits(plan) else "bold yellow")
    if plan.candidates:
        console.print()
        show(console, memory_block(plan))
    for heading, lines in sections(plan, variations):
        console.print()
        say(console, heading, "bold")
        for line in lines:
            say(console, line, "", hang=2)


def speed_block(plan: Plan) -> Block:
    """One row a candidate: does it fit, how fast with its 80 % interval, energy, cost, what binds."""
    rows, what, there = shown(plan), item(plan), speeds(plan)
    costs = {"joules_per_token": f"J/{what}", "cost_per_million_tokens": f"US$ a\nM {what}"} if fits(plan) else {}
    headers = (
        "#",
        "GPU",
        "fits",
        *(f"{word}\n{unit.unit}" for word, unit in there.values()),
        *costs.values(),
        "bound by",
    )
    cells = []
    for place, c in enumerate(rows, 1):
        figures = (estimate(getattr(c, field), unit.factor) for field, (_, unit) in there.items())
        spent = (_digits(getattr(c, field)) for field in costs)
        fit, bound = "yes" if c.fits else "no", units.plain(c.bound_by) or ABSENT
        cells.append((str(place), cards(c.gpu, c.count), fit, *figures, *spent, bound))
    return Block(headers, tuple(cells), frozenset({"GPU", "fits", "bound by"}), frozenset({"GPU", "bound by"}))


def memory_block(plan: Plan) -> Block:
    """One row a candidate: its layout, and the fullest device's memory by part against its capacity, in GiB."""
    rows = shown(plan)
    there = [part for part in PARTS if any(getattr(c.memory, part) for c in rows)]
    headers = ("#", "layout", *(PART_WORDS.get(p, p) for p in there), "total\nGiB", "of\nGiB")
    short = not all(c.fits for c in rows)
    headers += ("short\nGiB",) if short else ()
    cells = []
    for place, c in enumerate(rows, 1):
        parts = (gib(getattr(c.memory, part)) for part in there)
        total, capacity = c.memory.total, c.memory.capacity
        lack = (gib(total - capacity) if total > capacity else ABSENT,) if short else ()
        words = layout_words(c.layout, training(plan))
        cells.append((str(place), words, *parts, gib(total), gib(capacity), *lack))
    return Block(headers, tuple(cells), frozenset({"layout"}), frozenset({"layout"}))


def _digits(value: float | None) -> str:
    return ABSENT if value is None else units.digits(value)


def show(console: Console, block: Block) -> None:
    """A table in the console's width: only columns of words wrap; if that is not enough it is wider, never cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, header in enumerate(block.headers):
        wraps = header in block.wraps
        least = 0 if wraps else max(cell_len(t) for t in (*header.split("\n"), *(row[index] for row in block.rows)))
        side: Literal["left", "right"] = "left" if header in block.left else "right"
        table.add_column(Text(header), justify=side, no_wrap=not wraps, min_width=least, vertical="top")
    for row in block.rows:
        table.add_row(*(Text(cell) for cell in row))
    least = Measurement.get(console, console.options.update(max_width=10_000), table).minimum
    table.width = least if least > console.width else None
    console.print(table, crop=False)


def say(console: Console, text: str, style: str = "", hang: int = 0) -> None:
    """One paragraph, wrapped at words; further lines set in by `hang`."""
    lines = Text(text, style=style).wrap(console, max(console.width - hang, 20))
    for number, line in enumerate(lines):
        console.print(Text(" " * hang * (number > 0)) + line, soft_wrap=True)
