"""Inputs to check a kernel on: several ranges, and patterns that show one kind of fault each."""

from __future__ import annotations

import math
from typing import Literal

import torch

from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.op import Op

Kind = Literal["normal", "large", "tiny", "positive", "integers", "one_hot", "nan", "inf"]
WHAT: dict[str, str] = {
    "normal": "normal random inputs",
    "large": "large inputs (about 1,000)",
    "tiny": "tiny inputs",
    "positive": "inputs that are all positive",
    "integers": "small whole numbers, whose sums are exact",
    "one_hot": "rows with a single one, which pick out single elements",
    "nan": "one NaN in each input",
    "inf": "one infinity in each input",
}


def kinds_of(op: Op, precision: str) -> tuple[Kind, ...]:
    """The kinds of input that say something about this op in this precision."""
    if precision == "int8":
        return ("normal", "one_hot") if op.degree == 2 and op.exact_sums else ("normal",)
    kinds: list[Kind] = ["normal"]
    if not op.trust_library:
        kinds += ["large", "tiny"]
    kinds.append("positive")
    if op.exact_sums:
        kinds.append("integers")
    if op.exact_sums and op.degree == 2:
        kinds.append("one_hot")
    if op.nan_in:
        kinds.append("nan")
    if op.inf_in and precision != "fp8":  # e4m3 has no infinity
        kinds.append("inf")
    return tuple(kinds)


def draw(op: Op, sizes: Sizes, precision: str, kind: Kind, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Inputs by name, on the generator's device, in the dtypes that the kernel takes."""
    device, inputs = generator.device, {}
    for place, t in enumerate(op.inputs):
        shape, dtype = t.shape(sizes), t.dtype(precision)
        if not dtype.is_floating_point:
            x = torch.randint(-128 if dtype == torch.int8 else 0, 128, shape, generator=generator, device=device)
        elif kind == "integers":
            x = _integers(op, sizes, precision, shape, generator)
        elif kind == "positive":
            x = torch.rand(shape, generator=generator, device=device) * min(1.0, _largest(op, sizes, dtype))
        else:
            x = torch.randn(shape, generator=generator, device=device, dtype=_wide(dtype))
            x = x * _range_of(op, sizes, dtype, kind)
        if kind == "one_hot" and place == 0:
            x = _one_hot(shape, generator)
        elif kind == "one_hot" and dtype.is_floating_point:
            x = torch.randint(-8, 9, shape, generator=generator, device=device)
        inputs[t.name] = x.to(dtype)
    if kind in ("nan", "inf"):
        _spoil(op, inputs, kind, generator)
    return inputs


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _range_of(op: Op, sizes: Sizes, dtype: torch.dtype, kind: Kind) -> float:
    if kind == "large":
        return min(1000.0, _largest(op, sizes, dtype))
    if kind == "tiny":  # products of two stay normal numbers
        return 2.0**-20 if dtype not in (torch.float16, torch.float8_e4m3fn) else 2.0**-5
    return 1.0


def _largest(op: Op, sizes: Sizes, dtype: torch.dtype) -> float:
    """So large that sums of products, eight deviations out, stay below the largest number of the dtype."""
    largest = 448.0 if dtype == torch.float8_e4m3fn else float(torch.finfo(dtype).max)
    terms = op.terms(sizes) if op.exact_sums else 1
    one = (largest if op.exact_sums else math.inf) / (8 * max(math.sqrt(terms), terms / 8))
    return float(min(one ** (1 / op.degree), largest / 8))


def _integers(op: Op, sizes: Sizes, precision: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Whole numbers, so small or so rare that the output holds every sum exactly."""
    device = generator.device
    holds = {"bf16": 2.0**8, "fp8": 2.0**8, "fp16": 2.0**11}.get(precision, 2.0**24)
    root = math.sqrt(op.terms(sizes))
    # Deviation of the sum: √K · s, s that of one term; whole numbers from −4 to 4 have 2.6, a share p of ±1 has √p.
    if 7 * root * 2.6**op.degree < holds:
        return torch.randint(-4, 5, shape, generator=generator, device=device)
    share = min(1.0, (holds / (7 * root)) ** (2 / op.degree))
    signs = torch.randint(0, 2, shape, generator=generator, device=device) * 2 - 1
    return signs * (torch.rand(shape, generator=generator, device=device) < share)


def _one_hot(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """One 1 in each row, at a random place; each place once where the matrix is square: a permutation."""
    rows, columns = shape
    rounds = [torch.randperm(columns, generator=generator, device=generator.device) for _ in range(-(-rows // columns))]
    x = torch.zeros(shape, device=generator.device)
    return x.scatter_(1, torch.cat(rounds)[:rows, None], 1.0)


def _spoil(op: Op, inputs: dict[str, torch.Tensor], kind: Kind, generator: torch.Generator) -> None:
    """One NaN, or one infinity, in each of the inputs where it has one meaning only."""
    for name in op.nan_in if kind == "nan" else op.inf_in:
        flat = inputs[name].view(-1)
        at = int(torch.randint(flat.numel(), (1,), generator=generator, device=generator.device))
        flat[at] = math.nan if kind == "nan" else math.inf
