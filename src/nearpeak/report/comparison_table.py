"""What changed between two profiles, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nearpeak.records.change import Change
from nearpeak.report import units

HEADERS = ("ceiling", "figure", "old", "new", "change", "because")
FEW = 3
"""More ceilings than this that are on one side only for the same reason share a line."""


def render(changes: Sequence[Change], console: Console) -> None:
    """Print the changes beyond the spread, a table per device, then how many ceilings stayed within theirs."""
    for device in dict.fromkeys(c.device for c in changes):
        beyond = [c for c in changes if c.device == device and c.beyond]
        alone = [c.because for c in beyond if c.ratio is None]
        many = {why for why in alone if alone.count(why) > FEW}  # told in one line, not in a row each
        if beyond:
            _say(console, device, "bold")
        if rows := [c for c in beyond if c.because not in many]:
            _table(console, rows)
        for why in sorted(many):
            names = ", ".join(row(c)[0] for c in beyond if c.because == why)
            _say(console, f"{_count(alone.count(why))} {why} ({names})", "")
        console.print("\n" * bool(beyond), end="")
    _say(console, summary(changes), "")
    unpaired = [c for c in changes if not c.beyond and c.ratio is None and (c.old is None or c.new is None)]
    for why in dict.fromkeys(c.because for c in unpaired):
        alike = [c for c in unpaired if c.because == why]
        figures = ", ".join(dict.fromkeys(c.figure for c in alike))
        _say(console, f"not compared: {figures} of {_count(len({_key(c) for c in alike}))}: {why}", "dim")


def summary(changes: Sequence[Change]) -> str:
    """ "7 ceilings within their spread"; a ceiling counts once, and only where no figure of it moved beyond."""
    moved = {_key(c) for c in changes if c.beyond}
    compared = {_key(c) for c in changes if c.old is not None and c.new is not None}
    return f"{_count(len(compared - moved))} within {'its' if len(compared - moved) == 1 else 'their'} spread"


def row(c: Change) -> tuple[str, ...]:
    """The cells of one change; each figure carries its unit, since a table mixes them."""
    words = "worse" if c.worse else "better"
    one_sided = "vanished" if c.new is None else "appeared" if c.old is None else words
    moved = f"{units.change(c.ratio)} {words}" if c.ratio is not None else one_sided
    name = units.work(c.kind, c.precision, c.accumulate, c.notes)
    return name, c.figure, _text(c, c.old), _text(c, c.new), moved, units.plain(c.because)


def _text(c: Change, value: float | None) -> str:
    matmul = c.kind == "matmul"
    if c.figure == "error":
        return units.error(value)
    if c.figure == "energy":
        return units.joules_per_flop(value, c.precision) if matmul else units.joules_per_byte(value)
    if c.kind.startswith("launch"):
        return units.seconds(value)
    return units.flop_rate(value, c.precision) if matmul else units.byte_rate(value)


def _key(c: Change) -> tuple[str, ...]:
    return c.device, c.kind, c.precision or "", c.accumulate or "", *map(str, sorted(c.notes.items()))


def _count(ceilings: int) -> str:
    return f"{ceilings} ceiling{'' if ceilings == 1 else 's'}"


def _table(console: Console, changes: Sequence[Change]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    rows = [row(c) for c in changes]
    for i, header in enumerate(HEADERS):
        words = header == "because"  # only the reasons wrap
        least = 0 if words else max(cell_len(cells[i]) for cells in [HEADERS, *rows])
        side: Literal["left", "right"] = "right" if header in ("old", "new") else "left"
        table.add_column(header, justify=side, no_wrap=not words, min_width=least)
    for c, cells in zip(changes, rows, strict=True):
        styles = [("red" if c.worse else "green") if header == "change" else "" for header in HEADERS]
        table.add_row(*(Text(cell, style=style) for cell, style in zip(cells, styles, strict=True)))
    least = Measurement.get(console, console.options.update(max_width=10_000), table).minimum
    table.width = least if least > console.width else None
    console.print(table, crop=False)


def _say(console: Console, text: str, style: str) -> None:
    console.print(Text(units.plain(text), style=style), crop=False)
