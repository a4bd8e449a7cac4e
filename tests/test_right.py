"""Every slip is refused with its reason; right kernels pass, whatever the seed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_kernels import (
    FakeKernel,
    HookedWaits,
    Lazy,
    beyond,
    kernel,
    matmul,
    matmul_fp16_sums,
    matmul_one_after_the_other,
    matmul_split,
    matmul_tf32,
    matmul_tf32_cut,
    online_softmax,
    racing,
    softmax_in_one_go,
    unordered_sum,
)
from nearpeak.ceilings.products import exactly
from nearpeak.kernelcheck.deviation import Deviation, deviation, refused
from nearpeak.kernelcheck.kernel import Declaration
from nearpeak.kernelcheck.kernel_failed import KernelFailed
from nearpeak.kernelcheck.op import Truth
from nearpeak.kernelcheck.ops import OPS
from nearpeak.kernelcheck.right import check
from nearpeak.kernelcheck.verdict import Verdict, pattern_of
from nearpeak.records.errors import UserError

SIZES = {"m": 48, "n": 40, "k": 72}


def judge(function, op="matmul", sizes=SIZES, precision="fp32", require=None, shapes=(), **more) -> Verdict:  # type: ignore[no-untyped-def]
    return check(kernel(function, precision, require), OPS[op], sizes, shapes=shapes, seed=3, **more)


def reason(verdict: Verdict) -> tuple[str, str]:
    assert not verdict.right
    return verdict.findings[0].check, verdict.findings[0].text


@pytest.mark.parametrize("function", [matmul, matmul_one_after_the_other, matmul_split])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_right_products_pass(function, precision) -> None:  # type: ignore[no-untyped-def]
    verdict = judge(function, precision=precision, shapes=None, repeats=4)
    assert verdict.right, verdict.findings
    assert verdict.error is not None
    assert verdict.error_of_library is not None
    assert verdict.noise is not None
    assert verdict.error < verdict.noise
    assert len(verdict.shapes) == 17
    assert verdict.compared == "every element against fp64"


def test_nan_never_passes() -> None:
    check_name, text = reason(judge(lambda t, s: t["c"].fill_(math.nan)))
    assert check_name == "values"
    assert "is NaN, expected" in text


def test_a_single_nan_never_passes() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        matmul(t, s)
        t["c"][3, 5] = math.nan

    check_name, text = reason(judge(run))
    assert check_name == "values"
    assert "c[3, 5] is NaN, expected" in text


def test_cached_by_address() -> None:
    kept: dict[int, torch.Tensor] = {}

    def run(t, s):  # type: ignore[no-untyped-def]
        key = t["a"].data_ptr()
        if key not in kept:
            kept[key] = t["a"] @ t["b"]
        t["c"].copy_(kept[key])

    check_name, text = reason(judge(run))
    assert check_name == "cached"
    assert "did not change" in text


def test_unwritten_output() -> None:
    check_name, text = reason(judge(lambda t, s: None))
    assert check_name == "unwritten"
    assert "1920 of 1920 elements" in text


def test_one_element_unwritten() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        old = t["c"][7, 9].clone()
        matmul(t, s)
        t["c"][7, 9] = old

    check_name, text = reason(judge(run))
    assert check_name == "unwritten"
    assert "1 of 1920" in text
    assert "c[7, 9]" in text


def test_reused_output_of_the_allocator() -> None:
    # Returns memory as it comes: what was there before must not look like a result.
    check_name, _ = reason(judge(lambda t, s: {"c": torch.empty(t["c"].shape)}))
    assert check_name in ("values", "race")


def test_work_on_another_stream() -> None:
    waits = HookedWaits()
    check_name, text = reason(judge(lambda t, s: waits.put_off.append(lambda: matmul(t, s)), waits=waits))
    assert check_name == "stream"
    assert "another stream" in text
    assert judge(matmul, waits=HookedWaits()).right


def test_zeroed_inputs() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        t["a"].zero_()
        t["c"].zero_()

    check_name, text = reason(judge(run))
    assert check_name == "inputs"
    assert "a[0, 0] was" in text


def test_lazy_result() -> None:
    check_name, text = reason(judge(lambda t, s: {"c": (t["a"] @ t["b"]).as_subclass(Lazy)}))
    assert check_name == "result"
    assert "Lazy" in text


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda t: (t["a"] @ t["b"]).double(), "float64"),
        (lambda t: (t["a"] @ t["b"]).t().contiguous(), "(40, 48)"),
        (lambda t: (t["b"].t().contiguous() @ t["a"].t()).t(), "a view"),
        (lambda t: None, "NoneType"),
    ],
)
def test_result_of_another_kind(made, what) -> None:  # type: ignore[no-untyped-def]
    check_name, text = reason(judge(lambda t, s: {"c": made(t)}))
    assert check_name == "result"
    assert what in text


def test_transpose_as_a_view_moved_nothing() -> None:
    verdict = judge(lambda t, s: {"y": t["x"].t()}, op="transpose", sizes={"rows": 33, "columns": 20})
    check_name, text = reason(verdict)
    assert check_name == "result"
    assert "nothing was computed or moved" in text


def test_an_error_below_an_absolute_tolerance() -> None:
    # 5e-3 on numbers of size 8 passes every absolute tolerance of 1e-2.
    def run(t, s):  # type: ignore[no-untyped-def]
        matmul(t, s)
        t["c"][11, 2] += 5e-3

    check_name, text = reason(judge(run))
    assert check_name == "values"
    assert "c[11, 2]" in text
    assert "1 of 1920 elements" in text


@pytest.mark.parametrize("function", [matmul_tf32, matmul_tf32_cut])
def test_tf32_posing_as_fp32(function) -> None:  # type: ignore[no-untyped-def]
    check_name, text = reason(judge(function))
    assert check_name == "precision"
    assert "this is tf32, not fp32" in text
    assert judge(function, precision="tf32", shapes=None).right


def test_bf16_posing_as_fp32() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        t["c"].copy_(t["a"].bfloat16().float() @ t["b"].bfloat16().float())

    check_name, text = reason(judge(run))
    assert check_name == "precision"
    assert "this is bf16, not fp32" in text


def test_fp32_posing_as_fp64() -> None:
    verdict = judge(lambda t, s: t["c"].copy_(t["a"].float() @ t["b"].float()), precision="fp64")
    check_name, text = reason(verdict)
    assert check_name == "precision"
    assert "fp32" in text


def test_fp16_sums_are_refused_unless_declared() -> None:
    sizes = {"m": 20, "n": 24, "k": 700}
    check_name, text = reason(judge(matmul_fp16_sums, precision="fp16", sizes=sizes))
    assert check_name == "precision"
    assert "sums kept in fp16" in text
    assert judge(matmul_fp16_sums, precision="fp16", sizes=sizes, accumulate="fp16", shapes=None).right


def test_drift_in_place() -> None:
    check_name, text = reason(judge(lambda t, s: t["c"].add_(t["a"] @ t["b"])))
    assert check_name == "drift"
    assert "what the output held before" in text


def test_drift_that_swallows_nan() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        t["c"].copy_(t["a"] @ t["b"] + t["c"].nan_to_num(0.0) * 0.1)

    assert reason(judge(run))[0] == "drift"


def test_right_only_for_multiples_of_16() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        t["c"].zero_()
        m, n, k = (s[name] // 16 * 16 for name in "mnk")
        t["c"][:m, :n] = t["a"][:m, :k] @ t["b"][:k, :n]

    sizes = {"m": 32, "n": 64, "k": 96}
    verdict = judge(run, sizes=sizes, shapes=None)
    assert not verdict.right
    assert verdict.findings[-1].check == "pattern"
    assert "right only where m, n and k are all multiples of 16" in verdict.findings[-1].text
    assert verdict.error is not None  # the asked shape itself is right
    assert judge(run, sizes=sizes, shapes=None, require="m % 16 == 0 and n % 16 == 0 and k % 16 == 0").right


def test_right_only_for_squares() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        wide = t["x"].view(s["columns"], s["rows"])  # rows and columns mixed up
        t["y"].copy_(wide.t().reshape(t["y"].shape) if s["rows"] != s["columns"] else t["x"].t())

    verdict = judge(run, op="transpose", sizes={"rows": 64, "columns": 64}, shapes=None)
    assert "right only where rows and columns are equal" in verdict.findings[-1].text


def test_transposed_layout() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        t["c"].copy_((t["a"] @ t["b"]).t().contiguous().view(t["c"].shape))

    check_name, text = reason(judge(run))
    assert check_name == "layout"
    assert "transposed in memory" in text


def test_a_race() -> None:
    check_name, text = reason(judge(racing(0.2, 0.5)))
    assert check_name == "race"
    assert "on the same inputs" in text
    assert "race" in text


def test_unordered_sums_differ_by_rounding_only() -> None:
    sizes = {"n": 3000}
    check_name, text = reason(judge(unordered_sum, op="reduction", sizes=sizes))
    assert check_name == "race"
    assert "--unordered" in text
    assert judge(unordered_sum, op="reduction", sizes=sizes, shapes=None, unordered=True).right
    assert reason(judge(racing(0.2, 0.5), unordered=True))[0] == "race"


@pytest.mark.parametrize(("name", "by"), [("c", 1), ("c", -1), ("a", 1), ("b", -3), ("c", 900)])
def test_write_out_of_bounds(name: str, by: int) -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        matmul(t, s)
        memory, at = beyond(t[name], by)
        memory[at] = 1.0

    check_name, text = reason(judge(run))
    assert check_name == "bounds"
    assert "written to" in text
    assert ("before" if by < 0 else "after") + f" {name}" in text


def test_read_out_of_bounds() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        matmul(t, s)
        memory, at = beyond(t["a"], 2)
        t["c"][-1, -1] += memory[at]

    check_name, text = reason(judge(run))
    assert check_name == "bounds"
    assert "values outside of the inputs are read" in text


def test_another_result_at_another_address() -> None:
    first: list[int] = []

    def run(t, s):  # type: ignore[no-untyped-def]
        first[:] = first or [t["a"].data_ptr()]
        matmul(t, s)
        if t["a"].data_ptr() != first[0]:
            t["c"][0, 0] += 1.0

    assert reason(judge(run))[0] == "address"


def test_nan_among_the_inputs_must_not_vanish_or_spread() -> None:
    def hides(t, s):  # type: ignore[no-untyped-def]
        t["c"].copy_(t["a"].nan_to_num(0.0) @ t["b"])

    check_name, text = reason(judge(hides))
    assert check_name == "nan"
    assert "expected NaN" in text

    def spreads(t, s):  # type: ignore[no-untyped-def]
        matmul(t, s)
        if t["c"].isnan().any():
            t["c"].fill_(math.nan)

    assert reason(judge(spreads))[0] == "nan"
    assert judge(hides, specials=False).right


def test_the_sign_of_zero_does_not_matter() -> None:
    def run(t, s):  # type: ignore[no-untyped-def]
        matmul(t, s)
        t["c"][t["c"] == 0] = -0.0

    assert judge(run, shapes=None).right


def test_softmax() -> None:
    sizes = {"rows": 20, "columns": 70}
    for precision in ("fp32", "bf16", "fp16"):
        assert judge(online_softmax, "softmax", sizes, precision, shapes=None).right
    check_name, text = reason(judge(softmax_in_one_go, "softmax", sizes))
    assert check_name == "values"
    assert "large inputs" in text


def test_a_shape_that_cannot_be_launched() -> None:
    one = kernel(matmul)
    bind = one.bind

    def limited(tensors, sizes):  # type: ignore[no-untyped-def]
        if sizes["m"] > 512:
            raise UserError("1040 threads, 1024 at most")
        return bind(tensors, sizes)

    one.bind = limited  # type: ignore[method-assign]
    verdict = check(one, OPS["matmul"], SIZES, seed=1)
    assert [f.check for f in verdict.findings if f.check != "pattern"] == ["launch"]
    assert "declare it with require" in verdict.findings[0].text
    with pytest.raises(UserError, match="1040 threads"):
        check(one, OPS["matmul"], {**SIZES, "m": 600}, seed=1)


def test_a_kernel_that_breaks() -> None:
    def breaks(t, s):  # type: ignore[no-untyped-def]
        raise IndexError("out of range")

    check_name, text = reason(judge(breaks))
    assert check_name == "crash"
    assert "IndexError: out of range" in text

    def lost(t, s):  # type: ignore[no-untyped-def]
        raise KernelFailed("an illegal address", context_lost=True)

    verdict = judge(lost, shapes=None)
    assert len(verdict.shapes) == 1
    assert "further shapes were left out" in verdict.notes[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_large_products_are_sampled_and_summed(precision: str) -> None:
    sizes = {"m": 320, "n": 200, "k": 256}
    verdict = judge(matmul, sizes=sizes, precision=precision, full_flop=1e6)
    assert verdict.right, verdict.findings
    assert "checksums" in verdict.compared

    def one_off(t, s):  # type: ignore[no-untyped-def]
        matmul(t, s)
        t["c"][-3, 77] += 2.0

    verdict = judge(one_off, sizes=sizes, precision=precision, full_flop=1e6)
    assert reason(verdict)[0] == "values"


def test_two_hundred_seeds_without_a_false_alarm() -> None:
    functions = (matmul, matmul_one_after_the_other, matmul_split)
    for seed in range(200):
        sizes = {"m": 1 + seed % 9, "n": 1 + seed % 7, "k": 1 + (seed * 37) % 400}
        precision = ("fp32", "bf16", "fp16")[seed % 3]
        verdict = check(
            kernel(functions[seed // 3 % 3], precision), OPS["matmul"], sizes, shapes=(), seed=seed, repeats=3
        )
        assert verdict.right, (seed, sizes, precision, verdict.findings)


def test_two_hundred_seeds_with_fp16_sums_where_declared() -> None:
    for seed in range(200):
        sizes = {"m": 1 + seed % 9, "n": 1 + seed % 7, "k": 1 + (seed * 37) % 60}
        one = kernel(matmul_fp16_sums, "fp16")
        verdict = check(one, OPS["matmul"], sizes, shapes=(), seed=seed, repeats=3, accumulate="fp16")
        assert verdict.right, (seed, sizes, verdict.findings)


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(0.0, 1e3))
def test_refused_is_the_negation_of_passing(error: float, bound: float) -> None:
    got = torch.tensor([error], dtype=torch.float64)
    truth = Truth(torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    found = deviation(got, truth, torch.tensor([bound], dtype=torch.float64), torch.float64)
    passes = math.isfinite(error) and abs(error) <= 4 * bound
    assert refused(found, None) is not passes


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40))
def test_deviations_add_up(seed: int, first: int, second: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(first + second, generator=generator, dtype=torch.float64)
    got = value + 1e-6 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
    bound = torch.full_like(value, 1e-6)
    whole = deviation(got, Truth(value, bound), bound, torch.float64)
    parts = [
        deviation(got[part], Truth(value[part], bound), bound[part], torch.float64, part.start)
        for part in (slice(0, first), slice(first, first + second))
    ]
    summed = parts[0].plus(parts[1])
    assert summed.wrong == whole.wrong
    assert summed.worst == whole.worst
    assert summed.of_wrong == whole.of_wrong
    assert summed.error == pytest.approx(whole.error)
    assert summed.typical == pytest.approx(whole.typical)


def test_the_library_excuses_little() -> None:
    found = Deviation(elements=10_000, wrong=5, worst=7.0, scaled2=4.0 * 10_000)
    good = Deviation(elements=10_000, worst=1.0, scaled2=0.1 * 10_000)
    as_bad = Deviation(elements=10_000, worst=6.0, scaled2=3.0 * 10_000)
    broken = Deviation(elements=10_000, class_wrong=1, worst=100.0, scaled2=1e9)
    assert refused(found, None)
    assert refused(found, good)
    assert not refused(found, as_bad)
    assert refused(found, broken)
    hopeless = Deviation(elements=10_000, worst=1e6, scaled2=1e12)
    assert refused(Deviation(elements=10_000, worst=1e5, scaled2=1e10), hopeless)
    assert not refused(Deviation(elements=10_000, worst=1e5, scaled2=1e10), hopeless, trust_library=True)


def test_patterns() -> None:
    def shape(*sizes: int) -> dict[str, int]:
        return dict(zip("mnk", sizes, strict=True))

    assert pattern_of([shape(16, 16, 16), shape(48, 32, 80)], [shape(17, 16, 16)]) == (
        "right only where m, n and k are all multiples of 16"
    )
    assert pattern_of([shape(5, 3, 8), shape(1, 1, 24)], [shape(8, 8, 4)]) == "right only where k is a multiple of 8"
    assert pattern_of([shape(5, 5, 9), shape(7, 7, 2)], [shape(5, 4, 1)]) == "right only where m and n are equal"
    assert pattern_of([shape(5, 3, 8), shape(1, 2, 24)], [shape(8, 8, 8)]) is None
    assert pattern_of([], [shape(1, 1, 1)]) is None


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_a_gpu(precision: str) -> None:
    gpu = torch.device("cuda:0")
    other = torch.cuda.Stream(gpu)

    def plain(t, s):  # type: ignore[no-untyped-def]
        with exactly(precision, "fp32"):  # torch may otherwise keep parts of an fp16 product's sums in fp16
            torch.mm(t["a"], t["b"], out=t["c"])

    def aside(t, s):  # type: ignore[no-untyped-def]
        with torch.cuda.stream(other):
            plain(t, s)

    def outside(t, s):  # type: ignore[no-untyped-def]
        plain(t, s)
        memory, at = beyond(t["c"], 1)
        memory[at] = 1.0

    def judged(function) -> Verdict:  # type: ignore[no-untyped-def]
        one = FakeKernel(function, Declaration("fake", precision=precision), device=gpu)
        return check(one, OPS["matmul"], SIZES, repeats=5)

    assert judged(plain).right
    assert judged(aside).findings[0].check == "stream"
    assert judged(outside).findings[0].check == "bounds"
