"""Live readings of one NVIDIA card through NVML."""

from __future__ import annotations

import os
from typing import Any

from nearpeak.hardware.nvml import NO_NUMBER, NOT_SUPPORTED, Answer, Nvml, number_reading
from nearpeak.hardware.nvml_cards import open_handle
from nearpeak.records.device import Device
from nearpeak.records.reading import Reading, missing

MODULE = "module (CPU + GPU)"
WHOLE_CARD = "the whole card, of which this is a MIG slice"

# NVML's numbers (nvml.h), for a pynvml that lacks the names.
POWER_INSTANT = 186
SCOPE_GPU, SCOPE_MODULE = 0, 1
CLOCK_SM = 1
SENSOR_GPU = 0

THROTTLING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost (held to the slowest card of its group)",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake (hardware)",
    0x200: "board limit",
    0x400: "voltage limit (reliability)",
}
# These say what sets the clock when nothing holds it back.
NOT_THROTTLING = {0x1: "idle", 0x2: "application clock setting", 0x100: "display clock setting"}


class NvidiaSensors:
    """Sensors of one card; its handle is opened by UUID or PCI address. No method raises."""

    def __init__(self, device: Device, nvml: Nvml | None = None) -> None:
        self._nvml = Nvml() if nvml is None else nvml
        self._handle = open_handle(self._nvml, device.id, device.pci_address)
        # A MIG slice has no clock, heat or power sensor of its own. Clock and heat are the whole card's; power and
        # energy are left missing, for the other slices' share of them is unknown.
        self._slice = device.id.startswith("MIG-")
        self._card = self._handle
        if self._slice:
            self._card = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        self._module: bool | None = None

    def power(self) -> Reading:
        """Watts: the instantaneous field first; nvmlDeviceGetPowerUsage is a mean over 1 s on most newer cards."""
        if self._slice:
            return missing("W", "a MIG slice has no power sensor of its own")
        instant = self._instant(SCOPE_GPU)
        if instant.value is not None:
            return instant
        if self._module_only():
            return self._instant(SCOPE_MODULE)
        usage = self._number("W", 1e-3, "nvmlDeviceGetPowerUsage")
        return usage if usage.value is not None else missing("W", usage.reason or instant.reason or "", usage.how)

    def energy(self) -> Reading:
        """Joules since the driver was loaded; the counter moves about every 0.1 s."""
        if self._slice:
            return missing("J", "a MIG slice has no energy counter of its own")
        scope = MODULE if self._module_only() else "device"
        return self._number("J", 1e-3, "nvmlDeviceGetTotalEnergyConsumption", scope=scope)

    def clock(self) -> Reading:
        """Hz of the multiprocessors, now."""
        kind = self._nvml.constant("NVML_CLOCK_SM", CLOCK_SM)
        return self._number("Hz", 1e6, "nvmlDeviceGetClockInfo", kind, scope=self._card_scope())

    def temperature(self) -> Reading:
        """Degrees Celsius of the chip."""
        sensor = self._nvml.constant("NVML_TEMPERATURE_GPU", SENSOR_GPU)
        newer = self._number("°C", 1, "nvmlDeviceGetTemperatureV", sensor, scope=self._card_scope())
        if newer.value is not None:
            return newer
        return self._number("°C", 1, "nvmlDeviceGetTemperature", sensor, scope=self._card_scope())

    def throttle_reasons(self) -> Reading:
        """What holds the clock back now, in words; empty when nothing does."""
        answer, how = Answer(), ""
        # The call was renamed; older drivers know only the second.
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            answer, how = self._ask_card(name), f"nvml: {name}"
            if number_reading(answer, "", 1, how, zero=True).value is not None:
                break
        bits = number_reading(answer, "", 1, how, zero=True)
        if bits.value is None or bits.number is None:
            return missing("", bits.reason or "", how)
        held, other = decode_throttle(int(bits.number))
        if other:
            how += f"; also set, but no throttling: {', '.join(other)}"
        return Reading(held, "", how, self._card_scope())

    def processes(self) -> Reading:
        """Other processes with compute or graphics work on the card."""
        pids: set[int] = set()
        reasons = []
        for work in ("Compute", "Graphics"):
            answer = self._running(work)
            if answer.reason is not None:
                reasons.append(answer.reason)
            else:
                pids |= usable_pids(answer.value)
        how = "nvml: nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses"
        if len(reasons) == 2:
            return missing("", reasons[0], how)
        pids.discard(os.getpid())
        return Reading(tuple(f"pid {pid} ({process_name(pid)})" for pid in sorted(pids)), "", how)

    def _running(self, work: str) -> Answer:
        answer = Answer(reason="the driver lists no processes")
        for suffix in ("", "_v2"):  # a driver before 510 lacks the third version, which pynvml's plain name means
            answer = self._ask(f"nvmlDeviceGet{work}RunningProcesses{suffix}")
            if answer.reason is None and not isinstance(answer.value, list | tuple):
                answer = Answer(reason="the driver's answer has an unknown form")
            elif answer.value and not usable_pids(answer.value):
                # Someone is there, as in another container; "nobody" would be wrong.
                answer = Answer(reason="the driver gives process numbers that cannot be real")
            if answer.code != 13:
                break
        return answer

    def _instant(self, scope: int) -> Reading:
        answer = self._instant_answer(scope)
        how = f"nvml: nvmlDeviceGetFieldValues, instantaneous power, scope {scope}"
        return number_reading(answer, "W", 1e-3, how, scope="device" if scope == SCOPE_GPU else MODULE)

    def _instant_answer(self, scope: int) -> Answer:
        if self._handle.reason is not None:
            return self._handle
        field = self._nvml.constant("NVML_FI_DEV_POWER_INSTANT", POWER_INSTANT)
        return self._nvml.field(self._handle.value, field, scope)

    def _module_only(self) -> bool:
        """GH200, GB200, GB300: the GPU alone is not supported and the module answers. Asked once."""
        if self._module is None:
            gpu = self._instant_answer(SCOPE_GPU)
            alone = gpu.code == NOT_SUPPORTED or (gpu.reason is None and gpu.value in (0, *NO_NUMBER))
            self._module = alone and self._instant(SCOPE_MODULE).value is not None
        return self._module

    def _card_scope(self) -> str:
        return WHOLE_CARD if self._slice else "device"

    def _ask(self, name: str, *arguments: Any) -> Answer:
        return self._handle if self._handle.reason is not None else self._nvml.ask(name, self._handle.value, *arguments)

    def _ask_card(self, name: str, *arguments: Any) -> Answer:
        return self._card if self._card.reason is not None else self._nvml.ask(name, self._card.value, *arguments)

    def _number(self, unit: str, scale: float, name: str, *arguments: Any, scope: str = "device") -> Reading:
        return number_reading(self._ask_card(name, *arguments), unit, scale, f"nvml: {name}", scope=scope)


def decode_throttle(bits: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """NVML's bits as words: what holds the clock back, and what is set but holds nothing back."""
    if bits & (0x40 | 0x80):
        bits &= ~0x8  # the general bit comes with the exact ones
    held = [word for bit, word in THROTTLING.items() if bits & bit]
    unknown = bits & ~sum(THROTTLING) & ~sum(NOT_THROTTLING)
    if unknown:
        held.append(f"unknown reason {unknown:#x}")
    return tuple(held), tuple(word for bit, word in NOT_THROTTLING.items() if bits & bit)


def usable_pids(entries: Any) -> set[int]:
    """Process numbers that can be real: some drivers fill the list with 0 or with numbers that have overflowed."""
    pids = (getattr(entry, "pid", None) for entry in entries)
    return {pid for pid in pids if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 2**31 - 1}


def process_name(pid: int) -> str:
    """A process's name, or words that say why there is none."""
    try:
        import psutil

        return str(psutil.Process(pid).name()) or "no name"
    except Exception:
        return "not visible from here"  # ended, another user's, or outside this container
