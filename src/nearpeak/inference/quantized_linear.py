"""Weights in 8 or 4 bits on the reference path: unpacked each time they are used. Right on any device, fast on none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nearpeak.inference.quantize import Quantized, quantize_weight
from nearpeak.networks.decoder import Decoder


class QuantizedLinear(nn.Module):
    """Stands where an nn.Linear stood."""

    def __init__(self, weight: Quantized, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.group = weight.group
        for name, buffer in (("values", weight.values), ("scale", weight.scale), ("middle", weight.middle)):
            self.register_buffer(name, buffer)
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = Quantized(self.values, self.scale, self.middle, self.group).dequantized()
        return F.linear(x, weight.to(x.dtype), self.bias)


def quantize_decoder(decoder: Decoder, precision: str) -> None:
    """Replace every linear map of the blocks, and the head, in place. Embeddings stay: they are looked up; so do
    experts and routers, which are no nn.Linear or steer too much."""
    for name, module in list(decoder.named_modules()):
        if not isinstance(module, nn.Linear) or name.endswith("router"):
            continue
        parent, _, child = name.rpartition(".")
        packed = quantize_weight(module.weight.detach(), precision, name == "head")
        bias = None if module.bias is None else module.bias.detach()
        setattr(decoder.get_submodule(parent), child, QuantizedLinear(packed, bias))
