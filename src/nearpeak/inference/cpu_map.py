"""One linear map on a CPU: its weights once in memory, as the decode kernels read them; products of many rows by torch.

Products for one token take and give numpy arrays of fp32, and allocate nothing; `rows` takes and gives torch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from nearpeak.inference.quantize import Quantized
from nearpeak.kernels import cpu_decode

Array = np.ndarray
NONE: Array = np.empty(0, np.float32)
"""What a model does not have: a norm, a bias, a scale."""


@dataclass(frozen=True)
class Work:
    """Space for one token's step, all as wide as the widest map.

    x, y, part, sums  the maps' own: any of them may be written by any product
    qkv, mid, out     the layer's: what one product hands to the next
    """

    x: Array
    y: Array
    part: Array
    sums: Array
    qkv: Array
    mid: Array
    out: Array

    @classmethod
    def of(cls, widest: int) -> Work:
        return cls(*(np.zeros(widest, np.float32) for _ in fields(cls)))


class CpuMap(Protocol):
    """bytes: of weights that one token reads; outputs, inputs: its sizes."""

    bytes: int
    outputs: int
    inputs: int

    def normed(self, h: Array, norm: Array, eps: np.float32, work: Work, y: Array) -> None:
        """y = W·norm(h) + bias."""

    def added(self, x: Array, work: Work, h: Array) -> None:
        """h += W·x + bias."""

    def gate_up(self, h: Array, norm: Array, eps: np.float32, work: Work, y: Array, activation: int) -> None:
        """y = act(first half of W·norm(h)) · second half."""

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """W·x + bias for fp32 [rows, inputs]."""


class PlainMap:
    """fp32, bf16, fp16, or int8 with a scale a row.

    wide: products of many rows are done in fp32 also for 16-bit weights, which is faster without units for them.
    """

    def __init__(self, weight: torch.Tensor | Quantized, bias: torch.Tensor | None, wide: bool) -> None:
        self.scale, self.wide = NONE, wide
        if isinstance(weight, Quantized):
            self.scale, weight = weight.scale.float().squeeze(1).numpy(), weight.values
        self.weight = weight.detach().contiguous()
        self.outputs, self.inputs = self.weight.shape
        self.array = _array(self.weight)
        self.bias = NONE if bias is None else bias.detach().float().numpy()
        self.bytes = self.weight.nbytes + self.scale.nbytes // 2  # scales are bf16 numbers

    def normed(self, h: Array, norm: Array, eps: np.float32, work: Work, y: Array) -> None:
        cpu_decode.normed_product(h, norm, eps, self.array, self.scale, self.bias, work.x[: self.inputs], y)

    def added(self, x: Array, work: Work, h: Array) -> None:
        cpu_decode.added_product(x, self.array, self.scale, self.bias, h)

    def gate_up(self, h: Array, norm: Array, eps: np.float32, work: Work, y: Array, activation: int) -> None:
        cpu_decode.normed_gate_up(h, norm, eps, self.array, self.scale, self.bias, work.x[: self.inputs], y, activation)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype == torch.int8:
            y = F.linear(x, self.weight.float()) * torch.from_numpy(self.scale)
        elif self.wide:
            y = F.linear(x, self.weight.float())
        else:
            y = F.linear(x.to(self.weight.dtype), self.weight).float()
        return y + torch.from_numpy(self.bias) if self.bias.size else y


class Int4Map:
    """int4 in groups of inputs."""

    def __init__(self, weight: Quantized, bias: torch.Tensor | None) -> None:
        assert weight.middle is not None, "int8 weights are not in groups"
        self.outputs, self.inputs = weight.values.shape
        scale, middle = (tensor.view(torch.uint16).numpy() for tensor in (weight.scale, weight.middle))
        self.weight, self.scale, self.middle = cpu_decode.blocked_int4(
            weight.values.numpy(), scale, middle, weight.group
        )
        self.groups = self.inputs // weight.group
        self.bias = NONE if bias is None else bias.detach().float().numpy()
        self.bytes = self.weight.nbytes + self.scale.nbytes + self.middle.nbytes

    def normed(self, h: Array, norm: Array, eps: np.float32, work: Work, y: Array) -> None:
        cpu_decode.normed_product_int4(
            h, norm, eps, self.weight, self.scale, self.middle, self.bias,
            work.x[: self.inputs], work.sums[: self.groups], work.part, y,
        )  # fmt: skip

    def added(self, x: Array, work: Work, h: Array) -> None:
        cpu_decode.added_product_int4(
            x, self.weight, self.scale, self.middle, self.bias, work.sums[: self.groups], work.part, work.y, h
        )

    def gate_up(self, h: Array, norm: Array, eps: np.float32, work: Work, y: Array, activation: int) -> None:
        cpu_decode.normed_gate_up_int4(
            h, norm, eps, self.weight, self.scale, self.middle, self.bias,
            work.x[: self.inputs], work.sums[: self.groups], work.part, work.y, y, activation,
        )  # fmt: skip

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        weight = np.empty((self.outputs, self.inputs), np.float32)
        cpu_decode.unblocked_int4(self.weight, self.scale, self.middle, weight)
        y = F.linear(x, torch.from_numpy(weight))
        return y + torch.from_numpy(self.bias) if self.bias.size else y


def _array(weight: torch.Tensor) -> Array:
    """The same memory as the kernels know it: bf16 as uint16, fp16 as int16."""
    kinds = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
    array: Array = weight.view(kinds.get(weight.dtype, weight.dtype)).numpy()
    return array if array.flags.aligned else array.copy()
