"""What every device's sensors offer; vendors implement it, callers never see the vendor."""

from __future__ import annotations

from typing import Protocol

from nearpeak.records.reading import Reading


class Sensors(Protocol):
    """Live readings of one device. No method ever raises: what cannot be had is a Reading with a reason."""

    def power(self) -> Reading:
        """Watts, as instantaneous as the device offers."""
        ...

    def energy(self) -> Reading:
        """Joules on a counter that only grows; take differences."""
        ...

    def clock(self) -> Reading:
        """Hz of the multiprocessors or cores, now."""
        ...

    def temperature(self) -> Reading:
        """Degrees Celsius."""
        ...

    def throttle_reasons(self) -> Reading:
        """Why the clock is held back now: a tuple of words, empty when nothing holds it."""
        ...

    def processes(self) -> Reading:
        """Other processes that use the device: a tuple of "pid 123 (name)", this process left out."""
        ...
