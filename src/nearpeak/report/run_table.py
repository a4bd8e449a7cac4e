"""The outcome of `nearpeak run` as text: what was got, what the device could have given, and the share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearpeak.report import units

PHASES = {"prefill_tokens_per_s": "prefill", "decode_tokens_per_s": "decode"}


def render(outcome: Mapping[str, Any], console: Console) -> None:
    """Print the table of both phases and the lines below it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, header in enumerate(("", "tokens", "tokens/s", "limit", "share", "bound by")):
        table.add_column(header, justify="left" if number in (0, 5) else "right", no_wrap=True)
    for row in phase_rows(outcome):
        table.add_row(*row)
    console.print()
    console.print(table)
    for line in lines(outcome):
        console.print(Text(line), soft_wrap=True)


def phase_rows(outcome: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Prefill and decode, one a row."""
    result = outcome["result"]
    tokens = {
        "prefill_tokens_per_s": result["prompt_tokens"] - result["reused_tokens"],
        "decode_tokens_per_s": result["generated_tokens"] - 1,
    }
    for name, phase in PHASES.items():
        yield (
            phase,
            f"{tokens[name]:,}",
            units.digits(outcome["got"][name], whole=True) if outcome["got"][name] else units.ABSENT,
            units.digits(outcome["limit"][name], whole=True) if outcome["limit"][name] else units.ABSENT,
            units.percent(outcome["share"][name]),
            result["bound_by"].get(name, units.ABSENT),
        )


def lines(outcome: Mapping[str, Any]) -> Iterator[str]:
    """What stands below: latencies, bytes, joules, memory, the load, and a reason for each share that is missing."""
    result = outcome["result"]
    later = f", then {units.seconds(result['tpot_s'])} a token (TPOT)" if result["tpot_s"] else ""
    yield f"first token after {units.seconds(result['ttft_s'])} (TTFT){later}; ended by {result['stopped_by']}"
    energy = outcome["energy"]
    spent = f"; {units.digits(energy['per_unit'])} J a token ({energy['scope']})" if energy else ""
    yield (
        f"{units.quantity(result['bytes_per_token'], 'B')} read a token; {units.size(outcome['memory_bytes'])} of "
        f"memory{spent}"
    )
    yield load_line(result["load"])
    yield f"{result['precision']} weights on {units.plain(outcome['device'])}: {result['how']}"
    if result["limit_source"]:
        yield f"limit: what this device gave, {result['limit_source']}"
    for name, why in outcome["reason"].items():
        yield f"{PHASES.get(name, name)}: no {'share' if name in PHASES else 'figure'}, since {units.plain(why)}"
    for gap in outcome["gap"]:
        yield f"{units.seconds(gap['seconds'])} above the limit in {gap['cause']}"


def check_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The verdict of --check."""
    yield "the logits agree" if found["agree"] else "THE LOGITS DO NOT AGREE"
    yield (
        f"error {units.error(found['error'])} against the reference path in fp32, where rounding alone makes "
        f"{units.error(found['noise'])}; the same likeliest token at {found['same_first']} of "
        f"{found['positions']} places"
    )


def load_line(load: Mapping[str, Any]) -> str:
    """How long until the model was ready, and how fast its files were read beside what the disk gives."""
    rate, spent = units.byte_rate(load["bytes_per_s"]), units.seconds(load["read_seconds"])
    read = f"{units.size(load['bytes'])} read and unpacked in {spent} ({rate}"
    if load["share"]:
        read += (
            f", {units.percent(load['share'])} of the {units.byte_rate(load['disk_bytes_per_s'])} that the disk gives"
        )
    elif load["reason"]:
        read += f"; no share, since {load['reason']}"
    return f"ready after {units.seconds(load['seconds'])}: {read})"
