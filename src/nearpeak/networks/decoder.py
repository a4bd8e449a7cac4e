"""A decoder, top to bottom: token ids in, logits out. Its mathematics alone."""

from __future__ import annotations

import torch
from torch import nn

from nearpeak.networks.attention import Attend, Attention, Rotation
from nearpeak.networks.decoder_shape import DecoderShape
from nearpeak.networks.feed_forward import Experts, FeedForward
from nearpeak.networks.norms import LayerNorm, RMSNorm
from nearpeak.networks.rope import Rope, Rotations


class Decoder(nn.Module):
    """One network for all families that a DecoderShape can describe."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.position = nn.Embedding(shape.learned_positions, shape.width) if shape.learned_positions else None
        self.layers = nn.ModuleList(Block(shape, number) for number in range(len(shape.layers)))
        self.norm = norm_of(shape)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight
        self.rotations = Rotations()

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend, last_only: bool = False
    ) -> torch.Tensor:
        """ids, positions int64 [batch, tokens] → logits [batch, tokens, vocab], or [batch, 1, vocab] of the last ones.

        attend  keeps keys and values, masks, and scores them: see attention.Attend
        """
        x = self.embed(ids)
        if self.shape.embed_scale != 1.0:
            x = x * _rounded(self.shape.embed_scale, x.dtype)
        if self.position is not None:
            x = x + self.position(positions)
        turns: dict[Rope | None, Rotation | None] = {None: None}
        for block, layer in zip(self.layers, self.shape.layers, strict=True):
            if layer.rope is not None and layer.rope not in turns:
                turns[layer.rope] = self.rotations(layer.rope, positions, x.dtype)
            x = block(x, turns[layer.rope], attend)
        return self._logits(x[:, -1:] if last_only else x)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(x))
        cap = self.shape.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)


class Block(nn.Module):
    """Attention, then a feed-forward, each added to what came in; norms before, after, or on both sides."""

    def __init__(self, shape: DecoderShape, number: int) -> None:
        super().__init__()
        before, after = shape.norm_order != "after", shape.norm_order != "before"
        self.attention_norm = norm_of(shape) if before else None
        self.attention = Attention(shape, number)
        self.attention_post_norm = norm_of(shape) if after else None
        self.feed_forward_norm = norm_of(shape) if before else None
        self.feed_forward = self.experts = None
        if shape.layers[number].sparse:
            assert shape.experts is not None, "a sparse layer has experts"
            self.experts = Experts(shape, shape.experts)
        else:
            self.feed_forward = FeedForward(shape)
        self.feed_forward_post_norm = norm_of(shape) if after else None

    def forward(self, x: torch.Tensor, rotation: Rotation | None, attend: Attend) -> torch.Tensor:
        y = self.attention(_normed(x, self.attention_norm), rotation, attend)
        x = x + _normed(y, self.attention_post_norm)
        y = (self.experts or self.feed_forward)(_normed(x, self.feed_forward_norm))  # type: ignore[misc]
        return x + _normed(y, self.feed_forward_post_norm)


def norm_of(shape: DecoderShape) -> RMSNorm | LayerNorm:
    """The norm that this model uses, over its width."""
    if shape.norm == "layer":
        return LayerNorm(shape.width, shape.norm_eps)
    return RMSNorm(shape.width, shape.norm_eps, shape.norm_offset, shape.norm_wide)


def _normed(x: torch.Tensor, norm: nn.Module | None) -> torch.Tensor:
    return x if norm is None else norm(x)


def _rounded(number: float, dtype: torch.dtype) -> float:
    """As it would stand in a tensor of that dtype. A plain number, for nothing is copied to a device then."""
    return float(torch.tensor(number, dtype=dtype, device="cpu"))
