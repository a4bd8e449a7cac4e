"""CUDA_VISIBLE_DEVICES in all its forms (defect reports 6 and 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.hardware.visible import Listed, visible_devices

A = Listed("GPU-ab11", "0000:01:00.0")
B = Listed("GPU-ab22", "0000:02:00.0")
C = Listed("GPU-cd33", "0000:03:00.0")
CARDS = (A, B, C)
CUT = Listed("GPU-ef44", "0000:04:00.0")
S1 = Listed("MIG-aaaa1111", "0000:04:00.0", parent="GPU-ef44", instance=(1, 0))
S2 = Listed("MIG-bbbb2222", "0000:04:00.0", parent="GPU-ef44", instance=(2, 0))


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, CARDS),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("x", ()),
        ("NoDevFiles", ()),
        ("0", (A,)),
        ("2,0", (C, A)),
        ("0,2,-1,1", (A, C)),
        ("0,7,1", (A,)),
        ("7", ()),
        ("0,2,", (A, C)),
        ("0,,1", (A,)),
        (" 1 , 0", (B, A)),
        ("1gpu,0card", (B, A)),
        ("0,x,1", (A,)),
        ("GPU-cd", (C,)),
        ("GPU-cd33,GPU-ab1", (C, A)),
        ("GPU-ab", ()),
        ("GPU-cd,GPU-ab,GPU-ab1", (C,)),
        ("GPU-zz", ()),
        ("GPU-cd,GPU-zz,GPU-ab1", (C,)),
        ("1,GPU-ab1", (B,)),
        ("GPU-ab1,1", (A,)),
        ("0,0", ()),
        ("0,1,0", ()),
        ("0,00", ()),
        ("GPU-cd,GPU-cd33", ()),
        ("GPU-cd,GPU-zz,GPU-cd", (C,)),
    ],
)
def test_report_6_every_form_of_the_variable(variable: str | None, expected: tuple[Listed, ...]) -> None:
    assert visible_devices(variable, CARDS, "PCI_BUS_ID").order == expected


def test_report_6_reasons_name_the_entry() -> None:
    assert "GPU-ab" in (visible_devices("GPU-ab", CARDS).reason or "")
    assert "fits 2" in (visible_devices("GPU-ab", CARDS).reason or "")
    assert "another kind" in (visible_devices("GPU-ab1,1", CARDS).reason or "")
    assert "twice" in (visible_devices("0,0", CARDS, "PCI_BUS_ID").reason or "")
    assert visible_devices("0,2,", CARDS, "PCI_BUS_ID").reason is None
    assert visible_devices("2,0", CARDS, "PCI_BUS_ID").reason is None


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("MIG-bbbb", (S2,)),
        ("MIG-aaaa1111", (S1,)),
        ("MIG-GPU-ef44/2/0", (S2,)),
        ("MIG-GPU-ef44/9/0", ()),
        ("MIG-aaaa,MIG-bbbb", (S1,)),  # a process can use one slice
        ("MIG-", ()),
        ("GPU-ef", (S1,)),
        ("3", (S1,)),
        ("0,3", (A,)),
    ],
)
def test_report_6_mig_slices(variable: str, expected: tuple[Listed, ...]) -> None:
    assert visible_devices(variable, (*CARDS, CUT, S1, S2), "PCI_BUS_ID").order == expected


def test_report_6_a_single_mig_slice_without_the_variable() -> None:
    assert visible_devices(None, (CUT, S1)).order == (S1,)


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_report_8_a_number_in_fastest_first_order_is_not_guessed(order: str | None) -> None:
    seen = visible_devices("1,7,0", CARDS, order)
    assert seen.order == (None,)
    assert all(seen.may_see(card) for card in CARDS)
    # The order of the list is NVML's, which must not matter.
    assert visible_devices("0", tuple(reversed(CARDS)), "PCI_BUS_ID").order == (A,)


def test_report_8_with_one_card_there_is_nothing_to_guess() -> None:
    assert visible_devices("0", (A,)).order == (A,)
    assert not visible_devices("1", (A,)).may_see(A)


@given(st.text(alphabet="0123-,GPUMIabcdef/ x", max_size=24))
def test_any_text_gives_distinct_known_devices(variable: str) -> None:
    listed = (*CARDS, CUT, S1, S2)
    order = visible_devices(variable, listed, "PCI_BUS_ID").order
    assert len(set(order)) == len(order)
    assert set(order) <= set(listed)
    assert sum(d.mig for d in order if d) <= 1
