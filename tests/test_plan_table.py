"""A plan's tables and the lines under them, on plans built by hand."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from nearpeak.records.limit import Limit, Op
from nearpeak.records.plan import Estimate, Layout, Memory, Plan, Step, Term
from nearpeak.report.plan_explain import render_explained
from nearpeak.report.plan_table import render
from nearpeak.report.plan_words import billions, estimate, gib, layout_words, rough, scale
from plans import infer_plan, nowhere_plan, one_3090, train_plan, variations


def printed(plan: Plan, width: int = 110, terminal: bool = False, ops: dict[str, list[Op]] | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False)
    render(plan, variations(), console)
    if ops is not None:
        render_explained(plan, ops, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def row(text: str, start: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(start)).split()


def test_a_row_has_speed_with_its_interval_energy_cost_and_what_binds() -> None:
    text = printed(infer_plan())
    cells = row(text, "3  1 × GeForce RTX 3090")
    assert cells == ["3", "1", "×", "GeForce", "RTX", "3090", "yes", "47", "[38–58]", "2.3", "[1.7–3.1]", "7.10",
                     "0.620", "memory"]  # fmt: skip
    header = text[: text.index("───")]
    for unit in ("tok/s", "ktok/s", "J/tok", "US$ a", "bound by"):
        assert unit in header


def test_memory_stands_by_part_against_capacity_and_says_what_is_short() -> None:
    text = printed(infer_plan())
    lines = text[text.index("layout") :].splitlines()
    two, small = (" ".join(next(x for x in lines if x.startswith(place)).split()) for place in ("2", "4"))
    assert two == "2 tensor 2 7.48 0.25 0.25 1.00 8.98 23.5 –"
    assert small == "4 one device 15.0 0.50 0.25 1.00 16.7 7.80 8.91"
    assert "grad" not in lines[0], "parts that are 0 everywhere have no column"


def test_training_shows_its_own_parts_and_speed() -> None:
    text = printed(train_plan())
    assert "training" in text
    assert "prefill" not in text
    assert "FSDP 8, micro-batch 2 × 4" in text
    for word in ("ients", "mizer"):
        assert word in text


@pytest.mark.parametrize("make", [infer_plan, train_plan, nowhere_plan])
def test_eighty_columns_hold_every_line_and_all_that_the_wide_one_says(make) -> None:
    narrow, wide = printed(make(), 80), printed(make(), 160)
    assert max(map(len, narrow.splitlines())) <= 80
    missing = [word for word in set(wide.split()) - set(narrow.split()) if set(word) != {"─"}]
    assert missing == []


def test_no_colour_leaves_in_a_pipe() -> None:
    assert "\x1b" not in printed(infer_plan())
    assert "\x1b" in printed(infer_plan(), terminal=True)


def test_lines_under_the_tables_name_sources_changes_and_reasons_once() -> None:
    text = printed(infer_plan())
    for line in (
        "llama-3.1-8b in bf16 fits one RTX 3090; one H200 is 3.9 times as fast.",
        "to 1, 3: Llama-3-8B F16, llama.cpp, 1 × GeForce RTX 3090, 512 tokens: 47.4 tok/s (example.org, table 3)",
        "to 2: none is near enough to be named",
        "precision q4_k_m: fits in 6.35 of 23.5 GiB, decode 115 [95–140] tok/s",
        "context 131,072: does not fit, 8.71 GiB short",
        "2 × GeForce RTX 3090: fits in 8.98 of 23.5 GiB, decode 74 [55–99] tok/s",
        "rates of 1: measured here (sustained)",
        "rates of 2–4: spec × 0.80",
        "price of electricity: 0.25 US$ a kWh (2026-12)",
        "energy of 1: its power under this load was never measured",
        "decode, prefill, energy, cost of 4: it does not fit",
    ):
        assert text.count(line + "\n") == 1, line


def test_a_model_that_fits_nowhere_says_so_without_columns_of_dashes() -> None:
    text = printed(nowhere_plan())
    assert "8.91 GiB short" in text
    assert row(text, "1  1 × GeForce") == ["1", "1", "×", "GeForce", "RTX", "4060", "no", "memory"]


def test_no_candidates_at_all_leave_the_advice_and_no_empty_tables() -> None:
    text = printed(replace(infer_plan(), candidates=(), advice="no cards are left within the price."))
    assert "no cards are left within the price." in text
    assert "───" not in text


def test_many_candidates_are_cut_and_the_rest_is_told() -> None:
    plan = replace(infer_plan(), candidates=(one_3090(),) * 23)
    text = printed(plan)
    assert "10 of 23 candidates; --json has all" in text
    assert "rates of 1–10: spec × 0.80" in text


def test_explained_terms_sum_to_the_speed_that_is_shown() -> None:
    first = one_3090()
    ops = [Op("feed_forward", 16, {"bf16": 352e6}, 352e6, 0.0, 0.0, "2 · 1 position · 4096 · 14336 · 3")] * 2
    text = printed(replace(infer_plan(), candidates=(first,)), ops={"decode": ops})
    assert "decode: 1 tok in 21.2 ms = 47.2 tok/s" in text
    for line in ("limit 17.2 81 %", "efficiency 2.60 12 %", "fixed costs 1.40 6.6 %", "all 21.2 100 %"):
        assert line in " ".join(text.split())
    assert "weights 15.0 + kv 0.50 + activations 0.25 + overhead 1.00 = 16.7 of 23.5 GiB, 6.79 free" in text
    assert "feed_forward 32 11.3 11.3 0 2 · 1 position" in " ".join(text.split())
    assert "one sequence of 1 new positions after 4,095, weights bf16" in text
    assert sum(t.seconds for t in first.steps[0].terms) == pytest.approx(1 / first.decode_tokens_per_s.value)


def test_a_step_of_no_time_or_no_limit_still_prints() -> None:
    empty = Step("decode", 1.0, (Term("limit", 0.0),))
    none = Step("prefill", 1.0, (), Limit(0.0, 0.0, 0.0, 0.0, {}, 0.0, "memory", "spec × 0.80"))
    text = printed(replace(infer_plan(), candidates=(replace(one_3090(), steps=(empty, none)),)), ops={})
    assert "decode: 1 tok in 0 s\n" in text


@pytest.mark.parametrize(
    ("layout", "train", "words"),
    [
        (Layout(), False, "one device"),
        (Layout(tensor=2), False, "tensor 2"),
        (Layout(data=8, sharded=8), True, "FSDP 8"),
        (Layout(data=8, sharded=4, tensor=2), True, "data 2 × FSDP 4 × tensor 2"),
        (Layout(data=2, tensor=4), False, "2 replicas × tensor 4"),
        (Layout(pipeline=4, context=2), False, "pipeline 4 × context 2"),
        (Layout(data=4, tensor=2, expert=8), False, "4 replicas × tensor 2, experts over 8"),
        (Layout(data=8, sharded=16, context=2), True, "FSDP 16, of it context 2"),
        (Layout(data=8, sharded=8, context=2), True, "FSDP 8 × context 2"),
        (Layout(micro_batch=4), True, "one device, micro-batch 4"),
    ],
)
def test_layouts_are_told_in_words(layout: Layout, train: bool, words: str) -> None:
    assert layout_words(layout, train) == words


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0432, "0.043"), (0.43, "0.43"), (4.71, "4.7"), (9.96, "10"), (47.3, "47"),
                        (276.4, "276"), (12_345.6, "12346"), (math.nan, "–"), (math.inf, "–")]
)  # fmt: skip
def test_speeds_are_rounded_to_what_an_interval_allows(value: float, text: str) -> None:
    assert rough(value) == text


def test_sizes_and_counts() -> None:
    assert [gib(x * 2**30) for x in (0, 0.001, 0.25, 9.996, 23.51, 999.6)] == [
        "0",
        "<0.01",
        "0.25",
        "10.0",
        "23.5",
        "1000",
    ]
    assert [billions(n) for n in (9870, 124_439_808, 8_030_261_248, 1_000_000_000_000)] == [
        "9,870", "124 M", "8.03 B", "1.00 T"
    ]  # fmt: skip
    assert estimate(None) == "–"
    assert estimate(Estimate(2000.0, 1500.0, 2600.0), 1000.0) == "2.0 [1.5–2.6]"


def test_a_column_has_one_unit_that_keeps_two_digits_of_each_number() -> None:
    for values, what, unit in (
        ([9_999.0], "tok", "tok/s"), ([10_000.0, 100.0], "tok", "ktok/s"), ([10_000.0, 99.0], "tok", "tok/s"),
        ([2e7, 2e5], "image", "M image/s"),
    ):  # fmt: skip
        assert scale(values, what).unit == unit, values


def test_foreign_text_cannot_draw_or_break_lines() -> None:
    nasty = replace(one_3090(), gpu="[red]RTX\x1b[2J\n9000", bound_by="[bold]")
    text = printed(replace(infer_plan(), model={"name": "[link=x]\x07evil"}, candidates=(nasty,)), terminal=False)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]RTX�[2J�9000" in text
    assert "[link=x]�evil" in text


def test_the_total_is_the_sum_of_the_parts() -> None:
    assert Memory(1, 2, 3, 4, 5, 6, capacity=30).total == 21
