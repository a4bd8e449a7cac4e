"""The hardware's counters: what ncu prints, each way in which it fails, and what is said of the figures."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fake_tools import NCU, NO_KERNEL, NOT_LOADED, PERMISSION, put_on_path
from nearpeak.kernelcheck import tool
from nearpeak.kernelcheck.advice import Facts
from nearpeak.kernelcheck.bounds import Chip
from nearpeak.kernelcheck.check import Request, check_kernel
from nearpeak.kernelcheck.counted import WAITS, causes_of, compare
from nearpeak.kernelcheck.counters import METRICS, STALLS, Counters, count, number, parse
from nearpeak.kernelcheck.explain import ASSUMED, Explanation, explain, with_counters
from nearpeak.kernelcheck.load import declaration_of
from nearpeak.kernelcheck.ops import find_op
from nearpeak.kernelcheck.source import read_source
from nearpeak.kernelcheck.tool import find_tool, run_tool

EXAMPLES = Path(__file__).parents[1] / "examples" / "kernels"
PLAIN = Request(str(EXAMPLES / "matmul_1_plain.cu"))
SIZES = {"m": 1024, "n": 1024, "k": 1024}


def explained(kernel: str = "matmul_1_plain", sizes: dict[str, int] = SIZES, chip: Chip = ASSUMED) -> Explanation:
    source = read_source(str(EXAMPLES / f"{kernel}.cu"))
    declaration = declaration_of(source, {})
    return explain(source, declaration, find_op(str(declaration.op), declaration.layout), sizes, chip)


def test_a_raw_page_is_read() -> None:
    [(name, found)] = parse(NCU)
    assert name == "matmul_plain"
    assert found.seconds == pytest.approx(2.301888e-3)
    assert (found.memory_read, found.memory_written, found.cache_bytes) == (8412672, 4194304, 9395240960)
    assert (found.read_requests, found.read_sectors) == (67108864, 587202560)
    assert (found.read_use, found.occupancy, found.issue) == pytest.approx((0.125, 0.9871, 0.0625))
    assert (found.registers, found.threads, found.matrix_units, found.local_sectors) == (32, 32, 0, 0)
    assert found.stalls == (("lg_throttle", 31.2), ("long_scoreboard", 18.4), ("wait", 1.05))


def test_other_units_and_what_is_no_number() -> None:
    assert number("1,234.5", "byte") == 1234.5
    assert number("2.5", "Mbyte") == 2.5e6
    assert number("7", "usecond") == pytest.approx(7e-6)
    assert number("40", "%") == pytest.approx(0.4)
    for text in ("n/a", "nan", "", "inf", "(!) n/a"):
        assert number(text, "") is None


@pytest.mark.parametrize("text", ["", "nothing", '"ID","Kernel Name"', '"ID","Kernel Name"\n"","byte"\n"0"'])
def test_a_page_without_a_kernel_gives_nothing(text: str) -> None:
    assert parse(text) == []


def test_every_wait_has_a_name_and_a_counter() -> None:
    assert set(STALLS) == set(WAITS)
    assert len(set(METRICS)) == len(METRICS)


def test_ncu_is_run_on_one_launch_with_the_clocks_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(monkeypatch, tmp_path, "ncu", NCU)
    found = count(PLAIN, SIZES, "cuda:0", "matmul_plain")
    assert isinstance(found, Counters)
    assert found.registers == 32
    asked = (tmp_path / "ncu.asked").read_text().split("\n")
    for option, value in [("--clock-control", "none"), ("--page", "raw"), ("--launch-count", "1"),
                          ("--profile-from-start", "off")]:  # fmt: skip
        assert asked[asked.index(option) + 1] == value
    assert "nearpeak.kernelcheck.once" in asked


@pytest.mark.parametrize(
    ("says", "code", "reason"),
    [
        (PERMISSION, 1, "only administrators"),
        (NOT_LOADED, 1, "ncu: Failed to initialize the profiler: LibraryNotLoaded"),
        (NO_KERNEL, 0, "ncu: No kernels were profiled"),
        ("Segmentation fault\n", 139, "ncu ended with exit code 139: Segmentation fault"),
        ("", 5, "ncu ended with exit code 5"),
        (NCU.replace("matmul_plain", "fill_kernel"), 0, "ncu saw fill_kernel, not matmul_plain"),
    ],
)
def test_each_way_of_failing_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, code: int, reason: str
) -> None:
    put_on_path(monkeypatch, tmp_path, "ncu", says, code)
    found = count(PLAIN, SIZES, "cuda:0", "matmul_plain")
    assert isinstance(found, str)
    assert reason in found
    assert "\n" not in found


def test_where_a_counter_is_unknown_the_common_ones_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unknown = 'case "$*" in *gmma*) echo "==ERROR== Failed to find metric smsp__gmma"; exit 1;; esac'
    put_on_path(monkeypatch, tmp_path, "ncu", NCU, first=unknown)
    assert isinstance(count(PLAIN, SIZES, "cuda:0", "matmul_plain"), Counters)
    assert "gmma" not in (tmp_path / "ncu.asked").read_text()
    put_on_path(monkeypatch, tmp_path, "ncu", "==ERROR== Failed to find metric dram__bytes_read.sum\n", 1)
    assert count(PLAIN, SIZES, "cuda:0", "matmul_plain") == "ncu: Failed to find metric dram__bytes_read.sum"


def test_without_ncu_the_reason_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(tool.find_tool, "__defaults__", ((),))
    assert count(PLAIN, SIZES, "cuda:0", "matmul_plain") == "ncu (Nsight Compute) is not installed"


def test_an_ncu_that_cannot_start_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(monkeypatch, tmp_path, "ncu", "").write_text("no program")
    found = count(PLAIN, SIZES, "cuda:0", "matmul_plain")
    assert isinstance(found, str)
    assert "cannot be started" in found


def test_an_ncu_without_end_is_stopped_with_what_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = os.environ["PATH"]
    put_on_path(monkeypatch, tmp_path, "ncu", "", first=f'PATH="{here}"\nsleep 60 & echo $! > "{tmp_path}/child"\nwait')
    start = time.monotonic()
    assert count(PLAIN, SIZES, "cuda:0", "matmul_plain", 1.0) == "ncu gave no answer within 1 s"
    assert time.monotonic() - start < 20
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert not child.exists() or ") Z " in child.read_text()


def test_tools_are_found_on_the_path_in_cuda_home_and_in_the_usual_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for place in ("home/bin", "tools/2024.1", "tools/2025.3"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "ncu").write_text("#!/bin/sh\n")
        (tmp_path / place / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    folders = (str(tmp_path / "none"), str(tmp_path / "tools" / "*"))
    assert find_tool("ncu", folders) == tmp_path / "tools/2025.3/ncu"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert find_tool("ncu", folders) == tmp_path / "home/bin/ncu"
    monkeypatch.setenv("PATH", str(tmp_path / "tools/2024.1"))
    assert find_tool("ncu", folders) == tmp_path / "tools/2024.1/ncu"
    assert find_tool("compute-sanitizer", folders) is None


def test_a_tools_output_and_exit_code() -> None:
    ended = run_tool(["/bin/sh", "-c", "echo out; echo err >&2; echo $NAME; exit 3"], 10, {"NAME": "value"})
    assert (sorted(ended.text.split()), ended.code) == (["err", "out", "value"], 3)


# ---- what is said of the figures -----------------------------------------------------------------------------------


def test_counted_and_traced_figures_stand_side_by_side() -> None:
    why = explained()
    [(_, counters)] = parse(NCU)
    found = {c.what: c for c in with_counters(why, counters).compared}
    reads = [line for line in why.lines if line.kind == "read" and line.space == "global"]
    sectors = found["sectors a read request"]
    assert sectors.counted == pytest.approx(587202560 / 67108864)
    assert sectors.traced == pytest.approx(sum(x.sectors for x in reads) / sum(x.requests for x in reads))
    assert sectors.note == ""  # within the stated factor
    assert found["registers a thread"].note == ""
    assert found["moved ÷ needed by the op"].counted == pytest.approx((8412672 + 4194304) / (3 * 4 * 1024**2))
    assert found["moved ÷ needed by the op"].traced == pytest.approx(1.0)
    assert found["warps waiting for a place in the queue to memory"].counted == 31.2
    assert with_counters(why, counters).advice.causes == why.advice.causes  # the trace's, which name lines


def test_what_differs_by_more_than_the_factor_is_said() -> None:
    why = explained()
    [(_, counters)] = parse(NCU)
    counters = replace(counters, memory_read=80e6, memory_written=1e6, read_sectors=67108864 * 2.0, occupancy=0.3)
    notes = {c.what: c.note for c in compare(counters, why.facts, why.resources)}
    assert notes["read from memory"].startswith("9.5 times the traced figure: the caches lose data")
    assert "still in the second-level cache" in notes["written to memory"]
    assert "do not stand for the whole grid" in notes["sectors a read request"]
    assert "blocks end unevenly" in notes["warps at a time, of those a multiprocessor holds"]
    copied = {c.what: c for c in compare(counters, why.facts, why.resources, copies=True)}
    assert copied["sectors a read request"].traced is None


def test_a_counter_that_a_gpu_has_not_is_left_out() -> None:
    why = explained()
    assert compare(Counters(), why.facts, why.resources) == ()
    assert [c.what for c in compare(Counters(issue=0.5), why.facts, why.resources)] == ["issue slots used"]


def untraced(measured: float | None = 1e-3, limit: float | None = 1e-4) -> Facts:
    facts = explained().facts
    return replace(facts, trace=replace(facts.trace, stopped="not traced: x"), measured=measured, limit=limit)


GOOD = Counters(
    read_requests=1e6, read_sectors=4e6, read_use=1.0, write_requests=1e5, write_sectors=4e5, write_use=1.0,
    shared_passes=1e6, bank_conflicts=1e4, occupancy=0.9, issue=0.6, threads=32.0, local_sectors=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({}, None),
        ({"read_sectors": 3.2e7, "read_use": 0.125}, "access pattern"),
        ({"write_sectors": 1.6e6, "write_use": 0.25}, "access pattern"),
        ({"read_sectors": 1e6, "read_use": 0.125}, None),  # one word for the whole warp
        ({"bank_conflicts": 5e5}, "bank conflicts"),
        ({"threads": 12.0}, "idle threads"),
        ({"occupancy": 0.2, "issue": 0.1, "stalls": (("long_scoreboard", 9.0),)}, "few warps"),
        ({"occupancy": 0.2, "issue": 0.1, "matrix_units": 0.9}, None),  # few warps, but the matrix units are busy
        ({"local_sectors": 1e6}, "spills"),
    ],
)
def test_counters_alone_name_what_they_show(changed: dict[str, float], cause: str | None) -> None:
    found = causes_of(replace(GOOD, **changed), untraced())  # type: ignore[arg-type]
    assert [c.name for c in found] == ([cause] if cause else [])
    for c in found:
        assert c.seconds == (1e-4, 1e-3)
        assert c.gain == pytest.approx((1.0, 10.0))
        assert "(counted)" in c.what


def test_a_healthy_or_untimed_kernel_has_no_cause() -> None:
    bad = replace(GOOD, bank_conflicts=9e5)
    assert causes_of(bad, untraced(1e-3, 0.95e-3)) == ()
    assert causes_of(bad, untraced(None)) == ()
    assert causes_of(bad, untraced(limit=None)) == ()


def test_where_nothing_was_traced_the_causes_are_the_counters() -> None:
    why = replace(explained(), stopped="not traced: x", facts=untraced())
    found = with_counters(why, replace(GOOD, bank_conflicts=9e5))
    assert found.advice.causes[0].name == "bank conflicts"
    assert with_counters(why, "a reason").uncounted == "a reason"


# ---- on a GPU ------------------------------------------------------------------------------------------------------

REFUSALS = ("not installed", "only administrators", "LibraryNotLoaded")


def counted_here(kernel: str, name: str, sizes: dict[str, int]) -> Counters:
    found = count(Request(str(EXAMPLES / kernel)), sizes, "cuda:0", name, 120.0)
    if isinstance(found, str) and any(reason in found for reason in REFUSALS):
        pytest.skip(found)
    assert isinstance(found, Counters), found
    return found


@pytest.mark.gpu
def test_the_counters_of_a_plain_product_on_a_gpu() -> None:
    counters = counted_here("matmul_1_plain.cu", "matmul_plain", SIZES)
    properties = torch.cuda.get_device_properties(0)
    architecture = f"sm_{properties.major}{properties.minor}"
    why = with_counters(explained(chip=replace(ASSUMED, architecture=architecture)), counters)
    missing = [name for name, value in vars(counters).items() if value is None]
    assert missing == [], missing
    assert 1e-5 < float(counters.seconds or 0) < 1.0
    found = {c.what: c for c in why.compared}
    for what in ("sectors a read request", "sectors a write request", "registers a thread"):
        assert found[what].counted == pytest.approx(found[what].traced, rel=0.05), found[what]
    assert found["active threads of a warp's 32"].counted == pytest.approx(32)
    assert float(counters.memory_read or 0) == pytest.approx(2 * 4 * 1024**2, rel=0.5)
    assert counters.matrix_units == 0
    assert len(counters.stalls) == 3


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "name", "shared", "matrix"),
    [("matmul_4_register_tiles.cu", "matmul_register_tiles", True, False),
     ("matmul_6_matrix_units.cu", "matmul_matrix_units", True, True),
     ("matmul_triton.py:matmul_fp32", "matmul_fp32", True, False),
     ("matmul_triton.py:matmul_nt_bf16", "matmul_nt_bf16", False, True)],
)  # fmt: skip
def test_the_counters_see_shared_memory_and_matrix_units_on_a_gpu(
    kernel: str, name: str, shared: bool, matrix: bool
) -> None:
    counters = counted_here(kernel, name, SIZES)
    assert not shared or float(counters.shared_passes or 0) > 0
    assert (float(counters.matrix_units or 0) > 0.02) == matrix
    assert np.isfinite(float(counters.occupancy or 0))
    assert 0 < float(counters.occupancy or 0) <= 1


@pytest.mark.gpu
def test_a_whole_check_on_a_gpu_says_what_was_counted_and_watched() -> None:
    result = check_kernel(Request(PLAIN.file, shape="2048,2048,2048")).result
    assert result["right"] is True, result["verdict"]
    assert any("compute-sanitizer" in note for note in result["verdict"]["notes"])
    assert result["why"]["causes"][0]["name"] == "access pattern"
    counters = result["why"]["counters"]
    assert set(counters) == {"missing"} or counters["compared"]
    if "missing" in counters:
        pytest.skip(counters["missing"])
    notes = {c["what"]: c["note"] for c in counters["compared"]}
    assert notes["sectors a read request"] == notes["registers a thread"] == ""
