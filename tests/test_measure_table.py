import dataclasses
import io
import re

import pytest
from rich.console import Console

from nearpeak.records.ceiling import Ceiling
from nearpeak.records.machine_profile import MachineProfile
from nearpeak.records.spec import Figure
from nearpeak.report.measure_table import blocks, render, ridge_points, share
from profiles import bare_gpu, cpu_only, h200, replace_ceilings, replace_device, two_gpus


def printed(profile: MachineProfile, width: int = 100, terminal: bool = False) -> str:
    out = io.StringIO()
    render(profile, Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def cells(profile: MachineProfile, table: int, row: str) -> dict[str, str]:
    block = blocks(profile.devices[0])[table]
    found = next(r for r in block.rows if r[0] == row)
    return dict(zip((h.replace("\n", " ") for h in block.headers), found, strict=True))


def conditions(c: Ceiling, **changes: object) -> Ceiling:
    return dataclasses.replace(c, conditions=dataclasses.replace(c.conditions, **changes))  # type: ignore[arg-type]


def test_the_h200_row_holds_all_figures() -> None:
    assert cells(h200(), 0, "bf16→fp32") == {
        "precision": "bf16→fp32", "spec TFLOP/s": "989", "burst": "781", "sustained": "663", "of spec": "67 %",
        "of burst": "85 %", "error": "2.4e-3", "J/TFLOP": "1.04", "clock MHz": "1455", "W of limit": "690/700",
        "limited by": "power cap",
    }  # fmt: skip
    assert cells(h200(), 1, "host to device, pinned")["burst"] == "53.7"
    assert cells(h200(), 1, "host to device, pageable")["burst"] == "7.00"
    assert cells(h200(), 1, "read")["burst of spec"] == "93 %"
    assert cells(h200(), 2, "launch in a graph")["least µs"] == "0.930"


@pytest.mark.parametrize("make", [h200, cpu_only, bare_gpu, two_gpus])
def test_fits_100_columns_uncut_and_without_colour_codes(make) -> None:
    text = printed(make())
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_narrow_console_cuts_no_number(width: int, terminal: bool) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(h200(), width, terminal))
    assert "…" not in text
    row = line_of(text, "fp8→fp32").split()
    assert row[:10] == ["fp8→fp32", "1979", "1526", "1270", "64", "%", "83", "%", "3.7e-2", "0.544"]


def test_the_title_names_memory_limit_driver_and_date() -> None:
    first = printed(h200()).splitlines()[0]
    assert first == "NVIDIA H200 · 140 GiB memory · power limit 700 W · driver 580.159.04 · 2026-12-01"
    assert "GPU-5d1c7f0e-0000-4a6b-9c53-6f4d2f8be002" in printed(two_gpus())


def test_absent_readings_never_print_as_zero() -> None:
    text = printed(bare_gpu())
    assert line_of(text, "fp32→fp32").split() == ["fp32→fp32", "–", "10.1", *"––––––––"]
    assert "– memory · power limit – · driver –" in text
    assert not re.search(r"(?<![\d.:])0(\.0+)?(?![\d.x:])", text.replace("pci:0000:01:00.0", "").replace("2.11.0+", ""))
    assert "power –: not supported by this driver" in text
    assert "no sustained figures: not asked for (--quick)" in text


def test_an_unverified_spec_is_marked_and_gives_no_share() -> None:
    row = cells(h200(), 0, "fp16→fp16")
    assert (row["spec TFLOP/s"], row["of spec"], row["of burst"]) == ("989?", "–", "86 %")
    assert cells(h200(), 0, "int8→int32")["spec TFLOP/s"] == "1979~"
    assert "? unverified, so no share is taken of it" in printed(h200())


def test_a_share_above_one_becomes_the_failed_assumption() -> None:
    slow = Figure(600e12, "sheet", "another card")
    device = h200().devices[0]
    rates = tuple(dataclasses.replace(r, figure=slow) if r.precision == "bf16" else r for r in device.spec.rates)
    profile = dataclasses.replace(
        h200(), devices=(dataclasses.replace(device, spec=dataclasses.replace(device.spec, rates=rates)),)
    )
    assert cells(profile, 0, "bf16→fp32")["of spec"] == "–"
    text = " ".join(printed(profile).split())
    assert "bf16→fp32: no share of spec, it would be 1.10 times it: the spec is of another card or assumes" in text


def test_a_share_within_the_spread_above_one_is_100_percent() -> None:
    c = h200().devices[0].ceilings[3]
    assert share(c, 1.01, 1.0, "burst") == ("100 %", None)
    assert share(c, 1.02, 1.0, "burst")[0] == "–"
    assert share(c, None, 1.0, "burst") == ("–", None)
    assert share(c, 1.0, None, "spec") == ("–", None)


def test_an_invalid_ceiling_shows_its_reason_and_no_figure() -> None:
    def break_bf16(c: Ceiling) -> Ceiling:
        return dataclasses.replace(c, invalid="faster than the spec: it was not timed") if c.precision == "bf16" else c

    profile = replace_ceilings(h200(), break_bf16)
    row = cells(profile, 0, "bf16→fp32")
    assert (row["burst"], row["sustained"], row["of spec"], row["of burst"], row["J/TFLOP"]) == ("–",) * 5
    assert "invalid" in row["limited by"]
    text = printed(profile)
    assert "bf16→fp32 is invalid, so it has no figure: faster than the spec: it was not timed" in text
    assert "781" not in text
    assert "bf16→fp32 148" not in text  # no ridge point of it either


def test_emulated_is_said() -> None:
    text = printed(cpu_only())
    assert "emulated" in line_of(text, "fp16→fp32")
    assert "fp16→fp32 is emulated: this CPU has no fp16 units" in text


def test_ridge_points_are_matmul_over_read() -> None:
    found = {(c.precision, c.accumulate): (value, how) for c, value, how in ridge_points(h200().devices[0])}
    assert found["bf16", "fp32"] == (pytest.approx(663e12 / 4.48e12), "sustained matmul ÷ burst memory read")
    assert len(found) == 8
    assert ridge_points(bare_gpu().devices[0]) == ()


def test_the_line_names_the_power_cap_from_the_data() -> None:
    line = "power cap at 700 W holds the clock at 1410 of 1980 MHz: fp8→fp32 sustained is 83 % of burst"
    assert line in printed(h200()).splitlines()
    free = replace_ceilings(h200(), lambda c: conditions(c, limited_by=None))
    assert "power cap at" not in printed(free)


def test_the_line_names_heat_with_the_temperature() -> None:
    cause = "thermal slowdown"
    hot = replace_ceilings(h200(), lambda c: conditions(c, limited_by=cause) if c.precision == "fp8" else c)
    assert "thermal slowdown at 61 °C holds the clock at 1410 of 1980 MHz" in printed(hot)


def test_other_processes_come_first() -> None:
    shared = replace_ceilings(h200(), lambda c: conditions(c, other_processes=("pid 7 (python)",)))
    assert "other processes on the device: pid 7 (python)" in printed(shared)
    assert "power cap at" not in printed(shared)


def test_nothing_is_said_of_what_is_not_recorded() -> None:
    text = printed(replace_ceilings(h200(), lambda c: c if c.kind == "memory_read" else None))
    assert "pinned" not in text
    assert "graph" not in text
    assert "Launch" not in text


def test_unknown_throttling_is_called_unknown() -> None:
    assert "what holds it is unknown (hidden in this virtual machine)" in " ".join(printed(cpu_only()).split())


def test_hostile_names_are_printed_plainly() -> None:
    profile = replace_device(h200(), link=h200().devices[0].device.link)
    device = dataclasses.replace(profile.devices[0], name="[red]H200[/red]\x1b[31m\nrm")
    text = printed(dataclasses.replace(profile, devices=(device,)))
    assert text.splitlines()[0].startswith("[red]H200[/red]�[31m�rm · 140 GiB")
    assert "\x1b" not in text


def test_a_skipped_kind_gives_its_reason() -> None:
    assert "matmul fp4 (sums in fp32): no fp4 units before sm_100" in printed(h200())
