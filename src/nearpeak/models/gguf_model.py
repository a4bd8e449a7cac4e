"""A GGUF file (or its parts) → ModelSpec: its keys become those of a config.json, read by the same families."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nearpeak.models.architecture import Architecture, Piece, Tensor
from nearpeak.models.config import Config
from nearpeak.models.families import architecture_of
from nearpeak.models.folder import list_folder
from nearpeak.models.gguf_config import config_of
from nearpeak.models.gguf_header import GgufHeader, read_gguf_header
from nearpeak.models.place import Place
from nearpeak.models.spec_of import model_spec
from nearpeak.models.tensors import account
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec

PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
CONSTANTS = (r"rope_freqs\.weight", r"rope_factors_(long|short)\.weight", r"blk\.\d+\.attn_[kv]_b\.weight")
MTP = "multi-token prediction; engines load it for speculative decoding alone"


def first_files(folder: Path) -> list[Path]:
    """GGUF models in a folder; of one in several parts the first."""
    files = sorted(folder / name for name in list_folder(folder) if name.endswith(".gguf"))
    return [file for file in files if (match := PART.fullmatch(file.name)) is None or int(match[2]) == 1]


def read_gguf(path: Path) -> ModelSpec:
    """The spec of the model in a .gguf file. Raises UserError naming key or tensor."""
    header = all_parts(read_gguf_header(path))
    return spec_of_gguf(header, config_of(header), path)[0]


def spec_of_gguf(header: GgufHeader, values: dict[str, object], path: Path) -> tuple[ModelSpec, Architecture]:
    """The spec of a file whose keys say `values`, and its pieces under transformers' names."""
    config = Config(values, str(path))
    read = architecture_of(config)
    extra = {f"blk.{values['num_hidden_layers']}.": MTP} if "num_hidden_layers" in values else {}
    architecture = replace(in_gguf(read), aside=extra)
    weights = {name: weight._replace(shape=squeezed(weight.shape or ())) for name, weight in header.tensors.items()}
    held = account(architecture, weights, str(path))
    name = path.name.removesuffix(".gguf")
    return model_spec(name, architecture, config, held.parts, held.stored, str(path), held.notes), read


def in_gguf(architecture: Architecture) -> Architecture:
    """The same pieces under their names and shapes in a GGUF file."""
    pieces = []
    for piece in architecture.pieces:
        ways = [way for way in (piece.tensors, *piece.otherwise) if all(tensor.gguf for tensor in way)]
        renamed = tuple(tuple(_tensor(tensor) for tensor in way) for way in ways)
        if ways:
            pieces.append(Piece(piece.part, renamed[0], piece.layers, renamed[1:], piece.optional, piece.expected))
        elif not piece.optional:
            raise UserError(f"{architecture.family} is not read from GGUF files: {piece.part.name} has no name there.")
    duplicates = {"output.weight": "token_embd.weight"} if architecture.duplicates else {}
    return replace(architecture, pieces=tuple(pieces), roots=("",), duplicates=duplicates, ignored=CONSTANTS)


def _tensor(tensor: Tensor) -> Tensor:
    shape = tuple(reversed(tensor.shape)) if tensor.transposed else tensor.shape
    if tensor.experts > 1:
        shape = tensor.experts, *shape
    return Tensor(tensor.gguf, squeezed(shape))


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of 1, which converters drop or keep as they like."""
    return tuple(size for size in shape if size != 1) or (1,)


def all_parts(header: GgufHeader) -> GgufHeader:
    """One header for a model in several files. Raises UserError: a part is missing or of another model."""
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return header
    match = PART.fullmatch(header.path.name)
    if match is None or int(match[3]) != count or count > 10_000:
        raise UserError(
            f"{header.path} is one of {count} parts, but not named NAME-00001-of-{count:05d}.gguf. Rename it."
        )
    tensors: dict[str, Weight] = {}
    places: dict[str, Place] = {}
    first = header
    for number in range(1, count + 1):
        path = header.path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}.gguf")
        if not path.exists():
            raise UserError(f"{path} is missing: the model has {count} parts. Fetch it too.")
        part = header if path == header.path else read_gguf_header(path)
        first = part if number == 1 else first
        if part.metadata.get("split.no") != number - 1:
            raise UserError(f"{path} says it is part {part.metadata.get('split.no')}, counted from 0. Fetch it again.")
        if twice := _first_common(tensors, part.tensors):
            raise UserError(f"{path}: tensor {twice[:200]!r} lies in another part too. Fetch the parts again.")
        tensors.update(part.tensors)
        places.update(part.places)
    said = first.metadata.get("split.tensors.count", len(tensors))
    if said != len(tensors):
        raise UserError(f"{first.path}: split.tensors.count is {said}, the parts hold {len(tensors)} tensors.")
    return GgufHeader(first.path, first.metadata, tensors, places)


def _first_common(some: Iterable[str], others: dict[str, Weight]) -> str | None:
    return next((name for name in some if name in others), None)
