"""A stack of convolutions, pools and linear maps, as a known model's data file spells it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class Cnn(nn.Module):
    """ReLU between the layers, none after the last. Takes [batch, channels, size, size], gives [batch, outputs].

    inputs   (channels, size); layers: {"conv": [outputs, kernel]} without padding, {"pool": size}, {"linear": outputs}
    Names count all layers: `layers.0.weight`, as models/vision.py has them. A ReLU comes after the pool where one
    follows, on a fourth of the numbers: max and ReLU commute.
    """

    def __init__(self, inputs: Sequence[int], layers: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        channels, size = inputs
        built: list[nn.Module] = []
        flat = 0
        for layer in layers:
            if "conv" in layer:
                outputs, kernel = layer["conv"]
                built.append(nn.Conv2d(channels, outputs, kernel))
                channels, size = outputs, size - kernel + 1
            elif "pool" in layer:
                built.append(nn.MaxPool2d(layer["pool"]))
                size //= layer["pool"]
            else:
                built.append(nn.Linear(flat or channels * size * size, layer["linear"]))
                flat = layer["linear"]
        self.layers = nn.ModuleList(built)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            if isinstance(layer, nn.Linear) and x.dim() == 4:
                x = x.flatten(1)
            x = layer(x)
            pool_follows = number < last and isinstance(self.layers[number + 1], nn.MaxPool2d)
            if number < last and not pool_follows:
                x = torch.relu(x)
        return x
