"""Fits the constants of `nearpeak.planning.efficiency` on the measured rows and writes `data/efficiency.json`.

Least squares on log(predicted ÷ measured), with a normal prior on each term of each constant (a ridge), solved by
Gauss-Newton steps with derivatives by differences: the prediction is the package's own, so nothing is fitted that a
plan does not use. Residuals far out weigh less (Huber's loss): a row that was misread must not bend the rest.

    python benchmarks/fit_efficiency.py            # writes src/nearpeak/planning/data/efficiency.json
    python benchmarks/fit_efficiency.py --check    # exit code 3 where the file is not what the rows give
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from nearpeak.planning.efficiency import SCHEMA, Efficiency
from nearpeak.planning.measured import Row, load_measured
from nearpeak.planning.replay import CannotCompute, catalogue_card, known_spec, predict

FILE = Path(__file__).parents[1] / "src" / "nearpeak" / "planning" / "data" / "efficiency.json"
# What rows of one kind scatter by that no constant can explain (drivers, versions, rounding): log standard deviation.
# Times to a first token have waiting in them; they must not move what clean rows say.
NOISE = {"decode": 0.05, "train": 0.05, "prefill": 0.10, "throughput": 0.15, "loaded": 0.12, "waiting": 0.5}
HUBER = 2.0  # of these deviations
ROUNDS = 12


def kind_of(row: Row) -> str:
    """The kind that accuracy is stated for: decode of one sequence is another thing than under load."""
    if "TTFT" in row.unit:
        return "waiting"
    if row.kind == "decode" and row.batch > 1:
        return "loaded"
    return row.kind


def computable(rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Rows with a prediction, and those without, with the reason. Memory rows are in neither."""
    empty, good, bad = Efficiency(), [], []
    for row in rows:
        if row.kind == "memory":
            continue
        try:
            predict(row, empty)
            good.append(row)
        except CannotCompute as reason:
            bad.append((row, str(reason)))
    return good, bad


def error_of(row: Row, eff: Efficiency) -> float:
    """log(predicted ÷ measured)."""
    return math.log(predict(row, eff) / row.value)


def fit(rows: list[Row], start: Efficiency | None = None, predict_error: Callable[[Row, Efficiency], float] = error_of,
        rounds: int = ROUNDS) -> Efficiency:  # fmt: skip
    """Terms that these rows give. `start` may be a fit of more rows: only a place to begin, the result is the same."""
    eff = Efficiency(dict(start.terms) if start else {}, touched={})
    deviations: dict[str, float] = {}
    touched: list[dict[str, list[str]]] = []  # of each row: constant: its keys
    for row in rows:
        eff.touched = {}
        predict_error(row, eff)
        by_constant: dict[str, list[str]] = defaultdict(list)
        for key, (constant, deviation) in eff.touched.items():
            deviations[key] = deviation
            by_constant[constant].append(key)
        touched.append(by_constant)
    eff.touched = {}
    names = sorted(deviations)
    place = {name: i for i, name in enumerate(names)}
    terms = np.array([eff.terms.get(name, 0.0) for name in names])
    ridge = np.array([1.0 / deviations[name] ** 2 for name in names])
    eff.terms = dict(zip(names, terms.tolist(), strict=True))
    for _ in range(rounds):
        normal = np.diag(ridge)
        right = -ridge * terms
        for row, by_constant in zip(rows, touched, strict=True):
            base = predict_error(row, eff)
            at, slope = [], []
            for constant, keys in by_constant.items():  # the terms of one constant add up: their slopes are the same
                eff.moved = {constant: 1e-4}
                change = (predict_error(row, eff) - base) / 1e-4
                at += [place[key] for key in keys]
                slope += [change] * len(keys)
            eff.moved = {}
            noise = NOISE[kind_of(row)]
            weight = min(1.0, HUBER * noise / max(abs(base), 1e-9)) / noise**2
            normal[np.ix_(at, at)] += weight * np.outer(slope, slope)
            right[at] -= weight * base * np.array(slope)
        step = np.linalg.solve(normal, right)
        step *= min(1.0, 0.7 / max(float(np.abs(step).max()), 1e-12))
        terms = terms + step
        eff.terms = dict(zip(names, terms.tolist(), strict=True))
        if float(np.abs(step).max()) < 2e-3:
            break
    eff.touched = None
    return eff


def model_key(row: Row) -> str:
    """Rows of one shape go out together: Llama 3 and 3.1 are the same to a machine."""
    return shape_key(row.spec)


def shape_key(name: str) -> str:
    spec = known_spec(name)
    return f"{spec.parameters}/{spec.layers}"


def seen_level(row: Row, rows: list[Row]) -> str:
    """How near other models' rows come: "card" (same engine and card), "class" (engine and class), "engine", "none"."""
    group = catalogue_card(row.card)
    found = "none"
    for other in rows:
        if model_key(other) == model_key(row) or kind_of(other) != kind_of(row) or other.engine != row.engine:
            continue
        if other.card == row.card:
            return "card"
        card = catalogue_card(other.card)
        if card and group and card.group == group.group:
            found = "class"
        elif found == "none":
            found = "engine"
    return found


def held_out(rows: list[Row], full: Efficiency) -> dict[int, tuple[float, str]]:
    """Row number: its error when no row of its model was in the fit, and how near the rows left come."""
    found: dict[int, tuple[float, str]] = {}
    by_model: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_model[model_key(row)].append(row)
    for out in by_model.values():
        numbers = {row.number for row in out}
        rest = [row for row in rows if row.number not in numbers]
        eff = fit(rest, start=full)
        for row in out:
            found[row.number] = error_of(row, eff), seen_level(row, rows)
    return found


# A normal's quantile that 80 % of errors lie within, and the spread that stands where fewer rows than MANY were seen
Z80 = 1.2816
MANY = 8
LEVELS = ("card", "class", "engine", "none")
USUAL = {"card": 0.12, "class": 0.20, "engine": 0.35, "none": 0.5}


def spread_of(errors: dict[int, tuple[float, str]], rows: list[Row]) -> dict[str, float]:
    """Key "kind: level": half the width, in log, that 80 % of held-out errors lie within.

    Few errors are drawn towards the usual width of their level as if MANY more had shown it. A wider level is never
    narrower than a nearer one; and one that no row has tried not below 0.7 of the next wider one.
    """
    by: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.number in errors:
            error, level = errors[row.number]
            by[kind_of(row), level].append(abs(error))
    spread: dict[str, float] = {}
    for kind in sorted({kind for kind, _ in by}):
        widths: dict[str, float] = {}
        for level in LEVELS:
            seen = sorted(by.get((kind, level), []))
            at = seen[min(len(seen) - 1, math.ceil(0.8 * (len(seen) + 1)) - 1)] if seen else 0.0
            usual = Z80 * USUAL[level] * (1.5 if kind in ("throughput", "waiting", "prefill", "loaded") else 1.0)
            width = (at * len(seen) + usual * MANY) / (len(seen) + MANY)
            widths[level] = max(width, *widths.values()) if widths else width
        for level, wider in reversed(list(itertools.pairwise(LEVELS))):
            if (kind, level) not in by:
                widths[level] = max(widths[level], 0.7 * widths[wider])
        spread.update({f"{kind}: {level}": round(width, 4) for level, width in widths.items()})
    return spread


def document() -> dict[str, object]:
    rows, left_out = computable(load_measured())
    full = fit(rows)
    errors = held_out(rows, full)
    inside = [abs(error_of(row, full)) for row in rows]
    about = {
        "made_by": "benchmarks/fit_efficiency.py",
        "rows": len(rows),
        "left_out": len(left_out),
        "median_error_in_the_fit": round(float(np.median(inside)), 4),
        "median_error_held_out": round(float(np.median([abs(e) for e, _ in errors.values()])), 4),
    }
    terms = {name: round(value, 5) for name, value in sorted(full.terms.items()) if abs(value) >= 5e-6}
    return {"schema": SCHEMA, "about": about, "spread": spread_of(errors, rows), "terms": terms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    given = parser.parse_args()
    made = document()
    if given.check:
        kept = json.loads(FILE.read_text("utf-8"))
        off = max(abs(kept["terms"].get(name, 0.0) - value) for name, value in made["terms"].items())  # type: ignore
        print(f"largest difference of a term: {off:.5f}")
        sys.exit(0 if off < 0.01 else 3)
    FILE.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(json.dumps(made["about"]))


if __name__ == "__main__":
    main()
