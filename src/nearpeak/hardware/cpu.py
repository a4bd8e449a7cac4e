"""The CPU as a device, read from /proc and /sys. `root` replaces "/" in tests."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from nearpeak.hardware.cpu_sensors import rapl_zones
from nearpeak.hardware.host_memory import host_memory
from nearpeak.records.device import Device
from nearpeak.records.reading import Reading, missing

# Those that decide which precisions a CPU has.
FEATURES = (
    *("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni"),
    *("amx_bf16", "amx_int8", "amx_fp16"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
# /proc/cpuinfo names makers of x86 in words and those of ARM cores by number.
MAKERS = {
    **{"GenuineIntel": "Intel", "AuthenticAMD": "AMD"},
    **{"0x41": "ARM", "0x4e": "NVIDIA", "0x61": "Apple", "0xc0": "Ampere"},
}


def cpu_device(root: Path = Path("/")) -> Device:
    """The CPU, with what this process may use of it."""
    name, vendor, flags = parse_cpuinfo(_text(root / "proc/cpuinfo") or "")
    cores = allowed_cores()
    total, available = host_memory(root)
    return Device(
        id="cpu",
        name=name or _device_tree(root) or platform.processor() or platform.machine() or "unknown CPU",
        kind="cpu",
        vendor=vendor or "unknown",
        torch_name="cpu",
        pci_address=None,
        architecture=platform.machine() or None,
        features=tuple(f for f in FEATURES if f in flags),
        units=len(cores),
        memory=total,
        memory_available=available,
        cache=last_level_cache(cores, root),
        power_limit=power_limit(root),
        max_clock=max_clock(cores, root),
        driver=missing("", "a CPU has no driver"),
        ecc=missing("", "the operating system does not say without administrator tools"),
        link=missing("", "the CPU is the host"),
    )


def parse_cpuinfo(text: str) -> tuple[str | None, str | None, frozenset[str]]:
    """Name, maker and the features that all cores share, from /proc/cpuinfo of x86 or ARM."""
    names: dict[str, str] = {}
    features: frozenset[str] | None = None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key in ("flags", "Features"):
            here = frozenset(value.split())
            features = here if features is None else features & here  # little cores may lack what big ones have
        elif value:
            names.setdefault(key, value)
    maker = names.get("vendor_id") or names.get("CPU implementer")
    name = names.get("model name") or names.get("Hardware") or names.get("Processor")
    return name, MAKERS.get(maker, maker) if maker else None, features or frozenset()


def allowed_cores() -> tuple[int, ...]:
    """The logical cores that this process may use."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return tuple(range(os.cpu_count() or 1))


def last_level_cache(cores: tuple[int, ...], root: Path = Path("/")) -> Reading:
    """Bytes of the largest cache level, over all its separate pieces that these cores reach."""
    how = "/sys/devices/system/cpu/cpu*/cache"
    pieces: dict[str, tuple[int, int]] = {}
    for core in cores:
        for folder in sorted((root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*")):
            level, size = _number(folder / "level"), _size(_text(folder / "size"))
            if level is None or not size or _text(folder / "type") == "Instruction":
                continue
            shared = _text(folder / "shared_cpu_list") or str(core)
            pieces[f"{level}:{shared}"] = (level, size)
    if not pieces:
        return missing("B", "the kernel does not say", how)
    last = max(level for level, _ in pieces.values())
    sizes = [size for level, size in pieces.values() if level == last]
    return Reading(sum(sizes), "B", f"{how}: level {last}, {len(sizes)} × {sizes[0] // 1024} KiB")


def max_clock(cores: tuple[int, ...], root: Path = Path("/")) -> Reading:
    """Hz of the fastest core at most."""
    found = [_number(root / f"sys/devices/system/cpu/cpu{c}/cpufreq/cpuinfo_max_freq") for c in cores]
    known = [f for f in found if f]
    if not known:
        return missing("Hz", "the kernel gives no clock limits (usual in a virtual machine)", "cpufreq")
    return Reading(max(known) * 1e3, "Hz", "cpufreq: cpuinfo_max_freq")


def power_limit(root: Path = Path("/")) -> Reading:
    """Watts that the CPU packages may draw for long, added."""
    how = "powercap: constraint_0_power_limit_uw"
    limits = [_number(zone / "constraint_0_power_limit_uw") for zone in rapl_zones(root)]
    known = [limit for limit in limits if limit]
    if not limits or len(known) != len(limits):
        return missing("W", "the kernel gives no CPU power limit", how)
    return Reading(sum(known) * 1e-6, "W", how, "CPU packages")


def _device_tree(root: Path) -> str | None:
    """The board's name, where an ARM kernel gives no CPU name."""
    text = _text(root / "sys/firmware/devicetree/base/model")
    return text.strip("\0") or None if text else None


def _size(text: str | None) -> int | None:
    """ "32768K" in bytes."""
    if not text:
        return None
    factor = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1], 1)
    digits = text.rstrip("KMG")
    return int(digits) * factor if digits.isdigit() else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
