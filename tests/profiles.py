"""Realistic machine profiles for tests: an H200, a CPU alone, a bare GPU without any sensor, two GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from nearpeak.records.ceiling import Ceiling, Conditions, Kind, Load
from nearpeak.records.device import Device
from nearpeak.records.machine_profile import SCHEMA, DeviceProfile, Machine, MachineProfile
from nearpeak.records.reading import Reading, missing
from nearpeak.records.spec import Figure, Rate, Spec

SHEET = "NVIDIA H200 data sheet, dense figures, page 2"

H200_SPEC = Spec(
    name="NVIDIA H200 SXM", vendor="NVIDIA", family="Hopper", year=2024, architecture="sm_90",
    memory=Figure(141e9, "sheet", SHEET), memory_bandwidth=Figure(4.8e12, "sheet", SHEET),
    rates=(
        Rate("fp64", "fp64", "matrix", Figure(66.9e12, "sheet", SHEET)),
        Rate("fp64", "fp64", "vector", Figure(33.5e12, "sheet", SHEET)),
        Rate("fp32", "fp32", "vector", Figure(66.9e12, "sheet", SHEET)),
        Rate("tf32", "fp32", "matrix", Figure(494.7e12, "sheet", SHEET)),
        Rate("bf16", "fp32", "matrix", Figure(989.4e12, "sheet", SHEET)),
        Rate("fp16", "fp32", "matrix", Figure(989.4e12, "sheet", SHEET)),
        Rate("fp16", "fp16", "matrix", Figure(989.4e12, "unverified", "no sheet names this accumulate type")),
        Rate("fp8", "fp32", "matrix", Figure(1978.9e12, "sheet", SHEET)),
        Rate("int8", "int32", "matrix", Figure(1978.9e12, "derived", "132 units × 4096 × 2 × 1830 MHz")),
    ),
    power=Figure(700.0, "sheet", SHEET), link_type="NVLink", link=Figure(900e9, "sheet", SHEET), pcie="5.0 x16",
    price=None, note="",
)  # fmt: skip


def load(seconds: float, clock: float, power: float, throttle: tuple[str, ...] = (), energy: bool = True) -> Load:
    return Load(
        seconds=seconds, clock_hz=clock, clock_max_hz=1.98e9, power_w=power, temperature_c=61.0, throttle=throttle,
        energy_j=power * seconds if energy else None, energy_scope="device, NVML counter" if energy else None,
        missing={} if energy else {"energy_j": "the window was shorter than 2 s"},
    )  # fmt: skip


def matmul(
    precision: str, accumulate: str, burst: float, sustained: float | None, error: float | None,
    clock: float = 1.98e9, power: float = 650.0, limited_by: str | None = None, n: int = 8192,
) -> Ceiling:  # fmt: skip
    gone = {} if error is not None else {"error": "integer products are exact"}
    return Ceiling(
        kind="matmul", precision=precision, accumulate=accumulate, burst=burst, sustained=sustained, unit="FLOP/s",
        spread=0.011, error=error, energy_per_unit=power / sustained if sustained else None,
        conditions=Conditions(
            method="matmul/1", how="torch.mm", shape=(n, n, n), samples=50, sustained_shape=(n, n, n),
            burst=load(0.08, 1.98e9, power * 0.9, energy=False),
            sustained=load(12.0, clock, power, (limited_by,) if limited_by else ()),
            settle_s=1.6, limited_by=limited_by, other_processes=(), missing=gone,
        ),
    )  # fmt: skip


def transfer(
    kind: Kind, burst: float, how: str, host_memory: str | None = None, energy: float | None = None
) -> Ceiling:
    return Ceiling(
        kind=kind, precision=None, accumulate=None, burst=burst, sustained=None, unit="B/s", spread=0.004, error=None,
        energy_per_unit=energy,
        conditions=Conditions(
            method="memory/1", how=how, shape=(4 * 2**30,), samples=30, burst=load(2.4, 1.98e9, 480.0),
            other_processes=(), notes={"host_memory": host_memory} if host_memory else {},
            missing={"sustained": "a memory rate does not fall under load here: burst and sustained are one"},
        ),
    )  # fmt: skip


def launch(kind: Kind, seconds: float) -> Ceiling:
    return Ceiling(
        kind=kind, precision=None, accumulate=None, burst=seconds, sustained=None, unit="s", spread=0.06, error=None,
        energy_per_unit=None,
        conditions=Conditions(
            method="launch/1", how="an empty kernel, 2000 in a row", shape=(), samples=20, other_processes=(),
            missing={"sustained": "a cost has no sustained figure"},
        ),
    )  # fmt: skip


def gpu(identity: str = "GPU-5d1c7f0e-0000-4a6b-9c53-6f4d2f8be001", name: str = "NVIDIA H200") -> Device:
    return Device(
        id=identity, name=name, kind="gpu", vendor="NVIDIA", torch_name="cuda:0", pci_address="0000:19:00.0",
        architecture="sm_90", features=(), units=132,
        memory=Reading(150_754_820_096, "B", "nvml: nvmlDeviceGetMemoryInfo"),
        memory_available=Reading(149_000_000_000, "B", "nvml: nvmlDeviceGetMemoryInfo"),
        cache=Reading(62_914_560, "B", "torch: L2_cache_size"),
        power_limit=Reading(700.0, "W", "nvml: nvmlDeviceGetEnforcedPowerLimit"),
        max_clock=Reading(1.98e9, "Hz", "nvml: nvmlDeviceGetMaxClockInfo"),
        driver=Reading("580.159.04", "", "nvml: nvmlSystemGetDriverVersion"),
        ecc=Reading(True, "", "nvml: nvmlDeviceGetEccMode"),
        link=Reading("PCIe 5.0 x16", "", "nvml: nvmlDeviceGetCurrPcieLinkGeneration"),
    )  # fmt: skip


def machine(command: str = "nearpeak measure", **changes: object) -> Machine:
    base = Machine(
        id="3f9a2c41d0b7", system="Linux 6.8 x86_64", cpu="AMD EPYC 9534",
        versions={"nearpeak": "0.1.0", "torch": "2.11.0+cu130", "python": "3.11.9"}, command=command,
        commit="2c2638b", date="2026-12-01T14:03:11+00:00", seconds=171.4,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def h200_device(identity: str = "GPU-5d1c7f0e-0000-4a6b-9c53-6f4d2f8be001", name: str = "NVIDIA H200") -> DeviceProfile:
    cap = "power cap"
    return DeviceProfile(
        id=identity, name=name, kind="gpu", device=gpu(identity, name), spec=H200_SPEC, settle_s=1.6,
        ceilings=(
            matmul("fp64", "fp64", 55.5e12, 54.1e12, 4.4e-16, 1.89e9, 688.0, cap),
            matmul("fp32", "fp32", 50.5e12, 50.1e12, 3.1e-7, 1.98e9, 541.0),
            matmul("tf32", "fp32", 409e12, 371e12, 2.9e-4, 1.62e9, 689.0, cap),
            matmul("bf16", "fp32", 781e12, 663e12, 2.4e-3, 1.455e9, 690.0, cap),
            matmul("fp16", "fp32", 755e12, 648e12, 2.9e-4, 1.44e9, 690.0, cap),
            matmul("fp16", "fp16", 762e12, 655e12, 6.3e-3, 1.47e9, 689.0, cap),
            matmul("fp8", "fp32", 1526e12, 1270e12, 3.7e-2, 1.41e9, 691.0, cap, n=16384),
            matmul("int8", "int32", 696e12, 690e12, None, 1.98e9, 610.0),
            transfer("memory_read", 4.48e12, "triton xor reduction", energy=1.07e-10),
            transfer("memory_write", 3.33e12, "torch fill"),
            transfer("memory_copy", 4.27e12, "torch copy"),
            transfer("cache_read", 7.9e12, "triton xor reduction"),
            transfer("host_to_device", 53.7e9, "torch copy", "pinned"),
            transfer("host_to_device", 7.0e9, "torch copy", "pageable"),
            transfer("device_to_host", 54.7e9, "torch copy", "pinned"),
            transfer("device_to_host", 14.0e9, "torch copy", "pageable"),
            transfer("host_bidirectional", 88.2e9, "torch copy, two streams", "pinned"),
            launch("launch", 12.7e-6),
            launch("launch_graph", 0.93e-6),
        ),
        skipped={"matmul fp4 (sums in fp32)": "no fp4 units before sm_100"},
    )  # fmt: skip


def h200() -> MachineProfile:
    """The values of one H200 at 700 W, torch 2.11.0, driver 580.159.04."""
    return MachineProfile(SCHEMA, machine(), (h200_device(),))


def two_gpus() -> MachineProfile:
    other = h200_device("GPU-5d1c7f0e-0000-4a6b-9c53-6f4d2f8be002")
    return MachineProfile(SCHEMA, machine(), (h200_device(), other))


def cpu_only() -> MachineProfile:
    """Two cores of a server, without power sensor or catalogue entry; fp16 has no units there."""
    none = "no power sensor that this user may read"
    device = Device(
        id="cpu", name="AMD EPYC 9534", kind="cpu", vendor="AMD", torch_name="cpu", pci_address=None,
        architecture="x86_64", features=("avx512_bf16",), units=2, memory=Reading(16 * 2**30, "B", "/proc/meminfo"),
        memory_available=Reading(14 * 2**30, "B", "/proc/meminfo"), cache=Reading(256 * 2**20, "B", "sysfs"),
        power_limit=missing("W", none), max_clock=missing("Hz", "hidden in this virtual machine"),
        driver=missing("", "a CPU has no driver"), ecc=missing("", "not readable"),
        link=missing("", "a CPU has no link"),
    )  # fmt: skip
    quiet = Load(seconds=3.0, missing={"clock_hz": "hidden in this virtual machine", "power_w": none, "energy_j": none})

    def cpu_ceiling(c: Ceiling, emulated: str | None = None) -> Ceiling:
        conditions = dataclasses.replace(
            c.conditions, burst=quiet, sustained=quiet if c.sustained else None, limited_by=None, settle_s=None,
            emulated=emulated, other_processes=None, missing={**c.conditions.missing, "energy_per_unit": none},
        )  # fmt: skip
        return dataclasses.replace(c, energy_per_unit=None, conditions=conditions)

    ceilings = (
        cpu_ceiling(matmul("fp64", "fp64", 62.1e9, 61.0e9, 3.1e-16, n=2048)),
        cpu_ceiling(matmul("fp32", "fp32", 131e9, 128e9, 2.2e-7, n=2048)),
        cpu_ceiling(matmul("bf16", "fp32", 241e9, 238e9, 2.4e-3, n=2048)),
        cpu_ceiling(matmul("fp16", "fp32", 0.91e9, 0.90e9, 2.9e-4, n=512), emulated="this CPU has no fp16 units"),
        cpu_ceiling(transfer("memory_read", 48.6e9, "torch sum")),
    )
    one = DeviceProfile("cpu", "AMD EPYC 9534", "cpu", device, None, None, ceilings, {})
    return MachineProfile(SCHEMA, machine("nearpeak measure --device cpu"), (one,))


def bare_gpu() -> MachineProfile:
    """A GPU whose driver answers nothing: every sensor None with its reason, no catalogue entry, --quick."""
    no = "not supported by this driver"
    identity = "pci:0000:01:00.0"
    device = Device(
        id=identity, name="Unknown accelerator", kind="gpu", vendor="", torch_name="cuda:0", pci_address="0000:01:00.0",
        architecture=None, features=(), units=None, memory=missing("B", no), memory_available=missing("B", no),
        cache=missing("B", no), power_limit=missing("W", no), max_clock=missing("Hz", no), driver=missing("", no),
        ecc=missing("", no), link=missing("", no),
    )  # fmt: skip
    blind = Load(0.1, missing=dict.fromkeys(("clock_hz", "power_w", "temperature_c", "throttle", "energy_j"), no))
    fields = {"sustained": "not asked for (--quick)", "energy_per_unit": no, "error": "fp64 ran out of memory"}
    ceilings = tuple(
        Ceiling(
            kind="matmul", precision=p, accumulate="fp32", burst=b, sustained=None, unit="FLOP/s", spread=None,
            error=None, energy_per_unit=None,
            conditions=Conditions("matmul/1", "torch.mm", (4096, 4096, 4096), 5, burst=blind, missing=fields),
        )
        for p, b in (("fp32", 10.1e12), ("fp16", 39.9e12))
    )  # fmt: skip
    one = DeviceProfile(identity, "Unknown accelerator", "gpu", device, None, None, ceilings, {"memory_read": no})
    return MachineProfile(SCHEMA, machine("nearpeak measure --quick", commit=None), (one,))


def replace_ceilings(profile: MachineProfile, change: Callable[[Ceiling], Ceiling | None]) -> MachineProfile:
    """The profile with each ceiling changed; one that becomes None is left out."""
    devices = tuple(
        dataclasses.replace(d, ceilings=tuple(c for c in map(change, d.ceilings) if c is not None))
        for d in profile.devices
    )
    return dataclasses.replace(profile, devices=devices)


def replace_device(profile: MachineProfile, **changes: object) -> MachineProfile:
    """The profile with fields of each Device changed."""
    devices = tuple(
        dataclasses.replace(d, device=dataclasses.replace(d.device, **changes))  # type: ignore[arg-type]
        for d in profile.devices
    )
    return dataclasses.replace(profile, devices=devices)
