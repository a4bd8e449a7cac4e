"""The weights of a GGUF file, unpacked by the gguf library: every type that it unpacks, any other refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.models.fresh_tensor import as_dtype, fresh_tensor
from nearpeak.models.gguf_header import TYPES, read_gguf_header
from nearpeak.models.gguf_maths import full_config_of
from nearpeak.models.gguf_model import all_parts
from nearpeak.models.tensor_files import TensorFiles, rows_of
from nearpeak.models.tensors import shown
from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

PLAIN = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # our name → torch's
NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
BLOCKS = {name: (block, size) for name, block, size in TYPES.values()}
CHUNK = 1 << 17  # weights that are unpacked at a time: their fp32 stays in the cache of one core


class GgufTensors(TensorFiles):
    """One .gguf file, or all parts of a model of which one was named. header: all keys and tensors."""

    def __init__(self, path: Path) -> None:
        self.header = all_parts(read_gguf_header(path))
        super().__init__(path, "gguf", self.header.tensors, self.header.places, {})
        self.config = full_config_of(self.header, self._constants)

    def refuse(self, name: str) -> None:
        kind = self.weights[name].dtype
        if kind not in PLAIN and kind not in unpacked():
            raise UserError(
                f"{self.places[name].path}: tensor {shown(name)} is {kind}, which the gguf library does not unpack. It "
                f"unpacks {', '.join(sorted([*PLAIN, *unpacked()]))}."
            )

    def read(self, name: str, dtype: torch.dtype | None = None, rows: slice | None = None) -> torch.Tensor:
        import torch

        self.refuse(name)
        weight, place = self.weights[name], self.places[name]
        first, shape = rows_of(weight, rows)
        assert weight.shape is not None
        start = place.begin + first * (weight.bytes // weight.shape[0])
        file = self.file_of(place)
        if weight.dtype in PLAIN:
            return as_dtype(file.tensor(start, shape, getattr(torch, PLAIN[weight.dtype])), dtype)
        out = fresh_tensor(shape, dtype or torch.float32)
        block, size = BLOCKS[weight.dtype]
        _unpack(file.raw(start, out.numel() // block * size), weight.dtype, out.view(-1))
        return out

    def _constants(self, name: str) -> list[float]:
        """A small tensor of constants."""
        numbers: list[float] = self.read(name).float().tolist()
        return numbers


def unpacked() -> frozenset[str]:
    """Our names of the packed types that this version of the gguf library unpacks."""
    from gguf import quants

    known = quants._type_traits  # its only list of them
    return frozenset(name for name, number in NUMBERS.items() if number in known and name not in PLAIN)


def _unpack(raw: np.ndarray, kind: str, out: torch.Tensor) -> None:
    """raw uint8 → out [numbers], in its dtype. Blocks stand on their own, so rows do not matter here: a few large calls
    instead of one for each 16 rows, and never more than one chunk in fp32 beside `out`."""
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType, quants

    block, size = BLOCKS[kind]
    number = GGMLQuantizationType(NUMBERS[kind])
    step = CHUNK // block
    with np.errstate(all="ignore"):  # damaged scales are infinite or no numbers: they stay so
        for start in range(0, len(raw) // size, step):
            blocks = raw[start * size : (start + step) * size]
            values = quants.dequantize(blocks.reshape(1, -1), number).reshape(-1)
            out[start * block : start * block + values.size].copy_(torch.from_numpy(values))
