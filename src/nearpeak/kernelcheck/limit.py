"""The least time that one op can take on one device, by its measured ceilings; and the share of it that was reached."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.rounding import default_accumulate
from nearpeak.records.ceiling import Ceiling
from nearpeak.records.machine_profile import DeviceProfile

# Up to so far below the limit a product may simply be better than the library's, which the ceiling was measured with.
BETTER = 1.2


@dataclass(frozen=True)
class Limit:
    """seconds: the larger of the two below; None where neither ceiling is there.

    ceiling        what sets it, in words: "matmul bf16 (sums in fp32), burst", "memory read, burst", …
    flop_seconds   FLOPs ÷ the matmul ceiling of the precision; byte_seconds: compulsory bytes ÷ the ceiling of memory
    in_cache       the working set fits in the last-level cache and was warm, so the cache's ceiling holds
    missing        ceilings that are not there, and so were left out
    """

    seconds: float | None
    ceiling: str
    flop_seconds: float | None
    byte_seconds: float | None
    in_cache: bool
    missing: tuple[str, ...]


def limit_of(
    op: Op, sizes: Sizes, precision: str, profile: DeviceProfile, *, accumulate: str | None = None, cold: bool = False
) -> Limit:
    """max(FLOPs ÷ matmul ceiling, compulsory bytes ÷ memory or cache ceiling).

    cold: the caches were flushed before by writing, so that every byte pays its way to or from memory.
    Burst ceilings, unless the work is longer than the device takes to settle.
    """
    missing: list[str] = []
    sums = accumulate or default_accumulate(precision)
    candidates: list[tuple[float, str]] = []
    flop_seconds = None
    if op.flop(sizes):
        name = f"matmul {precision} (sums in {sums})"
        rate, how = _rate(profile.ceiling("matmul", precision, sums), op.flop(sizes), profile.settle_s)
        if rate:
            flop_seconds = op.flop(sizes) / rate
            candidates.append((flop_seconds, f"{name}, {how}"))
        else:
            missing.append(name)
    read, written = op.bytes_read(sizes, precision), op.bytes_written(sizes, precision)
    memory, how = _rate(profile.ceiling("memory_read"), read + written, profile.settle_s)
    cache, _ = _rate(profile.ceiling("cache_read"), 0, None)
    byte_seconds, in_cache, lacking = _byte_seconds(read, written, memory, cache, profile.device.cache.number, cold)
    if byte_seconds is not None:
        candidates.append((byte_seconds, "cache read, burst" if in_cache else f"memory read, {how}"))
    if lacking:
        missing.append(lacking)
    seconds, ceiling = max(candidates, default=(None, "none"))
    return Limit(seconds, ceiling, flop_seconds, byte_seconds, in_cache, tuple(missing))


def share_of(limit: Limit, seconds: float) -> tuple[float | None, str | None]:
    """limit ÷ measured from 0 to 1, or None and which assumption failed. Never above 1."""
    if limit.seconds is None:
        return None, f"no limit is known: {', '.join(limit.missing)} not measured"
    if not seconds > 0:
        return None, f"{seconds} s is no time that work can take"
    share = limit.seconds / seconds
    if share <= 1:
        return share, None
    text = f"{seconds * 1e6:.4g} µs is shorter than the limit of {limit.seconds * 1e6:.4g} µs ({limit.ceiling}): "
    if limit.ceiling.startswith("matmul") and share < BETTER:
        return None, (
            f"{text}the ceiling is too low here; it is the best that torch's library gave over a few shapes, at the "
            "clock of its day. Measure again beside the kernel, and compare with the library's time"
        )
    return None, (
        f"{text}either the work was not all done, or not waited for; or it needs fewer operations or bytes than "
        "counted (a lower precision, data left in a cache); or the ceiling was measured while the device was slower"
    )


def _rate(ceiling: Ceiling | None, work: float, settle_s: float | None) -> tuple[float | None, str]:
    """Burst, or sustained where the work takes longer than settling does."""
    if ceiling is None or not ceiling.burst:
        return None, ""
    if settle_s and ceiling.sustained and work / ceiling.burst > settle_s:
        return ceiling.sustained, "sustained"
    return ceiling.burst, "burst"


def _byte_seconds(
    read: int, written: int, memory: float | None, cache: float | None, cache_bytes: float | None, cold: bool
) -> tuple[float | None, bool, str | None]:
    """Seconds, whether by the cache's ceiling, and what is missing. Rates in B/s."""
    total = read + written
    if not cold and total < (cache_bytes or 0.0):
        return (total / cache, True, None) if cache else (None, False, "cache read")
    return (total / memory, False, None) if memory else (None, False, "memory read")
