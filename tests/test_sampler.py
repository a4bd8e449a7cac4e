"""Draws against transformers' own steps, their statistics, and what must not pass."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from nearpeak.inference.sampler import Sampler
from nearpeak.inference.sampling import Sampling
from nearpeak.records.errors import UserError

transformers = pytest.importorskip("transformers")
VOCAB = 1000


def logits_of(vocab: int = VOCAB, batch: int | None = None, scale: float = 3.0) -> torch.Tensor:
    return torch.randn((vocab,) if batch is None else (batch, vocab)) * scale


def reference(logits: torch.Tensor, asked: Sampling) -> torch.Tensor:
    """Probabilities by transformers' processors, in the order in which its generate chains them."""
    from transformers.generation import logits_process as steps

    chain: list[object] = []
    if asked.temperature != 1:
        chain.append(steps.TemperatureLogitsWarper(asked.temperature))
    if asked.top_k:
        chain.append(steps.TopKLogitsWarper(asked.top_k))
    if asked.top_p < 1:
        chain.append(steps.TopPLogitsWarper(asked.top_p))
    if asked.min_p:
        chain.append(steps.MinPLogitsWarper(asked.min_p))
    scores = logits.double()
    for step in chain:
        scores = step(None, scores)  # type: ignore[operator]
    return scores.softmax(-1)


def clear_of_borders(logits: torch.Tensor, asked: Sampling) -> bool:
    """No row has a token so near to where top-p or min-p cut that fp32 and fp64 may part there."""
    shares = reference(logits, Sampling(asked.temperature, asked.top_k)).sort(-1, descending=True).values
    to_p = (shares.cumsum(-1) - asked.top_p).abs() if asked.top_p < 1 else torch.ones(1)
    to_min = (shares / shares[..., :1] - asked.min_p).abs() if asked.min_p else torch.ones(1)
    return bool(to_p.min() > 3e-6) and bool(to_min.min() > 3e-6)


def test_transformers_chains_its_steps_in_our_order() -> None:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                         num_attention_heads=1))  # fmt: skip
    asked = GenerationConfig(do_sample=True, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = model._get_logits_processor(asked, input_ids_seq_length=1)
    names = [type(step).__name__.removesuffix("LogitsWarper") for step in chain]
    assert names == ["Temperature", "TopK", "TopP", "MinP"]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 200, 10 * VOCAB])
@pytest.mark.parametrize("top_p", [1.0, 0.05, 0.6, 0.95])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.5])
def test_what_stays_and_its_probabilities_are_transformers_own(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    asked = Sampling(temperature, top_k, top_p, min_p)
    while not clear_of_borders(logits := logits_of(batch=3), asked):
        pass
    expected = reference(logits, asked)
    found = Sampler(asked, VOCAB, "cpu").probabilities(logits)
    assert bool((found[expected > 1e-30] > 0).all())
    assert not found[expected == 0].any()
    assert not (found - expected).abs().max() > 1e-5  # also where it is NaN
    one = Sampler(asked, VOCAB, "cpu").probabilities(logits[1])
    assert torch.equal(one, found[1])


@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_top_p_over_a_large_vocabulary_looks_only_as_far_as_it_must(scale: float) -> None:
    """A flat distribution needs all sorted, a peaked one a first look: the same result either way."""
    logits = logits_of(40_000, 1, scale)
    asked = Sampling(1.0, 0, 0.9)
    found, expected = Sampler(asked, 40_000, "cpu").probabilities(logits), reference(logits, asked)
    border = (found > 0) != (expected > 0)
    assert int(border.sum()) <= 2  # fp32 against fp64 at the very border
    assert not (found - expected).abs().max() > 1e-4


@pytest.mark.parametrize(
    "asked",
    [Sampling(1.0), Sampling(0.7, 5), Sampling(1.3, 0, 0.8), Sampling(1.0, 0, 1.0, 0.1), Sampling(0.9, 12, 0.9, 0.05)],
)
def test_draws_have_the_probabilities_that_they_should(asked: Sampling) -> None:
    vocab, draws = 24, 40_000
    logits = logits_of(vocab, scale=1.5)
    shares = reference(logits[None], asked)[0]
    tokens = Sampler(asked, vocab, "cpu").choose(logits.expand(draws, vocab))
    counts = torch.bincount(tokens, minlength=vocab).double()
    assert counts[shares < 1e-30].sum() == 0
    kept = shares * draws >= 5
    squares = ((counts - shares * draws) ** 2 / (shares * draws))[kept].sum()
    freedom = int(kept.sum()) - 1
    # the cube root of a chi-square sum is about normal (Wilson and Hilferty 1931); 5 deviations: once in 3.5 million
    spread = math.sqrt(2 / (9 * max(freedom, 1)))
    limit = max(freedom, 1) * (1 - 2 / (9 * max(freedom, 1)) + 5 * spread) ** 3
    assert not (squares > limit), (float(squares), freedom)


def test_one_draw_after_another_differs_and_a_seed_repeats_them() -> None:
    logits = logits_of(scale=0.5)

    def some(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(1.0, seed=seed), VOCAB, "cpu")
        return [int(sampler.choose(logits)) for _ in range(20)]

    assert some(7) == some(7)
    assert len(set(some(7))) > 1
    assert some(7) != some(8)
    assert some(None) != some(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_temperature_0_takes_the_largest_and_of_equals_the_first(dtype: torch.dtype) -> None:
    logits = logits_of(50_000).clamp_max(5).to(dtype)
    best = torch.randperm(50_000)[:3].sort().values
    logits[best] = 7.0
    sampler = Sampler(Sampling(), 50_000, "cpu")
    assert int(sampler.choose(logits)) == int(best[0])
    assert sampler.choose(logits[None].expand(2, -1)).tolist() == [int(best[0])] * 2
    assert int(sampler.probabilities(logits).argmax()) == int(best[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [Sampling(1.0), Sampling(0.8, 7), Sampling(0.8, 0, 0.9, 0.01)])
def test_low_precision_logits_give_tokens_of_the_kept_set(dtype: torch.dtype, asked: Sampling) -> None:
    logits = logits_of().to(dtype)
    sampler = Sampler(asked, VOCAB, "cpu")
    kept = sampler.probabilities(logits) > 0
    assert all(bool(kept[sampler.choose(logits)]) for _ in range(50))
    assert not asked.top_k or int(kept.sum()) == asked.top_k


@pytest.mark.parametrize("asked", [Sampling(), Sampling(1.0), Sampling(1.0, 5), Sampling(0.5, 0, 0.9, 0.1)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_told(asked: Sampling, value: float) -> None:
    """Overflow in fp16 once became token 0, "!", at full speed: QwenLM/Qwen3#761."""
    sampler = Sampler(asked, VOCAB, "cpu")
    logits = logits_of(batch=2)
    sampler.choose(logits)
    assert sampler.finite.tolist() == [True, True]
    logits[1, int(torch.randint(VOCAB, ()))] = value
    tokens = sampler.choose(logits)
    assert sampler.finite.tolist() == [True, False]
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < VOCAB
    sampler.choose(torch.full((VOCAB,), value))
    assert not bool(sampler.finite)


@pytest.mark.parametrize("asked", [Sampling(), Sampling(1.0), Sampling(1.0, 5), Sampling(0.5, 0, 0.9, 0.1)])
def test_a_forbidden_token_is_never_taken_and_all_forbidden_is_told(asked: Sampling) -> None:
    logits = torch.full((VOCAB,), -math.inf)
    logits[torch.tensor([17, 400])] = 0.0
    sampler = Sampler(asked, VOCAB, "cpu")
    assert {int(sampler.choose(logits)) for _ in range(50)} <= {17, 400}
    assert bool(sampler.finite)
    sampler.choose(torch.full((VOCAB,), -math.inf))
    assert not bool(sampler.finite)


def test_a_column_of_weight_0_is_never_drawn() -> None:
    sampler = Sampler(Sampling(1.0, seed=0), 4, "cpu")
    weights = torch.tensor([0.0, 1e-30, 0.0, 0.0])
    assert {int(sampler._draw(weights)) for _ in range(1000)} == {1}


def test_log_probabilities_are_those_of_the_logits_as_they_are() -> None:
    logits = logits_of()
    found = Sampler(Sampling(0.3, 2), VOCAB, "cpu").log_probabilities(logits, 11, 4)
    expected = logits.double().log_softmax(-1)
    top = expected.topk(4)
    assert [token for token, _ in found] == [11, *top.indices.tolist()]
    assert not abs(found[0][1] - float(expected[11])) > 1e-6
    assert not max(abs(a - b) for (_, a), b in zip(found[1:], top.values.tolist(), strict=True)) > 1e-6
    assert [t for t, _ in Sampler(Sampling(), VOCAB, "cpu").log_probabilities(logits, 11, 0)] == [11]


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31, 2**63])
def test_tokens_and_counts_outside_the_vocabulary_are_refused(token: int) -> None:
    sampler = Sampler(Sampling(), VOCAB, "cpu")
    with pytest.raises(UserError, match=f"token {token} is none: the model's 1,000"):
        sampler.log_probabilities(logits_of(), token, 1)
    with pytest.raises(UserError, match="likeliest tokens are asked for"):
        sampler.log_probabilities(logits_of(), 1, token + (token == VOCAB))


def test_logits_of_another_vocabulary_are_the_programmers_error() -> None:
    with pytest.raises(ValueError, match="vocab 1000 expected"):
        Sampler(Sampling(1.0), VOCAB, "cpu").choose(torch.zeros(VOCAB + 1))
    with pytest.raises(ValueError, match="vocab 1000 expected"):
        Sampler(Sampling(), VOCAB, "cpu").choose(torch.zeros(1, 1, VOCAB))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"), ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 1e-9}, "at least 0.001"), ({"temperature": math.inf}, "finite"),
        ({"temperature": True}, "temperature is True"), ({"temperature": "1"}, "temperature is '1'"),
        ({"top_k": -1}, "top_k is -1"), ({"top_k": 2.0}, "top_k is 2.0"), ({"top_k": 2**63}, "whole number from 0"),
        ({"top_p": 0.0}, "top_p is 0"), ({"top_p": 1.1}, "top_p is 1.1"), ({"top_p": math.nan}, "top_p is nan"),
        ({"min_p": -0.5}, "min_p is -0.5"), ({"min_p": 2.0}, "min_p is 2"),
        ({"seed": -1}, "seed is -1"), ({"seed": 2**63}, "seed is"), ({"seed": 1.5}, "seed is 1.5"),
    ],
)  # fmt: skip
def test_what_no_draw_can_mean_is_refused(asked: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Sampling(**asked)  # type: ignore[arg-type]


def test_a_draw_does_not_wait_for_the_device() -> None:
    """On the "meta" device nothing can be read back: a step that asked for a number would fail."""
    logits = torch.zeros(VOCAB, device="meta")
    for asked in (Sampling(1.0), Sampling(1.0, 5), Sampling(0.5, 0, 0.9, 0.1), Sampling(0.5, 9, 0.9, 0.1)):
        weights, ids = Sampler(asked, VOCAB, "cpu")._weights(logits)
        assert weights.device.type == "meta"
        assert ids is None or ids.device.type == "meta"
