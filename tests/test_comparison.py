import dataclasses
import io

import pytest
from rich.console import Console

from nearpeak.ceilings.comparison import check_same_machine, compare, regressed
from nearpeak.records.ceiling import Ceiling
from nearpeak.records.change import Change
from nearpeak.records.errors import UserError
from nearpeak.records.machine_profile import MachineProfile
from nearpeak.records.reading import Reading
from nearpeak.report.comparison_table import render
from profiles import bare_gpu, cpu_only, h200, h200_device, machine, replace_ceilings, replace_device, two_gpus


def is_bf16(c: Ceiling) -> bool:
    return c.kind == "matmul" and c.precision == "bf16"


def scaled(c: Ceiling, factor: float, clock: float | None = None, **conditions: object) -> Ceiling:
    """The ceiling with its sustained rate times factor, the clock held too."""
    held = c.conditions.sustained
    if held is not None and clock is not None:
        held = dataclasses.replace(held, clock_hz=clock, **conditions)
    return dataclasses.replace(
        c,
        sustained=None if c.sustained is None else c.sustained * factor,
        conditions=dataclasses.replace(c.conditions, sustained=held),
    )


def changed(change, when=is_bf16) -> MachineProfile:
    return replace_ceilings(h200(), lambda c: change(c) if when(c) else c)


def beyond(changes: tuple[Change, ...]) -> list[Change]:
    return [c for c in changes if c.beyond]


def only(new: MachineProfile, old: MachineProfile | None = None) -> Change:
    (found,) = beyond(compare(old or h200(), new))
    return found


def printed(changes: tuple[Change, ...], width: int = 100) -> str:
    out = io.StringIO()
    render(changes, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("make", [h200, cpu_only, bare_gpu, two_gpus])
def test_a_profile_does_not_differ_from_itself(make) -> None:
    changes = compare(make(), make())
    assert changes
    assert not beyond(changes)
    assert all(c.ratio == 1 and not c.worse for c in changes)
    assert not regressed(changes)


def test_a_third_of_the_clock_lost_shows_as_such() -> None:
    old = changed(lambda c: scaled(c, 1.0, 1.98e9))
    new = changed(lambda c: scaled(c, 2 / 3, 1.32e9))
    c = only(new, old)
    assert (c.kind, c.precision, c.accumulate, c.figure) == ("matmul", "bf16", "fp32", "sustained")
    assert c.ratio == pytest.approx(2 / 3)
    assert c.worse
    assert c.because == "clock held fell from 1980 to 1320 MHz, −33 %"
    assert regressed((c,))


def test_a_clock_that_fell_less_explains_a_part() -> None:
    old = changed(lambda c: scaled(c, 1.0, 2e9))
    assert only(changed(lambda c: scaled(c, 0.5, 1.8e9)), old).because.endswith("MHz, −10 %, a part of it")


def test_a_clock_that_rose_does_not_explain_a_fall() -> None:
    old = changed(lambda c: scaled(c, 1.0, 1.4e9))
    assert only(changed(lambda c: scaled(c, 0.5, 1.8e9)), old).because == "no recorded condition explains it"


def test_the_spread_and_the_floor_hold() -> None:
    assert not beyond(compare(h200(), changed(lambda c: scaled(c, 0.972))))
    assert only(changed(lambda c: scaled(c, 0.968))).worse
    noisy = changed(lambda c: dataclasses.replace(scaled(c, 0.9), spread=0.12))
    assert not beyond(compare(h200(), noisy))
    assert not beyond(compare(noisy, h200()))
    wider = changed(lambda c: dataclasses.replace(scaled(c, 0.87), spread=0.12))
    assert beyond(compare(h200(), wider))


def test_a_cpu_has_a_wider_floor() -> None:
    slower = replace_ceilings(cpu_only(), lambda c: scaled(c, 0.9))
    assert not beyond(compare(cpu_only(), slower))
    slower = replace_ceilings(cpu_only(), lambda c: scaled(c, 0.8))
    assert regressed(compare(cpu_only(), slower))


def test_what_the_host_decides_has_the_cpus_floor() -> None:
    """Eager launches and pageable copies of two runs on one H200, back to back, were 28 and 16 % apart."""

    def by_the_host(c: Ceiling) -> bool:
        return c.kind == "launch" or c.conditions.notes.get("host_memory") == "pageable"

    for factor, worse in ((1.14, True), (0.87, True), (1.2, False), (0.8, False)):
        changes = compare(h200(), changed(lambda c, f=factor: dataclasses.replace(c, burst=c.burst * f), by_the_host))
        assert bool(beyond(changes)) is not worse, factor
    pinned = changed(
        lambda c: dataclasses.replace(c, burst=c.burst * 0.87),
        lambda c: c.conditions.notes.get("host_memory") == "pinned",
    )
    assert regressed(compare(h200(), pinned))


def test_a_changed_number_of_cores_is_named() -> None:
    slow = replace_ceilings(cpu_only(), lambda c: scaled(c, 0.5))
    found = beyond(compare(cpu_only(), replace_device(slow, units=1)))
    assert found
    assert all("cores changed from" in c.because for c in found)


def test_faster_is_no_regression() -> None:
    changes = compare(h200(), changed(lambda c: scaled(c, 1.2)))
    assert beyond(changes)
    assert not regressed(changes)


@pytest.mark.parametrize(("factor", "worse"), [(1.3, True), (0.7, False)])
def test_lower_is_better_for_launches_errors_and_energy(factor, worse) -> None:
    launch = changed(lambda c: dataclasses.replace(c, burst=c.burst * factor), lambda c: c.kind == "launch")
    error = changed(lambda c: dataclasses.replace(c, error=c.error * factor))
    energy = changed(lambda c: dataclasses.replace(c, energy_per_unit=c.energy_per_unit * factor))
    for new, figure in ((launch, "burst"), (error, "error"), (energy, "energy")):
        c = only(new)
        assert (c.figure, c.worse) == (figure, worse)
        assert regressed((c,)) is worse


def test_an_error_that_was_zero_and_grew() -> None:
    old = changed(lambda c: dataclasses.replace(c, error=0.0))
    c = only(h200(), old)
    assert (c.ratio, c.worse) == (None, True)
    assert not beyond(compare(old, old))


def test_other_causes_are_named() -> None:
    slow = changed(lambda c: scaled(c, 0.5, 1.455e9, throttle=("power cap", "thermal slowdown")))
    assert only(slow).because == "new throttle reason: thermal slowdown"
    slow = changed(lambda c: scaled(c, 0.5))
    capped = replace_device(slow, power_limit=Reading(500.0, "W", "nvml"), driver=Reading("590.1", "", "nvml"))
    assert only(capped).because == "power limit changed from 700 W to 500 W; driver changed from 580.159.04 to 590.1"
    newer = dataclasses.replace(slow, machine=machine(versions={"torch": "2.12.0"}))
    assert only(newer).because == "torch changed from 2.11.0+cu130 to 2.12.0"

    def crowd(c: Ceiling) -> Ceiling:
        return dataclasses.replace(
            scaled(c, 0.5), conditions=dataclasses.replace(c.conditions, other_processes=("pid 7 (python)",))
        )

    assert only(changed(crowd)).because == "other processes on the device now: pid 7 (python)"

    def other_method(c: Ceiling) -> Ceiling:
        return dataclasses.replace(scaled(c, 0.5), conditions=dataclasses.replace(c.conditions, method="matmul/2"))

    assert "the method changed from matmul/1 to matmul/2" in only(changed(other_method)).because


def test_a_power_limit_does_not_explain_an_error() -> None:
    worse = changed(lambda c: dataclasses.replace(c, error=c.error * 2))
    assert only(replace_device(worse, power_limit=Reading(500.0, "W", "nvml"))).because == (
        "no recorded condition explains it"
    )


def test_pinned_and_pageable_are_kept_apart() -> None:
    def slower(c: Ceiling) -> Ceiling:
        return dataclasses.replace(c, burst=c.burst / 2) if c.conditions.notes.get("host_memory") == "pageable" else c

    found = beyond(compare(h200(), replace_ceilings(h200(), slower)))
    assert [(c.kind, c.notes) for c in found] == [
        ("host_to_device", {"host_memory": "pageable"}),
        ("device_to_host", {"host_memory": "pageable"}),
    ]


def test_ceilings_on_one_side_only() -> None:
    less = replace_ceilings(h200(), lambda c: None if is_bf16(c) else c)
    gone, came = only(less), only(h200(), less)
    assert (gone.old, gone.new, gone.because) == (781e12, None, "vanished: not in the new profile")
    assert (came.old, came.new, came.because) == (None, 781e12, "appeared: not in the old profile")
    assert not regressed((gone, came))  # it may not have been asked for
    for skipped, worse in (("out of memory", True), ("--quick leaves out what is emulated: no units", False)):
        device = dataclasses.replace(less.devices[0], skipped={"matmul bf16 (sums in fp32)": skipped})
        failed = only(dataclasses.replace(less, devices=(device,)))
        assert failed.because == f"vanished: {skipped}"
        assert regressed((failed,)) is worse


def test_a_ceiling_that_became_invalid_is_a_regression() -> None:
    broken = changed(lambda c: dataclasses.replace(c, invalid="faster than the spec"))
    c = only(broken)
    assert (c.new, c.because, c.worse) == (None, "vanished: invalid now: faster than the spec", True)
    assert not beyond(compare(broken, broken))


def test_quick_against_full_says_what_is_not_compared() -> None:
    def quick(c: Ceiling) -> Ceiling:
        how = dataclasses.replace(c.conditions, missing={"sustained": "--quick"}, sustained=None)
        return dataclasses.replace(c, sustained=None, conditions=how)

    changes = compare(h200(), replace_ceilings(h200(), quick))
    assert not beyond(changes)
    assert "not compared: sustained of 8 ceilings: not in the new profile: --quick" in printed(changes)


def test_a_device_that_is_gone_is_told_in_one_line() -> None:
    changes = compare(two_gpus(), h200())
    assert len(beyond(changes)) == 19
    assert not regressed(changes)
    text = printed(changes)
    assert "GPU-5d1c7f0e-0000-4a6b-9c53-6f4d2f8be002" in text
    assert "19 ceilings vanished: the device is not in the new profile" in text


def test_no_device_in_common() -> None:
    with pytest.raises(UserError) as caught:
        compare(h200(), cpu_only())
    for part in ("NVIDIA H200", "GPU-5d1c7f0e-0000-4a6b-9c53-6f4d2f8be001", "AMD EPYC 9534", "cpu"):
        assert part in str(caught.value)
    with pytest.raises(UserError, match="GPU-none"):
        check_same_machine(h200(), [dataclasses.replace(h200_device(), id="GPU-none")])
    check_same_machine(two_gpus(), [h200_device()])


def test_the_table_shows_what_moved_and_counts_the_rest() -> None:
    text = printed(compare(h200(), changed(lambda c: scaled(c, 2 / 3, 970e6))))
    row = next(line for line in text.splitlines() if line.startswith("bf16→fp32"))
    assert row.split()[:9] == ["bf16→fp32", "sustained", "663", "TFLOP/s", "442", "TFLOP/s", "−33", "%", "worse"]
    assert "18 ceilings within their spread" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert "…" not in printed(compare(h200(), changed(lambda c: scaled(c, 2 / 3, 970e6))), 40)


def test_nothing_moved() -> None:
    assert printed(compare(h200(), h200())) == "19 ceilings within their spread\n"
