"""Measure every ceiling of every device: the machine profile."""

from __future__ import annotations

import gc
import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from importlib import metadata

import torch

from nearpeak import __version__
from nearpeak.ceilings import (
    cache_read,
    host_transfer,
    launch,
    matmul,
    memory_copy,
    memory_read,
    memory_write,
)
from nearpeak.ceilings.bench import Bench, Measure, Skipped, why
from nearpeak.hardware.sensors import Sensors
from nearpeak.records.ceiling import Ceiling
from nearpeak.records.device import Device
from nearpeak.records.machine_profile import SCHEMA, DeviceProfile, Machine, MachineProfile
from nearpeak.records.spec import Spec
from nearpeak.timing.statistics import median

CEILINGS: dict[str, Measure] = {
    "matmul": matmul.measure,
    "memory_read": memory_read.measure,
    "memory_write": memory_write.measure,
    "memory_copy": memory_copy.measure,
    "cache_read": cache_read.measure,
    "host_to_device": host_transfer.host_to_device,
    "device_to_host": host_transfer.device_to_host,
    "host_bidirectional": host_transfer.host_bidirectional,
    "launch": launch.launch,
    "launch_graph": launch.launch_graph,
}

Progress = Callable[[str], None]


def measure_machine(
    devices: Sequence[tuple[Device, Sensors, Spec | None]],
    kinds: Sequence[str],
    quick: bool,
    machine: Machine,
    progress: Progress,
) -> MachineProfile:
    """Each device in turn, each ceiling in turn. What cannot be measured is named in `skipped`, with the reason."""
    start = time.perf_counter()
    profiles = []
    for device, sensors, spec in devices:
        bench = Bench(device, torch.device(device.torch_name or "cpu"), sensors, spec, quick, progress)
        profiles.append(_measure_device(bench, kinds))
    seconds = time.perf_counter() - start
    return MachineProfile(SCHEMA, Machine(**{**machine.__dict__, "seconds": seconds}), tuple(profiles))


def _measure_device(bench: Bench, kinds: Sequence[str]) -> DeviceProfile:
    ceilings: list[Ceiling] = []
    skipped: dict[str, str] = {}
    for kind in kinds:
        try:
            with _on(bench.torch_device):
                for found in CEILINGS[kind](bench):
                    if isinstance(found, Skipped):
                        skipped[found.what] = found.why
                    else:
                        ceilings.append(found)
        except Exception as error:  # torch, Triton and its compilers raise all sorts; one that fails leaves the others
            skipped[kind] = why(error)
        gc.collect()
        if not bench.is_cpu:
            torch.cuda.empty_cache()
    settled = [c.conditions.settle_s for c in ceilings if c.kind == "matmul" and c.conditions.settle_s is not None]
    device = bench.device
    return DeviceProfile(
        device.id,
        device.name,
        device.kind,
        device,
        bench.spec,
        median(settled) if settled else None,
        tuple(ceilings),
        skipped,
    )


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make the device current, so that no stream, event or allocation lands on another card."""
    return nullcontext() if device.type == "cpu" else torch.cuda.device(device)


def describe_machine(devices: Sequence[Device], command: str, commit: str | None) -> Machine:
    """What the profile says of where it was made. `devices` are all that are here, whether measured or not."""
    cpu = next(d for d in devices if d.kind == "cpu")
    return Machine(
        id=machine_id(devices),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=f"{cpu.name}, {cpu.units} cores",
        versions=_versions(),
        command=command,
        commit=commit,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
    )


def machine_id(devices: Sequence[Device]) -> str:
    """A digest of the devices that are here. It names a machine without telling who owns it."""
    parts = sorted(f"{d.id} {d.name}" + (f" {d.units}" if d.kind == "cpu" else "") for d in devices)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _versions() -> dict[str, str]:
    versions = {"nearpeak": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.version.hip:
        versions["hip"] = torch.version.hip
    with suppress(metadata.PackageNotFoundError):
        versions["triton"] = metadata.version("triton")
    return versions
