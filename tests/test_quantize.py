"""Weights in 8 and 4 bits, and the products on a CPU that take them, each against fp64."""

from __future__ import annotations

import pytest
import torch

from nearpeak.inference import cpu_pack
from nearpeak.inference.cpu_linear import HalfLinear, Int4Linear, Int8Linear, OneDnnLinear, PlainLinear
from nearpeak.inference.quantize import quantize_weight, to_int4, to_int8

BF16_STEP = 2.0**-8
SHAPES = [(16, 64), (48, 192), (96, 576)]


def drawn(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, dtype=torch.float64).float() * 0.05


def error(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.double() - truth.double()).norm() / truth.double().norm())


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_int8_is_within_half_a_step_of_each_weight(outputs: int, inputs: int) -> None:
    weight = drawn(outputs, inputs)
    packed = to_int8(weight)
    assert packed.values.dtype == torch.int8
    step = packed.scale.float()
    # the largest weight of a row may be cut by the scale's own rounding, half a bf16 step
    room = step / 2 + weight.abs().amax(1, keepdim=True) * BF16_STEP
    assert bool(((packed.dequantized() - weight).abs() <= room).all())


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_int4_is_within_half_a_step_of_each_weight(outputs: int, inputs: int) -> None:
    weight = drawn(outputs, inputs)
    packed = to_int4(weight, 64)
    assert int(packed.values.max()) <= 15
    step = packed.scale.float().unsqueeze(-1)
    grouped = (packed.dequantized() - weight).unflatten(1, (-1, 64)).abs()
    largest = weight.unflatten(1, (-1, 64)).abs().amax(-1, keepdim=True)
    assert bool((grouped <= step / 2 + 4 * largest * BF16_STEP).all())


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_weights_that_are_all_alike_stay_finite(value: float) -> None:
    weight = torch.full((16, 64), value)
    for packed in (to_int8(weight), to_int4(weight, 64)):
        assert float((packed.dequantized() - weight).abs().max()) <= abs(value) * BF16_STEP


def test_an_infinite_weight_does_not_become_a_plausible_number() -> None:
    weight = drawn(16, 64)
    weight[3, 5] = torch.nan
    for packed in (to_int8(weight), to_int4(weight, 64)):
        assert not bool(torch.isfinite(packed.dequantized()[3]).all())


def test_sizes_that_do_not_divide_are_kept_in_8_bits() -> None:
    assert quantize_weight(drawn(32, 128), "int4", is_head=False).middle is not None
    assert quantize_weight(drawn(32, 96), "int4", is_head=False).middle is None  # 96 inputs are no groups of 64
    assert quantize_weight(drawn(24, 128), "int4", is_head=False).middle is None  # 24 outputs are no sixteens
    assert quantize_weight(drawn(32, 128), "int4", is_head=True).middle is None
    assert quantize_weight(drawn(32, 128), "int8", is_head=False).middle is None


@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_packed_products_agree_with_fp64_on_the_same_weights(outputs: int, inputs: int, rows: int) -> None:
    weight, x = drawn(outputs, inputs), torch.randn(rows, inputs)
    rounded = x.to(torch.bfloat16).double()  # activations are bf16 there
    for packed, way in ((to_int8(weight), Int8Linear), (to_int4(weight, 64), Int4Linear)):
        truth = rounded @ packed.dequantized().double().T
        got = way(packed)(x)
        assert got.dtype == torch.float32
        assert error(got, truth) <= BF16_STEP, way.__name__


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("way", [PlainLinear, OneDnnLinear, HalfLinear])
def test_unpacked_products_agree_with_fp64(way: type, rows: int) -> None:
    weight, x = drawn(96, 192).to(torch.bfloat16), torch.randn(rows, 192)
    try:
        linear = way(weight)
    except RuntimeError as reason:
        pytest.skip(f"this processor has no such product: {reason}")
    exact = x if way is HalfLinear else x.to(torch.bfloat16)
    assert error(linear(x), exact.double() @ weight.double().T) <= BF16_STEP


@pytest.mark.parametrize("scale", [1e6, 1e-7])
def test_weights_that_fp16_cannot_hold_are_refused_by_that_way(scale: float) -> None:
    with pytest.raises(ValueError, match="fp16 cannot hold"):
        HalfLinear((drawn(32, 64) * scale).to(torch.bfloat16))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_fastest_way_is_one_that_works(precision: str) -> None:
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    samples = [drawn(64, 128).to(dtype) for _ in range(3)]
    way = cpu_pack.fastest(precision, samples)
    x = torch.randn(1, 128)
    assert error(way(samples[0])(x), x.double() @ samples[0].double().T) <= 2 * BF16_STEP


def test_a_way_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(weight: torch.Tensor) -> PlainLinear:
        raise RuntimeError("no such units")

    monkeypatch.setitem(cpu_pack.WAYS, "bf16", (broken, PlainLinear))
    assert cpu_pack.fastest("bf16", [drawn(16, 64).to(torch.bfloat16)]) is PlainLinear
