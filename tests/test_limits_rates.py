"""Rates from profiles and sheets, limits from ops: on numbers by hand."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.hardware.catalogue import find_by_name
from nearpeak.limits.limit import burst_or_sustained, limit_of, rate_of
from nearpeak.limits.ops import ops_of
from nearpeak.limits.rates import bursts_alone, rates_of_profile, rates_of_spec
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Op, Rates
from nearpeak.records.workload import Training, Workload
from profiles import h200_device

H200 = Rates("x", {"bf16": 700e12, "fp32": 50e12, "fp8": 1300e12}, 4.5e12, "given")


# --- rates ---


def test_bursts_and_sustained_figures_of_a_profile():
    device = h200_device()
    burst, lasting = rates_of_profile(device, sustained=False), rates_of_profile(device, sustained=True)
    assert (burst.matmul["bf16"], lasting.matmul["bf16"]) == (781e12, 663e12)
    assert burst.source == "measured here (burst)"
    assert lasting.source == "measured here (sustained)"
    assert burst.memory == lasting.memory == device.ceiling("memory_read").burst
    assert burst.matmul["fp16"] == 755e12  # not the 762 of sums in fp16, which models are not run with
    assert burst.cache_bytes == 62_914_560


def test_a_quick_profile_says_that_bursts_stand_in():
    device = h200_device()
    quick = dataclasses.replace(
        device, ceilings=tuple(dataclasses.replace(c, sustained=None) for c in device.ceilings if c.precision != "fp64")
    )
    found = rates_of_profile(quick, sustained=True)
    assert found.matmul["bf16"] == 781e12
    assert found.source == "measured here (burst: nothing sustained was measured)"
    assert bursts_alone(quick) >= {"bf16", "fp8", "fp32"}


def test_a_burst_stands_in_only_for_what_has_nothing_sustained():
    """fp8 with its two kinds of sum: a burst of the one is no reason to leave the other's sustained figure."""
    device = h200_device()
    only_bursts = (("fp8", "fast"), ("tf32", "fp32"))
    ceilings = (
        dataclasses.replace(c, sustained=None) if (c.precision, c.accumulate) in only_bursts else c
        for c in device.ceilings
    )
    partly = dataclasses.replace(device, ceilings=tuple(ceilings))
    found = rates_of_profile(partly, sustained=True)
    kept = [c.sustained for c in partly.ceilings if c.precision == "fp8" and c.sustained]
    assert found.matmul["fp8"] == max(kept)
    assert found.source == "measured here (sustained; burst for tf32)"
    assert bursts_alone(partly) == {"tf32"}


def test_invalid_ceilings_are_not_used():
    device = h200_device()
    bad = tuple(
        dataclasses.replace(c, invalid="sums differ") if c.precision == "fp8" else c
        for c in device.ceilings
    )  # fmt: skip
    found = rates_of_profile(dataclasses.replace(device, ceilings=bad), sustained=False)
    assert found.matmul["fp8"] == 781e12  # runs in bf16
    assert "sums differ" in found.missing["fp8"]
    assert "run in bf16" in found.missing["fp8"]
    no_memory = tuple(c for c in device.ceilings if c.kind != "memory_read")
    with pytest.raises(UserError, match="nearpeak measure"):
        rates_of_profile(dataclasses.replace(device, ceilings=no_memory), sustained=False)


def test_what_work_is_held_against():
    """The H200 profile settles after 1.6 s, under its power cap."""
    device = h200_device()
    assert burst_or_sustained(device, 1.0) == "burst"
    assert burst_or_sustained(device, 60.0) == "sustained"
    free = tuple(
        dataclasses.replace(c, conditions=dataclasses.replace(c.conditions, limited_by=None)) for c in device.ceilings
    )
    assert burst_or_sustained(dataclasses.replace(device, ceilings=free), 60.0) == "burst"
    assert burst_or_sustained(dataclasses.replace(device, settle_s=None), 60.0) == "burst"


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("H200 SXM", "bf16", 989e12),  # dense; 1,979 is sparse
        ("H100 SXM", "tf32", 494.5e12),  # TF32 with sparsity is 989 as well
        ("GeForce RTX 3090", "bf16", 71.2e12),  # sums in fp32; 142 is sums in fp16
        ("GeForce RTX 4090", "bf16", 165.2e12),
    ],
)
def test_peaks_are_dense_with_fp32_sums(name, precision, peak):
    rates = rates_of_spec(find_by_name(name), 1.0, 1.0)
    assert rates.matmul[precision] == pytest.approx(peak, rel=1e-3)


def test_a_share_of_the_dense_peak():
    """420 TFLOP/s on an H200 are 42.5 %, not the 21 % that a sparse peak gives."""
    assert 420e12 / rates_of_spec(find_by_name("H200 SXM"), 1.0, 1.0).matmul["bf16"] == pytest.approx(0.425, abs=5e-4)


def test_fractions_are_stated():
    spec = find_by_name("H200 SXM")
    rates = rates_of_spec(spec, 0.8, 0.9)
    assert rates.matmul["bf16"] == pytest.approx(0.8 * 989e12, rel=1e-3)
    assert rates.memory == pytest.approx(0.9 * 4.8e12)
    assert rates.source == "spec × 0.80 (products), × 0.90 (memory)"
    assert rates_of_spec(spec, 0.8, 0.8).source == "spec × 0.80"
    with pytest.raises(UserError, match=r"1\.2"):
        rates_of_spec(spec, 1.2, 0.9)


def test_a_precision_without_units_says_what_runs_in_its_place():
    rates = rates_of_spec(find_by_name("GeForce RTX 3090"), 0.8, 0.9)
    assert rates.matmul["fp8"] == rates.matmul["bf16"]
    assert "run in bf16" in rates.missing["fp8"]
    with pytest.raises(UserError, match="no rate for fp8"):
        rate_of(Rates("x", {"bf16": 1.0}, 1.0, "given"), "fp8")


# --- limits ---


def test_a_limit_by_hand():
    """Two ops: 3 × (700 TFLOP in bf16, 4.5 GB) and (50 TFLOP in fp32, 9 TB read): 3 + 1 s of products, 3 · 0.001 + 2 s
    of bytes. One behind the other: 3 · 1 s, then 2 s."""
    ops = (Op("a", 3, {"bf16": 700e12}, 4e9, 0.5e9), Op("b", 1, {"fp32": 50e12}, 9e12, 0.0))
    found = limit_of(ops, H200)
    assert found.flop_seconds == pytest.approx(4.0)
    assert found.byte_seconds == pytest.approx(2.003)
    assert found.seconds == found.flop_seconds
    assert found.serial_seconds == pytest.approx(5.0)
    assert found.bound_by == "matrix units (bf16)"
    assert found.flop == {"bf16": 2100e12, "fp32": 50e12}
    assert found.bytes == pytest.approx(9.0135e12)


def test_activations_between_ops_count_in_the_serial_limit_alone():
    op = Op("a", 2, {"bf16": 7e12}, 0.0, 0.0, passed=9e12)
    found = limit_of((op,), H200)
    assert found.seconds == pytest.approx(0.02)
    assert found.serial_seconds == pytest.approx(4.0)


def test_what_fits_the_last_level_cache_is_held_against_it():
    small = (Op("a", 1, {"bf16": 1e6}, 1e6, 0.0),)
    rates = dataclasses.replace(H200, cache=20e12, cache_bytes=50 * 2**20)
    assert limit_of(small, rates).seconds == pytest.approx(1e6 / 20e12)
    assert limit_of(small, rates).bound_by == "last-level cache"
    assert limit_of(small, H200).seconds == pytest.approx(1e6 / 4.5e12)
    large = (Op("a", 1, {"bf16": 1e6}, 60 * 2**20, 0.0),)
    assert limit_of(large, rates).bound_by == "memory"


def test_decode_of_one_sequence_reads_all_weights_but_the_input_embedding():
    """Llama-3.1-8B: 15.01 GB of 16.06 a token, and one row."""
    spec = read_model("llama-3.1-8b")
    found = limit_of(ops_of(spec, Workload("decode", 1, 1, 0)), H200)
    kept = 131_072  # keys and values of the new position, written
    assert found.bytes == 2 * (spec.parameters - 128_256 * 4096) + 2 * 4096 + kept
    assert found.bytes == pytest.approx(15.01e9, rel=1e-3)
    assert found.bound_by == "memory"
    assert limit_of(ops_of(spec, Workload("prefill", 1, 4096)), H200).bound_by == "matrix units (bf16)"
    # a tied head reads the table that the lookup hardly touches: all of the 1B's weights
    tied = read_model("llama-3.2-1b")
    found = limit_of(ops_of(tied, Workload("decode", 1, 1, 0)), H200)
    assert found.bytes == 2 * tied.parameters + 2 * 2048 + 32_768


def test_updates_move_all_optimizer_state():
    """Mixed precision, AdamW, fp32 gradients: 4 + 8 + 4 bytes read, 8 + 4 + 2 written, a parameter."""
    spec = read_model("llama-3.2-1b")
    [update] = [op for op in ops_of(spec, Workload("train", 1, 8, training=Training())) if op.name == "update"]
    assert update.read == 16 * spec.parameters
    assert update.written == 14 * spec.parameters


models = st.sampled_from(
    ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b", "whisper-tiny", "lfm2-1.2b"]
)


@settings(max_examples=80, deadline=None)
@given(
    models, st.sampled_from(["prefill", "decode"]), st.integers(1, 64), st.integers(1, 2000), st.integers(0, 100_000)
)
def test_more_work_takes_longer_and_a_limit_is_no_less_than_its_parts(name, phase, batch, tokens, context):
    spec = read_model(name)
    new = 1 if phase == "decode" else tokens
    work = Workload(phase, batch, new, context)
    found = limit_of(ops_of(spec, work), H200)
    assert found.seconds >= max(found.flop_seconds, found.byte_seconds)
    assert found.serial_seconds >= found.seconds
    more = [
        dataclasses.replace(work, batch=batch + 1),
        dataclasses.replace(work, context=context + 1),
        dataclasses.replace(work, tokens=new + 1),
    ]
    for other in more:
        longer = limit_of(ops_of(spec, other), H200)
        assert longer.flop_seconds >= found.flop_seconds * (1 - 1e-12)
        assert longer.bytes >= found.bytes * (1 - 1e-12)
        assert longer.serial_seconds >= found.serial_seconds * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(models, st.integers(1, 8), st.integers(2, 2000), st.sampled_from(["none", "attention", "selective", "full"]))
def test_training_is_more_than_three_forward_passes_of_what_it_must(name, batch, tokens, recompute):
    spec = read_model(name)
    works = [
        Workload("prefill", batch, tokens, logits="all"),
        Workload("train", batch, tokens, training=Training("lora", targets=("q", "k", "in"), recompute=recompute)),
        Workload("train", batch, tokens, training=Training(recompute="none")),
        Workload("train", batch, tokens, training=Training(recompute=recompute)),
    ]
    ahead, lora, plain, full = (sum(op.count * sum(op.flop.values()) for op in ops_of(spec, w)) for w in works)
    assert ahead < lora < full
    assert 2.5 * ahead < plain <= full <= 4.6 * ahead


def test_speed():
    """A plan has one second in all; DeepSeek-V3's 61 layers are counted in a few milliseconds."""
    spec = read_model("deepseek-v3")
    works = [Workload("decode", 8, 1, 5000), Workload("train", 8, 4096, training=Training())]
    best = min(_seconds(spec, work) for work in works for _ in range(5))
    assert best < 0.005


def _seconds(spec, work) -> float:
    start = time.perf_counter()
    limit_of(ops_of(spec, work), H200)
    return time.perf_counter() - start
