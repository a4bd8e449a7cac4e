"""The advice names the planted faults of the examples, nothing in their twins, and its intervals hold what is known."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

from nearpeak.kernelcheck.access import AccessReport, analyse
from nearpeak.kernelcheck.advice import Advice, Cause, Facts, advise
from nearpeak.kernelcheck.bounds import Chip
from nearpeak.kernelcheck.occupancy import Occupancy, waves
from nearpeak.kernelcheck.ptx import parse
from nearpeak.kernelcheck.trace import trace
from nearpeak.kernelcheck.trace_records import Launch
from ptx_compile import example, line_of, ptx
from traced_examples import SIDE, WORDS, N, traced

H200 = Chip("sm_90", 132, 1.98e9, memory=4.2e12, cache=5.5e12, launch=2e-6)
A6000 = Chip("sm_86", 84, 1.8e9, memory=0.7e12, cache=2.5e12, launch=2e-6)
PRODUCT: dict[str, Any] = {"flop": 2.0 * N**3, "compulsory": 12.0 * N * N, "flop_per_s": 50e12, "matmul": True}
MOVED = {"transpose": 8.0 * SIDE * SIDE, "copy": 8.0 * WORDS, "sum": 4.0 * WORDS}


@cache
def report(name: str) -> AccessReport:
    return analyse(traced(name))


def facts(name: str, chip: Chip = H200, **more: Any) -> Facts:
    if name.startswith("matmul"):
        more = PRODUCT | more
    else:
        more.setdefault("compulsory", MOVED[name.split("_")[0]])
    return Facts(traced(name), report(name), chip, **more)


def only(advice: Advice) -> Cause:
    assert len(advice.causes) == 1, advice.causes
    return advice.causes[0]


def test_the_plain_product_on_an_h200() -> None:
    now, mended = (
        PRODUCT["flop"] / 0.97e12,
        PRODUCT["flop"] / 5.2e12,
    )  # measured: the plain kernel, and with axes swapped
    advice = advise(facts("matmul_1_plain", measured=now, limit=PRODUCT["flop"] / 50e12))
    cause = only(advice)
    assert cause.name == "access pattern"
    assert cause.line == line_of("matmul_1_plain", "sum += a[")
    assert cause.where == f"matmul_1_plain.cu:{cause.line}"
    assert "4096 elements (16384 bytes) apart" in cause.what
    assert "exchange the roles of threadIdx.x and threadIdx.y" in cause.fix
    assert cause.seconds[0] <= mended <= cause.seconds[1]
    assert cause.gain[0] <= 5.4 <= cause.gain[1]
    assert cause.gain[1] < 2 * cause.gain[0]  # an interval that says something
    assert 0.9 < (advice.explained or 0) < 1.1


def test_the_same_model_holds_for_another_gpu_and_block() -> None:
    """The public ladder (github.com/siboehm/SGEMM_CUDA) on an A6000: 309 → 1987 GFLOP/s, blocks of 32 × 32 threads."""
    source = """extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int k) {
        int row = blockIdx.x * 32 + threadIdx.x, column = blockIdx.y * 32 + threadIdx.y; float sum = 0;
        for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + column];
        c[(size_t)row * n + column] = sum; }"""
    plain = traced("matmul_1_plain").launch
    launch = dataclasses.replace(plain, grid=(N // 32, N // 32), block=(32, 32))
    result = trace(parse(ptx(source)), "k", launch, cap=4000)
    assert result.cut  # the whole work is then had from the op's FLOPs
    now, mended = PRODUCT["flop"] / 309e9, PRODUCT["flop"] / 1987e9
    cause = only(advise(Facts(result, analyse(result), A6000, measured=now, **PRODUCT)))
    assert (cause.name, cause.line) == ("access pattern", 3)
    assert cause.seconds[0] <= mended <= cause.seconds[1]


@pytest.mark.parametrize(
    ("name", "cause_name", "where", "word"),
    [
        ("transpose_uncoalesced", "access pattern", "if (row < rows", "shared memory"),
        ("copy_strided", "access pattern", "if (first + i < n)", "in turn"),
        ("sum_structures", "layout", "value += x[", "array of its own"),
    ],
)
@pytest.mark.parametrize("slower", [None, 1.0, 1.6])
def test_planted_faults(name: str, cause_name: str, where: str, word: str, slower: float | None) -> None:
    bounds = advise(facts(name)).bounds
    assert bounds is not None
    measured = None if slower is None else slower * bounds.most
    cause = only(advise(facts(name, measured=measured)))
    assert (cause.name, cause.line) == (cause_name, line_of(name, where))
    assert word in cause.fix
    mended = MOVED[name.split("_")[0]] / (0.9 * H200.memory)  # what a copy or a sum without the fault reaches: 90 %
    assert cause.seconds[0] <= mended <= cause.seconds[1]
    assert cause.gain[0] > 2


@pytest.mark.parametrize("name", ["transpose_tiled", "copy_contiguous", "sum_arrays"])
@pytest.mark.parametrize("share", [None, 0.95, 0.8])
def test_nothing_in_the_mended_twins(name: str, share: float | None) -> None:
    limit = MOVED[name.split("_")[0]] / H200.memory
    advice = advise(facts(name, measured=None if share is None else limit / share, limit=limit))
    assert advice.causes == ()
    assert "healthy" in advice.note or "nothing that this tool can see" in advice.note


def test_the_mended_product_is_told_to_reuse_its_numbers_and_nothing_of_patterns() -> None:
    cause = only(advise(facts("matmul_2_along_rows", measured=PRODUCT["flop"] / 5.2e12)))
    assert cause.name == "little reuse"
    assert "shared memory" in cause.fix
    assert cause.seconds[0] == pytest.approx(PRODUCT["flop"] / 50e12)
    tiles = only(advise(facts("matmul_3_shared_tiles")))
    assert tiles.name == "little reuse"
    assert "several outputs" in tiles.fix


def test_bank_conflicts_of_the_register_tiles() -> None:
    cause = advise(facts("matmul_4_register_tiles")).causes[0]
    assert cause.name == "bank conflicts"
    assert cause.line == line_of("matmul_4_register_tiles", "b_own[j] = b_tile")


def test_matrix_units_are_missed_only_where_there_are_some() -> None:
    def names(**more: Any) -> list[str]:
        return [c.name for c in advise(facts("matmul_2_along_rows", flop_per_s=700e12, **more)).causes]

    assert "no matrix units" in names(precision="bf16")
    assert "no matrix units" not in names(precision="fp32")
    assert "no matrix units" not in names(precision="bf16", matrix_units=True)
    old = dataclasses.replace(H200, architecture="sm_75")
    assert "no matrix units" not in names(precision="bf16", chip=old)


def test_a_small_grid_and_a_short_run() -> None:
    source = 'extern "C" __global__ void k(float* x) { float v = x[threadIdx.x]; '
    source += "for (int i = 0; i < 4000; ++i) v = v * v + 1; x[threadIdx.x] = v; }"
    result = trace(parse(ptx(source)), "k", Launch((8,), (256,), (np.zeros(256, np.float32),), ("x",)))
    some = Facts(result, analyse(result), H200, waves=waves(8, 8, 132))
    cause = next(c for c in advise(some).causes if c.name == "uneven grid")
    assert "124 of 132" in cause.what
    tiny = parse(ptx('extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }'))
    result = trace(tiny, "k", Launch((1,), (256,), (np.zeros(256, np.float32),), ("x",)))
    assert only(advise(Facts(result, analyse(result), H200, measured=3e-6))).name == "launch"


def test_few_warps_where_the_bounds_do_not_explain_the_time() -> None:
    low = Occupancy(1, 8, 0.125, "registers")
    slow = facts("copy_contiguous", measured=1e-3, occupancy=low)
    cause = only(advise(slow))
    assert cause.name == "few warps"
    assert "registers" in cause.what
    assert only(advise(dataclasses.replace(slow, occupancy=None, spills=96))).name == "spills"


def test_a_trace_that_was_cut_is_scaled_by_the_measurement() -> None:
    launch, module = traced("sum_structures").launch, parse(example("sum_structures"))
    result = trace(module, "sum_structures", launch, cap=150)
    assert result.cut
    cause = only(advise(Facts(result, analyse(result), H200, measured=0.55e-3)))
    assert cause.name == "layout"
    assert cause.gain[0] < 8 <= cause.gain[1] * 1.01


def test_idle_threads() -> None:
    source = """extern "C" __global__ void k(float* x) { int i = blockIdx.x * 256 + threadIdx.x; float v = x[i];
        switch (i % 4) { case 0: for (int j = 0; j < 500; ++j) v = v * v + 1; break;
            case 1: for (int j = 0; j < 500; ++j) v = v * 3 - v * v; break;
            case 2: for (int j = 0; j < 500; ++j) v = v * v * v + 2; break;
            default: for (int j = 0; j < 500; ++j) v = 1 - v * v; }
        x[i] = v; }"""
    result = trace(parse(ptx(source)), "k", Launch((1320,), (256,), (np.zeros(1320 * 256, np.float32),), ("x",)))
    cause = only(advise(Facts(result, analyse(result), H200)))
    assert cause.name == "idle threads"
    assert 3 < cause.gain[1] < 5
    assert 2 <= cause.line <= 5


def test_a_kernel_that_was_not_traced_gets_no_advice_on_its_accesses() -> None:
    result = dataclasses.replace(traced("matmul_1_plain"), stopped="not traced: wgmma.fence (line 7) is not known")
    advice = advise(Facts(result, report("matmul_1_plain"), H200, matrix_units=True, **PRODUCT))
    assert advice.causes == ()
    assert "wgmma.fence (line 7)" in advice.note
