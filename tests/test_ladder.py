"""The measured ladder beside a checked matrix product: its data, when it is shown, and that its names can be read."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fake_tools import NCU
from nearpeak.kernelcheck.counters import parse
from nearpeak.kernelcheck.explain import ASSUMED, explain, with_counters
from nearpeak.kernelcheck.fast import Speed, Timing
from nearpeak.kernelcheck.ladder import ladder_beside, measured_ladder
from nearpeak.kernelcheck.limit import Limit
from nearpeak.kernelcheck.load import declaration_of
from nearpeak.kernelcheck.ops import find_op
from nearpeak.kernelcheck.outcome import outcome_of
from nearpeak.kernelcheck.source import read_source
from nearpeak.kernelcheck.verdict import Verdict
from nearpeak.records.ceiling import Load
from nearpeak.report.kernel_charts import KERNEL, LIBRARY, STEP, Point, kernel_roofline
from nearpeak.report.kernel_page import page
from nearpeak.report.kernel_table import counter_lines
from test_measure_page import Page

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import ladder_data  # noqa: E402

H200 = "NVIDIA H200"
CUBE = {"m": 4096, "n": 4096, "k": 4096}


def test_the_packages_data_are_those_of_the_committed_run() -> None:
    kept = measured_ladder()
    made = ladder_data.points(json.loads(ladder_data.MEASURED.read_text()), kept["source"], kept["commit"])
    assert kept == made, "run benchmarks/ladder_data.py"
    assert {s["precision"] for s in kept["steps"]} == {"fp32", "bf16"}
    assert kept["commit"]


def test_the_steps_of_the_same_precision_at_the_nearest_size() -> None:
    found = ladder_beside(find_op("matmul"), "fp32", CUBE, H200)
    assert found is not None
    names = [step["step"] for step in found["steps"]]
    assert names[:5] == ["1 plain", "2 along rows", "3 shared tiles", "4 register tiles", "5 vector loads"]
    assert (found["n"], found["device"]) == (4096, H200)
    assert found["flop_per_byte"] == pytest.approx(2 * 4096 / 12)
    large = ladder_beside(find_op("matmul_nt"), "bf16", {"m": 20000, "n": 8192, "k": 4096}, H200)
    assert large is not None
    assert large["n"] == 8192
    assert any("pipelined" in step["step"] for step in large["steps"])


@pytest.mark.parametrize(
    ("op", "precision", "device", "reason"),
    [
        ("matmul", "fp32", "NVIDIA A100-SXM4-80GB", "was measured on an NVIDIA H200"),
        ("matmul", "fp64", H200, "no step in fp64"),
        ("matvec", "fp32", H200, None),
        ("copy", "fp32", H200, None),
    ],
)
def test_where_it_is_left_out(op: str, precision: str, device: str, reason: str | None) -> None:
    found = ladder_beside(find_op(op), precision, CUBE, device)
    assert found is None if reason is None else reason in (found or {})["missing"]


# ---- the page ------------------------------------------------------------------------------------------------------


def outcome(kernel: str, n: int, device: str, counted: bool = True) -> dict[str, Any]:
    """As of a run on that device, without one."""
    source = read_source(str(ROOT / "examples" / "kernels" / kernel))
    declaration = declaration_of(source, {})
    op, sizes = find_op(str(declaration.op)), {"m": n, "n": n, "k": n}
    rate, memory, warm = 54e12, 4.6e12, op.flop(sizes) / 9e11
    names = {field.name: None for field in dataclasses.fields(Limit)}
    found = {"seconds": op.flop(sizes) / rate, "flop_seconds": op.flop(sizes) / rate, "in_cache": False,
             "byte_seconds": op.bytes(sizes, "fp32") / memory, "ceiling": "products"}  # fmt: skip
    limit = Limit(**(names | found))  # type: ignore[arg-type]
    load = Load(**{f.name: {} if f.name == "missing" else None for f in dataclasses.fields(Load)})  # type: ignore[arg-type]
    timing = Timing(warm, 0.01, 10, warm, 0.01, 10, 1)
    library = dataclasses.replace(timing, warm=op.flop(sizes) / 51e12)
    speed = Speed(timing, library, 1e-6, warm, load, None, None, "x", None, ())
    counters = parse(NCU)[0][1] if counted else "ncu (Nsight Compute) is not installed"
    why = with_counters(explain(source, declaration, op, sizes, ASSUMED, warm, limit, rate), counters)
    verdict = Verdict(True, (), 1e-7, 1e-7, 2e-7, ("m=1",), (), "all", ())
    made = outcome_of(source, declaration, op, sizes, device, verdict, speed, limit, why)
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(made)))
    return content


def test_the_roofline_shows_the_ladder_with_its_date() -> None:
    text = Page(page(outcome("matmul_1_plain.cu", 1024, H200))).text
    assert "The ladder: fp32 products of examples/kernels at 4096³ on an NVIDIA H200" in text
    assert measured_ladder()["date"] in text
    assert "Small dots: the steps of the ladder" in text


def test_on_another_device_the_page_says_why_there_is_none() -> None:
    text = Page(page(outcome("matmul_1_plain.cu", 1024, "NVIDIA A100"))).text
    assert "No ladder beside it: the ladder was measured on an NVIDIA H200" in text
    assert "Small dots" not in text


def test_page_and_text_say_what_was_counted() -> None:
    made = outcome("matmul_1_plain.cu", 1024, H200)
    text = Page(page(made)).text
    assert "Counted by the hardware" in text
    assert "sectors a read request" in text
    assert "by the GPU's own counters" in text
    lines = list(counter_lines(made["result"]["why"]))
    assert lines[0].startswith("counted by the hardware: read from memory 8.41 MB (traced 8.39 MB)")
    assert any(line.startswith("longest wait: 31.2 warps waiting for") for line in lines)
    assert lines[-1].startswith("from the traced access pattern (3 of 4096 blocks")


def test_page_and_text_say_why_nothing_was_counted() -> None:
    made = outcome("matmul_1_plain.cu", 1024, H200, counted=False)
    assert "Not counted: ncu (Nsight Compute) is not installed" in Page(page(made)).text
    [line] = counter_lines(made["result"]["why"])
    assert line.endswith("counters: ncu (Nsight Compute) is not installed")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("n", [64, 512, 1024, 2048, 4096, 8192, 16384])
def test_no_name_covers_another(precision: str, n: int) -> None:
    ladder = ladder_beside(find_op("matmul"), precision, {"m": n, "n": n, "k": n}, H200)
    assert ladder is not None
    size = {"fp32": 4, "bf16": 2}[precision]
    rate = 54e12 if precision == "fp32" else 830e12
    steps = [Point(s["step"], s["flop_per_s"], STEP, ladder["flop_per_byte"]) for s in ladder["steps"]]
    for share in (0.02, 0.5, 0.97):
        figure = Figure(figsize=(9.6, 4.4 + 0.12 * len(steps)), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        points = [Point("kernel", share * rate, KERNEL), Point("library", 0.95 * rate, LIBRARY)]
        kernel_roofline(figure, 2 * n / (3 * size), points, rate, 4.6e12, "memory read", steps)
        canvas.draw()
        boxes = [(t.get_text(), t.get_window_extent()) for t in figure.axes[0].texts]
        for k, (name, box) in enumerate(boxes):
            assert box.x0 > 0, name
            assert box.x1 < figure.bbox.x1, name
            for other, second in boxes[k + 1 :]:
                assert not box.overlaps(second), (name, other)
