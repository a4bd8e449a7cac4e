"""One door to the weights themselves: a folder of safetensors, or a GGUF file, all parts of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nearpeak.models.gguf_model import first_files
from nearpeak.models.mapped_file import CHUNK, MappedFile
from nearpeak.models.place import Place
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import torch

Values = dict[str, object]


class TensorFiles:
    """Tensors under the names that they have in the files.

    path      as it was given; kind: of the files
    weights   name → shape (outputs first), dtype, bytes, from the headers
    places    name → where it lies
    config    what config.json says, or would say
    notes     what a person should know about these files
    """

    def __init__(
        self,
        path: Path,
        kind: Literal["safetensors", "gguf"],
        weights: dict[str, Weight],
        places: dict[str, Place],
        config: Values,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.path, self.kind, self.config, self.notes = path, kind, config, notes
        self.weights, self.places = weights, places
        self._maps: dict[Path, MappedFile] = {}

    def read(self, name: str, dtype: torch.dtype | None = None, rows: slice | None = None) -> torch.Tensor:
        """The tensor on the CPU, unpacked; without a copy where it is stored as `dtype` (None: as it is stored, packed
        types as fp32). rows: only these of its first dimension. Do not write to it.

        Raises UserError: of a dtype that is not read, or the file has changed.
        """
        raise NotImplementedError

    def refuse(self, name: str) -> None:
        """Raise UserError where this tensor is of a dtype that read would not give."""
        raise NotImplementedError

    def same(self, name: str, other: str) -> bool:
        """Two tensors hold the same bytes, and mean the same by them."""
        import numpy as np

        first, second = self.weights[name], self.weights[other]
        if first != second:
            return False
        places = self.places[name], self.places[other]
        for start in range(0, first.bytes, CHUNK):
            size = min(CHUNK, first.bytes - start)
            a, b = (self.file_of(place).raw(place.begin + start, size) for place in places)
            if not np.array_equal(a, b):
                return False
        return True

    def file_of(self, place: Place) -> MappedFile:
        """The file of a place, mapped when it is first asked for."""
        found = self._maps.get(place.path)
        if found is None:
            found = self._maps[place.path] = MappedFile(place.path)
        return found


def open_tensors(path: Path) -> TensorFiles:
    """The tensors of a model folder or a .gguf file: headers are read and checked, no weights yet.

    Raises UserError: nothing there that can be read, a damaged header, a missing part, a folder that is quantised.
    """
    from nearpeak.models.gguf_tensors import GgufTensors
    from nearpeak.models.safetensors_tensors import SafetensorsFiles

    if path.is_dir():
        ggufs = [] if (path / "config.json").exists() else first_files(path)
        if len(ggufs) > 1:
            raise UserError(f"{path} has {len(ggufs)} GGUF models: name one of them, such as {ggufs[0]}.")
        return GgufTensors(ggufs[0]) if ggufs else SafetensorsFiles(path)
    if path.name.endswith(".gguf"):
        return GgufTensors(path)
    if path.name.endswith(".safetensors") or path.name == "config.json":
        raise UserError(f"{path} is one file of a model: name its folder, {path.parent}.")
    raise UserError(f"{path} holds no weights. Name a folder with config.json and .safetensors files, or a .gguf file.")


def rows_of(weight: Weight, rows: slice | None) -> tuple[int, tuple[int, ...]]:
    """The first row, and the shape of what is asked for."""
    assert weight.shape is not None
    if rows is None:
        return 0, weight.shape
    first, end, step = rows.indices(weight.shape[0])
    assert step == 1
    return first, (max(0, end - first), *weight.shape[1:])
