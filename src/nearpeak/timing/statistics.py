"""Medians and spreads of timings."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks; share from 0 to 1. Raises ValueError where there is no value."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def spread(values: Sequence[float]) -> float:
    """(p90 − p10) ÷ median."""
    return (percentile(values, 0.9) - percentile(values, 0.1)) / median(values)
