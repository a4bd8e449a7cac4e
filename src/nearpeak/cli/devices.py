"""`nearpeak devices`: which devices and libraries are here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from nearpeak.records.device import Device
from nearpeak.records.library import Library
from nearpeak.records.spec import Spec


@click.command("devices", epilog="Example: nearpeak devices --json | jq '.devices[].name'")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def devices(as_json: bool) -> None:
    """List GPUs and the CPU with what is known of each, and the libraries that work here can use.

    A value that cannot be had is shown as a dash, with the reason under the table; it is never shown as 0. Measures
    nothing: for what a device really sustains, see `nearpeak measure`.
    """
    # Imported here, so that `nearpeak --help` does not wait for torch.
    from nearpeak.hardware.catalogue import find_spec
    from nearpeak.hardware.devices import find_devices
    from nearpeak.hardware.libraries import find_libraries

    found = find_devices()
    specs = {device.id: find_spec(device) for device in found}
    libraries = find_libraries(found)
    if as_json:
        click.echo(document(found, specs, libraries))
        return
    from rich.console import Console

    from nearpeak.report.devices_table import render

    render(found, specs, libraries, Console())


def document(found: Sequence[Device], specs: Mapping[str, Spec | None], libraries: Sequence[Library]) -> str:
    """The JSON text: every device with its spec (null where the catalogue has none), and the libraries."""
    listed = [asdict(device) | {"spec": asdict(spec) if (spec := specs[device.id]) else None} for device in found]
    body = {"schema": "nearpeak.devices/1", "devices": listed, "libraries": [asdict(library) for library in libraries]}
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False)
