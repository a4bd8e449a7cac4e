"""Weights in 8 and 4 bits, made at load time from those of the file. Only weights: activations stay as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

LEVELS, MIDDLE = 15, 8
"""The largest of the sixteen whole numbers that 4 bits hold, and the one that stands for a group's middle."""

OUTPUTS_OF_INT4 = 16
"""torch's int4 product on a CPU takes outputs in multiples of this; the same weights are made everywhere."""


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


def group_of(inputs: int) -> int | None:
    """The group that int4 weights of so many inputs get: 64, which all of them divide by or none."""
    return 64 if inputs % 64 == 0 else None


def quantize_weight(weight: torch.Tensor, precision: str, is_head: bool) -> Quantized:
    """int8; or int4 in groups where the sizes allow it. The head of an int4 model stays int8: its errors would go
    straight to the logits. weight [outputs, inputs]."""
    group = group_of(weight.shape[1])
    if precision == "int4" and group and not is_head and weight.shape[0] % OUTPUTS_OF_INT4 == 0:
        return to_int4(weight, group)
    return to_int8(weight)
