"""Memory by part and limits, against figures whose derivation stands beside them."""

from __future__ import annotations

import pytest

from nearpeak.limits.limit import limit_of, rate_of
from nearpeak.limits.memory import cache_bytes, memory_of, trained_parameters
from nearpeak.limits.ops import ops_of
from nearpeak.limits.precision import weight_bits
from nearpeak.limits.rates import rates_of_spec
from nearpeak.limits.weights import weight_bytes
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Rates
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training, Workload

GIB = 2**30


def cache(name: str, tokens: int, **options) -> float:
    return cache_bytes(read_model(name), Workload("decode", 1, 1, tokens - 1, **options))


@pytest.mark.parametrize(
    ("name", "tokens", "gib"),
    [
        ("llama-3.1-8b", 8_192, 1.000),  # 2 · 32 layers · 8 heads · 128 · 2 bytes a token
        ("deepseek-r1", 32_768, 2.145),  # 61 · (512 + 64) · 2 bytes: one latent, not keys and values
        ("deepseek-v3", 163_840, 10.72),
        ("gemma-3-27b", 131_072, 10.41),  # 10 layers whole, 52 of a window of 1,024
    ],
)
def test_cache(name, tokens, gib):
    assert cache(name, tokens) / GIB == pytest.approx(gib, rel=1e-3)


def test_cache_is_split_over_key_value_heads_only():
    spec, work = read_model("llama-3.1-8b"), Workload("decode", 1, 1, 8191)
    assert cache_bytes(spec, work, Layout(tensor=8)) == cache_bytes(spec, work) / 8
    assert cache_bytes(spec, work, Layout(tensor=16)) == cache_bytes(spec, work) / 8
    latent = read_model("deepseek-v3")
    assert cache_bytes(latent, work, Layout(tensor=8)) == cache_bytes(latent, work)


def test_states_of_a_full_fine_tune():
    """Llama-3.1-70B: 16 bytes a parameter in mixed precision, 8 in pure bf16 (planning research, case 21)."""
    spec = read_model("llama-3.1-70b")
    states = ("weights", "gradients", "optimizer")
    mixed = memory_of(spec, Workload("train", 1, 128, training=Training(gradient="bf16")))
    pure = memory_of(
        spec, Workload("train", 1, 128, training=Training(master=False, gradient="bf16", optimizer="adamw_bf16"))
    )
    assert sum(mixed[s] for s in states) == pytest.approx(70.55e9 * 16, rel=2e-3)
    assert sum(pure[s] for s in states) == pytest.approx(70.55e9 * 8, rel=2e-3)


def test_logits_are_counted_and_chunks_save_them():
    """8,192 tokens of 128,256: 14 bytes a logit are 13.7 GiB; in chunks of 1,024 an eighth."""
    spec, layout = read_model("llama-3.2-3b"), Layout(micro_batch=1)
    plain = memory_of(spec, Workload("train", 1, 8192, training=Training()), layout)["logits"]
    chunks = memory_of(spec, Workload("train", 1, 8192, training=Training(loss="chunked")), layout)["logits"]
    assert plain == 8192 * 128_256 * 14
    assert chunks == plain / 8


def test_an_adapter_is_small_and_frozen_weights_have_no_states():
    spec, training = read_model("llama-3.1-8b"), Training("lora", rank=16)
    # 32 layers: q 8192, k and v 5120 each, o 8192, gate, up and down 18432 each, × 16
    assert trained_parameters(spec, training) == 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    found = memory_of(spec, Workload("train", 1, 2048, training=training))
    assert found["optimizer"] == trained_parameters(spec, training) * 12
    packed = memory_of(spec, Workload("train", 1, 2048, training=Training("qlora")))
    assert packed["weights"] < 0.4 * found["weights"]


def test_shards_and_tensor_parts_cover_all_weights():
    spec = read_model("llama-3.1-8b")
    whole = memory_of(spec, Workload("decode", 1, 1, 10))["weights"]
    assert memory_of(spec, Workload("decode", 1, 1, 10), Layout(tensor=4))["weights"] * 4 == whole
    sharded = memory_of(spec, Workload("train", 8, 10, training=Training()), Layout(data=8, sharded=8))["weights"]
    assert whole / 8 < sharded < whole / 8 + 2.2e9  # one gathered block (or the embedding), and the next


def test_more_work_takes_more():
    spec, rates = read_model("llama-3.1-8b"), Rates("x", {"bf16": 700e12}, 4.5e12, "given")
    last = 0.0
    for context in (10, 1000, 100_000):
        for batch in (1, 8, 64):
            found = limit_of(ops_of(spec, Workload("decode", batch, 1, context)), rates)
            assert found.seconds == max(found.flop_seconds, found.byte_seconds) <= found.serial_seconds
        assert found.seconds > last
        last = found.seconds


def test_decode_of_one_sequence_is_bound_by_memory():
    """15.01 GB of weights are read a token, the input embedding left out (planning research, 2.4)."""
    spec = read_model("llama-3.1-8b")
    found = limit_of(ops_of(spec, Workload("decode", 1, 1, 0)), Rates("x", {"bf16": 700e12}, 4.5e12, "given"))
    assert found.bound_by == "memory"
    assert found.bytes == pytest.approx(15.01e9, rel=1e-3)
    prefill = limit_of(ops_of(spec, Workload("prefill", 1, 4096)), Rates("x", {"bf16": 700e12}, 4.5e12, "given"))
    assert prefill.bound_by == "matrix units (bf16)"


def test_a_precision_without_units_says_so():
    from nearpeak.hardware.catalogue import find_by_name

    rates = rates_of_spec(find_by_name("GeForce RTX 3090"), 0.8, 0.9)
    assert rates.matmul["fp8"] == rates.matmul["bf16"]
    assert "bf16" in rates.missing["fp8"]
    with pytest.raises(UserError, match="no rate for fp8"):
        rate_of(Rates("x", {"bf16": 1.0}, 1.0, "given"), "fp8")
    with pytest.raises(UserError, match="q9_z"):
        weight_bits("q9_z")


def test_four_bits_leave_the_head_alone():
    """Llama-3.1-8B: 2 · 128256 · 4096 parameters at 16 bits, the other matrices at 4.25."""
    spec = read_model("llama-3.1-8b")
    outer = 2 * 128_256 * 4096
    vectors = 65 * 4096
    assert weight_bytes(spec, "int4") == (outer + vectors) * 2 + (spec.parameters - outer - vectors) * 4.25 / 8


def test_stored_weights_are_the_files():
    spec = read_model("deepseek-v3")
    assert weight_bytes(spec, "stored") == spec.weight_bytes
