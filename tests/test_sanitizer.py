"""compute-sanitizer: its reports, each way in which it fails, and what it changes in a verdict."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fake_tools import CLEAN, MEMCHECK, OLD_MEMCHECK, RACECHECK, REFUSED, put_on_path
from nearpeak.kernelcheck import tool
from nearpeak.kernelcheck.check import Request, check_kernel
from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.load import declaration_of
from nearpeak.kernelcheck.once import RAN, once_command
from nearpeak.kernelcheck.ops import find_op
from nearpeak.kernelcheck.sanitizer import Kind, Place, Report, Watched, judge, parse, watch
from nearpeak.kernelcheck.shapes import ragged_shape
from nearpeak.kernelcheck.source import read_source
from nearpeak.kernelcheck.tools import Tools
from nearpeak.kernelcheck.verdict import Finding, Verdict

HERE = Path(__file__).parent
KERNELS, EXAMPLES = HERE / "kernels", HERE.parent / "examples" / "kernels"
WRONG = Request(str(KERNELS / "wrong.cu:reads_past_the_end"))
RAN_IT = f': > "$run/{RAN}"'  # what the watched program leaves when all went well
RIGHT = Verdict(True, (), 0.0, 0.0, 0.0, shapes=("n=1000",), notes=("before",))
PLACE = Place(KERNELS / "wrong.cu")


def test_accesses_out_of_bounds() -> None:
    first, second = parse(MEMCHECK)
    assert first == Report(
        "Invalid __global__ read of size 4 bytes", "reads_past_the_end", "wrong.cu", 19,
        "thread (1,0,0) in block (16,0,0)",
        "out of bounds, 1 bytes after the nearest allocation of size 4,100 bytes",
    )  # fmt: skip
    assert second.thread == "thread (2,0,0) in block (16,0,0)"


def test_the_older_form_and_other_spaces() -> None:
    first, second = parse(OLD_MEMCHECK)
    assert (first.function, first.file, first.line) == ("add_bias", "/data/src/attention.cu", 162)
    assert (second.what, second.more) == ("Invalid __shared__ read of size 16 bytes", "misaligned")
    assert (second.file, second.line) == ("/repro/reduce.cuh", 118)


def test_races() -> None:
    first, second, third = parse(RACECHECK)
    assert first == Report("race of a write", "races", "wrong.cu", 27, "", "against read in line 29")
    assert (second.function, second.certain) == ("mixed", False)
    assert second.more == "against write in line 27, read in line 30"
    assert (third.function, third.line, third.more) == ("sgemm_32x32x32_NT_vec", 0, "")


def test_a_place_on_a_line_of_its_own() -> None:
    text = RACECHECK.replace("access at races", "access at\n=========     races").replace(" [", "\n=========     [")
    first = next(parse(text))
    assert (first.function, first.line, first.more) == ("races", 27, "against read in line 29")


@pytest.mark.parametrize("text", ["", CLEAN, REFUSED, "no report at all\n", "=========\n=========\n"])
def test_no_report(text: str) -> None:
    assert list(parse(text)) == []


@pytest.mark.parametrize(
    ("says", "code", "first", "reason"),
    [
        (REFUSED, 1, ":", "Device not supported"),
        ("========= Internal Sanitizer Error: out of memory\n", 255, ":", "out of memory"),
        ("Traceback:\nValueError: x\n", 1, ":", "ValueError: x"),
        ("", 7, ":", "exit code 7"),
        (CLEAN, 0, RAN_IT, None),
    ],
)
def test_each_way_of_ending(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, code: int, first: str, reason: str | None
) -> None:
    put_on_path(monkeypatch, tmp_path, "compute-sanitizer", says, code, first)
    seen = watch("memcheck", WRONG, {"n": 1025}, "cuda:0")
    assert seen.reports == ()
    assert reason in str(seen.missing) if reason else seen.missing is None
    assert "\n" not in str(seen.missing)
    asked = (tmp_path / "compute-sanitizer.asked").read_text().split("\n")
    assert asked[asked.index("--tool") + 1] == "memcheck"


def test_not_installed_and_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(monkeypatch, tmp_path, "compute-sanitizer", "", first="while :; do :; done")
    assert "no answer within 1 s" in str(watch("racecheck", WRONG, {"n": 5}, "cuda:0", 1.0).missing)
    (tmp_path / "compute-sanitizer").unlink()
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(tool.find_tool, "__defaults__", ((),))
    assert watch("racecheck", WRONG, {"n": 5}, "cuda:0").missing == "compute-sanitizer is not installed"


def test_each_tensor_has_an_allocation_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = f'echo $PYTORCH_NO_CUDA_MEMORY_CACHING > "{tmp_path}/alone"'
    put_on_path(monkeypatch, tmp_path, "compute-sanitizer", MEMCHECK, 1, says)
    assert len(watch("memcheck", WRONG, {"n": 1025}, "cuda:0").reports) == 2
    assert (tmp_path / "alone").read_text() == "1\n"


def test_the_watched_program_runs_the_kernel_once(tmp_path: Path) -> None:
    done = subprocess.run(once_command(tmp_path, Request(str(EXAMPLES / "matmul.cl")), {"m": 9, "n": 8, "k": 7}, "cpu",
                                       False), capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / RAN).exists()


# ---- the verdict ---------------------------------------------------------------------------------------------------


class Runs:
    """Answers as the tool would, and notes what it was asked."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, int]]] = []

    def __call__(self, kind: Kind, sizes: Sizes) -> Watched:
        self.asked.append((kind, dict(sizes)))
        text = self.answers.get(kind, CLEAN)
        return Watched(kind, tuple(parse(text))) if text.startswith("=") else Watched(kind, missing=text)


def test_a_right_kernel_stays_right_where_nothing_is_seen() -> None:
    runs = Runs()
    found = judge(RIGHT, runs, {"n": 17}, PLACE, races=True)
    assert found.right
    assert runs.asked == [("memcheck", {"n": 17}), ("racecheck", {"n": 17})]
    assert found.notes == (
        "before",
        "compute-sanitizer saw no accesses out of bounds at n=17",
        "compute-sanitizer saw no races in shared memory at n=17",
    )


@pytest.mark.parametrize(("kind", "text", "check", "line"), [("memcheck", MEMCHECK, "bounds", 19),
                                                             ("racecheck", RACECHECK, "race", 27)])  # fmt: skip
def test_a_report_makes_it_wrong(kind: str, text: str, check: str, line: int) -> None:
    found = judge(RIGHT, Runs(**{kind: text}), {"n": 17}, PLACE, races=True)
    assert not found.right
    assert [(f.check, f.shape) for f in found.findings] == [(check, "n=17")]
    assert f"in wrong.cu:{line} of" in found.findings[0].text
    assert found.failed == ("n=17",)


def test_what_the_tool_may_misunderstand_is_not_judged() -> None:
    found = judge(RIGHT, Runs(racecheck=RACECHECK), {"n": 17}, PLACE, races=False)
    assert found.right
    assert found.notes[-1].startswith("not judged: compute-sanitizer racecheck: race of a write in wrong.cu:27")
    warning = f"=========\n{RACECHECK[RACECHECK.index('========= Warning') : RACECHECK.rindex('========= Error')]}"
    assert judge(RIGHT, Runs(racecheck=warning), {"n": 17}, PLACE, races=True).right


def test_a_tool_that_is_missing_changes_nothing() -> None:
    found = judge(RIGHT, Runs(memcheck="not here", racecheck="not here"), {"n": 17}, PLACE, races=True)
    assert found.right
    assert "accesses out of bounds were not looked for by compute-sanitizer: not here" in found.notes


def test_a_finding_is_explained_at_its_own_shape() -> None:
    found = [
        ("bounds", "n=1025", "memory outside was read"),
        ("values", "n=33", "off"),
        ("race", "n=64", "runs differ"),
    ]
    wrong = replace(RIGHT, right=False, findings=tuple(Finding(check, at, text) for check, at, text in found))  # type: ignore[arg-type]
    runs = Runs(memcheck=MEMCHECK, racecheck=CLEAN)
    bounds, values, race = judge(wrong, runs, {"n": 17}, PLACE, races=True).findings
    assert runs.asked == [("memcheck", {"n": 1025}), ("racecheck", {"n": 64})]
    assert bounds.text.startswith("memory outside was read. compute-sanitizer memcheck: Invalid __global__ read")
    assert (values.text, race.text) == ("off", "runs differ")


def test_lines_are_the_files_own() -> None:
    place = Place(KERNELS / "wrong.cu", line_offset=100)
    [found] = judge(RIGHT, Runs(racecheck=RACECHECK), {"n": 17}, place, races=True).findings
    assert "wrong.cu:127" in found.text
    assert "read in line 129" in found.text


def tools(request: Request, device: str, sizes: dict[str, int]) -> Tools:
    source = read_source(request.file)
    declaration = declaration_of(source, {})
    op = find_op(str(declaration.op))
    return Tools(request, source, declaration, op, sizes, torch.device(device), lambda text: None)


def test_tools_run_on_cuda_alone_and_only_while_there_is_time() -> None:
    here = tools(WRONG, "cpu", {"n": 5})
    assert here.watch(RIGHT) is RIGHT
    assert here.count() == "it does not run on a CUDA GPU"
    without = tools(Request(WRONG.file, tools=False), "cuda", {"n": 5})
    assert without.watch(RIGHT) is RIGHT
    assert without.count() == "left out by --no-tools"
    late = tools(Request(WRONG.file, seconds=30.0), "cuda", {"n": 5})
    assert late.watch(RIGHT).right
    assert "too little is left of --timeout 30" in late.watch(RIGHT).notes[-1]
    assert tools(Request(WRONG.file, seconds=20.0), "cuda", {"n": 5}).count() == "too little is left of --timeout 20"


def test_races_are_judged_where_only_ordinary_barriers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = {}
    monkeypatch.setattr(
        "nearpeak.kernelcheck.sanitizer.judge",
        lambda verdict, runs, ragged, place, races: judged.update({place.path.name: races}),
    )
    for name in ("matmul_3_shared_tiles.cu", "matmul_7_pipelined.cu", "matmul_triton.py:matmul_fp32"):
        tools(Request(str(EXAMPLES / name)), "cuda", {"m": 64, "n": 64, "k": 64}).watch(RIGHT)
    assert judged == {"matmul_3_shared_tiles.cu": True, "matmul_7_pipelined.cu": False, "matmul_triton.py": False}


@pytest.mark.parametrize(
    ("op", "asked", "require", "ragged"),
    [
        ("matmul", {"m": 4096, "n": 4096, "k": 4096}, None, {"m": 24, "n": 40, "k": 1031}),
        ("transpose", {"rows": 64, "columns": 64}, None, {"rows": 257, "columns": 131}),
        ("copy", {"n": 64}, None, {"n": 100003}),
    ],
)
def test_the_shape_it_is_watched_at(
    op: str, asked: dict[str, int], require: str | None, ragged: dict[str, int]
) -> None:
    assert ragged_shape(find_op(op), asked, require) == ragged


def test_the_shape_satisfies_what_the_kernel_requires() -> None:
    found = ragged_shape(find_op("matmul"), {"m": 64, "n": 64, "k": 64}, "k % 8 == 0 and n % 8 == 0")
    assert found["k"] % 8 == found["n"] % 8 == 0
    assert any(size % 16 for size in found.values())


# ---- on a GPU ------------------------------------------------------------------------------------------------------

REFUSALS = ("not installed", "not supported")


def watched_here(kind: Kind, file: Path | str, sizes: dict[str, int]) -> Watched:
    seen = watch(kind, Request(str(file)), sizes, "cuda:0", 180.0)
    if seen.missing and any(reason in seen.missing for reason in REFUSALS):
        pytest.skip(seen.missing)
    assert seen.missing is None, seen.missing
    return seen


@pytest.mark.gpu
def test_a_planted_read_out_of_bounds_on_a_gpu() -> None:
    seen = watched_here("memcheck", WRONG.file, {"n": 1025})
    assert seen.reports
    assert "__global__ read of size 4" in seen.reports[0].what
    assert (Path(seen.reports[0].file).name, seen.reports[0].line) == ("wrong.cu", 19)
    assert seen.reports[0].function == "reads_past_the_end"


@pytest.mark.gpu
def test_a_planted_race_on_a_gpu() -> None:
    seen = watched_here("racecheck", f"{KERNELS / 'wrong.cu'}:races", {"n": 1025})
    assert [report for report in seen.reports if report.certain], seen.reports
    assert seen.reports[0].line in (27, 29)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["memcheck", "racecheck"])
@pytest.mark.parametrize(
    "name", ["matmul_3_shared_tiles.cu", "matmul_5_vector_loads.cu", "matmul_triton.py:matmul_fp32"]
)
def test_right_kernels_are_clean_on_a_gpu(kind: Kind, name: str) -> None:
    assert watched_here(kind, EXAMPLES / name, {"m": 33, "n": 65, "k": 127}).reports == ()


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "check"), [("reads_past_the_end", "bounds"), ("races", "race")])
def test_what_is_right_by_luck_is_refused_on_a_gpu(name: str, check: str) -> None:
    watched_here("memcheck", EXAMPLES / "matmul_1_plain.cu", {"m": 17, "n": 19, "k": 23})  # or skip
    result = check_kernel(Request(f"{KERNELS / 'wrong.cu'}:{name}", shape="1000")).result
    assert result["right"] is False
    [finding] = result["verdict"]["findings"]
    assert finding["check"] == check
    assert "compute-sanitizer" in finding["text"]
    assert result["speed"] is None
