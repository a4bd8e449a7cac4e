"""The outcome of `kernel check` as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from nearpeak.report import units
from nearpeak.report.charts import chart, fits
from nearpeak.report.document import document, escaped, paragraph, table
from nearpeak.report.kernel_charts import KERNEL, LIBRARY, STEP, Point, bars_of, kernel_roofline, times
from nearpeak.report.kernel_table import (
    cause_lines,
    figure,
    reason_lines,
    resource_lines,
    speed_headers,
    speed_rows,
    title,
    verdict_lines,
)
from nearpeak.report.units import ABSENT

WORD = 4  # bytes

HOW_RUN = (
    ("warm", "median of calls one after the other on the same data, kernel and library in turn (A B B A, twice); short "
             "calls in trains, each sample the mean of one"),
    ("cold", "median of single calls, each after writing twice the last-level cache"),
    ("spread", "(p90 − p10) ÷ median of the warm samples"),
    ("limit", "the larger of FLOPs ÷ this device's ceiling for products of the precision, and compulsory bytes ÷ its "
              "ceiling for memory (for the cache, where all data fit in it); ceilings from bursts beside the kernel"),
    ("of limit", "limit ÷ warm time. Above 100 % it is not shown; the reason is"),
    ("of library", "the library's warm time ÷ the kernel's"),
    ("error", "‖C − R‖ ÷ ‖R‖ (Frobenius) on fresh normal inputs, R in fp64; the library's on the same inputs"),
)  # fmt: skip
HOW_ANALYSED = (
    ("access pattern", "a few blocks of the compiler's PTX run step by step on the CPU with the real sizes; each "
                       "address that a warp asks for is counted, and extrapolated to the grid"),
    ("moved ÷ needed", "sectors of 32 bytes that the warps touch ÷ the fewest that could hold what they ask for: 1 is "
                       "best, 8 the worst for 4-byte elements"),
    ("stride", "words of 4 bytes from a thread's address to its neighbour's; 1 is best for fp32, 0 means shared"),
    ("bank passes", "passes through shared memory ÷ passes without bank conflicts: 1 is best, 32 the worst"),
    ("predicted", "from the least time that the GPU's parts need after the fix, to 70 % of that rate (or the share "
                  "that the kernel reaches now, if that is lower). Gains of several causes do not add up"),
    ("gain without a run", "held against the model's least time now, and against memory that no cache spares scattered "
                           "accesses"),
)  # fmt: skip
HOW_COUNTED = (
    ("counted", "by the GPU's own counters in one run under ncu (Nsight Compute), the caches empty before it; traced: "
                "the same figure of the access pattern. A note stands where the two are more than 1.5 times apart"),
)  # fmt: skip


def page(outcome: Mapping[str, Any]) -> str:
    """The page as text: no network, no script, light and dark. All foreign text is escaped."""
    result = outcome["result"]
    why = result.get("why")
    head = title(outcome)
    body = [f"<h1>{escaped(PurePath(str(result['file'])).name)}</h1>", paragraph(head, "muted"), _facts(outcome)]
    body += ["<h2>Is it right?</h2>", *_verdict(result)]
    if charts := [*_roofline(outcome), *_times(outcome)]:
        body += ["<h2>How fast, and how fast could it be?</h2>", *charts]
    if rows := list(speed_rows(outcome)):
        body += ["<h3>Times</h3>", table((*speed_headers(outcome), ""), [(*row, "") for row in rows])]
    body += [paragraph(line, "note") for line in reason_lines(outcome)]
    if why:
        body += ["<h2>Why, and what would help?</h2>", *_causes(why), *_accesses(why), *_bounds(why), *_counters(why)]
        body += _resources(why)
    how = [
        *(HOW_RUN if result.get("speed") else HOW_RUN[-1:] if result["verdict"] else ()),
        *(HOW_ANALYSED if why else ()),
        *(HOW_COUNTED if why and "missing" not in why["counters"] else ()),
    ]
    body += ["<h2>How each number was made</h2>", table(("number", "how"), how, prose=True)] if how else []
    return document(f"nearpeak: {PurePath(str(result['file'])).name}", [part for part in body if part])


def _facts(outcome: Mapping[str, Any]) -> str:
    """The few numbers to remember."""
    result, found = outcome["result"], []
    verdict = {True: "right", False: "not right", None: "not run"}[result["right"]]
    found.append((verdict, "against fp64 on fresh inputs" if result["verdict"] else "no GPU is here: analysed only"))
    speed = result.get("speed")
    if speed and not speed["refused"]:
        found.append((units.seconds(speed["kernel"]["warm"]), "a warm call"))
        if (share := next(iter(outcome["share"].values()), None)) is not None:
            found.append((units.percent(share), "of the limit"))
        if result["share_of_library"]:
            found.append((units.percent(result["share_of_library"]), "of the library's speed"))
    if causes := (result.get("why") or {}).get("causes"):
        low, high = causes[0]["gain"]
        found.append((f"{units.digits(low)} to {units.digits(high)}×", f"predicted by fixing: {causes[0]['name']}"))
    items = "".join(f"<li><b>{escaped(number)}</b><span>{escaped(what)}</span></li>" for number, what in found)
    return f'<ul class="facts">{items}</ul>'


def _verdict(result: Mapping[str, Any]) -> Iterator[str]:
    for line, style in verdict_lines(result):
        yield paragraph(
            line.strip(), "line" if "red" in style or "yellow" in style else "note" if style == "dim" else ""
        )
    if verdict := result["verdict"]:
        shapes, failed = verdict.get("shapes", ()), set(verdict.get("failed", ()))
        if shapes:
            yield "<h3>Shapes that were run</h3>"
            rows = [(shape, "wrong" if shape in failed else "right") for shape in shapes]
            yield table(("result", "shapes"), _pairs(rows), prose=True)


def _pairs(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """All shapes with one result in one row."""
    by_result: dict[str, list[str]] = {}
    for shape, outcome in rows:
        by_result.setdefault(outcome, []).append(shape)
    return [(outcome, "; ".join(shapes)) for outcome, shapes in by_result.items()]


def _roofline(outcome: Mapping[str, Any]) -> Iterator[str]:
    result = outcome["result"]
    speed, limit, got = result.get("speed"), result.get("limit"), outcome["got"]
    if not speed or speed["refused"] or not limit or not got.get("flop_per_s") or not got.get("bytes_per_s"):
        return
    kernel, library = speed["kernel"], speed["library"]
    flop, size = (got[name] * kernel["warm"] for name in ("flop_per_s", "bytes_per_s"))
    points = [Point("kernel", flop / kernel["warm"], KERNEL)]
    points += [Point("library", flop / library["warm"], LIBRARY)] if library else []
    rates = [amount / limit[k] if limit[k] else None for amount, k in ((flop, "flop_seconds"), (size, "byte_seconds"))]
    if not any(rates) or not all(fits(v) for v in (flop / size, *(p.rate for p in points), *filter(None, rates))):
        return
    memory = "cache read" if limit["in_cache"] else "memory read"
    ladder = result.get("ladder") or {}
    steps = [Point(s["step"], s["flop_per_s"], STEP, ladder["flop_per_byte"]) for s in ladder.get("steps", ())]
    caption = (
        "Roofline: what this device allows at each FLOP per byte. The dotted line is this op at this shape; where it "
        "meets the roof is the limit."
    )
    yield chart(
        lambda f: kernel_roofline(f, flop / size, points, rates[0], rates[1], memory, steps),
        (9.6, 4.4 + 0.12 * len(steps)),
        caption + (" Small dots: the steps of the ladder." if steps else ""),
        "r",
    )
    if steps:
        yield paragraph(f"The ladder: {ladder['precision']} products of examples/kernels at {ladder['n']}³ on an "
                        f"{ladder['device']}, {ladder['date']} ({ladder['source']}, commit {ladder['commit']}), "
                        "measured then, not in this run.", "note")  # fmt: skip
    elif "missing" in ladder:
        yield paragraph(f"No ladder beside it: {ladder['missing']}.", "note")


def _times(outcome: Mapping[str, Any]) -> Iterator[str]:
    result = outcome["result"]
    why = result.get("why") or {}
    speed = result.get("speed")
    parts = (why.get("bounds") or {}).values()
    limit = (result.get("limit") or {}).get("seconds")
    measured = None if not speed or speed["refused"] else speed
    bars = bars_of(measured, limit, max(parts, default=None), why.get("causes", ()))
    if bars and all(fits(b.seconds) for b in bars):
        caption = "Time of one call. After a fix: the interval that is predicted for it."
        yield chart(lambda f: times(f, bars), (9.6, 0.8 + 0.34 * len(bars)), caption, "t")


def _causes(why: Mapping[str, Any]) -> Iterator[str]:
    if why["stopped"]:
        yield paragraph(f"Not traced: {why['stopped'].removeprefix('not traced: ')}", "line")
    for number, cause in enumerate(why["causes"], 1):
        what, fix, gain = cause_lines(cause)
        yield f"<h3>{number}. {escaped(cause['name'])}{escaped(', ' + cause['where'] if cause['where'] else '')}</h3>"
        yield paragraph(what.partition(": ")[2], "")
        yield paragraph(f"What to do: {fix}.", "")
        yield paragraph(f"{gain}. How: {cause['model']}.", "note")
    if not why["stopped"]:
        yield paragraph(why["note"], "note")


def _accesses(why: Mapping[str, Any]) -> Iterator[str]:
    rows = [_access(line) for line in why["lines"] if line["space"] != "local"][:40]
    if not rows:
        return
    yield "<h3>Accesses by source line</h3>"
    headers = ("line", "moved ÷\nneeded", "stride,\nwords", "bank\npasses", "active\nthreads", "bytes a\nthread")
    yield table((*headers, "requests\nof warps", "access"), rows)
    if len(why["lines"]) > len(rows):
        yield paragraph(f"{len(rows)} of {len(why['lines'])} accesses, those with most sectors first", "note")


def _access(line: Mapping[str, Any]) -> tuple[str, ...]:
    shared = line["space"] == "shared"
    moved = line["sectors"] / line["least"] if line["least"] and not shared else None
    passes = line["wavefronts"] / line["least_wavefronts"] if line["least_wavefronts"] and shared else None
    stride = ABSENT if line["stride"] is None else f"{line['stride'] / WORD:g}"
    return (
        f"{PurePath(line['file']).name}:{line['line']}",
        units.digits(moved) if moved else ABSENT,
        stride,
        units.digits(passes) if passes else ABSENT,
        units.percent(line["active"]),
        str(line["width"]),
        units.quantity(line["requests"], ""),
        f"{line['kind']} {line['buffer']}",
    )


def _bounds(why: Mapping[str, Any]) -> Iterator[str]:
    if not why["bounds"]:
        return
    names = {"load_store": "load/store units", "cache": "second-level cache", "memory": "memory", "issue":
             "instruction issue", "flop": "arithmetic", "launch": "launch"}  # fmt: skip
    rows = [(names.get(k, k), units.seconds(v)) for k, v in sorted(why["bounds"].items(), key=lambda i: -i[1]) if v]
    yield "<h3>What each part of the GPU needs at least</h3>"
    yield table(("part", "least time"), rows)
    if why["explained"] is not None:
        yield paragraph(f"The longest of them is {units.percent(min(why['explained'], 1.0))} of the measured time; the "
                        "rest is waiting that the model does not see.", "note")  # fmt: skip


def _counters(why: Mapping[str, Any]) -> Iterator[str]:
    yield "<h3>Counted by the hardware</h3>"
    counters = why["counters"]
    if "missing" in counters:
        yield paragraph(f"Not counted: {counters['missing']}. The figures above are from a trace.", "note")
        return
    rows = [(c["what"], figure(c, "counted"), figure(c, "traced"), "") for c in counters["compared"]]
    yield table(("figure", "counted", "traced", ""), rows)
    for c in counters["compared"]:
        if c["note"]:
            yield paragraph(f"{c['what']}: {c['note']}", "note")


def _resources(why: Mapping[str, Any]) -> Iterator[str]:
    used, shape = why["resources"], why["geometry"]
    rows: list[tuple[str, str]] = [
        ("grid", " × ".join(map(str, shape["grid"]))),
        ("block", " × ".join(map(str, shape["block"]))),
        ("dynamic shared memory", units.size(shape["shared"])),
    ]
    rows += [(name.replace("_bytes", " memory"), units.size(used[name])) for name in ("shared_bytes", "local_bytes")]
    rows += [("registers, warps", line) for line in resource_lines(why)]
    yield "<h3>Launch and resources</h3>"
    yield table(("fact", "value"), rows, prose=True)
    yield paragraph(_how(why), "note")


def _how(why: Mapping[str, Any]) -> str:
    return why["how"] or "nothing was traced"
