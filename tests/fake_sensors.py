"""Sensors that say what a test tells them to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nearpeak.records.device import Device
from nearpeak.records.reading import Reading, Value, missing


@dataclass
class FakeSensors:
    """Each sensor gives what its function returns; None stands for a sensor that refuses."""

    values: dict[str, Callable[[], Value | None]] = field(default_factory=dict)

    def _read(self, name: str, unit: str) -> Reading:
        value = self.values[name]() if name in self.values else None
        return missing(unit, f"no {name} here") if value is None else Reading(value, unit, "fake")

    def power(self) -> Reading:
        return self._read("power", "W")

    def energy(self) -> Reading:
        return self._read("energy", "J")

    def clock(self) -> Reading:
        return self._read("clock", "Hz")

    def temperature(self) -> Reading:
        return self._read("temperature", "°C")

    def throttle_reasons(self) -> Reading:
        return self._read("throttle", "")

    def processes(self) -> Reading:
        return self._read("processes", "")


def device(kind: str = "cpu", architecture: str = "x86_64", **changes: object) -> Device:
    """A device of which little is known."""
    fields: dict[str, object] = {
        "id": "cpu" if kind == "cpu" else "GPU-1",
        "name": "a device",
        "kind": kind,
        "vendor": "NVIDIA" if kind == "gpu" else "AMD",
        "torch_name": "cpu" if kind == "cpu" else "cuda:0",
        "pci_address": None,
        "architecture": architecture,
        "features": (),
        "units": 2,
        "memory": Reading(2**34, "B", "fake"),
        "memory_available": Reading(2**33, "B", "fake"),
        "cache": Reading(2**25, "B", "fake"),
    }
    for name in ("power_limit", "max_clock", "driver", "ecc", "link"):
        fields[name] = missing("", "not here")
    return Device(**{**fields, **changes})  # type: ignore[arg-type]
