"""Who comes first: dollars a token where all cards are compared, and what the plan says about its order."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from nearpeak.models.read import read_model
from nearpeak.planning.advice import advice, digits
from nearpeak.planning.plan import Question, plan
from nearpeak.planning.ranking import PACE, PATIENCE, in_time, rank
from nearpeak.records.plan import Candidate, Estimate
from nearpeak.report.plan_table import render
from plans import one_3090

LLAMA = read_model("llama-3.1-8b")
ALL = Question(LLAMA, any=True)


def priced(dollars: float | None, tps: float, prefill: float = 5000.0, **more: object) -> Candidate:
    speeds = {"decode_tokens_per_s": Estimate(tps, tps / 2, 2 * tps),
              "prefill_tokens_per_s": Estimate(prefill, prefill / 2, 2 * prefill)}  # fmt: skip
    return replace(one_3090(), cost_per_million_tokens=dollars, **speeds, **more)  # type: ignore[arg-type]


def test_all_cards_are_ranked_by_dollars_a_token() -> None:
    cheap, dear, quick = priced(0.5, 40), priced(2.0, 400), priced(None, 4000)
    slow, late = priced(0.1, 0.9 * PACE), priced(0.1, 40, prefill=3072 / (1.1 * PATIENCE))
    no = replace(cheap, fits=False)
    order = sorted((no, slow, quick, dear, late, cheap), key=lambda c: rank(ALL, c, 3072))
    assert order == [cheap, dear, quick, late, slow, no]


def test_a_pace_is_of_each_user_and_nobody_waits_for_training() -> None:
    many = replace(ALL, users=8)
    assert in_time(ALL, priced(1.0, 12), 3072)
    assert not in_time(many, priced(1.0, 12), 3072)
    assert in_time(many, priced(1.0, 8 * PACE), 3072)
    trained = replace(one_3090(), decode_tokens_per_s=None, prefill_tokens_per_s=None,
                      train_tokens_per_s=Estimate(1.0, 0.5, 2.0))  # fmt: skip
    assert in_time(replace(ALL, task="train"), trained, 3072)


def test_one_card_is_ranked_by_speed() -> None:
    question = Question(LLAMA, gpu="RTX 3090")
    assert rank(question, priced(2.0, 400), 3072) < rank(question, priced(0.5, 40), 3072)


def test_a_plan_over_all_cards_begins_with_the_cheapest_token() -> None:
    answer = plan(ALL)
    first = answer.candidates[0]
    costs = [c.cost_per_million_tokens for c in answer.candidates if c.fits and c.cost_per_million_tokens is not None
             and in_time(ALL, c, 3072)]  # fmt: skip
    assert first.cost_per_million_tokens == min(costs)
    assert costs == sorted(costs)
    assert f"costs least on {first.gpu} (" in answer.advice
    fastest = max((c for c in answer.candidates if c.decode_tokens_per_s), key=lambda c: c.decode_tokens_per_s.value)  # type: ignore[union-attr]
    assert f"{fastest.count} × {fastest.gpu} (" in answer.advice
    assert answer.advice.endswith(" is the fastest here.")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            ALL,
            "least cost of a million tokens first among those that give a user 10 tokens/s and the first within 10 s",
        ),
        (Question(read_model("cnn-28x28"), "train", any=True), "least cost of a million images first; then those"),
        (replace(ALL, target_tps=40.0), "those that reach 40 tokens/s, the cheapest by the hour first"),
        (Question(LLAMA, gpu="RTX 3090"), "order: the fastest first"),
    ],
)
def test_the_rule_stands_in_the_foot_of_the_table(question: Question, words: str) -> None:
    answer = plan(question)
    assert words in answer.ranking
    console = Console(file=io.StringIO(), width=400)
    render(answer, (), console)
    assert answer.ranking in console.file.getvalue()  # type: ignore[attr-defined]


def test_one_candidate_has_no_order() -> None:
    answer = plan(Question(LLAMA, gpu="RTX 3090", count=1))
    assert answer.ranking == ""


def test_images_are_called_images() -> None:
    for task in ("infer", "train"):
        said = plan(Question(read_model("cnn-28x28"), task, gpu="RTX 3090", count=1)).advice  # type: ignore[arg-type]
        assert "images/s" in said
        assert "token" not in said
    assert "images" in plan(Question(read_model("vit-base-16"), any=True)).advice
    assert "tokens/s" in plan(Question(read_model("whisper-tiny"), any=True)).advice


def test_a_card_without_speed_or_price_is_told_as_such() -> None:
    bare = replace(one_3090(), decode_tokens_per_s=None, prefill_tokens_per_s=None, cost_per_million_tokens=None)
    assert advice(ALL, [bare]) == "llama-3.1-8b: inference fits GeForce RTX 3090; that is the smallest that does."


@pytest.mark.parametrize(
    ("value", "text"), [(0.0000667, "0.0000667"), (0.537, "0.537"), (45.31, "45.3"), (1412.0, "1,410"),
                        (1e-7, "0.000000100")]
)  # fmt: skip
def test_digits_without_exponents(value: float, text: str) -> None:
    assert digits(value) == text
