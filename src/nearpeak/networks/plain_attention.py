"""Attention without a cache, over whole sequences: the truth that other ways are compared with."""

from __future__ import annotations

import torch

from nearpeak.networks.attention import Attend
from nearpeak.networks.decoder_shape import DecoderShape


def plain_attention(shape: DecoderShape, positions: torch.Tensor) -> Attend:
    """positions int64 [batch, tokens]. Scores and softmax in fp32; a position sees those up to itself, and of them the
    last `window` where its layer has one."""
    later, before = positions.unsqueeze(2), positions.unsqueeze(1)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        groups = shape.heads // shape.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = (q @ k.transpose(-1, -2) * shape.score_scale).float()
        if shape.score_cap is not None:
            scores = shape.score_cap * torch.tanh(scores / shape.score_cap)
        seen = before <= later
        window = shape.layers[layer].window
        if window is not None:
            seen &= before > later - window
        return scores.masked_fill(~seen.unsqueeze(1), -torch.inf).softmax(-1).to(q.dtype) @ v

    return attend
