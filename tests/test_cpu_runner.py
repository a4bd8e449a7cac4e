"""The fast path on a CPU against the reference path, on random models of every family."""

from __future__ import annotations

import copy

import pytest
import torch

from nearpeak.inference.check import compare, logits_of, random_ids, reference_logits
from nearpeak.inference.choose_runner import fast_runner, reference_runner, weights_dtype
from nearpeak.inference.cpu_map import Int4Map, PlainMap
from nearpeak.inference.cpu_runner import CpuRunner, refusal
from nearpeak.networks.decoder import Decoder
from networks import decoder_of, error
from tiny_folders import CASES, tiny

CPU = torch.device("cpu")
CAPACITY = 64


def decoder(case: str, precision: str = "fp32") -> Decoder:
    return decoder_of(tiny(case)).to(weights_dtype(precision))


@pytest.mark.parametrize("case", CASES)
def test_in_fp32_it_gives_the_reference_paths_logits(case: str) -> None:
    model = decoder(case)
    ids = random_ids(80, CPU, 0)
    truth = logits_of(reference_runner(copy.deepcopy(model), "fp32", CAPACITY), ids)
    reason = refusal(model.shape, CAPACITY)
    if reason:
        with pytest.raises(ValueError, match="cannot run"):
            CpuRunner(model, CAPACITY, "fp32")
        runner, said = fast_runner(model, "fp32", CAPACITY)
        assert reason in (said or "")
    else:
        runner = CpuRunner(model, CAPACITY, "fp32")
    assert error(logits_of(runner, ids), truth) <= 3e-5


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8", "int4"])
@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma2", "gemma3", "phi4", "mixtral", "gpt2"])
def test_in_every_precision_it_agrees_within_the_noise_of_rounding(case: str, precision: str) -> None:
    model = decoder(case, precision)
    ids = random_ids(80, CPU, 1)
    reference, rounded = reference_logits(reference_runner(copy.deepcopy(model), precision, CAPACITY), ids)
    runner, _ = fast_runner(model, precision, CAPACITY)
    found = compare(logits_of(runner, ids), reference, rounded)
    assert found.agree, found


def test_a_wrong_weight_does_not_agree() -> None:
    model = decoder("llama", "bf16")
    ids = random_ids(80, CPU, 2)
    reference, rounded = reference_logits(reference_runner(copy.deepcopy(model), "bf16", CAPACITY), ids)
    with torch.no_grad():
        model.layers[1].attention.k.weight[:16] *= -1
    runner, _ = fast_runner(model, "bf16", CAPACITY)
    assert not compare(logits_of(runner, ids), reference, rounded).agree
    assert not compare(torch.full_like(reference, torch.nan), reference, rounded).agree


def test_a_prefill_in_parts_is_the_same_as_in_one() -> None:
    model = decoder("gemma3")
    ids = torch.randint(0, 80, (40,))
    once = CpuRunner(copy.deepcopy(model), CAPACITY, "fp32")
    parts = CpuRunner(model, CAPACITY, "fp32")
    truth = once.prefill(ids)
    for part in ids.split([9, 1, 20, 10]):
        got = parts.prefill(part)
    assert error(got, truth) <= 3e-5


def test_what_is_kept_of_a_conversation_is_used() -> None:
    runner = CpuRunner(decoder("llama"), CAPACITY, "fp32")
    ids = torch.randint(0, 80, (30,))
    truth = runner.prefill(ids)
    runner.keep(12)
    assert runner.length == 12
    assert error(runner.prefill(ids[12:]), truth) <= 3e-5


@pytest.mark.parametrize("place", ["embed", "layers.1", "head"])
def test_the_first_place_that_is_not_finite_is_named(place: str) -> None:
    model = decoder("llama")
    where = {"embed": "embed", "layers.1": "layers.1.feed_forward.down", "head": "head"}[place]
    with torch.no_grad():
        model.get_submodule(where).weight.fill_(torch.inf)
    runner = CpuRunner(model, CAPACITY, "fp32")
    assert runner.first_not_finite(torch.randint(0, 80, (9,))) == place


def test_bytes_are_those_of_the_weights_and_the_cache() -> None:
    model = decoder("llama", "bf16")
    maps = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    weights = sum(m.weight.nbytes for m in maps)
    runner = CpuRunner(model, CAPACITY, "bf16")
    assert runner.weight_bytes == weights
    assert runner.cache_bytes(10) == 3 * 2 * 2 * 16 * 10 * 2  # layers · (k, v) · heads · head_dim · positions · bytes
    assert runner.memory_bytes >= runner.weight_bytes + runner.cache_bytes(CAPACITY)


def test_a_window_bounds_the_bytes_that_are_read() -> None:
    runner = CpuRunner(decoder("mistral"), CAPACITY, "fp32")
    assert runner.cache_bytes(50) == runner.cache_bytes(6) > runner.cache_bytes(5)


def test_the_head_of_an_int4_model_stays_in_8_bits() -> None:
    runner, _ = fast_runner(decoder("llama", "int4"), "int4", CAPACITY)
    assert isinstance(runner, CpuRunner)
    assert isinstance(runner.layers[0].o, Int4Map)  # 64 by 64
    assert isinstance(runner.layers[0].qkv, PlainMap)  # keys have 32 outputs, which are no block
    assert isinstance(runner.head, PlainMap)
