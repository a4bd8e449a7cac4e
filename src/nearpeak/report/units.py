"""SI base units to text: three significant digits, a prefix, the unit. What is absent prints as a dash, never as 0."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

ABSENT = "–"
PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
NAMES = {
    "matmul": "matmul",
    "memory_read": "read",
    "memory_write": "write",
    "memory_copy": "copy",
    "cache_read": "cache read",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "host_bidirectional": "both ways",
    "launch": "launch",
    "launch_graph": "launch in a graph",
}


@dataclass(frozen=True)
class Scale:
    """One prefix for a column: `unit` goes into the header, `text` into the cells."""

    factor: float
    unit: str

    def text(self, value: float | None) -> str:
        """The number alone, three significant digits; whole digits are never rounded away: 1526, 781, 55.5, 0.93."""
        return ABSENT if _absent(value) else digits(value / self.factor, whole=True)  # type: ignore[operator]


def _absent(value: float | None) -> bool:
    return value is None or not abs(value) < 1e300  # NaN, infinity, and what would overflow when rounded


def digits(value: float, whole: bool = False) -> str:
    """Three significant digits without an exponent between 0.001 and 1e6. whole: keep all digits before the point."""
    if _absent(value):
        return ABSENT
    if value == 0:
        return "0"
    if not 5e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    rounded = float(f"{value:.2e}")
    if abs(rounded) >= 100:
        return f"{value if whole else rounded:.0f}"
    return f"{rounded:.{2 - math.floor(math.log10(abs(rounded)))}f}"


def _exponent(value: float) -> int:
    """The power of a thousand that leaves 1 to 999 after rounding to three digits."""
    if value == 0:
        return 0
    power = math.floor(math.log10(abs(float(f"{value:.2e}"))) + 1e-12)
    return min(max(3 * (power // 3), min(PREFIXES)), max(PREFIXES))


def quantity(value: float | None, unit: str) -> str:
    """A number of SI base units with the prefix that fits it: quantity(4.48e12, "B/s") is "4.48 TB/s"."""
    if value is None or _absent(value):
        return ABSENT
    exponent = _exponent(value)
    return f"{digits(value / 10.0**exponent)} {PREFIXES[exponent]}{unit}".rstrip()


def column(values: Iterable[float | None], unit: str) -> Scale:
    """One prefix for a whole column, that of its median, so that few cells are long; absent values do not count."""
    known = [v for v in values if v is not None and not _absent(v) and v != 0]
    exponent = _exponent(statistics.median(known)) if known else 0
    return Scale(10.0**exponent, f"{PREFIXES[exponent]}{unit}")


def flop_unit(precision: str | None) -> str:
    """ "OP" for integer products, else "FLOP"."""
    return "OP" if (precision or "").startswith(("int", "uint")) else "FLOP"


def flop_rate(value: float | None, precision: str | None = None) -> str:
    """FLOP/s to "781 TFLOP/s", or "696 TOP/s" for an integer precision."""
    return quantity(value, f"{flop_unit(precision)}/s")


def byte_rate(value: float | None) -> str:
    """B/s to "4.48 TB/s"."""
    return quantity(value, "B/s")


def size(value: float | None) -> str:
    """Bytes to "140 GiB", in powers of 1024."""
    if value is None or _absent(value):
        return ABSENT
    for unit, step in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= 0.9995 * step:
            exact = value / step
            return f"{int(exact) if exact == int(exact) else digits(exact, whole=True)} {unit}"
    return f"{digits(value, whole=True)} B"


def seconds(value: float | None) -> str:
    """Seconds to "12.7 µs"; minutes from 120 s on."""
    if value is not None and 120 <= value < math.inf:
        return f"{round(value) // 60} min {round(value) % 60} s"
    return quantity(value, "s")


def joules_per_flop(value: float | None, precision: str | None = None) -> str:
    """J/FLOP to "1.04 J/TFLOP" (or "J/TOP")."""
    return ABSENT if value is None or _absent(value) else f"{digits(value * 1e12)} J/T{flop_unit(precision)}"


def joules_per_byte(value: float | None) -> str:
    """J/B to "107 J/TB"."""
    return ABSENT if value is None or _absent(value) else f"{digits(value * 1e12)} J/TB"


def megahertz(value: float | None) -> str:
    """Hz to "1455 MHz"."""
    return ABSENT if value is None or _absent(value) else f"{value / 1e6:.0f} MHz"


def watts(value: float | None) -> str:
    """W to "690 W"; CPUs and laptops keep a digit: "8.4 W"."""
    return ABSENT if value is None or _absent(value) else f"{value:.{0 if abs(value) >= 99.5 else 1}f} W"


def percent(ratio: float | None) -> str:
    """A ratio to "84 %"; under 10 % with one digit."""
    if ratio is None or _absent(ratio):
        return ABSENT
    return f"{100 * ratio:.{1 if 0 < abs(ratio) < 0.0995 else 0}f} %"


def change(ratio: float | None) -> str:
    """new ÷ old to "−33 %", "+4.2 %"; from double on "×2.5"."""
    if ratio is None or _absent(ratio):
        return ABSENT
    if ratio >= 2:
        return f"×{digits(ratio)}"
    gain = 100 * (ratio - 1)
    return f"{gain:+.{0 if abs(gain) >= 9.95 else 1}f} %".replace("-", "−")


def error(value: float | None) -> str:
    """A relative error to "2.4e-3"."""
    if value is None or _absent(value):
        return ABSENT
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def plain(text: object) -> str:
    """Foreign text (a driver's device name) in one line: control and other unprintable characters become "�"."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


def work(kind: str, precision: str | None, accumulate: str | None, notes: dict[str, str]) -> str:
    """What a ceiling is of: "bf16→fp32" for a product, "host to device, pinned" for a transfer."""
    if precision:
        return plain(f"{precision}→{accumulate}" if accumulate else precision)
    host = notes.get("host_memory")
    return plain(NAMES.get(kind, kind) + (f", {host}" if host else ""))
