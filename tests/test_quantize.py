"""Weights in 8 and 4 bits: how far from those of the file, and which maps get which."""

from __future__ import annotations

import pytest
import torch

from nearpeak.inference.quantize import packed_precision, to_int4, to_int8
from nearpeak.inference.quantized_linear import quantize_decoder
from networks import decoder_of
from tiny_folders import tiny

BF16_STEP = 2.0**-8
SHAPES = [(16, 64), (48, 192), (96, 576)]


def drawn(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, dtype=torch.float64).float() * 0.05


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
    assert packed_precision("int4", [(64, 128)], is_head=False) == "int4"
    assert packed_precision("int4", [(64, 96)], is_head=False) == "int8"  # 96 inputs are no groups of 64
    assert packed_precision("int4", [(96, 128)], is_head=False) == "int8"  # 96 outputs are no blocks of 64
    assert packed_precision("int4", [(128, 64), (32, 64)], is_head=False) == "int8"  # one of those that are run as one
    assert packed_precision("int4", [(64, 128)], is_head=True) == "int8"
    assert packed_precision("int8", [(64, 128)], is_head=False) == "int8"


def test_the_reference_path_packs_what_is_run_as_one_alike() -> None:
    decoder = decoder_of(tiny("llama"))  # keys and values have 32 outputs
    quantize_decoder(decoder, "int4")
    attention = decoder.layers[0].attention
    assert [map_.middle is None for map_ in (attention.q, attention.k, attention.v, attention.o)] == [True] * 3 + [
        False
    ]
    assert decoder.head.middle is None
