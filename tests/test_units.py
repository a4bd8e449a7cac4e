import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.report import units

finite = st.floats(min_value=-1e300, max_value=1e300, exclude_min=True, exclude_max=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.flop_rate(781e12), "781 TFLOP/s"),
        (units.flop_rate(696e12, "int8"), "696 TOP/s"),
        (units.flop_rate(1526e12), "1.53 PFLOP/s"),
        (units.flop_rate(999.6e12), "1.00 PFLOP/s"),
        (units.flop_rate(50.5e12), "50.5 TFLOP/s"),
        (units.byte_rate(4.48e12), "4.48 TB/s"),
        (units.byte_rate(53.7e9), "53.7 GB/s"),
        (units.size(4 * 2**30), "4 GiB"),
        (units.size(150_754_820_096), "140 GiB"),
        (units.size(1023.9 * 2**20), "1.00 GiB"),
        (units.size(512), "512 B"),
        (units.seconds(12.7e-6), "12.7 µs"),
        (units.seconds(0.93e-6), "930 ns"),
        (units.seconds(171.4), "2 min 51 s"),
        (units.joules_per_flop(1.04e-12), "1.04 J/TFLOP"),
        (units.joules_per_flop(0.884e-12, "int8"), "0.884 J/TOP"),
        (units.joules_per_byte(1.07e-10), "107 J/TB"),
        (units.megahertz(1.455e9), "1455 MHz"),
        (units.watts(690.2), "690 W"),
        (units.watts(8.44), "8.4 W"),
        (units.percent(0.8489), "85 %"),
        (units.percent(0.011), "1.1 %"),
        (units.change(1320 / 1980), "−33 %"),
        (units.change(1.034), "+3.4 %"),
        (units.change(3.2), "×3.20"),
        (units.error(2.4e-3), "2.4e-3"),
    ],
)
def test_si_to_text(text: str, expected: str) -> None:
    assert text == expected


PRINTERS = (
    units.flop_rate, units.byte_rate, units.size, units.seconds, units.joules_per_flop, units.joules_per_byte,
    units.megahertz, units.watts, units.percent, units.change, units.error,
)  # fmt: skip


@pytest.mark.parametrize("printer", PRINTERS)
@pytest.mark.parametrize("absent", [None, math.nan, math.inf])
def test_absent_is_a_dash_never_zero(printer, absent) -> None:
    assert printer(absent) == "–"
    assert units.Scale(1e12, "B/s").text(absent) == "–"


def test_a_true_zero_is_zero() -> None:
    assert units.byte_rate(0.0) == "0 B/s"
    assert units.error(0.0) == "0"


def test_a_column_has_one_prefix_and_keeps_whole_digits() -> None:
    scale = units.column([55.5e12, 781e12, None, 1526e12, math.nan], "FLOP/s")
    assert scale.unit == "TFLOP/s"
    assert [scale.text(v) for v in (55.5e12, 781e12, 1526e12, 0.5e12, None)] == ["55.5", "781", "1526", "0.500", "–"]
    assert units.column([None], "B/s").unit == "B/s"


@given(finite)
def test_printed_quantities_are_within_half_a_digit(value: float) -> None:
    text = units.quantity(value, "B/s")
    number, unit = text.split(" ")
    prefix = {v: k for k, v in units.PREFIXES.items()}[unit.removesuffix("B/s")]
    assert math.isclose(float(number) * 10.0**prefix, value, rel_tol=5.1e-3, abs_tol=0)


@given(st.floats(min_value=1e-12, max_value=9.99e19))
def test_three_significant_digits(value: float) -> None:
    number = units.quantity(value, "s").split(" ")[0]
    assert 1 <= float(number) <= 999 or "e" in number
    assert len(number.replace(".", "")) == 3 or "e" in number


def test_foreign_text_is_one_printable_line() -> None:
    assert units.plain("GPU\x1b[31m\nname\x00") == "GPU�[31m�name�"


def test_work_is_named() -> None:
    assert units.work("matmul", "bf16", "fp32", {}) == "bf16→fp32"
    assert units.work("host_to_device", None, None, {"host_memory": "pinned"}) == "host to device, pinned"
    assert units.work("memory_read", None, None, {}) == "read"
