"""Devices and libraries as tables. What is missing prints as a dash, and its reason once under the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nearpeak.records.device import Device
from nearpeak.records.library import Library
from nearpeak.records.reading import Reading
from nearpeak.records.spec import Spec
from nearpeak.report.units import ABSENT, digits, plain

SHORTEST_ID = 12


def devices_view(devices: Sequence[Device], specs: Mapping[str, Spec | None]) -> RenderableType:
    """One row a device, the reasons of what is missing, and what holds a device back. `specs` is by device id."""
    table = _table(
        *("Device", "Name", "torch", "Architecture"),
        *(">Cores", ">Memory (GiB)", ">Available (GiB)", ">Cache (MiB)", ">Power limit (W)", ">Max clock (MHz)"),
        *("Driver", "ECC"),
    )
    for device in devices:
        table.add_row(
            _text(short_id(device, devices)),
            _text(device.name),
            _text(device.torch_name if device.unusable is None else None),
            _text(device.architecture),
            ABSENT if device.units is None else str(device.units),
            _amount(device.memory, 2**30),
            _amount(device.memory_available, 2**30),
            _amount(device.cache, 2**20),
            _amount(device.power_limit, 1),
            _amount(device.max_clock, 1e6, whole=True),
            _text(device.driver.value),
            _text(device.ecc.value),
            style="dim" if device.unusable else "",
        )
    return Group(table, *(Text(line) for line in device_notes(devices, specs)))


def libraries_view(libraries: Sequence[Library]) -> RenderableType:
    """One row a library; what a missing one costs follows its detail."""
    table = _table("Library", "Version", "In use", "Detail")
    for library in libraries:
        table.add_row(
            _text(library.name),
            _text(library.version),
            "yes" if library.in_use else "no",
            _text(library.detail + (f": {library.missing_costs}" if library.missing_costs else "")),
            style="" if library.missing_costs is None else "dim",
        )
    return table


def render(
    devices: Sequence[Device], specs: Mapping[str, Spec | None], libraries: Sequence[Library], console: Console
) -> None:
    """Print both tables. Nothing is cut: a terminal too narrow for the first gets one block of lines a device."""
    view = devices_view(devices, specs)
    wide = console.options.update(width=10_000)
    if _width(console, wide, view) > console.width:
        view = devices_list(devices, specs)
    console.print(view)
    console.print()
    console.print(libraries_view(libraries))


def devices_list(devices: Sequence[Device], specs: Mapping[str, Spec | None]) -> RenderableType:
    """The same facts with one line a fact, for narrow terminals."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Device")
    for device in devices:
        table.add_column(_text(short_id(device, devices)), overflow="fold")
    rows: list[tuple[str, list[RenderableType]]] = [
        ("Name", [_text(d.name) for d in devices]),
        ("torch", [_text(d.torch_name if d.unusable is None else None) for d in devices]),
        ("Architecture", [_text(d.architecture) for d in devices]),
        ("Cores", [ABSENT if d.units is None else str(d.units) for d in devices]),
        ("Memory (GiB)", [_amount(d.memory, 2**30) for d in devices]),
        ("Available (GiB)", [_amount(d.memory_available, 2**30) for d in devices]),
        ("Cache (MiB)", [_amount(d.cache, 2**20) for d in devices]),
        ("Power limit (W)", [_amount(d.power_limit, 1) for d in devices]),
        ("Max clock (MHz)", [_amount(d.max_clock, 1e6, whole=True) for d in devices]),
        ("Driver", [_text(d.driver.value) for d in devices]),
        ("ECC", [_text(d.ecc.value) for d in devices]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return Group(table, *(Text(line) for line in device_notes(devices, specs)))


def device_notes(devices: Sequence[Device], specs: Mapping[str, Spec | None]) -> tuple[str, ...]:
    """The lines under the table: unusable devices, links, the catalogue, scopes, and each missing value's reason."""
    lines = [f"{short_id(d, devices)} cannot be used: {d.unusable}" for d in devices if d.unusable]
    for device in devices:
        here = short_id(device, devices)
        if device.link.value is not None:
            lines.append(f"{here} link: {device.link.value}")
        if device.memory.scope != "device" and device.memory.value is not None:
            lines.append(f"{here} memory: {device.memory.scope}")
        if device.kind == "gpu":
            spec = specs.get(device.id)
            lines.append(f"{here} spec: {spec.name if spec else 'not in the catalogue, so no share of it'}")
    for reason, where in missing_reasons(devices).items():
        lines.append(f"{ABSENT} {', '.join(where)}: {reason}")
    return tuple(plain(line) for line in lines)


def missing_reasons(devices: Sequence[Device]) -> dict[str, list[str]]:
    """Each reason once, with the fields of the devices that it explains."""
    reasons: dict[str, list[str]] = {}
    fields = ("memory", "memory_available", "cache", "power_limit", "max_clock", "driver", "ecc", "link")
    for device in devices:
        for field in fields:
            reading: Reading = getattr(device, field)
            if reading.reason is not None:
                name = f"{short_id(device, devices)} {field.replace('_', ' ')}"
                reasons.setdefault(reading.reason, []).append(name)
    return reasons


def short_id(device: Device, devices: Sequence[Device]) -> str:
    """The shortest beginning of an id, of 12 characters and more, that fits this device alone; it can be typed back."""
    others = [d.id for d in devices if d.id != device.id]
    if not device.id.startswith(("GPU-", "MIG-")):
        return device.id
    for length in range(SHORTEST_ID, len(device.id)):
        if not any(other.startswith(device.id[:length]) for other in others):
            return device.id[:length]
    return device.id


def _table(*headers: str) -> Table:
    """A header with ">" before it is right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        right = header.startswith(">")
        table.add_column(header.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return table


def _amount(reading: Reading, factor: float, whole: bool = False) -> str:
    if reading.number is None:
        return ABSENT
    return f"{reading.number / factor:.0f}" if whole else digits(reading.number / factor, whole=True)


def _text(value: object) -> Text:
    """A driver's or package's text as it stands: rich must not take brackets in it for its own marks."""
    return Text(ABSENT if value is None else plain(value))


def _width(console: Console, options: ConsoleOptions, view: RenderableType) -> int:
    """The width that the table (not the lines under it) wants."""
    table = view.renderables[0] if isinstance(view, Group) else view
    return console.measure(table, options=options).maximum
