"""The two norms of decoders. Both are computed in fp32, whatever the weights are kept in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """x·w ÷ √(mean x² + eps) over the last `size` numbers.

    offset  the weight is 1 + what is stored, summed in fp32 (Gemma)
    wide    the weight is multiplied in fp32, and the product rounded (Gemma, OLMo 2); else rounded before that
    """

    def __init__(self, size: int, eps: float, offset: bool = False, wide: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.offset, self.wide = eps, offset, wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x.float()
        normed = normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + self.eps)
        weight = 1.0 + self.weight.float() if self.offset else self.weight
        return (weight * normed).to(x.dtype) if self.wide else weight * normed.to(x.dtype)


class LayerNorm(nn.Module):
    """(x − mean)·w ÷ √(variance + eps) + b."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(size)), nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
