"""A machine profile as one self-contained HTML page: charts, tables, and the conditions of every ceiling."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from nearpeak.records.ceiling import Ceiling, Load
from nearpeak.records.machine_profile import DeviceProfile, MachineProfile
from nearpeak.report import units
from nearpeak.report.charts import chart, fits
from nearpeak.report.document import document, escaped, paragraph, table
from nearpeak.report.measure_charts import dots, peaks, roofline
from nearpeak.report.measure_table import Block, best, blocks, name, ridge_points, title
from nearpeak.report.units import ABSENT

WORDS = (
    ("spec", "the maker's dense figure; its source is named below. An unverified one is never used for a share."),
    ("burst", "the best of a fixed list of shapes in a window too short for the clock to be limited; its median."),
    ("sustained", "the rate after clock and power have settled under load, at the best shape."),
    ("spread", "(p90 − p10) ÷ median of the burst's timings."),
    ("error", "‖C − R‖ ÷ ‖R‖ (Frobenius) of a product C, R computed in fp64 by another path, inputs not rounded."),
    ("energy", "joules over a window of 2 s and more ÷ the FLOPs or bytes of that window; the conditions say of what."),
    ("ridge point", "matmul ÷ memory read: work with fewer FLOP per byte than this is bound by memory."),
)


def page(profile: MachineProfile) -> str:
    """The page as text: no network, no script, light and dark, printable. All foreign text is escaped."""
    machine = profile.machine
    about = (
        f"{machine.cpu} · {machine.system} · machine {machine.id}",
        f"{machine.date} · {machine.command} · took {units.seconds(machine.seconds)}",
        " · ".join(f"{k} {v}" for k, v in {**machine.versions, "commit": machine.commit or "unknown"}.items()),
    )
    body = [
        "<h1>What this machine sustains</h1>",
        *(paragraph(line, "muted") for line in about),
        *(_device(d, profile, f"d{i}") for i, d in enumerate(profile.devices)),
        "<h2>What the words mean</h2>",
        table(("word", "meaning"), WORDS, prose=True),
    ]
    heading = "nearpeak: " + (", ".join(dict.fromkeys(d.name for d in profile.devices)) or "no device")
    return document(heading, body)


def _device(d: DeviceProfile, profile: MachineProfile, key: str) -> str:
    first, second = title(d, profile)
    products = [c for c in d.ceilings if c.kind == "matmul" and c.invalid is None and fits(c.burst)]
    first = first.removeprefix(f"{units.plain(d.name)} · ")
    parts = [f"<h2>{escaped(d.name)}</h2>", paragraph(first, "muted"), paragraph(second, "muted"), _facts(d)]
    if ridges := [r for r in ridge_points(d) if fits(r[1]) and fits(best(r[0])[0])]:
        caption = "Roofline: what a kernel can reach at its FLOP per byte. Dots are the measured ridge points."
        parts.append(chart(lambda f: roofline(f, ridges), (9.6, 4.9), caption, f"{key}r"))
    elif products:
        parts.append(paragraph("No roofline: there is no valid memory read ceiling to draw it with.", "note"))
    if products:
        caption = "Three peaks of each precision: the maker's, a short burst's, and what holds once power has settled."
        parts.append(chart(lambda f: peaks(f, d, products), (9.6, 0.9 + 0.62 * len(products)), caption, f"{key}p"))
    pair, size = "", (4.7, 0.9 + 0.3 * len(products))
    for letter, figures, factor, unit, caption in (
        ("e", [c.energy_per_unit for c in products], 1e12, "J per TFLOP (integers: per TOP)", "Energy of a product."),
        ("x", [c.error for c in products], 1.0, "relative error", "Error against fp64, – for none."),
    ):
        figures = [v if fits(v) else None for v in figures]
        if any(figures):
            draw = partial(dots, products=products, values=figures, factor=factor, unit=unit)
            pair += chart(draw, size, f"{caption} Left is better; logarithmic.", key + letter)
    parts += [f'<div class="pair">{pair}</div>' if pair else "", *map(_block, blocks(d))]
    parts += ["<h3>Conditions of every ceiling</h3>", _conditions(d)] if d.ceilings else []
    parts += ["<h3>Where the maker's figures come from</h3>", _sources(d), "<h3>The device</h3>", _readings(d)]
    return "\n".join(parts)


def _facts(d: DeviceProfile) -> str:
    """The three numbers to remember."""
    found = []
    products = [c for c in d.ceilings if c.kind == "matmul" and c.invalid is None]
    if products:
        fastest = max(products, key=lambda c: best(c)[0] or 0.0)
        rate, which = best(fastest)
        found.append((units.flop_rate(rate, fastest.precision), f"{which}, {name(fastest)}: the fastest product"))
    for c in d.ceilings:
        if c.kind in ("memory_read", "launch") and c.invalid is None and best(c)[0]:
            text, what = (units.byte_rate, "memory read") if c.unit == "B/s" else (units.seconds, "to launch a kernel")
            found.append((text(best(c)[0]), what))
    items = "".join(f"<li><b>{escaped(number)}</b><span>{escaped(what)}</span></li>" for number, what in found)
    return f'<ul class="facts">{items}</ul>' if found else ""


def _block(b: Block) -> str:
    lines = paragraph(b.line, "line") if b.line else ""
    rows = table(b.headers, b.rows) if b.headers else ""
    return f"<h3>{escaped(b.title)}</h3>{rows}{lines}" + "".join(paragraph(n, "note") for n in b.notes)


def _conditions(d: DeviceProfile) -> str:
    headers = (
        "ceiling", "figure", "rate", "samples", "spread", "shape", "window", "clock", "power", "°C",
        "method and remarks",
    )  # fmt: skip
    rows = []
    for c in d.ceilings:
        how, unit = c.conditions, c.unit.replace("FLOP", units.flop_unit(c.precision))
        for figure, value, load, shape in (
            ("burst", c.burst, how.burst, how.shape), ("sustained", c.sustained, how.sustained, how.sustained_shape)
        ):  # fmt: skip
            first, seen = figure == "burst", load or Load(seconds=math.nan)
            if first or value is not None or load is not None:
                rows.append((
                    name(c) if first else "", figure, units.quantity(value, unit), str(how.samples) if first else "",
                    units.percent(c.spread) if first else "", _shape(c, shape), units.seconds(seen.seconds),
                    units.megahertz(seen.clock_hz), units.watts(seen.power_w),
                    ABSENT if seen.temperature_c is None else f"{seen.temperature_c:.0f}",
                    "; ".join(_remarks(c, seen, first)),
                ))  # fmt: skip
    return table(headers, rows, prose=True)


def _remarks(c: Ceiling, load: Load, first: bool) -> Iterable[str]:
    how, words = c.conditions, {"energy_per_unit": "energy", "energy_j": "energy sum", "power_w": "power"}
    words |= {"clock_hz": "clock", "clock_max_hz": "highest clock", "temperature_c": "temperature"}
    if first:
        yield f"{how.method} by {how.how}"
        yield from (f"{word}: {text}" for word, text in (("invalid", c.invalid), ("emulated", how.emulated)) if text)
        yield from (f"{k.replace('_', ' ')}: {v}" for k, v in how.notes.items())
        yield from (f"no {words.get(k, k)}: {v}" for k, v in how.missing.items())
        if how.other_processes is not None:
            yield f"other processes: {', '.join(how.other_processes) or 'none'}"
    else:
        yield from [f"limited by {how.limited_by}"] if how.limited_by else []
        yield from [f"settled in {units.seconds(how.settle_s)}"] if how.settle_s is not None else []
        yield from [f"quarter-seconds {units.percent(how.wander)} apart"] if how.wander is not None else []
    if load.throttle is not None:
        yield f"throttle reasons: {', '.join(load.throttle) or 'none'}"
    if load.clock_max_hz is not None and load.clock_max_hz != load.clock_hz:
        yield f"highest clock {units.megahertz(load.clock_max_hz)}"
    yield from [f"{units.quantity(load.energy_j, 'J')} of {load.energy_scope}"] if load.energy_j is not None else []
    yield from (f"no {words.get(k, k)}: {v}" for k, v in load.missing.items())


def _shape(c: Ceiling, shape: tuple[int, ...]) -> str:
    if len(shape) == 1 and c.unit == "B/s":
        return units.size(shape[0])
    return f"{shape[0]} cubed" if len(shape) == 3 and len(set(shape)) == 1 else " × ".join(map(str, shape)) or ABSENT


def _sources(d: DeviceProfile) -> str:
    if d.spec is None:
        return paragraph("No catalogue entry for this device, so there is no spec to hold it against.", "note")
    rows = []
    for r in d.spec.rates:
        rate = units.flop_rate(r.figure.value, r.precision)
        rows.append((f"{r.precision}→{r.accumulate}, {r.unit}", rate, r.figure.provenance, r.figure.source))
    if b := d.spec.memory_bandwidth:
        rows.append(("memory bandwidth", units.byte_rate(b.value), b.provenance, b.source))
    return table(("spec", "figure", "provenance", "source"), rows, prose=True)


def _readings(d: DeviceProfile) -> str:
    rows = []
    for field in ("memory", "memory_available", "cache", "power_limit", "max_clock", "driver", "ecc", "link"):
        r = getattr(d.device, field)
        write = {"B": units.size, "Hz": units.megahertz, "W": units.watts}.get(r.unit)
        text = write(r.number) if write else ABSENT if r.value is None else str(r.value)
        if isinstance(r.value, bool):
            text = "on" if r.value else "off"
        rows.append((field.replace("_", " "), text, r.scope, r.reason or r.how))
    return table(("fact", "value", "scope", "from, or why it is absent"), rows, prose=True)
