"""Which devices are here, which of them the user wants, and their sensors; vendors stay behind this page.

A new vendor is one more entry of VENDORS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from nearpeak.hardware.cpu import allowed_cores, cpu_device
from nearpeak.hardware.cpu_sensors import CpuSensors
from nearpeak.hardware.nvidia import nvidia_devices
from nearpeak.hardware.nvidia_sensors import NvidiaSensors
from nearpeak.hardware.sensors import Sensors
from nearpeak.records.device import Device
from nearpeak.records.errors import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vendor:
    """How one maker's devices are found, which devices are its own, and how their sensors are read."""

    name: str
    find: Callable[[], tuple[Device, ...]]
    owns: Callable[[Device], bool]
    sensors: Callable[[Device], Sensors]


VENDORS = (
    Vendor("NVIDIA", nvidia_devices, lambda d: d.kind == "gpu" and d.vendor == "NVIDIA", NvidiaSensors),
    Vendor("CPU", lambda: (cpu_device(),), lambda d: d.kind == "cpu", lambda d: CpuSensors(allowed_cores())),
)


def find_devices(vendors: Sequence[Vendor] = VENDORS) -> tuple[Device, ...]:
    """Usable GPUs in torch's order, then the unusable ones, the CPU last. One vendor's failure leaves the others."""
    found: list[Device] = []
    for vendor in vendors:
        try:
            found += vendor.find()
        except Exception as error:
            log.warning("looking for %s devices failed (%s: %s)", vendor.name, type(error).__name__, error)
    return tuple(sorted(found, key=_place))


def select_devices(devices: Sequence[Device], wanted: Sequence[str]) -> tuple[Device, ...]:
    """The devices a user names: "cpu", "gpu" (all usable ones), an id, the beginning of one, or torch's "cuda:0".

    Nothing named: the usable GPUs, else the CPU. Raises UserError where a name fits none, several or an unusable one.
    """
    if not wanted:
        usable = tuple(d for d in devices if d.unusable is None)
        gpus = tuple(d for d in usable if d.kind == "gpu")
        return gpus or usable or _refuse(devices, "there is no usable device")
    chosen: dict[str, Device] = {}
    for name in wanted:
        chosen.update((d.id, d) for d in _named(devices, name.strip()))
    return tuple(chosen.values())


def sensors_of(device: Device, vendors: Sequence[Vendor] = VENDORS) -> Sensors:
    """The device's live sensors."""
    for vendor in vendors:
        if vendor.owns(device):
            return vendor.sensors(device)
    raise ValueError(f"no vendor has sensors for {device.id} ({device.vendor} {device.kind})")


def _named(devices: Sequence[Device], name: str) -> tuple[Device, ...]:
    if name == "gpu":
        usable = tuple(d for d in devices if d.kind == "gpu" and d.unusable is None)
        return usable or _refuse(devices, "there is no usable GPU")
    fitting = [d for d in devices if name in (d.id, d.torch_name)]
    if not fitting and name:
        fitting = [d for d in devices if d.id.lower().startswith(name.lower())]
    if not fitting:
        _refuse(devices, f"no device is called {name!r}")
    if len(fitting) > 1:
        _refuse(devices, f"{name!r} fits {len(fitting)} devices")
    if fitting[0].unusable is not None:
        _refuse(devices, f"{fitting[0].id} ({fitting[0].name}) cannot be used: {fitting[0].unusable}")
    return (fitting[0],)


def _refuse(devices: Sequence[Device], fault: str) -> NoReturn:
    here = "; ".join(_line(d) for d in devices) or "none"
    raise UserError(f"{fault}. Devices here: {here}")


def _line(device: Device) -> str:
    torch_name = f" = {device.torch_name}" if device.torch_name not in (None, device.id) else ""
    why = f", not usable: {device.unusable}" if device.unusable else ""
    return f"{device.id}{torch_name} ({device.name}{why})"


def _place(device: Device) -> tuple[bool, bool, int]:
    """CPU last, unusable GPUs before it, the rest by torch's number."""
    number = (device.torch_name or "").partition(":")[2]
    return device.kind == "cpu", device.unusable is not None, int(number) if number.isdigit() else 0
