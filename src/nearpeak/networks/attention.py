"""Queries, keys and values, and the way back; what happens between them is given from outside."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from nearpeak.networks.decoder_shape import DecoderShape
from nearpeak.networks.norms import RMSNorm
from nearpeak.networks.rope import rotate

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q, k, v) → out. q and out [batch, heads, tokens, head_dim]; k, v [batch, kv_heads, tokens, head_dim]."""
Rotation = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """The attention of one layer."""

    def __init__(self, shape: DecoderShape, layer: int) -> None:
        super().__init__()
        self.shape, self.layer = shape, layer
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q = nn.Linear(shape.width, queries, bias=shape.qkv_bias)
        self.k = nn.Linear(shape.width, keys, bias=shape.qkv_bias)
        self.v = nn.Linear(shape.width, keys, bias=shape.qkv_bias)
        self.o = nn.Linear(queries, shape.width, bias=shape.o_bias)
        self.q_norm = self.k_norm = None
        if shape.qk_norm is not None:
            sizes = (shape.head_dim, shape.head_dim) if shape.qk_norm == "head" else (queries, keys)
            kind = shape.norm_eps, shape.norm_offset, shape.norm_wide
            self.q_norm, self.k_norm = (RMSNorm(size, *kind) for size in sizes)

    def forward(self, x: torch.Tensor, rotation: Rotation | None, attend: Attend) -> torch.Tensor:
        """x [batch, tokens, width] → the same."""
        q, k, v = self._heads(self.q(x), self.q_norm), self._heads(self.k(x), self.k_norm), self._heads(self.v(x), None)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        y: torch.Tensor = self.o(attend(self.layer, q, k, v).transpose(1, 2).flatten(2))
        return y

    def _heads(self, x: torch.Tensor, norm: nn.Module | None) -> torch.Tensor:
        """[batch, tokens, heads · head_dim] → [batch, heads, tokens, head_dim], normed on the way."""
        if norm is not None and self.shape.qk_norm == "width":
            x = norm(x)
        x = x.unflatten(-1, (-1, self.shape.head_dim))
        if norm is not None and self.shape.qk_norm == "head":
            x = norm(x)
        return x.transpose(1, 2)
