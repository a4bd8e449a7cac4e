"""What the maker promises: dense figures with their provenance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Provenance = Literal["sheet", "derived", "unverified"]


@dataclass(frozen=True)
class Figure:
    """A maker's number in SI base units. `derived` is units × clock; `unverified` is never used for a share."""

    value: float
    provenance: Provenance
    source: str


@dataclass(frozen=True)
class Rate:
    """Dense multiply-add rate in FLOP/s (integer operations count alike) of one kind of unit.

    precision   "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"
    accumulate  "fp64", "fp32", "fp16" or "int32"
    unit        "vector" (plain arithmetic) or "matrix" (tensor or matrix cores)
    """

    precision: str
    accumulate: str
    unit: Literal["vector", "matrix"]
    figure: Figure


@dataclass(frozen=True)
class Price:
    """US dollars for one card, with where and how the range was seen."""

    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Spec:
    """One exact device of the catalogue (an L40S is no L40).

    link is the card-to-card link's bandwidth in B/s, both directions added; architecture "sm_90", "gfx942", "metal", …
    """

    name: str
    vendor: str
    family: str
    year: int
    architecture: str | None
    memory: Figure | None
    memory_bandwidth: Figure | None
    rates: tuple[Rate, ...]
    power: Figure | None
    link_type: str | None
    link: Figure | None
    pcie: str | None
    price: Price | None
    note: str

    def rate(self, precision: str, accumulate: str) -> Rate | None:
        """The fastest unit's rate for this product, or None where the sheet has none.

        accumulate "fast" (fp8 sums kept in the unit's own, narrower accumulator) stands under fp32 on the sheets, but
        for cards that halve their rate for fp32 sums: what theirs is for "fast" no sheet says.
        """
        if accumulate == "fast" and self.half_rate:
            return None
        wanted = precision, "fp32" if accumulate == "fast" else accumulate
        fitting = [r for r in self.rates if (r.precision, r.accumulate) == wanted]
        return max(fitting, key=lambda r: r.figure.value, default=None)

    @property
    def half_rate(self) -> bool:
        """Whether fp16 products with fp32 sums run at half the rate of those with fp16 sums, as on GeForce cards."""
        full, half = self.rate("fp16", "fp16"), self.rate("fp16", "fp32")
        return full is not None and half is not None and full.figure.value > 1.5 * half.figure.value
