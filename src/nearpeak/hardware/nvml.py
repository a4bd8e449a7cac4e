"""NVIDIA's management library (NVML) behind one door: every call gives a value or a plain reason, none raises."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearpeak.records.reading import Reading, missing

NOT_SUPPORTED = 3

REASONS = {
    1: "NVML was not initialised",
    2: "the driver does not know this request for this device",
    NOT_SUPPORTED: "not supported by this device",
    4: "no permission to read it",
    6: "not found",
    8: "the device's external power cables are not connected",
    9: "the NVIDIA driver is not loaded",
    10: "the driver did not answer in time",
    11: "the device's interrupts do not work",
    12: "NVIDIA's management library (NVML) is not installed",
    13: "the installed driver is too old to have this call",
    14: "the device's information memory is corrupted",
    15: "the GPU is lost (it has fallen off the bus); reboot",
    16: "the GPU must be reset before it can be used",
    17: "the operating system blocked the request",
    18: "the NVIDIA driver and its library have different versions",
    20: "the driver is out of memory",
    21: "the driver has no data",
    25: "the driver does not know this version of the call",
    27: "the device is not ready",
    28: "no such GPU",
    999: "the driver gave an unknown error",
}

# The driver writes these where it has no number.
NO_NUMBER = (2**32 - 1, 2**64 - 1)


@dataclass(frozen=True)
class Answer:
    """What a call gave: `value`, or `reason` (and NVML's error `code`, where there was one) when it gave none."""

    value: Any = None
    reason: str | None = None
    code: int | None = None


class Nvml:
    """An initialised NVML, or the reason why there is none (`failure`). Hand in a module to replace pynvml (tests)."""

    def __init__(self, module: Any = None, root: Path = Path("/")) -> None:
        self.failure: str | None = None
        self._module = module
        if module is None:
            try:
                import pynvml

                self._module = pynvml
            except Exception as error:
                self.failure = f"the Python package nvidia-ml-py cannot be imported ({error})"
                return
        # NVML counts its users; the process's end is the only shutdown, so that handles of another Nvml stay good.
        started = self.ask("nvmlInit")
        if started.reason is None:
            self.failure = self._stub()
        elif started.code == 18:
            self.failure = self._mismatch(root)
        else:
            self.failure = started.reason

    def ask(self, name: str, *arguments: Any) -> Answer:
        """The one door: call pynvml's function `name`."""
        if self.failure is not None:
            return Answer(reason=self.failure)
        function = getattr(self._module, name, None)
        if function is None:
            return Answer(reason=f"the installed nvidia-ml-py is too old to have {name}", code=13)
        try:
            value = function(*arguments)
        except Exception as error:
            return _failed(error)
        if value is None and name != "nvmlInit":
            return Answer(reason="the driver answered nothing")
        return Answer(value)

    def constant(self, name: str, value: int) -> int:
        """A pynvml constant, or `value` (NVML's own) where an older pynvml lacks it."""
        found = getattr(self._module, name, value)
        return found if isinstance(found, int) else value

    def number(
        self, unit: str, scale: float, name: str, *arguments: Any, zero: bool = False, scope: str = "device"
    ) -> Reading:
        """A number times `scale`, in `unit`. `zero` says that 0 is a real answer here; elsewhere it means nothing."""
        return number_reading(self.ask(name, *arguments), unit, scale, f"nvml: {name}", zero=zero, scope=scope)

    def text(self, name: str, *arguments: Any) -> Reading:
        """A text, never empty."""
        how = f"nvml: {name}"
        answer = self.ask(name, *arguments)
        if answer.reason is not None:
            return missing("", answer.reason, how)
        text = as_text(answer.value)
        return missing("", "the driver answered an empty or odd text", how) if text is None else Reading(text, "", how)

    def field(self, handle: Any, field: int, scope: int) -> Answer:
        """A field's raw number; each field has a return code of its own beside that of the call."""
        answer = self.ask("nvmlDeviceGetFieldValues", handle, [(field, scope)])
        if answer.reason is not None:
            return answer
        try:
            entry = answer.value[0]
            code = int(entry.nvmlReturn)
            if code != 0:
                return Answer(reason=_reason(code), code=code)
            names = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
            return Answer(getattr(entry.value, names[int(entry.valueType)]))
        except Exception as error:
            return Answer(reason=f"the driver's answer has an unknown form ({type(error).__name__})")

    def _stub(self) -> str | None:
        # The CUDA toolkit's stub library, and Jetson's, start without error but know neither a driver nor a GPU.
        driver = self.text("nvmlSystemGetDriverVersion")
        count = self.number("", 1, "nvmlDeviceGetCount", zero=True)
        if driver.value is None and not count.value:
            return "the NVML library found is a stub or knows no driver (as on Jetson)"
        return None

    def _mismatch(self, root: Path) -> str:
        library = self.text("nvmlSystemGetNVMLVersion").value or "of unknown version"
        kernel = kernel_driver_version(root) or "of unknown version"
        return (
            f"the NVIDIA library ({library}) and the loaded driver ({kernel}) do not match: "
            "reboot or reload the driver; until then power, clocks and temperature cannot be read"
        )


def number_reading(
    answer: Answer, unit: str, scale: float, how: str, zero: bool = False, scope: str = "device"
) -> Reading:
    """Judge an answer that should be a number ≥ 0 (> 0 unless `zero`)."""
    if answer.reason is not None:
        return missing(unit, answer.reason, how)
    value = answer.value
    if isinstance(value, ctypes._SimpleCData):
        value = value.value  # an older pynvml hands out ctypes numbers
    if isinstance(value, bool) or not isinstance(value, int | float):
        return missing(unit, f"the driver answered {type(value).__name__} where a number belongs", how)
    if value in NO_NUMBER or value != value:
        return missing(unit, "the driver answered its sign for 'no number'", how)
    if value < 0 or (value == 0 and not zero):
        return missing(unit, f"the driver answered {value}, which means nothing here", how)
    return Reading(value * scale, unit, how, scope)


def as_text(value: Any) -> str | None:
    """A str from str or bytes (older pynvml); None where it is neither or blank."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    return value.strip(" \0\n") or None


def kernel_driver_version(root: Path = Path("/")) -> str | None:
    """The version of the loaded kernel driver, from /proc/driver/nvidia/version."""
    try:
        words = (root / "proc/driver/nvidia/version").read_text(errors="replace").split()
    except OSError:
        return None
    return next((w for w in words if w[0].isdigit() and w.replace(".", "").isdigit() and "." in w), None)


def _failed(error: Exception) -> Answer:
    """pynvml's NVMLError carries NVML's code in `value`; anything else is told by its type."""
    code = getattr(error, "value", None)
    if isinstance(code, int) and not isinstance(code, bool):
        return Answer(reason=_reason(code), code=code)
    return Answer(reason=f"nvidia-ml-py failed ({type(error).__name__}: {error})")


def _reason(code: int) -> str:
    return REASONS.get(code, f"the driver gave error {code}")
