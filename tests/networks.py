"""A Decoder with the weights of a transformers model, for the tests of networks."""

from __future__ import annotations

from typing import Any

import torch

from nearpeak.networks.decoder import Decoder
from nearpeak.networks.names import Source, sources_of
from nearpeak.networks.plain_attention import plain_attention
from nearpeak.networks.shape_of_config import shape_of_config


def decoder_of(model: Any) -> Decoder:
    """By the model's own config and its weights under their names there; each must be found."""
    decoder = Decoder(shape_of_config(model.config.to_dict(), "config.json"))
    weights = model.state_dict()
    loaded = {name: _taken(source, weights) for name, source in sources_of(decoder.shape).items()}
    if decoder.shape.tied:
        loaded["head.weight"] = loaded["embed.weight"]
    decoder.load_state_dict(loaded)
    return decoder.to(model.dtype).eval()


def _taken(source: Source, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    if not all(name in weights for name in source.names) and source.otherwise:
        source = source.otherwise
    found = [weights[name] for name in source.names]
    found = [one.T if source.transposed else one for one in found]
    if source.rows:
        first, last = source.rows
        found = [one[:, first:last] if one.ndim == 3 else one[first:last] for one in found]
    return torch.stack(found) if len(found) > 1 else found[0]


@torch.no_grad()
def logits_of(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    """ids [batch, tokens] from position 0 → logits [batch, tokens, vocab]."""
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    logits: torch.Tensor = decoder(ids, positions, plain_attention(decoder.shape, positions))
    return logits


def error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """‖got − truth‖ ÷ ‖truth‖."""
    return float((got.double() - truth.double()).norm() / truth.double().norm())
