"""The facts of one NVIDIA card: each field is asked for alone, so that one that fails leaves the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nearpeak.hardware.host_memory import meminfo
from nearpeak.hardware.nvml import NOT_SUPPORTED, Answer, Nvml, kernel_driver_version, number_reading
from nearpeak.hardware.nvml_cards import NvmlCard
from nearpeak.hardware.torch_cuda import TorchCard, free_memory
from nearpeak.records.device import Device
from nearpeak.records.reading import Reading, missing

SHARED = "shared with the host"
NOT_SEEN = "torch does not see the card, and only torch knows it"
MOST_LINKS = 36


def facts(nvml: Nvml, card: NvmlCard | None, seen: TorchCard | None, no_nvml: str | None, root: Path) -> Device:
    """One device from NVML's card, torch's card or both. `no_nvml` says why NVML cannot be asked when `card` is None.

    `unusable` is left None: that is another's judgement.
    """
    asked = Asked(nvml, card.handle if card else None, no_nvml or "NVML does not list this card")
    total, available = memory(asked, seen, root, mig=bool(card and card.parent))
    capability = seen.capability if seen and seen.capability else asked.capability()
    return Device(
        id=identity(card, seen),
        name=seen.name if seen else card.name if card else "unknown NVIDIA GPU",
        kind="gpu",
        vendor="NVIDIA",
        torch_name=f"cuda:{seen.index}" if seen else None,
        pci_address=(card.pci_address if card else None) or (seen.pci_address if seen else None),
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else None,
        features=(),
        units=seen.units if seen and seen.units else asked.units(),
        memory=total,
        memory_available=available,
        cache=cache(seen),
        power_limit=asked.power_limit(),
        max_clock=max_clock(asked, seen),
        driver=driver(nvml, root),
        ecc=asked.ecc(),
        link=asked.link(),
    )


def identity(card: NvmlCard | None, seen: TorchCard | None) -> str:
    """UUID, else PCI address, else the name: never an index."""
    if card and card.uuid:
        return card.uuid
    if seen and seen.uuid:
        return f"GPU-{seen.uuid}"
    address = (card.pci_address if card else None) or (seen.pci_address if seen else None)
    if address:
        return f"pci:{address}"
    name = seen.name if seen else card.name if card else "unknown"
    return "gpu:" + "-".join(name.lower().split())


class Asked:
    """NVML's answers about one card, or the same reason for each where there is no handle."""

    def __init__(self, nvml: Nvml, handle: Any, no_handle: str) -> None:
        self._nvml, self._handle, self._no_handle = nvml, handle, no_handle

    def ask(self, name: str, *arguments: Any) -> Answer:
        if self._handle is None:
            return Answer(reason=self._no_handle)
        return self._nvml.ask(name, self._handle, *arguments)

    def number(self, unit: str, scale: float, name: str, *arguments: Any) -> Reading:
        return number_reading(self.ask(name, *arguments), unit, scale, f"nvml: {name}")

    def power_limit(self) -> Reading:
        """Watts. Laptops know only the enforced limit (the least of all that hold); others only the set one."""
        enforced = self.number("W", 1e-3, "nvmlDeviceGetEnforcedPowerLimit")
        if enforced.value is not None:
            return enforced
        limit = self.number("W", 1e-3, "nvmlDeviceGetPowerManagementLimit")
        return limit if limit.value is not None else enforced

    def ecc(self) -> Reading:
        """ "on" or "off", and what it will be after a restart where that differs."""
        how = "nvml: nvmlDeviceGetEccMode"
        answer = self.ask("nvmlDeviceGetEccMode")
        if answer.reason is not None:
            return missing("", answer.reason, how)
        words = {0: "off", 1: "on"}
        try:
            now, later = (words.get(int(mode)) for mode in answer.value)
        except (TypeError, ValueError):
            return missing("", "the driver's answer has an unknown form", how)
        if now is None:
            return missing("", "the driver's answer has an unknown form", how)
        return Reading(now if later in (now, None) else f"{now} ({later} after a restart)", "", how)

    def link(self) -> Reading:
        """The PCIe link now and at most, and the number of NVLinks that are up. An idle card lowers its PCIe link."""
        how = "nvml: nvmlDeviceGetCurrPcieLinkGeneration and others"
        parts: list[str] = []
        reason = None
        for word, stem in (("generation", "LinkGeneration"), ("width x", "LinkWidth")):
            now = self.number("", 1, f"nvmlDeviceGetCurrPcie{stem}")
            most = self.number("", 1, f"nvmlDeviceGetMaxPcie{stem}")
            if now.value is not None:
                text = f"PCIe {word}{'' if word.endswith('x') else ' '}{now.value}"
                parts.append(text + (f" (at most {most.value})" if most.value is not None else ""))
            reason = reason or now.reason
        links = self._nvlinks()
        if links is not None:
            parts.append(f"NVLink {links} links" if links else "no NVLink")
        if not parts or parts == ["no NVLink"]:
            return missing("", reason or "the driver says nothing of the link", how)
        return Reading(", ".join(parts), "", how)

    def _nvlinks(self) -> int | None:
        """How many NVLinks are up; 0 where the card has none, None where the driver would not say."""
        up = 0
        for link in range(MOST_LINKS):
            answer = self.ask("nvmlDeviceGetNvLinkState", link)
            if answer.reason is not None:
                # Past the last link the driver answers "invalid argument" or "not supported".
                return up if up or answer.code in (2, NOT_SUPPORTED) else None
            if not isinstance(answer.value, int) or answer.value not in (0, 1):
                return None
            up += answer.value
        return up

    def capability(self) -> tuple[int, int] | None:
        pair = self.ask("nvmlDeviceGetCudaComputeCapability").value
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        major, minor = pair
        if not isinstance(major, int) or not isinstance(minor, int) or not 0 < major < 100 or not 0 <= minor < 10:
            return None
        return major, minor

    def units(self) -> int | None:
        """Multiprocessors, which NVML knows for MIG slices and newer cards only."""
        attributes = self.ask("nvmlDeviceGetAttributes").value
        count = number_reading(Answer(getattr(attributes, "multiprocessorCount", None)), "", 1, "").number
        return int(count) if count else None


def memory(asked: Asked, seen: TorchCard | None, root: Path, mig: bool) -> tuple[Reading, Reading]:
    """Total and available bytes, in this order: NVML; CUDA; for unified memory the host's /proc/meminfo.

    GB10 answers "not supported" or 0, Jetson has no NVML or zeros: there the memory is the host's, and what is
    available is what the host has left, not the total.
    """
    how = "nvml: nvmlDeviceGetMemoryInfo"
    answer = asked.ask("nvmlDeviceGetMemoryInfo")
    total = number_reading(_part(answer, "total"), "B", 1, how)
    none_of_its_own = answer.code == NOT_SUPPORTED or getattr(answer.value, "total", None) == 0
    if (seen and seen.integrated) or (none_of_its_own and not mig):
        return unified_memory(seen, root)
    if total.value is not None:
        return total, number_reading(_part(answer, "free"), "B", 1, how, zero=True)
    if seen is None or seen.memory is None:
        return total, missing("B", total.reason or "unknown", how)
    free = free_memory(seen.index)
    return Reading(seen.memory, "B", "torch: total_memory"), (
        missing("B", f"NVML: {total.reason}; CUDA did not say either", how)
        if free is None
        else Reading(free, "B", "torch: mem_get_info")
    )


def unified_memory(seen: TorchCard | None, root: Path) -> tuple[Reading, Reading]:
    """Total from CUDA, else the host's; available as the host has it."""
    host = meminfo(root)
    how, total = "torch: total_memory", seen.memory if seen else None
    if not total:
        how, total = "/proc/meminfo: MemTotal", host.get("MemTotal")
    left = host.get("MemAvailable")
    nothing = missing("B", "the memory is shared with the host, and neither CUDA nor /proc/meminfo gives it", how)
    return (
        Reading(total, "B", how, SHARED) if total else nothing,
        nothing if left is None else Reading(left, "B", "/proc/meminfo: MemAvailable", SHARED),
    )


def cache(seen: TorchCard | None) -> Reading:
    """Bytes of the level-2 cache, a card's last level."""
    if seen and seen.cache:
        return Reading(seen.cache, "B", "torch: L2_cache_size")
    return missing("B", "torch does not say" if seen else NOT_SEEN, "torch: L2_cache_size")


def max_clock(asked: Asked, seen: TorchCard | None) -> Reading:
    """Hz of the multiprocessors at most. CUDA 13 lost its clock fields, so NVML comes first."""
    clock = asked.number("Hz", 1e6, "nvmlDeviceGetMaxClockInfo", 1)
    if clock.value is None and seen and seen.clock:
        return Reading(seen.clock, "Hz", "torch: clock_rate")
    return clock


def driver(nvml: Nvml, root: Path) -> Reading:
    """The driver's version."""
    reading = nvml.text("nvmlSystemGetDriverVersion")
    version = kernel_driver_version(root) if reading.value is None else None
    return Reading(version, "", "/proc/driver/nvidia/version") if version else reading


def _part(answer: Answer, name: str) -> Answer:
    return answer if answer.reason is not None else Answer(getattr(answer.value, name, None))
