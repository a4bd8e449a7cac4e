"""Which of torch's products on a CPU is fastest for these weights, found by trying them on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from nearpeak.inference.cpu_linear import CpuLinear, HalfLinear, Int4Linear, Int8Linear, OneDnnLinear, PlainLinear
from nearpeak.inference.quantize import quantize_weight

Way = Callable[[torch.Tensor], CpuLinear]
WAYS: dict[str, tuple[Way, ...]] = {
    "fp32": (PlainLinear,),
    "fp16": (HalfLinear, PlainLinear),
    "bf16": (OneDnnLinear, HalfLinear, PlainLinear),
}
ROUNDS = 7


def fastest(precision: str, samples: Sequence[torch.Tensor]) -> Way:
    """The way that multiplies one row by all `samples` ([outputs, inputs] each) in the least time.

    Samples should be more bytes than the caches hold: in a decode step each weight comes from memory. A way that this
    processor, or these weights, do not allow is passed over; torch's own linear always works.
    """
    seconds: dict[Way, float] = {}
    ways = WAYS[precision]
    if len(ways) == 1:
        return ways[0]
    for way in ways:
        try:
            linears = [way(sample) for sample in samples]
        except (RuntimeError, ValueError, AttributeError):
            continue
        inputs = [torch.randn(1, sample.shape[1]) for sample in samples]
        seconds[way] = min(_once(linears, inputs) for _ in range(ROUNDS))
    return min(seconds, key=lambda way: seconds[way])


def head_of(weight: torch.Tensor, way: Way) -> CpuLinear:
    """The head's logits in fp32 where that costs nothing: rounded to bf16 they tie, and the lowest id would win."""
    if weight.dtype == torch.float32:
        return way(weight)
    try:
        return HalfLinear(weight)
    except (RuntimeError, ValueError, AttributeError):
        return way(weight)


def _once(linears: Sequence[CpuLinear], inputs: Sequence[torch.Tensor]) -> float:
    start = time.perf_counter()
    for linear, x in zip(linears, inputs, strict=True):
        linear(x)
    return time.perf_counter() - start


def packed(precision: str, weight: torch.Tensor, name: str) -> CpuLinear:
    """int8 or int4, as `quantize_weight` decides for this map."""
    made = quantize_weight(weight, precision, name == "head")
    return Int8Linear(made) if made.middle is None else Int4Linear(made)
