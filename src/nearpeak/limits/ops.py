"""A workload as pieces: FLOPs by precision, compulsory bytes, counts. docs/limits.md states the conventions."""

from __future__ import annotations

from nearpeak.limits.backward import train_ops
from nearpeak.limits.forward import Forward, Piece
from nearpeak.limits.memory import OPTIMIZER_BYTES
from nearpeak.limits.precision import bits
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Op
from nearpeak.records.model_spec import ModelSpec
from nearpeak.records.workload import Workload


def ops_of(spec: ModelSpec, workload: Workload) -> tuple[Op, ...]:
    """All pieces of one step, in the order of the forward pass; a train step's update comes last.

    Of a train step each op is forward and backward together; where a model's first block needs less (no gradient below
    the first trained map), it is an op of its own. Raises UserError for an unknown precision, optimizer or adapter
    target, or a phase that the model does not have.
    """
    check(spec, workload)
    forward = Forward(spec, workload)
    if workload.training:
        return train_ops(forward, workload.training)
    return tuple(_op(piece) for piece in forward.pieces)


def _op(piece: Piece) -> Op:
    flop: dict[str, float] = {}
    for product in piece.products:
        flop[product.precision] = flop.get(product.precision, 0.0) + product.flop
    read = piece.read + sum(product.bytes for product in piece.products)
    return Op(piece.name, piece.part.count, flop, read, piece.written, piece.passed, piece.note)


def check(spec: ModelSpec, workload: Workload) -> None:
    """Raises UserError for what a workload or a model does not have."""
    training = workload.training
    if workload.phase == "train" and training is None:
        raise UserError("a train step needs to know its method: full, lora or qlora")
    if training and workload.phase != "train":
        raise UserError(f"a {workload.phase} step trains nothing; its phase would be train")
    if workload.phase in ("prefill", "decode") and spec.task == "encode":
        raise UserError(f"{spec.name} gives one answer an item: it has no {workload.phase}; its phase is encode")
    if min(workload.batch, workload.tokens) < 1 or workload.context < 0:
        raise UserError(f"batch {workload.batch}, tokens {workload.tokens}, context {workload.context}: too small")
    for name in (workload.compute, workload.cache):
        bits(name)
    if training:
        bits(training.gradient)
        if training.optimizer not in OPTIMIZER_BYTES:
            raise UserError(f"no optimizer {training.optimizer!r}. Known: {', '.join(OPTIMIZER_BYTES)}.")
