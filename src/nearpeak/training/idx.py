"""IDX files, as MNIST and its kin have them: a magic number, sizes, then the numbers; plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from nearpeak.records.errors import UserError

TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
LARGEST = 1 << 36
"""Bytes that a file may hold, unpacked: 64 GiB. A gzip file's own size says nothing of that."""


def read_idx(path: Path) -> npt.NDArray[np.generic]:
    """The array, with the file's own type and shape.

    Memory grows with what the file really holds, not with what its header says. Raises UserError that names the file
    and the numbers where it is cut, too long, or no IDX file.
    """
    try:
        with _open(path) as file:
            return _read(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}. It may be cut: fetch it again.") from error


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")


def _read(file: IO[bytes] | gzip.GzipFile, path: Path) -> npt.NDArray[np.generic]:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES or not 1 <= head[3] <= 4:
        raise UserError(f"{path} is no IDX file: it begins with {head.hex(' ') or 'nothing'}.")
    sizes_raw = file.read(4 * head[3])
    if len(sizes_raw) < 4 * head[3]:
        raise UserError(f"{path} is cut within its header.")
    shape = struct.unpack(f">{head[3]}I", sizes_raw)
    dtype = np.dtype(TYPES[head[2]])
    expected = math.prod(shape) * dtype.itemsize
    if expected > LARGEST:
        raise UserError(f"{path} says that it holds {shape}, {expected:,} bytes; at most {LARGEST:,} are read.")
    body = bytearray()
    while len(body) <= expected and (piece := file.read(min(1 << 24, expected + 1 - len(body)))):
        body += piece
    if len(body) != expected:
        how = "more" if len(body) > expected else f"{len(body):,}"
        raise UserError(f"{path} says that it holds {shape}, {expected:,} bytes, and holds {how}.")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
