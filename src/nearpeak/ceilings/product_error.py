"""How far a product in some precision is from the true one."""

from __future__ import annotations

import torch

from nearpeak.ceilings.products import exactly, product, rounded

M, N, K = 512, 512, 4096  # K as long as a common model's inner dimension, so that accumulation shows


def product_error(precision: str, accumulate: str, device: torch.device) -> float | None:
    """‖C − R‖F ÷ ‖R‖F: operands drawn in fp64 and not rounded before R, which another path computes in fp64.

    None for integer products, which are exact. Raises ArithmeticError where C is not finite: NaN is no small error.
    """
    if precision == "int8":
        return None
    a = torch.randn(M, K, dtype=torch.float64)
    b = torch.randn(N, K, dtype=torch.float64)
    with exactly(precision, accumulate):
        c = product(precision, accumulate, device)(rounded(a.to(device), precision), rounded(b.to(device), precision))
    return relative_error(c.double().cpu(), fp64_product(a, b))


def fp64_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A·Bᵀ in fp64 on the CPU by another path than one big product: short partial products, added up."""
    step = 64
    return torch.stack([a[:, i : i + step] @ b[:, i : i + step].t() for i in range(0, a.shape[1], step)]).sum(0)


def relative_error(c: torch.Tensor, r: torch.Tensor) -> float:
    """‖C − R‖F ÷ ‖R‖F, both fp64."""
    error = float(torch.linalg.norm(c - r) / torch.linalg.norm(r))
    if not error < float("inf"):
        raise ArithmeticError(f"the product's error is {error}: C holds a value that is not finite")
    return error
