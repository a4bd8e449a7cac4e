"""A machine profile as tables: text first (`blocks`, which the page shows too), then the terminal (`render`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nearpeak.records.ceiling import Ceiling, Load
from nearpeak.records.machine_profile import DeviceProfile, MachineProfile
from nearpeak.records.spec import Figure
from nearpeak.report import units
from nearpeak.report.units import ABSENT

MARKS = {"sheet": "", "derived": "~", "unverified": "?"}
LEGEND = {
    "derived": "~ derived from units × clock, on no sheet",
    "unverified": "? unverified, so no share is taken of it",
}
FIELDS = {"sustained": "sustained", "energy_per_unit": "energy", "clock_hz": "clock", "power_w": "power"}


@dataclass(frozen=True)
class Block:
    """One table, all text. line: what would change the numbers, where the data say it; notes: all else under it."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    line: str | None


def render(profile: MachineProfile, console: Console) -> None:
    """Print every device's tables. Numbers are never cut: a narrower console gets lines as long as they need."""
    for device in profile.devices:
        first, second = title(device, profile)
        _say(console, first, "bold")
        _say(console, second, "dim")
        for block in blocks(device):
            console.print()
            _print(console, block)
        console.print()


def title(d: DeviceProfile, profile: MachineProfile) -> tuple[str, str]:
    """What was measured, and when; then its id and what with."""
    device, torch = d.device, profile.machine.versions.get("torch")
    limit = units.watts(device.power_limit.number)
    parts = [d.name, f"{units.size(device.memory.number)} memory", f"power limit {limit}"]
    parts += [f"driver {device.driver.value or ABSENT}"] * (d.kind == "gpu") + [profile.machine.date[:10]]
    second = [d.id, device.architecture or "", f"torch {torch}" if torch else ""]
    second += [f"settles in {units.seconds(d.settle_s)}" if d.settle_s is not None else ""]
    return units.plain(" · ".join(parts)), units.plain(" · ".join(p for p in second if p))


def blocks(d: DeviceProfile) -> tuple[Block, ...]:
    """The tables of one device: matmul, memory and transfers, launch costs; an empty one is left out."""
    rest = tuple(f"{what}: {why}" for what, why in d.skipped.items())
    rest += (f"this device cannot be used: {d.device.unusable}",) if d.device.unusable else ()
    found = [b for b in (_matmul(d), _memory(d), _launch(d)) if b.rows]
    return (*found, Block("Not measured", (), (), rest, None)) if rest else tuple(found)


def name(c: Ceiling) -> str:
    """What the ceiling is of: "bf16→fp32", "host to device, pinned"."""
    return units.work(c.kind, c.precision, c.accumulate, c.conditions.notes)


def ridge_points(d: DeviceProfile) -> tuple[tuple[Ceiling, float, str], ...]:
    """Each valid matmul ceiling with its measured ridge point in FLOP per byte, and of which figures it is made.

    Matmul ÷ memory read, sustained where there is such a figure.
    """
    read, found = d.ceiling("memory_read"), []
    bandwidth, how = (None, "") if read is None else best(read)
    for c in d.ceilings:
        rate, which = best(c)
        if c.kind == "matmul" and c.invalid is None and rate and bandwidth and rate > 0 and bandwidth > 0:
            found.append((c, rate / bandwidth, f"{which} matmul ÷ {how} memory read"))
    return tuple(found)


def best(c: Ceiling) -> tuple[float | None, str]:
    """The sustained figure, else the burst, and which of the two it is."""
    return (c.burst, "burst") if c.sustained is None else (c.sustained, "sustained")


def spec_rate(d: DeviceProfile, c: Ceiling) -> Figure | None:
    """The maker's figure for this ceiling, in its unit; None where there is none."""
    if d.spec is not None and c.kind in ("memory_read", "memory_write", "memory_copy"):
        return d.spec.memory_bandwidth
    rate = d.spec.rate(c.precision or "", c.accumulate or "") if d.spec and c.kind == "matmul" else None
    return rate.figure if rate else None


def share(c: Ceiling, got: float | None, limit: float | None, of: str) -> tuple[str, str | None]:
    """got ÷ limit as text; above 100 % by more than the spread no share, but a note on the assumption that failed."""
    if not got or not limit or c.invalid is not None:
        return ABSENT, None
    if got / limit <= 1 + max(c.spread or 0.0, 0.005):
        return units.percent(min(got / limit, 1.0)), None
    why = "the spec is of another card or assumes a lower clock" if of == "spec" else "burst was not this device's best"
    return ABSENT, f"{name(c)}: no share of {of}, it would be {units.digits(got / limit)} times it: {why}"


def _matmul(d: DeviceProfile) -> Block:
    rows, notes, ceilings = [], [], [c for c in d.ceilings if c.kind == "matmul"]
    scale = units.column([c.burst for c in ceilings], "FLOP/s")
    limit, sustained = d.device.power_limit.number, any(c.sustained is not None for c in ceilings)
    for c in ceilings:
        valid, load, got = c.invalid is None, _load(c, sustained), c.sustained if sustained else c.burst
        share_spec, note_spec = share(c, got, _known(spec_rate(d, c)), "spec")
        share_burst, note_burst = share(c, c.sustained, c.burst, "burst")
        notes += [n for n in (note_spec, note_burst) if n]
        power = ABSENT if load.power_w is None else f"{load.power_w:.0f}" + (f"/{limit:.0f}" if limit else "")
        rows.append((
            name(c), _spec(spec_rate(d, c), scale), scale.text(c.burst if valid else None),
            scale.text(c.sustained if valid else None), share_spec, share_burst, units.error(c.error),
            units.digits(c.energy_per_unit * 1e12) if c.energy_per_unit is not None and valid else ABSENT,
            ABSENT if load.clock_hz is None else f"{load.clock_hz / 1e6:.0f}", power, _held(c),
        ))  # fmt: skip
    of_spec = "of\nspec" if sustained else "burst\nof spec"
    headers = (
        "precision", f"spec\n{scale.unit}", "burst", "sustained", of_spec, "of\nburst", "error", "J/TFLOP",
        "clock\nMHz", "W of\nlimit", "limited by",
    )  # fmt: skip
    if any(units.flop_unit(c.precision) == "OP" for c in ceilings):
        notes.append(f"integer products: {scale.unit.replace('FLOP', 'OP')} and J/TOP")
    line = _why(d, ceilings)
    said = "sustained –" if line and line.startswith("no sustained") else "\n"  # a reason is given once
    notes = [n for n in (*_legend(d, ceilings), *notes) if not n.startswith(said)]
    return Block("Matrix products", headers, tuple(rows), tuple(notes), line)


def _memory(d: DeviceProfile) -> Block:
    ceilings = [c for c in d.ceilings if c.unit == "B/s"]
    scale = units.column([c.burst for c in ceilings], "B/s")
    sustained, rows, notes = any(c.sustained is not None for c in ceilings), [], []
    for c in ceilings:
        valid, load, shape = c.invalid is None, _load(c, c.sustained is not None), c.conditions.shape
        share_spec, note = share(c, best(c)[0], _known(spec_rate(d, c)), "spec")
        notes += [note] if note else []
        rows.append((
            name(c), _spec(spec_rate(d, c), scale), scale.text(c.burst if valid else None),
            scale.text(c.sustained if valid else None), share_spec, units.percent(c.spread),
            units.digits(c.energy_per_unit * 1e12) if c.energy_per_unit is not None and valid else ABSENT,
            ABSENT if load.power_w is None else f"{load.power_w:.0f}", units.size(shape[0]) if shape else ABSENT,
            _held(c),
        ))  # fmt: skip
    of_spec = "of\nspec" if sustained else "burst\nof spec"
    headers = (
        "memory and transfers", f"spec\n{scale.unit}", "burst", "sustained", of_spec, "spread", "J/TB", "power\nW",
        "size", "limited by",
    )  # fmt: skip
    ridges = ridge_points(d)
    for how in dict.fromkeys(r[2] for r in ridges):
        points = " · ".join(f"{name(c)} {units.digits(value)}" for c, value, h in ridges if h == how)
        notes.append(f"ridge points in FLOP per byte ({how}): {points}")
    notes = [*_legend(d, ceilings), *notes]
    return Block("Memory and transfers", headers, tuple(rows), tuple(notes), _why_memory(ceilings))


def _launch(d: DeviceProfile) -> Block:
    ceilings = [c for c in d.ceilings if c.unit == "s"]
    scale = units.column([c.burst for c in ceilings], "s")
    rows = []
    for c in ceilings:
        least, spread = scale.text(c.burst if c.invalid is None else None), units.percent(c.spread)
        rows.append((name(c), least, spread, str(c.conditions.samples), units.plain(c.conditions.how)))
    eager, graph = d.ceiling("launch"), d.ceiling("launch_graph")
    line = None
    if eager and graph and eager.burst and graph.burst and graph.burst < eager.burst:
        times = f"{scale.text(eager.burst)} to {scale.text(graph.burst)} {scale.unit}"
        line = f"a graph brings a launch from {times}, {units.digits(eager.burst / graph.burst)} times less"
    notes = tuple(n for n in _legend(d, ceilings) if not n.startswith("sustained –"))
    headers = ("launch", f"least\n{scale.unit}", "spread", "samples", "how")
    return Block("Launch costs", headers, tuple(rows), notes, line)


def _load(c: Ceiling, sustained: bool) -> Load:
    load = c.conditions.sustained if sustained else c.conditions.burst
    return load or Load(seconds=0.0)


def _known(figure: Figure | None) -> float | None:
    return figure.value if figure and figure.provenance != "unverified" else None


def _spec(figure: Figure | None, scale: units.Scale) -> str:
    return ABSENT if figure is None else scale.text(figure.value) + MARKS[figure.provenance]


def _held(c: Ceiling) -> str:
    words = ["invalid"] if c.invalid is not None else []
    words += ["emulated"] if c.conditions.emulated is not None else []
    return units.plain(", ".join([*words, *([c.conditions.limited_by] if c.conditions.limited_by else [])])) or ABSENT


def _legend(d: DeviceProfile, ceilings: Sequence[Ceiling]) -> tuple[str, ...]:
    """What the marks mean, what is invalid, emulated or absent, each with its reason."""
    matmul = "error" if any(c.kind == "matmul" for c in ceilings) else ""  # only products have an error
    marks = {figure.provenance for c in ceilings if (figure := spec_rate(d, c))}
    notes = ["spec: " + "; ".join(text for mark, text in LEGEND.items() if mark in marks)] if marks - {"sheet"} else []
    if d.spec is None and matmul:
        notes.append("spec –: this device is in no catalogue entry")
    notes += [f"{name(c)} is invalid, so it has no figure: {c.invalid}" for c in ceilings if c.invalid is not None]
    notes += [f"{name(c)} is emulated: {c.conditions.emulated}" for c in ceilings if c.conditions.emulated is not None]
    absent: dict[tuple[str, str], list[str]] = {}
    for c in ceilings:
        load = _load(c, c.sustained is not None)
        for field, reason in {**load.missing, **c.conditions.missing}.items():
            if getattr(c, field, getattr(load, field, None)) is None and (field in FIELDS or field == matmul):
                absent.setdefault((FIELDS.get(field, field), reason), []).append(name(c))
    for (field, reason), names in absent.items():
        notes.append(f"{field} –: {reason}" + (f" ({', '.join(names)})" if len(names) < len(ceilings) else ""))
    return tuple(notes)


def _others(ceilings: Iterable[Ceiling]) -> str | None:
    names = list(dict.fromkeys(p for c in ceilings for p in c.conditions.other_processes or ()))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    text = f"other processes on the device: {', '.join(names[:3])}{more}; stop them and measure again"
    return text if names else None


def _why(d: DeviceProfile, ceilings: Sequence[Ceiling]) -> str | None:
    """One line from the data on what holds these products back."""
    if others := _others(ceilings):
        return others
    if ceilings and all(c.sustained is None for c in ceilings):
        reasons = dict.fromkeys(c.conditions.missing.get("sustained", "no reason given") for c in ceilings)
        return f"no sustained figures: {'; '.join(reasons)}"
    pairs = [(c.sustained / c.burst, c) for c in ceilings if c.sustained and c.burst and c.invalid is None]
    if not pairs:
        return None
    held = [p for p in pairs if p[1].conditions.limited_by]
    ratio, c = min(held or pairs, key=lambda p: p[0])
    load, cause = _load(c, True), c.conditions.limited_by
    figure = f"{name(c)} sustained is {units.percent(min(ratio, 1.0))} of burst"
    if cause is None:
        if load.throttle is None:
            reason = load.missing.get("throttle") or load.missing.get("clock_hz") or "no reason recorded"
            return f"the least kept: {figure}; what holds it is unknown ({reason})"
        return f"the device gave no reason for holding the clock back; the least kept: {figure}"
    at = load.temperature_c if "therm" in cause.lower() else None
    limit = units.watts(d.device.power_limit.number) if "power" in cause.lower() else ABSENT
    text = cause + (f" at {limit}" if limit != ABSENT else "") + (f" at {at:.0f} °C" if at is not None else "")
    most = d.device.max_clock.number or load.clock_max_hz
    if load.clock_hz and most and load.clock_hz < most:
        return f"{text} holds the clock at {load.clock_hz / 1e6:.0f} of {units.megahertz(most)}: {figure}"
    return f"{text}: {figure}"


def _why_memory(ceilings: Sequence[Ceiling]) -> str | None:
    """One line on other processes, or on what pinned host memory gains here."""
    if others := _others(ceilings):
        return others
    for kind in ("host_to_device", "device_to_host", "host_bidirectional"):
        valid = [c for c in ceilings if c.kind == kind and c.invalid is None]
        rates = {c.conditions.notes.get("host_memory"): c.burst for c in valid}
        pinned, pageable = rates.get("pinned"), rates.get("pageable")
        if pinned and pageable and pinned > pageable:
            gain = f"{units.digits(pinned / pageable)} times the pageable {units.byte_rate(pageable)}"
            return f"pinned host memory moves {units.NAMES[kind]} at {units.byte_rate(pinned)}, {gain}"
    return None


def _print(console: Console, block: Block) -> None:
    if block.headers:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for index, header in enumerate(block.headers):
            words = index == len(block.headers) - 1  # only these wrap; all others are as wide as they need
            least = 0 if words else max(cell_len(t) for t in (*header.split("\n"), *(row[index] for row in block.rows)))
            side: Literal["left", "right"] = "left" if index == 0 or words else "right"
            table.add_column(Text(header), justify=side, no_wrap=not words, min_width=least)
        for row in block.rows:
            table.add_row(*(Text(cell) for cell in row))
        room = Measurement.get(console, console.options.update(max_width=10_000), table)
        least = room.minimum if console.is_terminal else min(room.maximum, max(100, room.minimum))
        table.width = least if least > console.width else None
        console.print(table, crop=False)
    else:
        _say(console, block.title, "bold")
    for text, style in [(block.line, "yellow"), *((note, "dim") for note in block.notes)]:
        if text:
            _say(console, text, style)


def _say(console: Console, text: str, style: str) -> None:
    console.print(Text(units.plain(text), style=style), crop=False)
