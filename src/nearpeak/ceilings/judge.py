"""Is a measured rate possible? Pure arithmetic on the spec, the clock held and the units."""

from __future__ import annotations

from nearpeak.ceilings.precisions import compute_capability
from nearpeak.records.ceiling import Ceiling
from nearpeak.records.device import Device
from nearpeak.records.spec import Rate, Spec

# Boards boost above the clock that their sheet's figure stands for: a GeForce RTX 5090 held 242 of 209.5 TFLOP/s.
# Where the two clocks are not both known, so much is allowed.
UNKNOWN_CLOCK_MARGIN = 1.2
ROUNDING_MARGIN = 1.02

# Dense FLOP per clock and multiprocessor of the matrix units, bf16 or fp16 with fp32 accumulation, and of fp32 vectors.
# NVIDIA's architecture papers; GeForce and a few others run fp32 accumulation at half of the former.
_FLOP_PER_CLOCK = {
    (7, 0): (1024, 128),
    (7, 5): (1024, 128),
    (8, 0): (2048, 128),
    (8, 6): (1024, 256),
    (8, 7): (1024, 256),
    (8, 9): (1024, 256),
    (9, 0): (4096, 256),
    (10, 0): (8192, 256),
    (10, 3): (8192, 256),
    (12, 0): (1024, 256),
}
_RELATIVE_TO_HALF = {"fp64": 1 / 16, "tf32": 0.5, "fp16": 1.0, "bf16": 1.0, "fp8": 2.0, "int8": 2.0}


def spec_clock(rate: Rate, spec: Spec, device: Device) -> float | None:
    """The clock in Hz that the maker's figure stands for: rate ÷ (multiprocessors × FLOP per clock); None if unknown.

    H200: 989.4e12 ÷ (132 × 4096) = 1830 MHz for the matrix units, though the clock may rise to 1980 MHz.
    """
    capability = compute_capability(device.architecture)
    if capability not in _FLOP_PER_CLOCK or not device.units:
        return None
    matrix, vector = _FLOP_PER_CLOCK[capability]
    if rate.unit == "vector" and rate.precision == "fp32":
        per_clock = float(vector)
    elif rate.unit == "matrix" and rate.precision in _RELATIVE_TO_HALF:
        per_clock = matrix * _RELATIVE_TO_HALF[rate.precision] / (2 if spec.half_rate else 1)
    else:
        return None
    clock = rate.figure.value / (device.units * per_clock)
    # Outside this range the table does not fit the card (a binned part, a rate counted otherwise): better none.
    return clock if 0.8e9 <= clock <= 3.5e9 else None


def impossible_matmul(
    measured: float, rate: Rate | None, clock_held: float | None, clock_of_spec: float | None
) -> str | None:
    """Why this rate cannot be, or None: more than spec × (highest clock held ÷ the spec's clock) × 1.02.

    measured and the rate in FLOP/s, clocks in Hz. Without a spec figure that can be trusted nothing is said.
    """
    if rate is None or rate.figure.provenance == "unverified":
        return None
    if clock_held is None or clock_of_spec is None:
        limit = rate.figure.value * UNKNOWN_CLOCK_MARGIN * ROUNDING_MARGIN
        clocks = f"clocks unknown, {UNKNOWN_CLOCK_MARGIN:g}× allowed"
    else:
        limit = rate.figure.value * clock_held / clock_of_spec * ROUNDING_MARGIN
        clocks = f"clock held {clock_held / 1e6:.0f} MHz, the spec's {clock_of_spec / 1e6:.0f} MHz"
    if measured <= limit:
        return None
    return (
        f"{measured / 1e12:.4g} TFLOP/s is above what the units can do, {limit / 1e12:.4g} ({clocks}): either the work "
        "was not done or waited for when the time was taken, or the spec is of another device"
    )


def impossible_bandwidth(ceiling: Ceiling, spec: Spec | None) -> str | None:
    """Why this memory ceiling cannot be, or None."""
    measured = max(ceiling.burst or 0.0, ceiling.sustained or 0.0)
    figure = spec.memory_bandwidth if spec is not None else None
    if figure is None or figure.provenance == "unverified" or measured <= figure.value * ROUNDING_MARGIN:
        return None
    return (
        f"{measured / 1e12:.4g} TB/s is above the spec's {figure.value / 1e12:.4g}: either a cache answered in place "
        "of the memory, or the spec is of another device"
    )
