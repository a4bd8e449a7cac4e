"""Which tensor of a checkpoint becomes which parameter of the network: all of both, before any is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from nearpeak.models.checkpoint import Checkpoint
from nearpeak.models.tensors import shown
from nearpeak.models.weights import shape_text
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.names import Source
from nearpeak.records.errors import UserError


@dataclass(frozen=True)
class Piece:
    """A part of one tensor of the checkpoint that is a parameter, or (index) one expert's part of it.

    rows  of the tensor, or of each expert's in a tensor of all; turned: counted after (inputs, outputs) were turned
    """

    parameter: str
    index: int | None = None
    rows: tuple[int, int] | None = None
    turned: bool = False

    def taken_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of the whole tensor."""
        if self.turned:
            tensor = tensor.T
        if self.rows is None:
            return tensor
        return tensor[:, slice(*self.rows)] if tensor.ndim == 3 else tensor[slice(*self.rows)]


Plan = dict[str, list[Piece]]
"""A tensor's name in transformers → what is made of it, in the order in which a token passes through."""


def plan_of(decoder: Decoder, sources: Mapping[str, Source], checkpoint: Checkpoint) -> Plan:
    """Raises UserError naming the tensor: one that the network needs is missing or has another shape, or one is left.

    decoder  may be on the meta device: only shapes are asked for
    """
    where = str(checkpoint.path)
    plan: Plan = {}
    parameters = dict(decoder.named_parameters())
    for name in sorted(parameters, key=_depth):
        source = sources.get(name)
        if source is None:
            raise AssertionError(f"parameter {name} has no source")
        source = _layout(source, checkpoint)
        for number, tensor in enumerate(source.names):
            if tensor not in checkpoint.held:
                raise UserError(f"{where}: tensor {shown(tensor)} is missing. Fetch all files of the model again.")
            index = number if len(source.names) > 1 or _stacked(parameters[name], tensor, checkpoint) else None
            piece = Piece(name, index, source.rows, source.transposed)
            _check(piece, parameters[name], tensor, checkpoint)
            plan.setdefault(tensor, []).append(piece)
        _all_experts(name, parameters[name], source, where)
    left = [tensor for tensor in checkpoint.held if tensor not in plan]
    if left:
        raise UserError(
            f"{where}: tensor {shown(left[0])} is no part of what nearpeak computes for this {checkpoint.spec.family}; "
            f"{len(left)} tensors are left over."
        )
    return plan


def _layout(source: Source, checkpoint: Checkpoint) -> Source:
    """The one that this checkpoint has."""
    while source.otherwise is not None and any(name not in checkpoint.held for name in source.names):
        source = source.otherwise
    return source


def _stacked(parameter: torch.Tensor, tensor: str, checkpoint: Checkpoint) -> bool:
    """One tensor for the only expert of a layer."""
    return len(parameter.shape) == len(checkpoint.held[tensor].shape) + 1


def _check(piece: Piece, parameter: torch.Tensor, tensor: str, checkpoint: Checkpoint) -> None:
    """Raise UserError where the piece has another shape than its place; and where rows of a tensor are taken twice."""
    there = checkpoint.held[tensor].shape
    shape = tuple(piece.taken_from(torch.empty(there, device="meta")).shape)
    wanted = tuple(parameter.shape if piece.index is None else parameter.shape[1:])
    if shape != wanted:
        rows = f", of which rows {piece.rows[0]:,} to {piece.rows[1]:,} are taken" if piece.rows else ""
        raise UserError(
            f"{checkpoint.path}: tensor {shown(tensor)} is {shape_text(there)}{rows}; {shape_text(wanted)} is expected "
            f"for {piece.parameter}. Config and weights are not of the same model."
        )


def _all_experts(name: str, parameter: torch.Tensor, source: Source, where: str) -> None:
    if len(source.names) > 1 and len(source.names) != parameter.shape[0]:
        raise UserError(f"{where}: {name} has {parameter.shape[0]} experts, of which {len(source.names)} have tensors.")


def _depth(name: str) -> tuple[int, str]:
    """Embeddings, layers by number, the rest."""
    match = re.match(r"layers\.(\d+)\.", name)
    if match:
        return int(match[1]), name
    return (-1 if name.startswith(("embed", "position")) else 1 << 30), name
