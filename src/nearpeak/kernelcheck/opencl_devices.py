"""Which OpenCL devices are here, and which one to use."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearpeak.records.errors import UserError

INSTALL = "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt, or your system's packages, e.g. pocl-opencl-icd"
_SYSTEM_DRIVERS = Path("/etc/OpenCL/vendors")


@dataclass(frozen=True)
class OpenClDevice:
    """kind: "cpu", "gpu" or "other"; handle: pyopencl's Device."""

    name: str
    platform: str
    kind: str
    units: int
    driver: str
    handle: Any


def opencl_devices() -> tuple[OpenClDevice, ...]:
    """All devices, GPUs first. Raises UserError with what to install where there is no pyopencl or no driver."""
    pyopencl = import_pyopencl()
    try:
        with _drivers_of_this_environment():
            platforms = pyopencl.get_platforms()
    except pyopencl.Error:
        platforms = []
    devices = []
    for platform in platforms:
        try:
            found = platform.get_devices()
        except pyopencl.Error:
            continue  # a driver without its hardware
        devices += [_describe(pyopencl, platform, device) for device in found]
    if not devices:
        raise UserError(f"no OpenCL device: no driver is installed: {INSTALL}")
    return tuple(sorted(devices, key=lambda device: ("gpu", "cpu", "other").index(device.kind)))


def import_pyopencl() -> Any:
    """Raises UserError with what to install where there is none."""
    try:
        return importlib.import_module("pyopencl")
    except ImportError:
        raise UserError(f"OpenCL kernels need pyopencl: {INSTALL}") from None


def choose_device(wanted: str | None = None) -> OpenClDevice:
    """The first device whose kind is `wanted` ("cpu", "gpu"), or whose name or platform holds it; None: the first."""
    devices = opencl_devices()
    if wanted is None:
        return devices[0]
    for device in devices:
        if wanted.lower() == device.kind or wanted.lower() in f"{device.name} {device.platform}".lower():
            return device
    listed = ", ".join(f"{device.name} ({device.kind}, {device.platform})" for device in devices)
    raise UserError(f"no OpenCL device '{wanted}'; there are: {listed}")


def _describe(pyopencl: Any, platform: Any, device: Any) -> OpenClDevice:
    kinds = pyopencl.device_type
    kind = "gpu" if device.type & kinds.GPU else "cpu" if device.type & kinds.CPU else "other"
    return OpenClDevice(
        device.name.strip(), platform.name.strip(), kind, int(device.max_compute_units), device.driver_version, device
    )


@contextmanager
def _drivers_of_this_environment() -> Iterator[None]:
    """While drivers are first looked for, also name Intel's CPU driver where pip has installed it.

    The package's own entry holds a placeholder for its path, so the loader of OpenCL does not find it. A search path
    that the user has set stays as it is.
    """
    library = Path(sys.prefix) / "lib" / "libintelocl.so"
    if "OCL_ICD_VENDORS" in os.environ or not library.exists():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="nearpeak-") as folder:
        for entry in sorted(_SYSTEM_DRIVERS.glob("*.icd")) if _SYSTEM_DRIVERS.is_dir() else []:
            Path(folder, entry.name).write_bytes(entry.read_bytes())
        Path(folder, "intel-cpu-of-this-environment.icd").write_text(f"{library}\n")
        os.environ["OCL_ICD_VENDORS"] = folder
        try:
            yield
        finally:
            del os.environ["OCL_ICD_VENDORS"]
