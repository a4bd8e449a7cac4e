"""What a plan counts of memory, beside the model's own parts, and measured rows counted again."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from nearpeak.limits.memory import memory_of
from nearpeak.models.read import read_model
from nearpeak.planning.measured import Row, load_measured
from nearpeak.planning.memory import training_memory
from nearpeak.planning.replay import CannotCompute
from nearpeak.planning.replay_memory import LOGIT_BYTES_16BIT, predict_memory
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training, Workload

ROWS = [row for row in load_measured() if row.kind == "memory"]


def row(line: int) -> Row:
    return next(r for r in ROWS if r.number == line)


def error(r: Row) -> float:
    counted, measured = predict_memory(r)
    return counted / measured - 1


@pytest.mark.parametrize(
    ("training", "weights", "layout"),
    [
        (Training(), "bf16", Layout(data=8, sharded=8)),  # weights gathered from shards
        (Training(), "fp32", Layout()),  # copies that autocast makes
        (Training("qlora"), "bf16", Layout()),  # a map unpacked
        (Training(), "bf16", Layout(data=2, sharded=2, pipeline=4, micro_batch=1, micro_batches=8)),
    ],
)
def test_nothing_that_limits_counts_is_left_out(training: Training, weights: str, layout: Layout) -> None:
    spec = read_model("llama-3.1-8b")
    work = Workload("train", 16, 2048, weights=weights, training=training)
    parts = memory_of(spec, work, layout)
    assert parts["temporary"] > 0.1e9
    memory = training_memory(spec, work, layout, "torchtune", 80e9)
    assert memory.total - memory.overhead == pytest.approx(sum(parts.values()), abs=4)
    assert memory.activations == pytest.approx(parts["activations"] + parts["logits"] + parts["temporary"], abs=4)


def test_measured_rows_are_counted_within_five_percent_in_the_median() -> None:
    errors = []
    for r in ROWS:
        try:
            errors.append(abs(error(r)))
        except CannotCompute:
            continue
    assert len(errors) >= 55
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.22


@pytest.mark.parametrize("line", [51, 53])
def test_a_pipeline_over_512_cards(line: int) -> None:
    """torchtitan, 405B over FSDP 8 × TP 8 × PP 8: it takes as many micro-batches as stages (8 of 4 sequences; 16 of 2
    where two stages lie on a card, interleaved), splits norms by sequence, and keeps a stage's weights gathered."""
    assert abs(error(row(line))) <= 0.03


def test_scores_kept_whole_peak_at_their_softmax() -> None:
    """Llama-3.2-1B, 2,048 positions, eager: 2.472 GB of weights, 0.067 of cache, and 32 · 2,048² scores of 10 bytes,
    1.342 GB; the logits (0.525 GB) come when the scores are gone."""
    counted, measured = predict_memory(row(409))
    hidden = 2048 * 2048 * 2
    assert counted == pytest.approx(
        1_235_814_400 * 2 + 16 * 2 * 8 * 64 * 2 * 2048 + hidden + 10 * 32 * 2048**2, rel=1e-6
    )
    assert abs(counted / measured - 1) <= 0.02


def test_rows_of_one_engine_differ_by_their_length_alone() -> None:
    """Qwen-7B, Q-LoRA, 2,048 and 8,192 positions: a position's logits in 16 bits throughout (8 bytes each of 151,936),
    a block's input in each of 32 blocks, and what one block has: 1.56 MB measured."""
    short, long = (predict_memory(row(line)) for line in (443, 444))
    slope = (long[0] - short[0]) / 6144
    least = LOGIT_BYTES_16BIT * 151_936 + 32 * 2 * 4096
    assert 1.04 * least < slope < 1.2 * least
    assert slope == pytest.approx((long[1] - short[1]) / 6144, rel=0.06)


def test_a_recipe_is_followed() -> None:
    """torchtune's ladder, 3.21e9 parameters in bf16: the update inside the backward pass saves gradients that are
    freed; kept ones cost their 2 bytes a parameter as the loss's backward pass begins."""
    packed = row(389)
    kept = replace(packed, recipe=packed.recipe.replace("keep=backward", "keep=always"))
    assert predict_memory(kept)[0] - predict_memory(packed)[0] == pytest.approx(2 * 3_212_749_824, rel=1e-3)
    fused = replace(packed, recipe=packed.recipe + " fused=yes")
    assert predict_memory(fused)[0] == pytest.approx(predict_memory(row(391))[0])
