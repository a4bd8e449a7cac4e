"""The outcome of `kernel check` as text: the verdict, the times, and what to change."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearpeak.report import units

HEADERS = {"flop_per_s": "TFLOP/s", "bytes_per_s": "TB/s"}


def render(outcome: Mapping[str, Any], console: Console) -> None:
    """Print the verdict, the table of times and shares, and the advice."""
    result = outcome["result"]

    def say(line: str, style: str = "", hang: int = 2) -> None:
        """One paragraph, its further lines set in. Words longer than a line stay whole."""
        start = len(line) - len(line.lstrip())
        wrapped = textwrap.wrap(
            line, console.width, subsequent_indent=" " * (start + hang), break_long_words=False, break_on_hyphens=False
        )
        for part in wrapped or [""]:
            console.print(Text(part, style=style), soft_wrap=True)

    say(title(outcome))
    for line, style in verdict_lines(result):
        say(line, style)
    if rows := list(speed_rows(outcome)):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, header in enumerate(speed_headers(outcome)):
            table.add_column(header, justify="left" if i == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    for line in reason_lines(outcome):
        say(line)
    for line in why_lines(result):
        say(line, hang=3 if re.match(r"\d+\. ", line) else 0)


def title(outcome: Mapping[str, Any]) -> str:
    result = outcome["result"]
    if "op" not in result:
        return str(result["file"])
    sizes = " ".join(f"{name}={size}" for name, size in result["sizes"].items())
    where = f" on {units.plain(outcome['device'])}" if outcome["device"] else ""
    return f"{result['kernel']} ({result['language']}): {result['op']} {result['precision']}, {sizes}{where}"


def verdict_lines(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(line, style): right or not, and each thing that was seen."""
    verdict = result["verdict"]
    if verdict is None:
        yield "not run: compiled and analysed only", "yellow"
        return
    if verdict["right"]:
        shapes = verdict["shapes"]
        yield f"right: {len(shapes)} shapes, {verdict['compared']}", "green"
    else:
        yield "NOT RIGHT", "bold red"
    kinds = [finding["check"] for finding in verdict["findings"]]
    for place, finding in enumerate(verdict["findings"]):
        if finding["check"] in kinds[:place]:
            continue  # the same at another shape: counted below, whole in the JSON
        at = f" at {finding['shape']}" if finding["shape"] else ""
        more = kinds.count(finding["check"]) - 1
        yield f"  {finding['check']}{at}: {units.plain(finding['text'])}", "red"
        if more:
            yield f"  … and at {more} more {'shapes' if more > 1 else 'shape'}", "red"
    speed = result["speed"]
    if speed and speed["refused"]:
        yield f"  time refused: {speed['refused']}", "red"
    if verdict.get("error") is not None:
        beside = [f"error {units.error(verdict['error'])}"]
        if verdict["error_of_library"] is not None:
            beside.append(f"the library's {units.error(verdict['error_of_library'])}")
        if verdict["noise"] is not None:
            beside.append(f"rounding explains up to {units.error(verdict['noise'])}")
        yield ", ".join(beside), ""
    for note in verdict.get("notes", ()):
        yield f"note: {note}", "dim"


def speed_headers(outcome: Mapping[str, Any]) -> list[str]:
    """Headers of `speed_rows`."""
    rates = [HEADERS[name] for name, rate in outcome["got"].items() if rate]
    return ["", "µs warm", "µs cold", "spread", *rates, "of limit", "of library"]


def speed_rows(outcome: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Kernel, library and limit, one a row."""
    result, speed = outcome["result"], outcome["result"]["speed"]
    if not speed or speed["refused"]:
        return
    kernel, library = speed["kernel"], speed["library"]
    amounts = [rate * kernel["warm"] for rate in outcome["got"].values() if rate]
    limit = (result["limit"] or {}).get("seconds")

    def row(name: str, timing: Mapping[str, float], *shares: str) -> tuple[str, ...]:
        warm, cold = timing["warm"], timing.get("cold")
        rates = [units.digits(amount / warm / 1e12) if warm else units.ABSENT for amount in amounts]
        micro = [units.digits(t * 1e6, whole=True) if t else units.ABSENT for t in (warm, cold)]
        return (name, *micro, units.percent(timing.get("warm_spread")), *rates, *shares)

    share = next(iter(outcome["share"].values()), None)
    yield row("kernel", kernel, units.percent(share), units.percent(result["share_of_library"]))
    if library:
        reached = limit / library["warm"] if limit and library["warm"] else None
        yield row("library", library, units.percent(reached if reached and reached <= 1 else None), "100 %")
    if limit:
        yield row("limit", {"warm": limit}, "100 %", units.ABSENT)


def reason_lines(outcome: Mapping[str, Any]) -> Iterator[str]:
    """What sets the limit, why a share is missing (each reason once), clock and energy."""
    result, speed = outcome["result"], outcome["result"]["speed"]
    if result["verdict"] is not None:
        yield from dict.fromkeys(outcome["reason"].values())
    if not speed or speed["refused"]:
        return
    parts = [f"limit: {result['limit']['ceiling']}"] if (result["limit"] or {}).get("seconds") else []
    load, energy = speed["load"], outcome["energy"]
    parts += [f"clock {units.megahertz(load['clock_hz'])}"] if load["clock_hz"] else []
    parts += [f"{energy['joules']:.3g} J a call ({energy['scope']})"] if energy else []
    if parts:
        yield "; ".join(parts)
    yield from speed["notes"]


def without_repeats(what: str, where: str) -> str:
    """What a cause says, without the file and line that stand before it already; other lines without the file."""
    if not where:
        return what
    name = re.escape(PurePath(where.rpartition(":")[0]).name)
    return re.sub(rf"{name}:(\d+)\b", r"line \1", what.replace(f"{where}: ", ""))


def cause_lines(cause: Mapping[str, Any]) -> tuple[str, str, str]:
    """What wastes time and in which line; what to do; what that would give."""
    at = f", {cause['where']}" if cause["where"] else ""
    (low, high), (fast, slow) = cause["gain"], cause["seconds"]
    gain = f"{units.digits(low)}× to {units.digits(high)}× faster"
    return (
        f"{cause['name']}{at}: {without_repeats(cause['what'], cause['where'])}",
        cause["fix"],
        f"predicted: {gain}, {units.seconds(fast)} to {units.seconds(slow)}",
    )


def why_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What wastes time, in which line, what to do, what it would give."""
    why = result["why"]
    if not why:
        return
    yield ""
    if why["stopped"]:
        yield f"not traced: {why['stopped'].removeprefix('not traced: ')}"
    for number, cause in enumerate(why["causes"], 1):
        what, fix, gain = cause_lines(cause)
        yield f"{number}. {what}"
        yield f"   {fix}"
        yield f"   {gain}"
    if not why["stopped"]:
        yield why["note"]
    yield from resource_lines(why)
    yield from counter_lines(why)


def resource_lines(why: Mapping[str, Any]) -> Iterator[str]:
    """Registers, spills and warps at a time."""
    fit, used = why["occupancy"], why["resources"]
    if fit and used["registers"]:
        limited = f", limited by {fit['limited_by']}" if fit["limited_by"] else ""
        spills = f", {used['local_bytes']} bytes of local memory (spills)" if used["local_bytes"] else ""
        warps = f"{fit['warps']} warps at a time ({units.percent(fit['share'])}{limited})"
        yield f"{used['registers']} registers a thread{spills}; {warps}"


# What the terminal shows of the counters; the page and the JSON have all.
_SHOWN = ("read from memory", "written to memory", "sectors a read request", "sectors a write request", "bank passes",
          "issue slots", "matrix units")  # fmt: skip


def counter_lines(why: Mapping[str, Any]) -> Iterator[str]:
    """What the hardware counted, beside what was traced; or where the figures come from, and why none were counted."""
    counters, traced = why["counters"], f"from the traced access pattern ({why['how']})" if why["how"] else ""
    if "missing" in counters:
        yield "; ".join(part for part in (traced, f"counters: {counters['missing']}") if part)
        return
    shown = [
        f"{c['what']} {figure(c, 'counted')}" + (f" (traced {figure(c, 'traced')})" if c["traced"] is not None else "")
        for c in counters["compared"]
        if c["what"].startswith(_SHOWN)
    ]
    yield f"counted by the hardware: {', '.join(shown)}"
    yield from (f"{c['what']}: {c['note']}" for c in counters["compared"] if c["note"])
    waits = [c for c in counters["compared"] if c["what"].startswith("warps waiting")]
    if waits:
        yield f"longest wait: {figure(waits[0], 'counted')} {waits[0]['what']} at each instruction issued"
    if traced:
        yield traced


def figure(compared: Mapping[str, Any], which: str) -> str:
    """The counted or traced figure of a comparison, with its unit."""
    value, unit = compared[which], compared["unit"]
    if value is None:
        return units.ABSENT
    if unit == "share":
        return units.percent(value)
    return units.quantity(value, unit) if unit else units.digits(value)
