"""Why a result is wrong: the same inputs looked at another way, until one guess explains what was got."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from nearpeak.kernelcheck.deviation import CHUNK, Deviation, Element, bound_of, deviation, refused
from nearpeak.kernelcheck.kernel import Sizes, Tensors
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.rounding import Rounding, rounding_of

EXPLAINS = 0.25  # a guess must leave less than this part of the error
WIDESPREAD = 0.1  # of the elements: sums kept in a lower precision are off in many


def element_name(op: Op, sizes: Sizes, at: int, tensor: str | None = None) -> str:
    """ "c[3, 5]" from a flat index"""
    t = next(t for t in op.tensors if t.name == (tensor or op.output.name))
    place = []
    for size in reversed(t.shape(sizes)):
        place.append(at % size)
        at //= size
    return f"{t.name}[{', '.join(str(i) for i in reversed(place))}]"


def seen(op: Op, sizes: Sizes, e: Element) -> str:
    """ "c[3, 5] is 1.25, expected 1.31" """
    return f"{element_name(op, sizes, e.at)} is {number(e.got)}, expected {number(e.expected)}"


def number(x: float) -> str:
    return "NaN" if math.isnan(x) else f"{x:.9g}"


def lower_precision(
    op: Op, inputs: Tensors, got: torch.Tensor, sizes: Sizes, rounding: Rounding, found: Deviation
) -> str | None:
    """Which lower precision gives exactly this error, or None. Only for ops whose inputs are multiplied."""
    if not op.exact_sums or op.degree != 2 or found.class_wrong:
        return None
    if rounding.precision in ("fp32", "fp64"):
        guesses = {"tf32": (_to_tf32, _cut_to_tf32), "bf16": (_to_bf16,), "fp16": (_to_fp16,)}
        if rounding.precision == "fp64":
            guesses = {"fp32": (_to_fp32,), **guesses}
        for name, ways in guesses.items():
            for way in ways:
                rounded = {key: way(x) for key, x in inputs.items()}
                if _error(op, rounded, got, sizes) < EXPLAINS * _error(op, inputs, got, sizes):
                    return (
                        f"the inputs were rounded to {name} before they were multiplied: with inputs rounded so, the "
                        f"result is right; this is {name}, not {rounding.precision}"
                    )
    if found.wrong < WIDESPREAD * found.elements:
        return None
    for sums in ("fp32", "fp16", "bf16"):
        of_sums = rounding_of(rounding.precision, sums, got.dtype)
        if of_sums.sums > rounding.sums and _explained(found, rounding, of_sums):
            return f"an error of this size is what sums kept in {sums} give, not sums in {rounding.accumulate}"
    return None


def transposed(op: Op, inputs: Tensors, got: torch.Tensor, sizes: Sizes, rounding: Rounding) -> bool:
    """Whether the right numbers lie transposed in memory."""
    shape = op.output.shape(sizes)
    if len(shape) != 2 or min(shape) < 2 or got.numel() > CHUNK:
        return False
    turned = got.contiguous().view(shape[1], shape[0]).t()
    truth = op.truth(inputs, sizes, slice(0, op.rows(sizes)))
    return not refused(deviation(turned, truth, bound_of(truth, rounding, got.dtype, False), got.dtype), None)


def _explained(found: Deviation, was: Rounding, now: Rounding) -> bool:
    """Whether the error is within the bound of other sums. The bounds' ratio is at most that of the roundoffs."""
    factor = now.sums / was.sums if was.sums else math.inf
    return not refused(replace(found, scaled2=found.scaled2 / factor**2, worst=found.worst / factor), None)


def _error(op: Op, inputs: Tensors, got: torch.Tensor, sizes: Sizes) -> float:
    """‖got − truth‖ over the first rows."""
    rows = slice(0, max(1, min(op.rows(sizes), 256)))
    value = op.truth(inputs, sizes, rows).value
    return float((got.reshape(op.rows(sizes), -1)[rows].reshape(-1).double() - value.reshape(-1)).norm())


def _to_tf32(x: torch.Tensor) -> torch.Tensor:
    return ((x.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _cut_to_tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.float().view(torch.int32) & ~0x1FFF).view(torch.float32)


def _to_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def _to_fp16(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


def _to_fp32(x: torch.Tensor) -> torch.Tensor:
    return x.float()
