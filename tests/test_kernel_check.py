"""`nearpeak kernel check` end to end on the CPU: right kernels, every wrong one, and CUDA without a GPU."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nearpeak.cli.main import main
from nearpeak.kernelcheck import apart
from nearpeak.kernelcheck.check import Request, _Check, check_kernel
from nearpeak.report.kernel_page import page
from nearpeak.report.kernel_table import without_repeats
from test_measure_page import Page

HERE = Path(__file__).parent
KERNELS, EXAMPLES = HERE / "kernels", HERE.parent / "examples" / "kernels"
RESULTS = HERE.parent / "benchmarks" / "results" / "ladder-h200"
OUTCOME = {"schema", "command", "device", "got", "limit", "share", "reason", "energy", "memory_bytes", "gap", "result"}

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where no GPU is")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user starts it."""
    return subprocess.run([sys.executable, "-m", "nearpeak", "kernel", "check", *words], capture_output=True, text=True)


class Ran:
    """What the command said and how it ended, run in this process: no second start of torch, no timing."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        monkeypatch.setattr(apart, "check_apart", self._here)
        monkeypatch.setattr(_Check, "_speed", lambda self, kernel, here: (None, None))
        monkeypatch.setattr(_Check, "_limit", lambda self, profile: None)

    def __call__(self, *words: str) -> Ran:
        self.monkeypatch.setattr(sys, "argv", ["nearpeak", "kernel", "check", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        self.code = stop.value.code
        self.out, self.err = self.capsys.readouterr()
        return self

    @staticmethod
    def _here(request: Request, timeout: float) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(check_kernel(request))))
        return content


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ran:
    return Ran(capsys, monkeypatch)


def test_opencl_end_to_end(tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    done = command(str(EXAMPLES / "matmul.cl"), "--shape", "64,64,64", "--json", "--html", str(html))
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert set(outcome) == OUTCOME
    result, speed = outcome["result"], outcome["result"]["speed"]
    assert result["right"] is True
    assert len(result["verdict"]["shapes"]) > 10
    assert speed["kernel"]["warm"] > 0
    assert speed["kernel"]["cold"] > 0
    assert speed["library"]["warm"] > 0
    assert result["share_of_library"] == pytest.approx(speed["library"]["warm"] / speed["kernel"]["warm"])
    assert outcome["got"]["flop_per_s"] == pytest.approx(2 * 64**3 / speed["kernel"]["warm"])
    for name, share in outcome["share"].items():  # on a busy machine the ceiling may be lower than the kernel's rate
        assert 0 < share <= 1 if share is not None else outcome["reason"][name]
    seen = Page(html.read_text())
    assert seen.tags.count("figure") == 2
    assert "FLOP per byte" in html.read_text()
    assert "of library" in seen.text
    assert "right: 16 shapes" in seen.text


@pytest.mark.parametrize(
    ("file", "shape", "check", "words"),
    [
        ("wrong.cl:wrong_values", "1000", "values", "off by more than rounding"),
        ("wrong.cl:multiples_of_16", "32,32,32", "pattern", "of 16"),
        ("wrong.cl:out_of_bounds", "1000", "bounds", "outside|beyond|past"),
        ("wrong.py:returns_nan", "32,32", "values", "not finite"),
        ("wrong.py:caches", "32,32,32", "cached", "did not change when the inputs"),
        ("wrong.py:sometimes_wrong", "1000", "race", "a race"),
    ],
)
def test_a_wrong_kernel_is_refused_with_the_reason(run: Ran, file: str, shape: str, check: str, words: str) -> None:
    run(str(KERNELS / file), "--shape", shape, "--json")
    assert run.code == 3, run.err
    result = json.loads(run.out)["result"]
    found = {finding["check"]: finding["text"] for finding in result["verdict"]["findings"]}
    assert result["right"] is False
    assert check in found, found
    assert any(word in found[check] for word in words.split("|")), found[check]


def test_the_refusal_as_text_and_page(run: Ran, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    run(str(KERNELS / "wrong.cl:wrong_values"), "--shape", "1000", "--html", str(html))
    assert run.code == 3
    assert "NOT RIGHT" in run.out
    assert "off by more than rounding" in run.out
    assert "not right" in Page(html.read_text()).text


def test_a_kernel_that_hangs_is_stopped() -> None:
    done = command(str(KERNELS / "wrong.py:hangs"), "--shape", "1000", "--timeout", "5")
    assert done.returncode == 3
    assert "NOT RIGHT" in done.stdout
    assert "no end after 5 s" in done.stdout


def test_a_kernel_that_ends_its_process_is_refused(tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    done = command(str(KERNELS / "wrong.py:aborts"), "--shape", "1000", "--json", "--html", str(html))
    assert done.returncode == 3, done.stderr
    [finding] = json.loads(done.stdout)["result"]["verdict"]["findings"]
    assert finding["check"] == "crash"
    assert "signal 6" in finding["text"]
    assert "signal 6" in Page(html.read_text()).text


@pytest.mark.parametrize("name", ["broken.cl", "broken.cu"])
def test_a_file_that_does_not_compile(run: Ran, name: str) -> None:
    run(str(KERNELS / name), "--shape", "1000")
    assert run.code == 2
    assert run.out == ""
    assert "missing" in run.err
    assert f"{name}:8" in run.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("matmul_1_plain.cu", "--op", "matmull"), "no op is called matmull; did you mean matmul"),
        (("matmul_1_plain.cu", "--shape", "64,64"), "matmul takes 3 sizes (m, n, k), not 2"),
        (("nothing.cu",), "no such file"),
        (("matmul_1_plain.cu:other",), "holds no kernel 'other'"),
        (("matmul_1_plain.cu", "--html", str(KERNELS)), "kernels"),
        (("matmul_1_plain.cu", "--html", str(KERNELS / "wrong.cl" / "page.html")), "wrong.cl"),
    ],
)
def test_what_the_user_can_put_right_is_one_line(run: Ran, words: tuple[str, ...], message: str) -> None:
    run(str(EXAMPLES / words[0]), *words[1:])
    assert run.code == 2
    assert run.out == ""
    assert message in run.err
    assert run.err.count("\n") == 1, run.err


def test_a_kernel_without_an_op_asks_for_it(run: Ran) -> None:
    run(str(KERNELS / "wrong.py:undeclared"), "--shape", "8")
    assert run.code == 2
    assert "give --op" in run.err


def measured(file: str, kernel: str, **sizes: int) -> float:
    """Seconds on the H200, from the committed run."""
    rows = json.loads((RESULTS / file).read_text())["rows"]
    [seconds] = [row["seconds"] for row in rows if row["name"] == kernel and row["shape"] == sizes]
    return float(seconds)


MATMUL = {"m": 4096, "n": 4096, "k": 4096}
# file, its op's sizes, the cause, the line, the mended twin
PLANTED = [
    ("matmul_1_plain", MATMUL, "access pattern", 20, "matmul_2_along_rows"),
    ("transpose_uncoalesced", {"rows": 16384, "columns": 16384}, "access pattern", 16, "transpose_tiled"),
    ("copy_strided", {"n": 2**28}, "access pattern", 19, "copy_contiguous"),
    ("sum_structures", {"n": 33554432}, "layout", 36, "sum_arrays"),
]


@pytest.mark.parametrize(("kernel", "sizes", "cause", "line", "twin"), PLANTED)
def test_a_planted_fault_is_named_and_its_gain_predicted(
    run: Ran, tmp_path: Path, kernel: str, sizes: dict[str, int], cause: str, line: int, twin: str
) -> None:
    html = tmp_path / "page.html"
    shape = ",".join(str(size) for size in sizes.values())
    run(str(EXAMPLES / f"{kernel}.cu"), "--shape", shape, "--json", "--html", str(html))
    assert run.code == 0, run.err
    outcome = json.loads(run.out)
    assert outcome["result"]["right"] is None
    assert outcome["result"]["speed"] is None
    found = outcome["result"]["why"]["causes"][0]
    assert (found["name"], found["where"]) == (cause, f"{kernel}.cu:{line}")
    file = "matmul.json" if kernel.startswith("matmul") else "planted-faults.json"
    before = measured(file, kernel.replace("_1_", "_"), **sizes)
    after = measured(file, twin.replace("_2_", "_"), **sizes)
    assert found["seconds"][0] <= after <= found["seconds"][1]
    assert found["gain"][0] <= before / after <= found["gain"][1]
    seen = Page(html.read_text())
    assert seen.tags.count("figure") == 1
    assert f"{kernel}.cu:{line}" in seen.text
    assert "analysed only" in seen.text


def test_with_the_measured_time_the_gains_hold_too() -> None:
    """As on the H200: its measured ceilings and the kernel's own time in place of the data sheet."""
    from nearpeak.kernelcheck.bounds import Chip
    from nearpeak.kernelcheck.explain import explain
    from nearpeak.kernelcheck.load import declaration_of
    from nearpeak.kernelcheck.ops import find_op
    from nearpeak.kernelcheck.source import read_source

    profile = json.loads((HERE.parent / "benchmarks/results/measure-h200/first.json").read_text())
    best = {c["kind"]: c["burst"] for c in profile["devices"][0]["ceilings"]}
    h200 = Chip("sm_90", 132, 1.98e9, best["memory_read"], best["cache_read"], best["launch"])
    for kernel, sizes, cause, line, twin in PLANTED:
        file = "matmul.json" if kernel.startswith("matmul") else "planted-faults.json"
        before = measured(file, kernel.replace("_1_", "_"), **sizes)
        after = measured(file, twin.replace("_2_", "_"), **sizes)
        source = read_source(str(EXAMPLES / f"{kernel}.cu"))
        declaration = declaration_of(source, {})
        op = find_op(str(declaration.op), declaration.layout)
        found = explain(source, declaration, op, sizes, h200, before).advice.causes[0]
        assert (found.name, found.line) == (cause, line)
        assert found.seconds[0] <= after <= found.seconds[1], kernel
        assert found.gain[0] <= before / after <= found.gain[1], kernel


def test_cuda_in_a_python_string_is_read_and_never_run(run: Ran) -> None:
    flags = (
        "--op",
        "matmul",
        "--grid",
        "ceil(m / 16), ceil(n / 16)",
        "--block",
        "16, 16",
        "--args",
        "a, b, c, m, n, k",
    )
    run(str(KERNELS / "in_a_string.py"), *flags, "--shape", "1024,1024,1024", "--json")
    assert run.code == 0, run.err
    result = json.loads(run.out)["result"]
    assert (result["language"], result["kernel"]) == ("CUDA", "product")
    found = result["why"]["causes"][0]
    assert (found["name"], found["where"]) == ("access pattern", "in_a_string.py:14")


def test_the_text_names_file_and_line_once(run: Ran) -> None:
    run(str(EXAMPLES / "matmul_1_plain.cu"), "--shape", "1024,1024,1024")
    assert run.code == 0
    assert run.out.count("matmul_1_plain.cu") == 1
    assert "line 21: neighbouring" in run.out
    assert "predicted: " in run.out
    assert max(map(len, run.out.splitlines())) <= 110


def test_without_repeats() -> None:
    assert without_repeats("a.cu:3: x; b.cu:3: y", "a.cu:3") == "x; b.cu:3: y"
    assert without_repeats("a.cu:3: x; a.cu:31: y", "a.cu:3") == "x; line 31: y"
    assert without_repeats("no line", "") == "no line"


def test_the_page_escapes_what_is_foreign() -> None:
    outcome = apart.lost(Request("<script>.cu"), "<b>ended</b> &")
    assert "<script>" not in page(outcome)
    assert "<b>ended" not in page(outcome)
    assert "&lt;b&gt;ended&lt;/b&gt; &amp;" in page(outcome)
