"""Arithmetic over sizes: exact, and refused by name where it is anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.kernelcheck.expression import evaluate, holds, names
from nearpeak.records.errors import UserError

SIZES = {"m": 1000, "n": 17, "k": 3, "sms": 132}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16),
        ("ceil(m / 16)", 63),
        ("ceil(m/16) * ceil(n / 16)", 126),
        ("(m + n) // k", 339),
        ("m % n - -k", 17),
        ("min(sms, m * n, 5000)", 132),
        ("max(1, min(1056, ceil(n / 256)))", 1),
        ("3 * 16 * (128 + 4 + 256) * 4", 74496),
        ("m / 8", 125),
        ("ceil(-7 / 2)", -3),
        ("sms // 2 * 2", 132),
    ],
)
def test_values(text: str, value: int) -> None:
    assert evaluate(text, SIZES) == value


@given(st.integers(1, 2**80), st.integers(1, 2**40))
def test_ceil_is_exact_where_floats_are_not(a: int, b: int) -> None:
    assert evaluate("ceil(a / b)", {"a": a, "b": b}) == -(-a // b)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k % 8 == 0", False),
        ("k % 3 == 0 and n > 1", True),
        ("m < 5 or n == 17", True),
        ("1 < n <= 17 < m", True),
        ("not m == 1000", False),
        ("m / 3 != 333", True),
    ],
)
def test_conditions(text: str, value: bool) -> None:
    assert holds(text, SIZES) is value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ceil(mm / 16)", r"'ceil\(mm / 16\)' names 'mm'.*k, m, n, sms"),
        ("m / 3", "no whole number"),
        ("m // (n - 17)", r"divides by zero for m = 1000, n = 17"),
        ("m +", "cannot be read"),
        ("", "cannot be read"),
        ("__import__('os')", "not allowed"),
        ("m.real", "not allowed"),
        ("[m][0]", "not allowed"),
        ("m ** n", "not allowed"),
        ("m if n else k", "not allowed"),
        ("1.5 * m", "not allowed"),
        ("True", "not allowed"),
        ("floor(m)", "functions are ceil"),
        ("ceil(m, n)", "functions are ceil"),
        ("(" * 300 + "m" + ")" * 300, "characters|cannot be read"),
    ],
)
def test_refused_with_the_expression(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(text, SIZES)


def test_a_number_is_no_condition() -> None:
    with pytest.raises(UserError, match="no condition"):
        holds("m + 1", SIZES)


def test_names_leave_functions_out() -> None:
    assert names("min(ceil(m / 16), sms)") == {"m", "sms"}
