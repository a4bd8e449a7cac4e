"""The least time that a device needs for a workload's ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from nearpeak.records.errors import UserError
from nearpeak.records.limit import Limit, Op, Rates
from nearpeak.records.machine_profile import DeviceProfile


def limit_of(ops: Iterable[Op], rates: Rates) -> Limit:
    """max(Σ FLOPs ÷ matmul rate of each precision, Σ compulsory bytes ÷ memory rate), in seconds.

    The serial limit adds up the larger of the two for each op by itself, its activations counted: what no overlap of
    ops could beat. All bytes that fit into the last-level cache are held against that cache, where its rate is known.
    Raises UserError for a precision that the rates lack.
    """
    ops = tuple(ops)
    moved = sum(op.count * (op.read + op.written) for op in ops)
    largest = max((op.passed for op in ops), default=0.0)
    cached = bool(rates.cache and rates.cache_bytes and moved + largest <= rates.cache_bytes)
    bandwidth = rates.cache if cached and rates.cache else rates.memory
    each: dict[str, float] = {}
    serial = 0.0
    for op in ops:
        seconds = 0.0
        for precision, flop in op.flop.items():
            each[precision] = each.get(precision, 0.0) + op.count * flop
            seconds += flop / rate_of(rates, precision)
        serial += op.count * max(seconds, (op.read + op.written + op.passed) / bandwidth)
    spent = {precision: flop / rate_of(rates, precision) for precision, flop in each.items()}
    flop_seconds, byte_seconds = sum(spent.values()), moved / bandwidth
    bound_by = "last-level cache" if cached else "memory"
    if flop_seconds > byte_seconds:
        bound_by = f"matrix units ({max(spent, key=lambda name: spent[name])})"
    return Limit(
        seconds=max(flop_seconds, byte_seconds),
        serial_seconds=max(serial, flop_seconds, byte_seconds),
        flop_seconds=flop_seconds,
        byte_seconds=byte_seconds,
        flop=each,
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


def burst_or_sustained(profile: DeviceProfile, seconds: float) -> Literal["burst", "sustained"]:
    """Which of a profile's ceilings work of this length is held against.

    Burst: what is shorter than the device takes to settle, or where nothing held the device's products back (no
    ceiling names a limit), or where nothing sustained was measured. Longer work: sustained.
    """
    products = [c for c in profile.ceilings if c.kind == "matmul" and c.invalid is None and c.sustained]
    held_back = any(c.conditions.limited_by for c in products)
    if not products or not held_back or profile.settle_s is None or seconds < profile.settle_s:
        return "burst"
    return "sustained"
