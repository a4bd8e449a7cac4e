"""Bytes of a model's weights in a precision, part by part.

Norms, biases and other vectors stay at 16 or 32 bits in every scheme. Embeddings and the head stay at 16 in the usual
int8, int4, nf4, fp8 and fp4 schemes (precision.HEAD_STAYS says whose); GGUF mixes pack them like the rest.
"""

from __future__ import annotations

from dataclasses import replace

from nearpeak.limits.precision import bits, head_bits, vector_bits
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Experts, Linear, ModelSpec, Part, Table, Vector


def weight_bytes(spec: ModelSpec, precision: str) -> dict[str, int]:
    """Bytes by part's name (with its stream where a model has several); "stored": as its files have them.

    Raises UserError for an unknown precision, and for "stored" where the spec has no files.
    """
    widths = Widths(spec, precision)
    found: dict[str, float] = {}
    for part in spec.parts:
        name = part_name(spec, part)
        found[name] = found.get(name, 0.0) + part.count * widths.part(part)
    return {name: round(size) for name, size in found.items() if size}


def part_name(spec: ModelSpec, part: Part) -> str:
    return f"{part.stream} {part.name}" if len(spec.streams) > 1 else part.name


class Widths:
    """Bits a weight of each part of one model in one precision."""

    def __init__(self, spec: ModelSpec, precision: str) -> None:
        self.precision = precision
        self.stored: dict[str, float] = _stored_bits(spec) if precision == "stored" else {}
        if precision != "stored":
            bits(precision)

    def part(self, part: Part) -> float:
        """Bytes of one piece."""
        matrices = matrix_parameters(part)
        return matrices * self.matrix(part) + (part.parameters - matrices) * self.vector

    def matrix(self, part: Part) -> float:
        """Bytes of one weight of a part's matrices. A tied head's are those of the table that it shares."""
        if self.precision == "stored":
            return self.stored[_class(part)] / 8
        return (head_bits(self.precision) if isinstance(part, Table) or is_head(part) else bits(self.precision)) / 8

    @property
    def vector(self) -> float:
        """Bytes of one number of a norm or a bias."""
        return (self.stored["vectors"] if self.precision == "stored" else vector_bits(self.precision)) / 8


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


def untied(part: Part) -> Part:
    """The same with a weight of its own, where it shares a table's."""
    return replace(part, tied=False) if isinstance(part, Linear) and part.tied else part


def is_head(part: Part) -> bool:
    """Whether a part gives the logits."""
    return isinstance(part, Linear) and part.name == "head"


def _class(part: Part) -> str:
    if isinstance(part, Table) or is_head(part):
        return "outer"
    return "experts" if isinstance(part, Experts) else "blocks"


def _stored_bits(spec: ModelSpec) -> dict[str, float]:
    """Mean bits of experts, of the blocks' other matrices, of embeddings and head, and of vectors.

    A spec knows its files' dtypes with their parameters, not which tensor has which. The narrowest are taken to lie in
    the experts, then in the other matrices of blocks, then in embeddings and head, the widest in vectors: as gpt-oss
    (MXFP4 experts), DeepSeek-V3 (fp8 blocks) and GGUF files have them. The sum over all parts is exact.
    """
    kinds = sorted((8.0 * s.bytes / s.parameters, s.parameters) for s in spec.stored.values() if s.parameters)
    if not kinds:
        raise UserError(f"{spec.name} has no files whose precision could be kept: name one, such as bf16")
    room = dict.fromkeys(("experts", "blocks", "outer", "vectors"), 0)
    for part in spec.parts:
        matrices = matrix_parameters(part)
        room[_class(part)] += part.count * matrices
        room["vectors"] += part.count * (part.parameters - matrices)
    scale = sum(count for _, count in kinds) / max(1, sum(room.values()))
    found: dict[str, float] = {}
    index, left = 0, float(kinds[0][1])
    for name, count in room.items():
        need, total = count * scale, 0.0
        wanted = need
        while need > 0 and index < len(kinds):
            taken = min(need, left)
            total += taken * kinds[index][0]
            need, left = need - taken, left - taken
            if left <= 0:
                index += 1
                left = float(kinds[index][1]) if index < len(kinds) else 0.0
        found[name] = total / wanted * scale if wanted else kinds[-1][0]
    return found
