"""A value with its unit, scope and origin; a missing one says why."""

from __future__ import annotations

from dataclasses import dataclass

Value = bool | int | float | str | tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """One fact about a device.

    value   SI base units (bytes, Hz, W, J, s), degrees Celsius for temperatures; None when it could not be had
    unit    "B", "Hz", "W", "J", "°C", "" for text
    how     where it came from, such as "nvml: nvmlDeviceGetPowerUsage"
    scope   what the value covers: "device", "module (CPU + GPU)", "shared with the host", …
    reason  why value is None; None when there is a value
    """

    value: Value | None
    unit: str
    how: str
    scope: str = "device"
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError(f"a reading has either a value or a reason: {self.value!r}, {self.reason!r}")

    @property
    def number(self) -> float | None:
        """The value as a float, or None where it is absent or no number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return None
        return float(self.value)


def missing(unit: str, reason: str, how: str = "") -> Reading:
    """A reading without a value."""
    return Reading(value=None, unit=unit, how=how, reason=reason)
