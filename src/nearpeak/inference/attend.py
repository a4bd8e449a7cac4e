"""Attention over a cache, plainly: new keys and values are written first, then every position seen is read."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from nearpeak.inference.cache import Cache
from nearpeak.networks.decoder_shape import DecoderShape

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def cached_attend(shape: DecoderShape, cache: Cache, positions: torch.Tensor, seen: int | None = None) -> Attend:
    """The `attend` that a Decoder asks for.

    positions  int64 [tokens], of the new tokens in all sequences of the batch
    seen       how many positions of the cache are read: those filled after this call. None: all of its capacity, the
               empty ones masked, so that shapes stay the same from step to step (a CUDA graph needs that)
    """
    end = cache.capacity if seen is None else seen
    masks = {window: _mask(positions, end, window) for window in {layer.window for layer in shape.layers}}

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = cache.keys[layer], cache.values[layer]
        keys.index_copy_(2, positions, k.to(keys.dtype))
        values.index_copy_(2, positions, v.to(values.dtype))
        mask = masks[shape.layers[layer].window]
        return attention(shape, q, keys[:, :, :end].to(q.dtype), values[:, :, :end].to(q.dtype), mask)

    return attend


def attention(
    shape: DecoderShape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """softmax(cap(q·kᵀ·scale) where mask)·v. q [batch, heads, tokens, head_dim]; k, v [batch, kv_heads, seen,
    head_dim]; mask bool [tokens, seen]; the result like q."""
    if shape.score_cap is None:
        grouped = shape.heads != shape.kv_heads
        return F.scaled_dot_product_attention(q, k, v, mask, scale=shape.score_scale, enable_gqa=grouped)
    groups = shape.heads // shape.kv_heads
    scores = q.unflatten(1, (shape.kv_heads, groups)) @ k.unsqueeze(2).transpose(-1, -2) * shape.score_scale
    scores = shape.score_cap * torch.tanh(scores / shape.score_cap)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1, dtype=torch.float32).to(v.dtype)
    return (weights @ v.unsqueeze(2)).flatten(1, 2)


def _mask(positions: torch.Tensor, end: int, window: int | None) -> torch.Tensor:
    """bool [tokens, end]: which positions each new token sees. A window counts the token itself."""
    columns = torch.arange(end, device=positions.device)
    rows = positions.unsqueeze(1)
    seen = columns <= rows
    return seen if window is None else seen & (columns > rows - window)
