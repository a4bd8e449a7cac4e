"""Weights in 8 or 4 bits on the reference path: unpacked each time they are used. Right on any device, fast on none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nearpeak.inference.quantize import Quantized, packed_precision, quantize
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


TOGETHER = {
    "q": ("q", "k", "v"),
    "k": ("q", "k", "v"),
    "v": ("q", "k", "v"),
    "gate": ("gate", "up"),
    "up": ("gate", "up"),
}


def quantize_decoder(decoder: Decoder, precision: str) -> None:
    """Replace every linear map of the blocks, and the head, in place. Embeddings stay: they are looked up; so do
    experts and routers, which are no nn.Linear or steer too much."""
    linears = {name: module for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    kinds = {name: _kind(name, linears, precision) for name in linears if not name.endswith("router")}
    for name, kind in kinds.items():
        parent, _, child = name.rpartition(".")
        linear = linears[name]
        bias = None if linear.bias is None else linear.bias.detach()
        packed = QuantizedLinear(quantize(linear.weight.detach(), kind), bias)
        setattr(decoder.get_submodule(parent), child, packed)


def _kind(name: str, linears: dict[str, nn.Linear], precision: str) -> str:
    """int4 or int8, the same for maps that share an input, as the fast paths run them as one."""
    parent, _, child = name.rpartition(".")
    shared = [linears.get(f"{parent}.{other}") for other in TOGETHER.get(child, (child,))]
    sizes = [(one.out_features, one.in_features) for one in shared if one is not None]
    return packed_precision(
        precision, sizes or [(linears[name].out_features, linears[name].in_features)], name == "head"
    )
