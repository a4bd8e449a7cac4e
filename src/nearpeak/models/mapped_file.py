"""A file of weights as memory: pages come from the disk as they are touched, and are given back when memory is short.

The mapping is private and may be written to (a changed page becomes this process's own), since torch knows no tensors
that cannot be. Do not overwrite a file in place while a model from it runs: pages not yet read would be the new ones.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14: read now, map all pages at once
CHUNK = 16 << 20  # bytes that are asked of the disk, or compared, at a time
PAGE = mmap.ALLOCATIONGRANULARITY


class MappedFile:
    """One file, opened and closed again at once: the mapping lives as long as a tensor of it does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            handle = os.open(path, os.O_RDONLY)
            try:
                self.map = mmap.mmap(handle, 0, access=mmap.ACCESS_COPY)
            finally:
                os.close(handle)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot map {path} into memory: {reason}. Check the file and its permissions.") from error

    def raw(self, begin: int, size: int) -> np.ndarray:
        """uint8 [size], no copy. Raises UserError where the file has become shorter since its header was read."""
        import numpy as np

        if begin + size > len(self.map):
            raise UserError(
                f"{self.path} has {len(self.map):,} bytes, {begin + size:,} when its header was read: it has changed. "
                "Load it again."
            )
        return np.frombuffer(self.map, np.uint8, size, begin)

    def tensor(self, begin: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """No copy, unless the file has put the tensor where numbers of its dtype cannot begin."""
        import torch

        size = dtype.itemsize
        for length in shape:
            size *= length
        if not size:
            return torch.empty(shape, dtype=dtype)
        data = torch.from_numpy(self.raw(begin, size))
        if begin % dtype.itemsize:
            data = data.clone()
        return data.view(dtype).reshape(shape)

    def read_ahead(self, begin: int, size: int) -> None:
        """Have these bytes in memory on return, where the system can be told to; else they come as they are touched.
        Other threads run meanwhile."""
        import ctypes

        address = self.raw(0, len(self.map)).ctypes.data
        try:
            advise = ctypes.CDLL(
                None
            ).madvise  # not mmap's own, which holds the interpreter's lock while the disk reads
        except (OSError, AttributeError, TypeError):
            return
        for start in range(begin // PAGE * PAGE, begin + size, CHUNK):
            length = min(CHUNK, begin + size - start)
            if advise(ctypes.c_void_p(address + start), ctypes.c_size_t(length), POPULATE_READ):
                return  # an older kernel, or another system
