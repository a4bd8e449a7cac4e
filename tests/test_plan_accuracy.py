"""The committed accuracy: what it must show, and that it is of this code and these rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nearpeak.planning.efficiency import load_efficiency
from nearpeak.planning.measured import load_measured
from nearpeak.planning.replay import CannotCompute, predict
from nearpeak.planning.replay_memory import predict_memory

ROOT = Path(__file__).resolve().parent.parent
RESULT: dict[str, Any] = json.loads((ROOT / "benchmarks/results/plan-accuracy/result.json").read_text("utf-8"))
BY_LINE = {row["line"]: row for row in RESULT["rows"]}


def test_the_bars_are_met() -> None:
    held = RESULT["held_out"]
    assert RESULT["pooled_rows"] >= 80
    assert held["train"]["median_error"] <= 0.10
    assert held["decode"]["median_error"] <= 0.10
    assert RESULT["memory"]["median_error"] <= 0.05
    for kind in ("decode", "train"):  # 80 % intervals, within two binomial errors
        assert abs(held[kind]["coverage"] - 0.8) <= 2 * held[kind]["coverage_error"]
    for kind in ("loaded", "throughput", "waiting"):
        assert held[kind]["median_error"] > 0, "stated"
    assert {"ridgepoint", "servcalc", "vramcalc"} <= set(RESULT["rivals"])
    for tool in RESULT["rivals"].values():
        assert tool["ours"]["median_error"] < tool["theirs"]["median_error"]


def test_its_rows_are_counted_as_they_are_now() -> None:
    eff, seen = load_efficiency(), 0
    for row in load_measured():
        kept = BY_LINE.get(row.number)
        try:
            if row.kind == "memory":
                counted, measured = predict_memory(row)
                assert kept is not None
                assert (kept["predicted"], kept["measured"]) == pytest.approx((counted, measured), rel=1e-5), row.text
            else:
                error = predict(row, eff) / row.value - 1
                assert kept is not None
                assert kept["in_the_fit"] == pytest.approx(error, abs=2e-3), row.text
        except CannotCompute:
            assert kept is None, row.text
            continue
        seen += 1
    assert seen == len(BY_LINE)


def test_the_docs_show_the_result() -> None:
    pytest.importorskip("numpy")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from plan_accuracy import BEGIN, END, tables

    text = (ROOT / "docs/planning.md").read_text("utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == tables(RESULT).strip()


@pytest.mark.long
def test_the_constants_are_what_the_rows_give() -> None:
    pytest.importorskip("numpy")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from fit_efficiency import computable, fit

    rows, _ = computable(load_measured())
    kept = load_efficiency().terms
    off = {name: abs(kept.get(name, 0.0) - value) for name, value in fit(rows).terms.items()}
    assert max(off.values()) < 0.01
