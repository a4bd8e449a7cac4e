"""What a step's seconds are made of: no share above a peak, limits in the precision that is run, notes that say so."""

from __future__ import annotations

import math

import pytest

from nearpeak.hardware.catalogue import find_by_name
from nearpeak.models.read import read_model
from nearpeak.planning.cards import Card, card_of
from nearpeak.planning.efficiency import CONSTANTS, Efficiency, Where, load_efficiency
from nearpeak.planning.measured import load_measured
from nearpeak.planning.plan import Question, plan
from nearpeak.planning.precisions import HALF_SUMS, compute_of
from nearpeak.planning.replay import CannotCompute, setup_of
from nearpeak.planning.speed import decode_terms, half_peak, peak, prefill_terms
from nearpeak.records.plan import Candidate
from nearpeak.report.plan_explain import step_title, workload_words

LLAMA = read_model("llama-3.1-8b")
SHARES = ("decode bandwidth", "cache bandwidth", "prefill flop", "prefill scores", "prefill overlap", "train flop",
          "train scores", "encode flop")  # fmt: skip


def card(name: str) -> Card:
    found = card_of(find_by_name(name))
    assert found is not None
    return found


def notes(c: Candidate, phase: str) -> dict[str, str]:
    step = next(s for s in c.steps if s.phase == phase)
    return {term.name: term.note for term in step.terms}


@pytest.mark.parametrize("name", SHARES)
def test_a_share_is_at_most_one_whatever_rows_say(name: str) -> None:
    where = Where("llama.cpp", "", 16.0, "nvidia graphics", "GeForce RTX 3090")
    pushed = Efficiency({name: 3.0})
    assert pushed.value(name, where) <= 1.0
    # and where it is far from 1 the rounding leaves it alone
    left = Efficiency({name: math.log(0.4 / CONSTANTS[name].prior)})
    assert left.value(name, where) == pytest.approx(0.4, rel=1e-3)


def test_no_prompt_runs_its_products_faster_than_its_units() -> None:
    # before: 85 TFLOP/s of products on a 3090 (71.2 in bf16), made up by scores at 4 % of peak
    eff, seen = load_efficiency(), 0
    for row in load_measured():
        if row.kind != "prefill":
            continue
        try:
            setup = setup_of(row)
        except CannotCompute:
            continue
        facts, layout = setup.facts, setup.layout
        terms = prefill_terms(setup, 1, row.length, 0, eff)
        cards = layout.tensor * layout.pipeline
        products = 2.0 * (facts.dense + facts.chosen) * row.length + 2.0 * facts.head
        assert products / terms["products"] <= cards * peak(setup), row.text
        share = facts.score_flop(row.length, 0) / terms["scores"] / (cards * half_peak(setup))
        if layout.pipeline == 1 and row.length > 512:
            assert 0.10 < share <= 1.0, f"{row.text}: scores at {share:.3f} of peak"
        seen += 1
    assert seen > 50


def test_llama_cpp_multiplies_in_what_it_does() -> None:
    # a 3090: 71.2 TFLOP/s with fp32 sums, 142 with fp16 ones, 285 TOP/s in int8
    rates = card("RTX 3090").matmul
    assert compute_of("f16", rates, "llama.cpp", 16.0) == HALF_SUMS
    assert rates[HALF_SUMS] == pytest.approx(142.3e12, rel=1e-2)
    assert compute_of("q4_k_m", rates, "llama.cpp", 4.85) == "int8"
    assert compute_of("bf16", rates, "vllm") == "bf16"
    assert HALF_SUMS not in card("A100 SXM4 80 GB").matmul  # no faster than fp32 sums there
    assert compute_of("f16", card("A100 SXM4 80 GB").matmul, "llama.cpp", 16.0) == "bf16"


def test_a_limit_is_of_the_precision_that_is_run() -> None:
    c = plan(Question(LLAMA, gpu="RTX 3090", count=1)).candidates[0]
    (prefill,) = [s for s in c.steps if s.phase == "prefill"]
    assert prefill.limit is not None
    assert set(prefill.limit.flop) == {HALF_SUMS, "bf16"}
    assert "prefill flop 0." in notes(c, "prefill")["products"]
    assert f"in {HALF_SUMS}" in notes(c, "prefill")["products"]
    assert notes(c, "prefill")["weights"] == "weights once, at 0.8 of bandwidth"
    for step in c.steps:
        assert step.limit is not None
        assert step.limit.seconds < step.seconds


def test_no_plan_is_faster_than_its_limit() -> None:
    for name in ("llama-3.1-8b", "qwen3-30b-a3b"):
        for precision in (None, "q4_k_m", "fp8"):
            for c in plan(Question(read_model(name), any=True, precision=precision)).candidates:
                for step in c.steps:
                    assert step.limit is None or step.limit.seconds < step.seconds, (name, precision, c.gpu, step.phase)


def test_sixteen_bits_need_no_unpacking() -> None:
    # leave-one-model-out over all decode rows: median 8.5 to 8.6 %, mean |error| 12.04 to 11.92 %, farther away 18.6 to
    # 18.4 % (benchmarks/NOTES.md). An H200's 132 multiprocessors at the A100's bytes a clock would give 2.7 TB/s.
    c = plan(Question(LLAMA, gpu="H200 SXM 141 GB", count=1, precision="bf16", engine="gpt-fast")).candidates[0]
    assert notes(c, "decode")["weights"].startswith("weights ÷ share of bandwidth (decode bandwidth")
    packed = plan(Question(LLAMA, gpu="H200 SXM 141 GB", count=1, precision="q4_k_m")).candidates[0]
    assert "decode bytes a clock" in notes(packed, "decode")["weights"]
    setup = setup_of(
        next(r for r in load_measured() if r.engine == "gpt-fast" and r.precision == "bf16" and r.cards == 1)
    )
    eff = load_efficiency()
    read = 2.0 * setup.facts.streamed(1) / decode_terms(setup, 1, 100, eff)["weights"]
    assert read == pytest.approx(eff.value("decode bandwidth", setup.where) * setup.card.memory, rel=1e-6)


def test_images_are_explained_by_the_formula_that_made_them() -> None:
    c = plan(Question(read_model("cnn-28x28"), "train", gpu="RTX 3090", count=1)).candidates[0]
    assert "encode flop" in notes(c, "train")["products"]
    assert "encode bytes" in notes(c, "train")["elements"]


def test_images_are_no_sequences_in_the_words_of_a_plan() -> None:
    answer = plan(Question(read_model("cnn-28x28"), "train", gpu="RTX 3090", count=1))
    assert "a step of 8 images is taken, since none was asked for" in answer.notes
    assert workload_words(answer.workloads[0], "image").startswith("8 images, weights bf16")
    assert step_title(answer.candidates[0].steps[0], "image").startswith("train: 8 images in ")
