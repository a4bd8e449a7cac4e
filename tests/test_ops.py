"""The ops: their truth against torch, their counts against torch's own, names and shapes from text."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from fake_kernels import kernel
from nearpeak.ceilings.products import exactly
from nearpeak.kernelcheck.deviation import compare, refused
from nearpeak.kernelcheck.draws import draw, kinds_of
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.ops import OPS, find_op, load_function, op_of_function, parse_shape
from nearpeak.kernelcheck.ops_elements import UNARY
from nearpeak.kernelcheck.right import check
from nearpeak.kernelcheck.rounding import rounding_of
from nearpeak.kernelcheck.shapes import shapes_for
from nearpeak.records.errors import UserError

ASKED = {"m": 30, "n": 35, "k": 41, "rows": 21, "columns": 50, "batch": 2, "heads": 3, "length": 40, "head_dim": 16}


def asked(op: Op) -> dict[str, int]:
    return {name: ASKED[name] for name in op.sizes}


def library_kernel(op: Op):  # type: ignore[no-untyped-def]
    def run(t, sizes):  # type: ignore[no-untyped-def]
        t[op.output.name].copy_(op.library(t, sizes).reshape(op.output.shape(sizes)))

    return run


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_the_library_passes_as_a_kernel(name: str, precision: str) -> None:
    op = OPS[name]
    verdict = check(kernel(library_kernel(op), precision), op, asked(op), repeats=2, seed=5)
    # The CPU's library may keep another order when it is handed other addresses or threads; none is wrong.
    assert {f.check for f in verdict.findings} <= {"race", "address", "drift"}, verdict.findings
    assert all("by rounding only" in f.text for f in verdict.findings)


@pytest.mark.parametrize("name", ["matmul", "matmul_nt"])
def test_whole_numbers_are_exact(name: str) -> None:
    op = OPS[name]

    def run(t, sizes):  # type: ignore[no-untyped-def]
        t["c"].copy_(t["a"].int() @ (t["b"].t() if name == "matmul_nt" else t["b"]).int())

    assert check(kernel(run, "int8"), op, asked(op), repeats=2).right

    def one_off(t, sizes):  # type: ignore[no-untyped-def]
        run(t, sizes)
        t["c"][-1, -1] += 1

    verdict = check(kernel(one_off, "int8"), op, asked(op), shapes=(), repeats=2)
    assert verdict.findings[0].check == "values"


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if not op.exact and n != "relu"])
def test_a_small_error_everywhere_is_seen(name: str) -> None:
    """A thousandth off in fp32 is far beyond rounding, in every op."""
    op = OPS[name]

    def run(t, sizes):  # type: ignore[no-untyped-def]
        library_kernel(op)(t, sizes)
        t[op.output.name].mul_(1.001)

    assert not check(kernel(run), op, asked(op), shapes=(), repeats=2).right


@pytest.mark.parametrize("name", ["copy", "transpose", "relu"])
def test_ops_that_compute_nothing_must_be_exact(name: str) -> None:
    op = OPS[name]

    def run(t, sizes):  # type: ignore[no-untyped-def]
        library_kernel(op)(t, sizes)
        y = t["y"].view(-1)
        y[y.argmax()] *= 1 + 2.0**-22

    assert not check(kernel(run), op, asked(op), shapes=(), repeats=2).right


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(OPS)), st.sampled_from(["fp32", "bf16", "fp16"]))
def test_no_false_alarm_on_any_kind_of_input(seed: int, name: str, precision: str) -> None:
    op, generator = OPS[name], torch.Generator().manual_seed(seed)
    most = 8 if name.startswith("attention") else 90
    sizes = {size: 1 + (seed >> i) % most for i, size in enumerate(op.sizes)}
    rounding = rounding_of(precision, None, op.output.dtype(precision))
    # The CPU's fused functions lose NaN and infinity in places; the check then does not judge by them.
    unsafe = name.startswith("attention") or name in UNARY
    for kind in kinds_of(op, precision):
        if kind in ("nan", "inf") and unsafe:
            continue
        inputs = draw(op, sizes, precision, kind, generator)
        with exactly(precision, "fp32"):
            got = op.library(inputs, sizes).reshape(op.output.shape(sizes))
        found = compare(op, inputs, got, sizes, rounding, kind in ("integers", "one_hot"), None)
        assert not refused(found, None), (kind, sizes, found)


@pytest.mark.parametrize("name", ["matmul", "matmul_nt", "matvec", "attention", "attention_causal"])
def test_flop_against_torch(name: str) -> None:
    op = OPS[name]
    sizes = asked(op)
    inputs = draw(op, sizes, "fp32", "normal", torch.Generator())
    with FlopCounterMode(display=False) as counter:
        if name.startswith("attention"):  # by its two products: the counter does not know the CPU's fused function
            q, k, v = (inputs[n] for n in "qkv")
            ((q @ k.transpose(2, 3)) @ v).sum()
        elif name == "matvec":
            inputs["a"] @ inputs["x"][:, None]
        else:
            op.library(inputs, sizes)
    counted = counter.get_total_flops() / (2 if name == "attention_causal" else 1)
    assert op.flop(sizes) == counted


def test_counts_of_others() -> None:
    sizes = {"rows": 10, "columns": 20}
    assert OPS["softmax"].flop(sizes) == 5 * 200
    assert OPS["transpose"].flop(sizes) == 0
    assert OPS["reduction"].flop({"n": 77}) == 77
    assert OPS["transpose"].bytes(sizes, "bf16") == 2 * 2 * 200
    assert OPS["copy"].bytes_read({"n": 100}, "fp32") == OPS["copy"].bytes_written({"n": 100}, "fp32") == 400
    assert OPS["matmul"].bytes({"m": 2, "n": 3, "k": 5}, "int8") == 10 + 15 + 4 * 6
    assert OPS["rmsnorm"].bytes(sizes, "fp32") == 4 * (200 + 20 + 200)
    # Of a structure of 8 fields only one is needed, though all lie in memory.
    assert OPS["field_sum_structures"].bytes_read({"n": 100}, "fp32") == 400
    assert OPS["field_sum_structures"].footprint({"n": 100}, "fp32") == 3200 + 4


def test_find_op() -> None:
    assert find_op("matmul").name == "matmul"
    assert find_op("elementwise:gelu").name == "gelu"
    assert find_op("field_sum", "arrays").name == "field_sum_arrays"
    with pytest.raises(UserError, match="did you mean softmax"):
        find_op("sofmax")
    with pytest.raises(UserError, match="layout"):
        find_op("field_sum")
    with pytest.raises(UserError, match="elementwise:add"):
        find_op("elementwise")


def test_parse_shape() -> None:
    assert parse_shape(OPS["matmul"], "4096,2048,1024") == {"m": 4096, "n": 2048, "k": 1024}
    assert parse_shape(OPS["softmax"], "12x34") == {"rows": 12, "columns": 34}
    with pytest.raises(UserError, match=r"matmul takes 3 sizes \(m, n, k\), not 2"):
        parse_shape(OPS["matmul"], "4096,4096")
    for wrong in ("0,1,1", "a,1,1", "1.5,1,1", "-1,1,1", f"{2**31},1,1"):
        with pytest.raises(UserError):
            parse_shape(OPS["matmul"], wrong)


def test_a_function_of_the_user(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "mine.py"
    file.write_text("def scaled(x, w):\n    return 2 * x * w\n")
    function = load_function(f"{file}:scaled")
    op = op_of_function(function, ("m", "n"), ("x=m, n", "w=n"), "y=m, n", flop="2 * m * n")
    assert op.flop({"m": 3, "n": 4}) == 24
    right = kernel(lambda t, s: t["y"].copy_(2 * t["x"] * t["w"]))
    assert check(right, op, {"m": 9, "n": 20}, repeats=2).right
    off = kernel(lambda t, s: t["y"].copy_(2 * t["x"] * t["w"] + 1e-3))
    assert not check(off, op, {"m": 9, "n": 20}, repeats=2).right
    with pytest.raises(UserError, match="no function other"):
        load_function(f"{file}:other")
    with pytest.raises(UserError, match="is no file"):
        load_function("nowhere.py:fn")
    wrong = op_of_function(lambda x: x.sum(), ("n",), ("x=n",), "y=n")
    with pytest.raises(UserError, match="returned shape"):
        check(kernel(lambda t, s: t["y"].copy_(t["x"])), wrong, {"n": 4}, shapes=())


@given(st.sampled_from(["k % 8 == 0 and n % 8 == 0", "m % 16 == 0", "m == n and n == k", "k % 64 == 0", "m < 100"]))
def test_shapes_keep_to_what_is_required(require: str) -> None:
    from nearpeak.kernelcheck.expression import holds

    asked_sizes = {"m": 64, "n": 64, "k": 64}
    shapes = shapes_for(OPS["matmul"], asked_sizes, require)
    assert len(shapes) >= 4
    assert all(holds(require, sizes) for sizes in shapes)
    assert asked_sizes not in shapes
    assert len({tuple(s.items()) for s in shapes}) == len(shapes)


def test_shapes_have_the_sizes_where_kernels_fail() -> None:
    for op in OPS.values():
        shapes = shapes_for(op, asked(op))
        assert any(1 in s.values() for s in shapes)
        assert any(any(n % 2 and n > 1 for n in s.values()) for s in shapes)
        assert all(math.prod(s.values()) < 2e7 for s in shapes)
        if op.name.startswith("attention"):
            assert {s["head_dim"] for s in shapes} == {16}
