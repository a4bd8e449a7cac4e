"""What differs between two profiles of one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Change:
    """One figure of one ceiling, then and now.

    device            the device's id
    kind, precision, accumulate  of the ceiling
    notes             what tells two of a kind apart ("host_memory": "pinned")
    figure            burst, sustained in the ceiling's unit (FLOP/s, B/s, s); error relative; energy in J/FLOP or J/B
    old, new          None where the ceiling, or this figure of it, is on one side only
    ratio             new ÷ old, else None
    beyond            further from 1 than both spreads and the floor; true for a ceiling on one side only
    worse             slower, less exact, hungrier for energy, or a ceiling that failed this time
    because           what the recorded conditions say of it
    """

    device: str
    kind: str
    precision: str | None
    accumulate: str | None
    notes: dict[str, str]
    figure: Literal["burst", "sustained", "error", "energy"]
    old: float | None
    new: float | None
    ratio: float | None
    beyond: bool
    worse: bool
    because: str
