"""The outcome of `nearpeak train` as text: what was got, what the device could have given, and the share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearpeak.report import units

RATES = {"images_per_s": ("images/s", "image/s"), "flop_per_s": ("FLOP/s", "FLOP/s")}


def render(outcome: Mapping[str, Any], console: Console) -> None:
    """Print the table and the lines below it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, header in enumerate(HEADERS):
        table.add_column(header, justify="left" if number in (0, 4) else "right", no_wrap=True)
    for row in rows(outcome):
        table.add_row(*row)
    console.print()
    console.print(table)
    for line in lines(outcome):
        console.print(Text(line), soft_wrap=True)


HEADERS = ("", "got", "limit", "share", "bound by")


def rows(outcome: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """One a rate."""
    for name, (word, _) in RATES.items():
        yield (
            word,
            _rate(name, outcome["got"][name]),
            _rate(name, outcome["limit"][name]),
            units.percent(outcome["share"][name]),
            outcome["result"]["bound_by"] or units.ABSENT,
        )


def _rate(name: str, value: float | None) -> str:
    if value is None:
        return units.ABSENT
    return units.digits(value, whole=True) if name == "images_per_s" else units.quantity(value, "")


def lines(outcome: Mapping[str, Any]) -> Iterator[str]:
    """What stands below: what was learned, where the time went, joules, files, and a reason for each missing share."""
    result = outcome["result"]
    done = f"{result['steps_done_here']:,} of {result['steps']:,} steps"
    begun = f", going on after step {result['resumed_at']:,}" if result["resumed_at"] else ""
    yield f"{units.plain(result['model'])}, {result['precision']}, batch {result['batch']:,}: {done}{begun}"
    if result["loss"] is not None:
        tested = ""
        if result["test_accuracy"] is not None:
            right = f"{100 * result['test_accuracy']:.2f} %"
            tested = f"; held-out loss {result['test_loss']:.4f}, {right} of the held-out images right"
        yield f"loss {result['loss']:.4f}{tested}"
    yield "time: " + ", ".join(f"{units.seconds(s)} {name}" for name, s in result["seconds"].items() if s >= 0.001)
    energy = outcome["energy"]
    spent = f"; {units.digits(energy['per_unit'])} J an image ({energy['scope']})" if energy else ""
    watts = f"; {units.watts(result['power_w'])}" if result["power_w"] else ""
    yield f"{units.size(outcome['memory_bytes'])} of memory at most{watts}{spent}, on {units.plain(outcome['device'])}"
    if result["limit_source"]:
        yield f"limit: what this device gave, {result['limit_source']}. {result['flop_convention']}."
    for name, why in outcome["reason"].items():
        what = RATES[name][0] if name in RATES else name
        yield f"{what}: no {'share' if name in RATES else 'figure'}, since {units.plain(why)}"
    for gap in outcome["gap"]:
        yield f"{units.seconds(gap['seconds'])} above the limit in {gap['cause']}"
    yield "; ".join(f"{name}: {units.plain(path)}" for name, path in result["files"].items())


def progress_line(progress: Mapping[str, Any]) -> str:
    """While it runs."""
    return (
        f"step {progress['step']:,} of {progress['total']:,}, epoch {progress['epoch']}: loss {progress['loss']:.4f}, "
        f"{units.digits(progress['images_per_s'], whole=True)} images/s, {units.seconds(progress['seconds_left'])} left"
    )
