"""The least time that a device needs for a workload's ops."""

from __future__ import annotations

from collections.abc import Iterable

from nearpeak.records.errors import UserError
from nearpeak.records.limit import Limit, Op, Rates
from nearpeak.records.machine_profile import DeviceProfile


def limit_of(ops: Iterable[Op], rates: Rates) -> Limit:
    """max(Σ FLOPs ÷ matmul rate of each precision, Σ compulsory bytes ÷ memory rate), in seconds.

    The serial limit adds up the larger of the two for each op by itself, its activations counted: what no overlap of
    ops could beat. Raises UserError for a precision that the rates lack.
    """
    flop: dict[str, float] = {}
    moved = serial = 0.0
    for op in ops:
        seconds = 0.0
        for precision, count in op.flop.items():
            flop[precision] = flop.get(precision, 0.0) + op.count * count
            seconds += count / rate_of(rates, precision)
        compulsory = op.read + op.written
        moved += op.count * compulsory
        serial += op.count * max(seconds, (compulsory + op.passed) / rates.memory)
    flop_seconds = sum(count / rate_of(rates, precision) for precision, count in flop.items())
    byte_seconds = moved / rates.memory
    main = max(flop, key=lambda name: flop[name], default="")
    bound_by = f"matrix units ({main})" if flop_seconds > byte_seconds else "memory"
    return Limit(
        seconds=max(flop_seconds, byte_seconds),
        serial_seconds=max(serial, flop_seconds, byte_seconds),
        flop_seconds=flop_seconds,
        byte_seconds=byte_seconds,
        flop=flop,
        bytes=moved,
        bound_by=bound_by,
        source=rates.source,
    )


def rate_of(rates: Rates, precision: str) -> float:
    """FLOP/s of a precision. Raises UserError with the reason where there is none."""
    rate = rates.matmul.get(precision)
    if not rate:
        reason = rates.missing.get(precision, f"known are {', '.join(rates.matmul) or 'none'}")
        raise UserError(f"no rate for {precision} products on {rates.device}: {reason}")
    return rate


def is_burst(profile: DeviceProfile, seconds: float, power_limited: bool = True) -> bool:
    """Whether work this long is held against bursts: shorter than the settle time, or not power-limited."""
    return not power_limited or profile.settle_s is None or seconds < profile.settle_s
