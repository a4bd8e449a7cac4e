"""A plan's page: whole, self-contained, and it holds what the tables hold."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nearpeak.records.plan import Estimate
from nearpeak.report.plan_charts import Curve
from nearpeak.report.plan_page import page
from plans import infer_plan, nowhere_plan, one_3090, train_plan, variations
from test_measure_page import Page


def curve(label: str, values: list[float | None], first: int = 512) -> Curve:
    points = ((first * 2**n, Estimate(v, 0.8 * v, 1.25 * v) if v else None) for n, v in enumerate(values))
    return Curve(label, tuple(points))


CURVES = {
    "context": [curve("1 × H200 SXM 141 GB", [190.0, 180.0, 170.0]), curve("2 × GeForce RTX 3090", [74.0, 70.0, None])],
    "users": [curve("1 × H200 SXM 141 GB", [180.0, 350.0], 1)],
}


@pytest.mark.parametrize(
    ("make", "curves", "charts"), [(infer_plan, CURVES, 3), (train_plan, {}, 1), (nowhere_plan, {}, 1)]
)
def test_the_page_is_whole_and_fetches_nothing(make, curves, charts) -> None:
    text = page(make(), variations(), curves)
    found = Page(text)
    assert found.tags.count("svg") == charts
    assert not {"script", "link", "img", "iframe", "object", "embed", "image"} & set(found.tags)
    assert "http" not in text.replace("http-equiv", "")
    assert not re.search(r"url\((?!#)|@import|@font-face", text)
    assert "prefers-color-scheme:dark" in text
    assert len(found.ids) == len(set(found.ids))
    assert {u for u in found.uses if u} <= set(found.ids)
    # every colour of a chart follows the theme
    assert not re.search(r"(fill|stroke): ?#[0-9a-f]{6}", text)


def test_the_page_holds_what_the_tables_hold() -> None:
    text = Page(page(infer_plan(), variations(), CURVES)).text
    for part in (
        "47 [38–58]", "2 × GeForce RTX 3090", "tensor 2", "0.620", "8.91", infer_plan().advice, "8.03 B",
        "182 [150–220] tok/s", "example.org, table 3", "context 131,072: does not fit, 8.71 GiB short",
        "rates of 2–4: spec × 0.80", "decode, prefill, energy, cost of 4: it does not fit", "80 of 100",
    ):  # fmt: skip
        assert part in text, part


def test_a_curve_of_one_point_or_none_is_not_drawn() -> None:
    text = page(infer_plan(), (), {"context": [curve("a", [3.0]), curve("b", [None, None])]})
    assert Page(text).tags.count("svg") == 1


def test_a_card_keeps_its_colour_where_another_is_left_out() -> None:
    both = page(infer_plan(), (), {"context": [curve("a", [None, None]), curve("b", [3.0, 2.0])]})
    chart = both[both.index('id="ccontext') : both.index("<figcaption>")]
    assert "stroke: var(--s1)" in chart
    assert "stroke: var(--s0)" not in chart


def test_the_same_plan_gives_the_same_page() -> None:
    assert page(infer_plan(), variations(), CURVES) == page(infer_plan(), variations(), CURVES)


def test_foreign_text_stays_text() -> None:
    nasty = replace(one_3090(), gpu='<script>alert("x")</script>', notes=("<b>&",))
    plan = replace(infer_plan(), model={"name": "<img src=x>"}, candidates=(nasty,), advice="$\\frac{1}{2}$ <i>")
    text = page(plan, (), {"context": [curve("<script> $x_2$", [1.0, 2.0])]})
    assert not {"script", "img", "b1", "i"} & set(Page(text).tags)
    assert "<img src=x>" in Page(text).text
