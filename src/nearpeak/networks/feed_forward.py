"""Dense feed-forwards, and mixtures of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from nearpeak.networks.decoder_shape import DecoderShape, ExpertsShape

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    """down(act(gate x) · up x); without a gate down(act(up x))."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.act = ACTIVATIONS[shape.activation]
        self.gate = nn.Linear(shape.width, shape.hidden, bias=shape.mlp_bias) if shape.gated else None
        self.up = nn.Linear(shape.width, shape.hidden, bias=shape.mlp_bias)
        self.down = nn.Linear(shape.hidden, shape.width, bias=shape.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        y: torch.Tensor = self.down(hidden)
        return y


class Stacked(nn.Module):
    """One map for each expert: weight [experts, outputs, inputs]."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))


class Experts(nn.Module):
    """A router chooses feed-forwards for each position; their outputs are summed by its weights."""

    def __init__(self, shape: DecoderShape, experts: ExpertsShape) -> None:
        super().__init__()
        self.experts, self.act = experts, ACTIVATIONS[shape.activation]
        self.router = nn.Linear(shape.width, experts.experts, bias=False)
        self.gate = Stacked(experts.experts, shape.width, experts.hidden)
        self.up = Stacked(experts.experts, shape.width, experts.hidden)
        self.down = Stacked(experts.experts, experts.hidden, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, -2)
        weights, chosen = self._route(rows)
        y = torch.zeros_like(rows)
        for expert in chosen.unique().tolist():
            row, place = torch.where(chosen == expert)
            inputs = rows[row]
            hidden = self.act(F.linear(inputs, self.gate.weight[expert])) * F.linear(inputs, self.up.weight[expert])
            outputs = F.linear(hidden, self.down.weight[expert]) * weights[row, place, None]
            y.index_add_(0, row, outputs.to(y.dtype))
        return y.view_as(x)

    def _route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and numbers [rows, chosen] of the experts; softmax over all of them, in fp32."""
        weights, chosen = self.router(rows).float().softmax(-1).topk(self.experts.chosen, -1)
        if self.experts.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights if self.experts.wide else weights.to(rows.dtype), chosen
