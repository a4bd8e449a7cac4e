"""Where in a network numbers stop being finite."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from nearpeak.networks.attention import Attend
from nearpeak.networks.decoder import Decoder


def first_not_finite(decoder: Decoder, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> str | None:
    """The first module, in the order of the computation, whose output is not finite ("layers.3.feed_forward.down");
    None where all are. Runs the network once more, with a look at every module's output."""
    found: list[str] = []

    def look(name: str, module: nn.Module, inputs: object, output: object) -> None:
        if not found and isinstance(output, torch.Tensor) and not bool(torch.isfinite(output).all()):
            found.append(name)

    smallest = [(name, module) for name, module in decoder.named_modules() if name and not list(module.children())]
    hooks = [module.register_forward_hook(partial(look, name)) for name, module in smallest]
    try:
        logits = decoder(ids, positions, attend)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None if bool(torch.isfinite(logits).all()) else "logits"
