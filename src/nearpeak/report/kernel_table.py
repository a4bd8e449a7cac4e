"""The outcome of `kernel check` as text: the verdict, the times, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearpeak.report import units


def render(outcome: Mapping[str, Any], console: Console) -> None:
    """Print the verdict, the table of times and shares, and the advice."""
    result = outcome["result"]
    console.print(Text(title(outcome)), soft_wrap=True)
    for line, style in verdict_lines(result):
        console.print(Text(line, style=style), soft_wrap=True)
    if rows := list(speed_rows(outcome)):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, header in enumerate(("", "µs warm", "µs cold", "spread", *_rate_headers(outcome), "share")):
            table.add_column(header, justify="left" if i == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    for line in [*reason_lines(outcome), *why_lines(result)]:
        console.print(Text(line), soft_wrap=True)


def title(outcome: Mapping[str, Any]) -> str:
    result = outcome["result"]
    if "op" not in result:
        return str(result["file"])
    sizes = " ".join(f"{name}={size}" for name, size in result["sizes"].items())
    where = f" on {outcome['device']}" if outcome["device"] else ""
    return f"{result['kernel']} ({result['language']}): {result['op']} {result['precision']}, {sizes}{where}"


def verdict_lines(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(line, style): right or not, and each thing that was seen."""
    verdict = result["verdict"]
    if verdict is None:
        yield "not run here: compiled and analysed only", "yellow"
        return
    if verdict["right"]:
        shapes = verdict["shapes"]
        yield f"right: {len(shapes)} shapes, {verdict['compared']}", "green"
    else:
        yield "NOT RIGHT", "bold red"
    for finding in verdict["findings"]:
        at = f" at {finding['shape']}" if finding["shape"] else ""
        yield f"  {finding['check']}{at}: {finding['text']}", "red"
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


def _rate_headers(outcome: Mapping[str, Any]) -> list[str]:
    return [{"flop_per_s": "TFLOP/s", "bytes_per_s": "TB/s"}[name] for name in outcome["got"]]


def speed_rows(outcome: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Kernel, library and limit, one a row."""
    result, speed = outcome["result"], outcome["result"]["speed"]
    if not speed or speed["refused"]:
        return
    kernel, library = speed["kernel"], speed["library"]
    amounts = {name: rate * kernel["warm"] for name, rate in outcome["got"].items() if rate}

    def row(name: str, warm: float | None, cold: float | None, spread: float | None, share: str) -> tuple[str, ...]:
        rates = [units.digits(amount / warm / 1e12) if warm else units.ABSENT for amount in amounts.values()]
        micro = [units.digits(t * 1e6) if t else units.ABSENT for t in (warm, cold)]
        return (name, *micro, units.percent(spread), *rates, share)

    first = next(iter(outcome["share"].values()), None)
    yield row("kernel", kernel["warm"], kernel["cold"], kernel["warm_spread"], units.percent(first))
    if library:
        ratio = units.percent(result["share_of_library"])
        yield row("library", library["warm"], library["cold"], library["warm_spread"], f"kernel is {ratio} of it")
    limit = (result["limit"] or {}).get("seconds")
    if limit:
        yield row(f"limit ({result['limit']['ceiling']})", limit, None, None, "100 %")


def reason_lines(outcome: Mapping[str, Any]) -> Iterator[str]:
    """Why a share is missing, each reason once; energy and clock."""
    yield from dict.fromkeys(outcome["reason"].values())
    speed = outcome["result"]["speed"]
    if speed and not speed["refused"]:
        load, energy = speed["load"], outcome["energy"]
        clock = f"clock {units.megahertz(load['clock_hz'])}" if load["clock_hz"] else ""
        joules = f"{energy['joules']:.3g} J a call ({energy['scope']})" if energy else ""
        if clock or joules:
            yield ", ".join(part for part in (clock, joules) if part)
        yield from speed["notes"]


def why_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What wastes time, in which line, what to do, what it would give."""
    why = result["why"]
    if not why:
        return
    yield ""
    if why["stopped"]:
        yield f"not traced: {why['stopped'].removeprefix('not traced: ')}"
    for number, cause in enumerate(why["causes"], 1):
        at = f" ({cause['where']})" if cause["where"] else ""
        low, high = cause["gain"]
        yield f"{number}. {cause['name']}{at}: {cause['what']}"
        yield f"   {cause['fix']}"
        fast, slow = cause["seconds"]
        yield f"   predicted: {_factor(low)} to {_factor(high)} faster, {units.seconds(fast)} to {units.seconds(slow)}"
    yield why["note"]
    fit, used = why["occupancy"], why["resources"]
    if fit and used["registers"]:
        limited = f", limited by {fit['limited_by']}" if fit["limited_by"] else ""
        spills = f", {used['local_bytes']} bytes of local memory (spills)" if used["local_bytes"] else ""
        warps = f"{fit['warps']} warps at a time ({units.percent(fit['share'])}{limited})"
        yield f"{used['registers']} registers a thread{spills}; {warps}"
    if why["how"]:
        yield why["how"]


def _factor(gain: float) -> str:
    return f"{gain:.3g}×"
