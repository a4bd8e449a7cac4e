"""y = x·Wᵀ on a CPU in the ways that torch has, each with weights laid out once: one class a way.

All take fp32 [rows, inputs] and give fp32 [rows, outputs]. The packed products are private to torch: tests pin them.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from nearpeak.inference.quantize import Quantized

FP16_MAX = 65504.0


class CpuLinear(Protocol):
    """how: in words; bytes: what a product reads; compute: the precision that it multiplies in."""

    how: str
    bytes: int
    compute: str

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class PlainLinear:
    """torch's own linear on the weights as they are: always there."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.dtype = weight, weight.dtype
        self.compute = {torch.float32: "fp32", torch.float16: "fp16"}.get(weight.dtype, "bf16")
        self.how, self.bytes = f"{str(weight.dtype).removeprefix('torch.')} by torch's linear", weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(self.dtype), self.weight).float()


class OneDnnLinear:
    """bf16 packed by oneDNN: the fastest where the processor has AVX-512; elsewhere making one raises RuntimeError."""

    compute = "bf16"

    def __init__(self, weight: torch.Tensor) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        self.how, self.bytes = "bf16 packed by oneDNN", weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.mkldnn._linear_pointwise(x.to(torch.bfloat16), self.packed, None, "none", [], "")
        return y.float()


class HalfLinear:
    """16-bit weights packed as fp16 by FBGEMM, activations, sums and results in fp32.

    The fastest for processors without bf16 units (AVX2); and for the head anywhere, as logits rounded to bf16 tie. fp16
    has all digits of bf16, but ends at 65,504, and is off by up to 2⁻²⁵ below 2⁻¹⁴. Raises ValueError where that would
    show: a weight is too large, or all together are so small that the error may be 1e-4 of their norm.
    """

    compute = "fp32"

    def __init__(self, weight: torch.Tensor) -> None:
        full = weight.detach().float()
        largest, error = float(full.abs().max()), 2.0**-25 * full.numel() ** 0.5
        if not (largest <= FP16_MAX and error <= 1e-4 * float(full.norm())):
            raise ValueError(
                f"fp16 cannot hold these weights: the largest is {largest:.3g}, all are too small or not finite"
            )
        self.packed = torch.ops.quantized.linear_prepack_fp16(full, None)
        self.how, self.bytes = "fp16 packed by FBGEMM", full.numel() * 2

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return y


class Int8Linear:
    """int8 weights, a scale a row; activations in bf16."""

    compute = "bf16"

    def __init__(self, weight: Quantized) -> None:
        self.values, self.scale = weight.values, weight.scale.squeeze(1)
        self.how, self.bytes = "int8 by torch's packed product", self.values.nbytes + self.scale.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(x.to(torch.bfloat16), self.values, self.scale).float()


class Int4Linear:
    """int4 weights in groups; activations in bf16."""

    compute = "bf16"

    def __init__(self, weight: Quantized) -> None:
        assert weight.middle is not None, "int8 weights are not in groups"
        self.group = weight.group
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.values.int(), 1)
        self.scales = (
            torch.stack((weight.scale, weight.middle), -1).transpose(0, 1).contiguous()
        )  # [groups, outputs, 2]
        self.how, self.bytes = f"int4 (group {self.group})", self.packed.nbytes + self.scales.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.to(torch.bfloat16), self.packed, self.group, self.scales)
        return y.float()
