"""What a file holds, tensor by tensor, whatever its format."""

from __future__ import annotations

import math
from typing import NamedTuple

# our name of each safetensors dtype, and its bits
DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("fp64", 64), "F32": ("fp32", 32), "F16": ("fp16", 16), "BF16": ("bf16", 16),
    "F8_E4M3": ("fp8", 8), "F8_E5M2": ("fp8_e5m2", 8), "F8_E8M0": ("fp8_e8m0", 8),
    "F8_E4M3FNUZ": ("fp8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("fp8_e5m2fnuz", 8),
    "F6_E2M3": ("fp6_e2m3", 6), "F6_E3M2": ("fp6_e3m2", 6), "F4": ("fp4", 4),
    "I64": ("int64", 64), "I32": ("int32", 32), "I16": ("int16", 16), "I8": ("int8", 8),
    "U64": ("uint64", 64), "U32": ("uint32", 32), "U16": ("uint16", 16), "U8": ("uint8", 8),
    "BOOL": ("bool", 8), "C64": ("complex64", 64),
}  # fmt: skip


class Weight(NamedTuple):
    """One weight as it is meant, whatever it is packed into. A named tuple, as a file may have 100,000 of them.

    shape        None where the file does not say (packed weights): then the number of parameters is all there is
    parameters   of the weight as it is meant; bytes: of all tensors that hold it, scales and zeros too
    dtype        "bf16", "int4", "q4_k", …
    """

    shape: tuple[int, ...] | None
    parameters: int
    bytes: int
    dtype: str

    @classmethod
    def plain(cls, shape: tuple[int, ...], size: int, dtype: str) -> Weight:
        """One that is stored as it is."""
        return cls(shape, math.prod(shape), size, dtype)

    def text(self) -> str:
        """Its shape for a message."""
        return f"{self.parameters:,} parameters" if self.shape is None else shape_text(self.shape)


def shape_text(shape: tuple[int, ...]) -> str:
    """As in a message."""
    return "[" + ", ".join(str(size) for size in shape) + "]"
