"""The planner's sums against the ops of limits, which count each part by itself."""

from __future__ import annotations

import pytest

from nearpeak.limits.memory import cache_bytes
from nearpeak.limits.ops import ops_of
from nearpeak.models.read import read_model
from nearpeak.planning.facts import facts_of
from nearpeak.records.workload import Workload

DECODERS = ("llama-3.1-8b", "llama-3.2-1b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3", "gemma-3-4b", "qwen3.5-9b",
            "gpt2", "mixtral-8x7b")  # fmt: skip


def flops(name: str, work: Workload) -> float:
    return sum(op.count * sum(op.flop.values()) for op in ops_of(read_model(name), work))


@pytest.mark.parametrize("name", DECODERS)
def test_flops_of_a_prompt(name: str) -> None:
    facts, tokens = facts_of(read_model(name)), 3000
    ours = 2.0 * (facts.dense + facts.chosen) * tokens + 2.0 * facts.head + facts.score_flop(tokens, 0)
    assert ours == pytest.approx(flops(name, Workload("prefill", 1, tokens)), rel=1e-3)


@pytest.mark.parametrize("name", DECODERS)
def test_flops_of_a_token(name: str) -> None:
    facts, context = facts_of(read_model(name)), 5000
    ours = 2.0 * facts.active + facts.decode_score_flop(context)
    assert ours == pytest.approx(flops(name, Workload("decode", 1, 1, context)), rel=1e-3)


@pytest.mark.parametrize("name", DECODERS)
def test_cache_of_a_sequence(name: str) -> None:
    facts = facts_of(read_model(name))
    theirs = cache_bytes(read_model(name), Workload("decode", 1, 1, 8191))
    assert 2.0 * facts.cache_numbers(8192) + 2.0 * facts.state == pytest.approx(theirs, rel=1e-6)  # states: 4 bytes


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_bytes_of_experts_that_a_batch_touches(batch: int) -> None:
    # 128 experts, 8 chosen: one position touches 8, four 128·(1 − (15/16)^4) = 29.1, sixty-four 125.9
    facts = facts_of(read_model("qwen3-30b-a3b"))
    read = sum(op.count * op.read for op in ops_of(read_model("qwen3-30b-a3b"), Workload("decode", batch, 1, 0)))
    assert 2.0 * facts.streamed(batch) == pytest.approx(read, rel=2e-3)


@pytest.mark.parametrize("name", ["vit-base-16", "resnet-50", "cnn-28x28"])
def test_flops_of_an_image(name: str) -> None:
    facts = facts_of(read_model(name))
    assert facts.item_flop == pytest.approx(flops(name, Workload("encode", 1, 1)), rel=1e-3)
    assert facts.dense == facts.head == 0


def test_a_known_count() -> None:
    # Llama-3.1-8B: 8,030,261,248 parameters, 128,256 × 4,096 of them the input table, which is in no product; the
    # norms' 65 × 4,096 neither. Cache: 2 · 32 · 8 · 128 numbers a token.
    facts = facts_of(read_model("llama-3.1-8b"))
    assert facts.active == 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    assert facts.cache_numbers(1) == 2 * 32 * 8 * 128
