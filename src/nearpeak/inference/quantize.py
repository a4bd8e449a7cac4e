"""Weights in 8 and 4 bits, made at load time from those of the file. Only weights: activations stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

LEVELS, MIDDLE = 15, 8
"""The largest of the sixteen whole numbers that 4 bits hold, and the one that stands for a group's middle."""

GROUP, OUTPUTS_OF_INT4 = 64, 64
"""Inputs that share a scale, and the rows that the CPU's kernels sum side by side."""


@dataclass(frozen=True)
class Quantized:
    """W ≈ scale·values, row by row (int8), or scale·(values − 8) + middle, group by group along a row (int4).

    values  int8 [outputs, inputs] from −127 to 127; for int4 uint8 from 0 to 15
    scale   bf16 [outputs, groups]; middle likewise, None for int8. Kept in bf16, as the products take them; values are
            rounded against the rounded ones, so that this rounding costs nothing twice
    group   inputs that share a scale; all of a row for int8
    """

    values: torch.Tensor
    scale: torch.Tensor
    middle: torch.Tensor | None
    group: int

    def dequantized(self) -> torch.Tensor:
        """fp32 [outputs, inputs]: what a product with these weights multiplies by."""
        grouped = self.values.float().unflatten(1, (-1, self.group))
        scale = self.scale.float().unsqueeze(-1)
        if self.middle is None:
            return (grouped * scale).flatten(1)
        return ((grouped - MIDDLE) * scale + self.middle.float().unsqueeze(-1)).flatten(1)


def to_int8(weight: torch.Tensor) -> Quantized:
    """Symmetric, one scale a row: the largest magnitude of the row becomes 127. weight [outputs, inputs]."""
    weight = weight.float()
    scale = (weight.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    divisor = scale.float().clamp_min(torch.finfo(torch.float32).tiny)  # a row of zeros
    values = (weight / divisor).round_().clamp_(-127, 127).to(torch.int8)
    return Quantized(values, scale, None, weight.shape[1])


def to_int4(weight: torch.Tensor, group: int) -> Quantized:
    """From the smallest to the largest of each group in fifteen steps. inputs must be a multiple of `group`."""
    grouped = weight.float().unflatten(1, (-1, group))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = ((high - low) / LEVELS).to(torch.bfloat16)
    middle = (low + MIDDLE * scale.float()).to(torch.bfloat16)
    divisor = scale.float().clamp_min(torch.finfo(torch.float32).tiny)
    values = ((grouped - middle.float()) / divisor + MIDDLE).round_().clamp_(0, LEVELS).to(torch.uint8)
    return Quantized(values.flatten(1), scale.squeeze(-1), middle.squeeze(-1), group)


def packed_precision(precision: str, sizes: Sequence[tuple[int, int]], is_head: bool) -> str:
    """int4, or int8 where int4 does not do, for maps that share an input and so are run as one.

    sizes: (outputs, inputs) of each. int4 takes inputs in groups of 64 and outputs in blocks of 64. The head stays in
    int8: its errors would go straight to the logits.
    """
    fits = all(outputs % OUTPUTS_OF_INT4 == 0 and inputs % GROUP == 0 for outputs, inputs in sizes)
    return "int4" if precision == "int4" and fits and not is_head else "int8"


def quantize(weight: torch.Tensor, precision: str) -> Quantized:
    """int8, or int4 in groups of 64. weight [outputs, inputs]."""
    return to_int4(weight, GROUP) if precision == "int4" else to_int8(weight)
