"""Measuring on the CPU, end to end with little effort, and the `measure` command with its exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import profiles
from fake_sensors import FakeSensors, device
from nearpeak.ceilings import bandwidth, bench, matmul, measure, profile_file
from nearpeak.ceilings.bench import Bench, Effort, NotMeasured
from nearpeak.ceilings.coverage import merged
from nearpeak.cli import measure as command
from nearpeak.cli.main import main
from nearpeak.hardware.cpu import cpu_device
from nearpeak.records.ceiling import Load
from nearpeak.records.errors import UserError
from nearpeak.records.machine_profile import MachineProfile
from nearpeak.records.reading import Reading
from nearpeak.timing.sustained import Settling, Sustained

SHORT = Settling(0.01, 0.05, 0.02)
FULL = {"sustained": SHORT, "brief": SHORT}
LITTLE = Effort(rest=0, warm_up=0.001, burst=0.002, longest_call=0.5, sustained=None, brief=None)


@pytest.fixture
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CPU_QUICK", LITTLE)
    monkeypatch.setattr(bench, "CPU", dataclasses.replace(LITTLE, **FULL))
    monkeypatch.setattr(matmul, "CPU_SHAPES", ((32, 16, 48), (64, 64, 64)))
    monkeypatch.setattr(matmul, "EMULATED_SHAPES", ((16, 16, 16),))
    monkeypatch.setattr("nearpeak.timing.sustained.BATCH_S", 0.01)
    monkeypatch.setattr("nearpeak.ceilings.launch.WARM_UP_S", 0.01)
    monkeypatch.setattr("nearpeak.ceilings.launch.TIMED_S", 0.05)
    for side, length in (("M", 64), ("N", 64), ("K", 512)):
        monkeypatch.setattr(f"nearpeak.ceilings.product_error.{side}", length)
    monkeypatch.setattr(bandwidth, "buffer_bytes", lambda bench, buffers: 2**20)
    for name in ("memory_read", "memory_write", "memory_copy"):
        monkeypatch.setattr(f"nearpeak.ceilings.{name}.buffer_bytes", lambda bench, buffers: 2**20)


def measured(quick: bool, kinds: tuple[str, ...] = command.KINDS, **sensors: object) -> MachineProfile:
    cpu = device("cpu", features=("avx512_bf16",))
    machine = measure.describe_machine([cpu], "nearpeak measure", None)
    work = [(cpu, FakeSensors(sensors), None)]  # type: ignore[arg-type]
    return measure.measure_machine(work, kinds, quick, machine, lambda text: None)


def test_every_kind_is_measured_or_says_why_not(little_effort: None) -> None:
    [cpu] = measured(quick=False).devices
    had = {c.kind for c in cpu.ceilings}
    assert had == {"matmul", "memory_read", "memory_write", "memory_copy", "cache_read", "launch"}
    assert set(command.KINDS) - had <= set(cpu.skipped)
    assert all(cpu.skipped.values())
    for c in cpu.ceilings:
        assert c.burst is not None
        assert c.burst > 0
        assert c.invalid is None
        assert c.conditions.method
        assert c.conditions.samples >= 5
        for name in ("sustained", "error", "energy_per_unit"):
            assert (getattr(c, name) is None) == (name in c.conditions.missing), (c.kind, c.precision, name)


def test_a_matmul_is_measured_in_every_precision_with_its_error(little_effort: None) -> None:
    [cpu] = measured(quick=False, kinds=("matmul",)).devices
    errors = {c.precision: c.error for c in cpu.ceilings}
    assert set(errors) == {"fp64", "fp32", "bf16", "fp16", "int8"}
    assert errors["int8"] is None
    assert errors["fp64"] < errors["fp32"] < errors["fp16"] < errors["bf16"]  # type: ignore[operator]
    emulated = {c.precision for c in cpu.ceilings if c.conditions.emulated}
    assert emulated == {"fp16", "int8"}
    assert cpu.settle_s is not None
    fp32 = cpu.ceiling("matmul", "fp32")
    assert fp32 is not None
    assert fp32.sustained is not None


def test_quick_has_bursts_only_and_leaves_the_emulated_out(little_effort: None) -> None:
    [cpu] = measured(quick=True, kinds=("matmul", "memory_read")).devices
    assert {c.precision for c in cpu.ceilings} == {"fp64", "fp32", "bf16", None}
    assert all(c.sustained is None and "quick" in c.conditions.missing["sustained"] for c in cpu.ceilings)
    assert "--quick" in cpu.skipped["matmul fp16 (sums in fp32)"]
    assert cpu.settle_s is None


def test_one_ceiling_that_fails_leaves_the_others(little_effort: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(bench: Bench) -> list[object]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nand more text")

    monkeypatch.setitem(measure.CEILINGS, "memory_read", fails)  # type: ignore[arg-type]
    [cpu] = measured(quick=True, kinds=("memory_read", "launch")).devices
    assert [c.kind for c in cpu.ceilings] == ["launch"]
    assert cpu.skipped["memory_read"] == "CUDA out of memory. Tried to allocate 20 GiB."


def test_a_nan_product_is_no_ceiling(little_effort: None, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = torch.full((64, 64), float("nan"))
    monkeypatch.setattr("nearpeak.ceilings.product_error.product", lambda *_: lambda a, b: nan)
    [cpu] = measured(quick=True, kinds=("matmul",)).devices
    assert cpu.ceilings == ()
    assert "not finite" in cpu.skipped["matmul fp32 (sums in fp32)"]


@pytest.mark.parametrize("name", ["_bursts", "_sustained", "_ceiling"])
def test_one_precision_that_fails_leaves_the_others(
    little_effort: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As a torch that lacks one product, or memory that runs out in one."""
    works = getattr(matmul, name)

    def fails(bench: Bench, one: object) -> object:
        if "bf16" in str(one):
            raise NotImplementedError('\n"addmm_impl_cpu_" not implemented')
        return works(bench, one)

    monkeypatch.setattr(matmul, name, fails)
    [cpu] = measured(quick=False, kinds=("matmul",)).devices
    assert {c.precision for c in cpu.ceilings} == {"fp64", "fp32", "fp16", "int8"}
    assert cpu.skipped["matmul bf16 (sums in fp32)"] == '"addmm_impl_cpu_" not implemented'


def test_a_compiler_that_fails_leaves_the_others(little_effort: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton without Python's headers: gcc fails, and that is no RuntimeError."""

    def fails(bench: Bench) -> list[object]:
        raise subprocess.CalledProcessError(1, "gcc")

    monkeypatch.setitem(measure.CEILINGS, "memory_read", fails)  # type: ignore[arg-type]
    [cpu] = measured(quick=True, kinds=("memory_read", "launch")).devices
    assert [c.kind for c in cpu.ceilings] == ["launch"]
    assert "CalledProcessError" in cpu.skipped["memory_read"]
    assert "gcc" in cpu.skipped["memory_read"]


def test_kernels_that_cannot_be_compiled_are_told_from_those_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("nearpeak.kernels.memory", reason="Triton exists for Linux only")

    def fails(*_: object) -> None:
        raise subprocess.CalledProcessError(1, "gcc")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert bandwidth.memory_kernels(device) == (memory, None)
    monkeypatch.setattr(memory, "read_sum", fails)
    kernels, why = bandwidth.memory_kernels(device)
    assert kernels is None
    assert "gcc" in (why or "")


def test_energy_is_mean_power_over_the_mean_rate() -> None:
    """Batches of 0.1 and 0.3 s: their median is no mean."""
    load = Load(seconds=2.5, energy_j=250.0)
    held = Sustained(calls_per_s=10 / 0.1, calls=100, seconds=2.0, settle_s=0.1, wander=2.0, load=load)
    joules, _ = bench.energy_per_unit(held, 8)
    assert joules == pytest.approx(100.0 / (100 * 8 / 2.0))


def test_sensors_are_in_the_conditions(little_effort: None) -> None:
    told = {"clock": lambda: 3e9, "processes": lambda: ("pid 7 (game)",), "throttle": lambda: ("power cap",)}
    [cpu] = measured(quick=False, kinds=("memory_read",), **told).devices
    [read] = cpu.ceilings
    assert read.conditions.burst is not None
    assert read.conditions.burst.clock_hz == 3e9
    assert read.conditions.other_processes == ("pid 7 (game)",)
    assert read.conditions.limited_by == "power cap"
    assert read.conditions.sustained is not None
    assert read.conditions.sustained.power_w is None
    assert read.conditions.sustained.missing["power_w"]


def test_arrays_too_small_to_pass_by_the_cache_are_refused_with_numbers() -> None:
    small = device("cpu", memory_available=Reading(300 * 2**20, "B", "fake"), cache=Reading(2**28, "B", "fake"))
    short = Bench(small, torch.device("cpu"), FakeSensors(), None, quick=True)
    with pytest.raises(MemoryError, match=r"50 MiB fit, too small beside a cache of 256 MiB"):
        bandwidth.buffer_bytes(short, 1)


def test_no_cache_size_no_cache_ceiling() -> None:
    from nearpeak.ceilings import cache_read
    from nearpeak.records.reading import missing

    unknown = device("cpu", cache=missing("B", "not told"))
    with pytest.raises(NotMeasured, match="not told"):
        cache_read.measure(Bench(unknown, torch.device("cpu"), FakeSensors(), None, quick=True))


# --- the command ---


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["nearpeak", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_json_is_one_document_and_the_profile_is_kept(
    little_effort: None, own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "measure", "--device", "cpu", "--json", "--html", own_folder / "page.html") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "nearpeak.machine-profile/1"
    [cpu] = document["devices"]
    assert {"id", "name", "kind", "spec", "ceilings"} <= set(cpu)
    for ceiling in cpu["ceilings"]:
        wanted = "kind precision accumulate burst sustained unit spread error energy_per_unit conditions invalid"
        assert set(ceiling) == set(wanted.split())
        assert ceiling["unit"] in ("FLOP/s", "B/s", "s")
    [kept] = own_folder.glob("nearpeak/machine-*.json")
    assert json.loads(kept.read_text()) == document
    assert (own_folder / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_narrower_run_never_replaces_a_fuller_profile(
    little_effort: None, own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "measure", "--device", "cpu") == 0
    [kept] = own_folder.glob("nearpeak/machine-*.json")
    before = kept.read_text()
    assert run(monkeypatch, "measure", "--device", "cpu", "--quick") == 0
    assert "fuller" in capsys.readouterr().err
    assert kept.read_text() == before
    assert run(monkeypatch, "measure", "--device", "cpu") == 0
    assert kept.read_text() != before


def test_devices_of_other_runs_are_kept() -> None:
    """`--device cpu` first and the GPU later: the profile ends with both."""
    cpu, gpu = profiles.cpu_only(), profiles.h200()
    both, kept = merged(cpu, gpu)
    assert [d.kind for d in both.devices] == ["gpu", "cpu"]
    assert kept == (cpu.devices[0].id,)
    again, kept = merged(both, both)
    assert (again, kept) == (both, ())


def test_a_half_rate_card_has_no_sheet_rate_for_fast_sums() -> None:
    from nearpeak.hardware.catalogue import find_by_name

    assert find_by_name("GeForce RTX 4090").rate("fp8", "fast") is None
    assert find_by_name("H200 SXM 141 GB").rate("fp8", "fast") is not None


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a wrong call: exit code 2, nothing measured."""

    def never(*_: object) -> None:
        raise AssertionError("measured in spite of wrong input")

    monkeypatch.setattr(measure, "measure_machine", never)
    assert run(monkeypatch, "measure", *arguments) == 2
    text = capsys.readouterr()
    assert text.out == ""
    [line] = text.err.strip().splitlines()
    return line


def test_unknown_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "GPU-nope" in refused(monkeypatch, capsys, "--device", "GPU-nope")


def test_folder_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--out", "--html"):
        assert "file" in refused(monkeypatch, capsys, "--device", "cpu", option, tmp_path / "file" / "x.json")
        assert "folder" in refused(monkeypatch, capsys, "--device", "cpu", option, tmp_path)


def test_compare_with_a_cut_or_foreign_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    whole = profile_file.to_json(profiles.h200())
    for name, text in (("cut.json", whole[: len(whole) // 2]), ("other.json", '{"schema": "another/1"}')):
        (tmp_path / name).write_text(text)
        assert name in refused(monkeypatch, capsys, "--device", "cpu", "--compare", tmp_path / name)
    assert "none.json" in refused(monkeypatch, capsys, "--device", "cpu", "--compare", tmp_path / "none.json")


def test_compare_across_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile_file.save(profiles.h200(), tmp_path / "h200.json")
    line = refused(monkeypatch, capsys, "--device", "cpu", "--compare", tmp_path / "h200.json")
    assert "GPU-" in line
    assert "cpu" in line


def test_a_lost_third_of_the_clock_is_exit_code_3(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = measured_cpu(1.0)
    profile_file.save(old, own_folder / "old.json")
    for factor, code in ((1.0, 0), (0.66, 3), (1.5, 0)):
        monkeypatch.setattr(measure, "measure_machine", lambda *_, factor=factor: measured_cpu(factor))
        assert run(monkeypatch, "measure", "--device", "cpu", "--compare", own_folder / "old.json") == code
    assert "matmul" in capsys.readouterr().out


def measured_cpu(factor: float) -> MachineProfile:
    """The fake CPU-only machine, its matmul rates and clock times `factor`."""
    profile = profiles.cpu_only()
    [cpu] = profile.devices
    slower = tuple(
        dataclasses.replace(c, burst=c.burst * factor if c.burst and c.kind == "matmul" else c.burst)
        for c in cpu.ceilings
    )
    here = cpu_device().name  # else it would be another machine's profile
    return dataclasses.replace(profile, devices=(dataclasses.replace(cpu, name=here, ceilings=slower),))


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "measure", "--device", "GPU-nope", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_page_and_profile_in_one_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = tmp_path / "one", tmp_path / "folder" / ".." / "one"
    assert "Name two files" in refused(monkeypatch, capsys, "--device", "cpu", "--out", names[0], "--html", names[1])


def test_what_was_measured_is_shown_though_it_cannot_be_saved(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise UserError("cannot write x: No space left on device.")

    monkeypatch.setattr(measure, "measure_machine", lambda *_: profiles.cpu_only())
    monkeypatch.setattr(profile_file, "save", full)
    assert run(monkeypatch, "measure", "--device", "cpu", "--json") == 2
    text = capsys.readouterr()
    assert json.loads(text.out)["devices"]
    assert "No space left" in text.err


def test_compare_with_another_machines_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Both are called "cpu"; the name tells them apart."""
    profile = profiles.cpu_only()
    [cpu] = profile.devices
    other = dataclasses.replace(profile, devices=(dataclasses.replace(cpu, name="Cray-1"),))
    profile_file.save(other, tmp_path / "cray.json")
    assert "Cray-1" in refused(monkeypatch, capsys, "--device", "cpu", "--compare", tmp_path / "cray.json")


@pytest.mark.parametrize("command", [("devices",), ("devices", "--json")])
def test_a_terminal_without_unicode(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nearpeak", *command],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
