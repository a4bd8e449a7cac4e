"""The matrix product in each precision: C = A·Bᵀ for A (m, k) and B (n, k), as torch's own library does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def random_operand(rows: int, columns: int, precision: str, device: torch.device) -> torch.Tensor:
    """Random data, never zeros: those are multiplied faster (295 against 257 TFLOP/s on an A100), with less power."""
    if precision == "int8":
        return torch.randint(-128, 128, (rows, columns), dtype=torch.int8, device=device)
    return rounded(torch.randn(rows, columns, device=device, dtype=working_dtype(precision)), precision)


def working_dtype(precision: str) -> torch.dtype:
    """The dtype that random operands are drawn in before they are rounded to the precision."""
    return torch.float64 if precision == "fp64" else torch.float32


def rounded(x: torch.Tensor, precision: str) -> torch.Tensor:
    """x in the dtype that this precision's product takes. Standard normal values need no scale in fp8 (e4m3: ±448)."""
    return x.to(DTYPES[precision])


def product(precision: str, accumulate: str, device: torch.device, out: torch.Tensor | None = None) -> Product:
    """C = A·Bᵀ. fp8 gives bf16 (unit scales), int8 gives int32, the others their own dtype."""
    if precision == "int8":
        return lambda a, b: torch._int_mm(a, b.t())
    if precision == "fp8":
        one, fast = torch.ones((), device=device), accumulate == "fast"
        return lambda a, b: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)
    if out is None:
        return lambda a, b: torch.mm(a, b.t())
    return lambda a, b: torch.mm(a, b.t(), out=out)


def routine(precision: str) -> str:
    """The routine's name, for the record."""
    return {"int8": "torch._int_mm", "fp8": "torch._scaled_mm, e4m3"}.get(precision, "torch.mm")


def result_dtype(precision: str) -> torch.dtype:
    return {"int8": torch.int32, "fp8": torch.bfloat16}.get(precision, DTYPES[precision])


@contextmanager
def exactly(precision: str, accumulate: str) -> Iterator[None]:
    """Hold torch's switches so that the product is done in this precision and no other, and put them back after."""
    cuda = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), _accumulate_flags()
    try:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        cuda.allow_fp16_reduced_precision_reduction = False
        cuda.allow_bf16_reduced_precision_reduction = False
        cuda.allow_fp16_accumulation = accumulate == "fp16"
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        for name, value in before[1].items():
            setattr(cuda, name, value)


def _accumulate_flags() -> dict[str, object]:
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    return {name: getattr(torch.backends.cuda.matmul, name) for name in names}
