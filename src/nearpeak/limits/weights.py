"""Bytes of a model's weights in a precision, part by part."""

from __future__ import annotations

from nearpeak.limits.precision import head_bits, vector_bits, weight_bits
from nearpeak.records.model_spec import Experts, Linear, ModelSpec, Part, Table, Vector


def weight_bytes(spec: ModelSpec, precision: str) -> int:
    """Of the whole model; "stored": as its files have it. Raises UserError for an unknown precision."""
    if precision == "stored":
        return spec.weight_bytes
    return round(sum(part.count * part_bytes(part, precision) for part in spec.parts))


def part_bytes(part: Part, precision: str, stored_bits: float = 16.0) -> float:
    """Of one of a part's pieces. stored_bits: what a number takes on the mean where the precision is "stored"."""
    if precision == "stored":
        return part.parameters * stored_bits / 8
    matrices = matrix_parameters(part)
    bits = head_bits(precision) if isinstance(part, Table) or is_head(part) else weight_bits(precision)
    return (matrices * bits + (part.parameters - matrices) * vector_bits(precision)) / 8


def matrix_parameters(part: Part) -> int:
    """Parameters of one piece that lie in matrices; the rest are biases and norms, which no scheme packs."""
    if isinstance(part, Vector):
        return 0
    if isinstance(part, Table):
        return part.parameters
    if isinstance(part, Linear):
        return 0 if part.tied else part.active
    if isinstance(part, Experts):
        return part.experts * part.one_expert + part.shared + part.router
    return part.active


def is_head(part: Part) -> bool:
    """Whether a part gives the logits."""
    return isinstance(part, Linear) and part.name == "head"


def mean_bits(spec: ModelSpec, precision: str) -> float:
    """Bits a parameter on the mean over the whole model."""
    return 8 * weight_bytes(spec, precision) / max(spec.parameters, 1)
