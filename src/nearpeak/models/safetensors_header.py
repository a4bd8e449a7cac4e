"""The header of a safetensors file: eight bytes of length, JSON, data. Only the first two are read.

Format: https://github.com/huggingface/safetensors#format. Bounds are checked as strictly as that library does: no
holes, no overlap, nothing behind the last tensor.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

from nearpeak.models.json_file import parse_json
from nearpeak.models.place import Place
from nearpeak.models.weights import DTYPES, Weight
from nearpeak.records.errors import UserError

MAX_HEADER = 100_000_000  # bytes, the library's own bound
MAX_SIZE = 1 << 62
KEYS = {"dtype", "shape", "data_offsets"}


def read_header(path: Path) -> dict[str, Weight]:
    """Each tensor with shape, dtype and bytes. Raises UserError, naming the tensor, where anything does not add up."""
    return read_header_and_places(path)[0]


def read_header_and_places(path: Path) -> tuple[dict[str, Weight], dict[str, Place]]:
    """As read_header, and where in the file each tensor lies."""
    entries, data, start = _entries(path)
    found: dict[str, Weight] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
                raise UserError(f"{path}: __metadata__ is no object of texts. Fetch the file again.")
            continue
        dtype, shape, begin, end = _entry(path, name, entry)
        label, bits = DTYPES[dtype]
        weight = Weight.plain(shape, end - begin, label)
        if weight.parameters * bits != 8 * weight.bytes:
            raise _error(
                path, name, f"takes {weight.bytes:,} bytes, but {dtype} of shape {list(shape)} is "
                f"{weight.parameters * bits / 8:,.10g}"
            )  # fmt: skip
        if end > data:
            raise _error(path, name, f"ends at byte {end:,} of the data, of which the file has {data:,}: it is cut off")
        places.append((begin, end, name))
        found[name] = weight
    _no_gap(path, places, data)
    return found, {name: Place(path, start + begin) for begin, _, name in places}


def _no_gap(path: Path, places: list[tuple[int, int, str]], data: int) -> None:
    """Tensors follow each other without a hole or an overlap, to the end."""
    at = 0
    for begin, end, name in sorted(places):
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else "leaves a hole before it"
            raise _error(path, name, f"begins at byte {begin:,} of the data, where {at:,} is next: it {what}")
        at = end
    if at != data:
        raise UserError(
            f"{path}: tensors end at byte {at:,} of the data, of which there are {data:,}. Fetch the file again."
        )


def _entries(path: Path) -> tuple[dict[str, object], int, int]:
    """The header's JSON, how many bytes of data follow it, and where they begin."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise UserError(f"{path} is no plain file. A model's weights are expected there.")
            size = facts.st_size
            start = file.read(8)
            if len(start) < 8:
                raise UserError(f"{path} has {size:,} bytes: too short for a safetensors file. Fetch it again.")
            (length,) = struct.unpack("<Q", start)
            if start[:7] == b"version":
                raise UserError(f"{path} is a pointer of Git LFS, not the file itself. Fetch it with `git lfs pull`.")
            if length > MAX_HEADER:
                raise UserError(f"{path}: a header of {length:,} bytes; at most {MAX_HEADER:,} are possible.")
            if 8 + length > size:
                raise UserError(f"{path}: a header of {length:,} bytes in a file of {size:,}: it is cut off.")
            header = file.read(length)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}. Check the path and its permissions.") from error
    if len(header) < length:
        raise UserError(f"{path}: the header ends after {len(header):,} of {length:,} bytes. Fetch the file again.")
    return parse_json(header, f"the header of {path}"), size - 8 - length, 8 + length


def _entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or entry.keys() != KEYS:
        raise _error(path, name, "does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _error(path, name, f"has dtype {str(dtype)[:40]!r}, which is none of safetensors'")
    if not isinstance(shape, list) or len(shape) > 32 or not _whole(shape):
        raise _error(path, name, "has a shape that is no list of whole numbers from 0")
    if not isinstance(offsets, list) or len(offsets) != 2 or not _whole(offsets):
        raise _error(path, name, "has data_offsets that are no two whole numbers from 0")
    begin, end = offsets
    if end < begin:
        raise _error(path, name, f"ends at byte {end:,}, before it begins at {begin:,}")
    return dtype, tuple(shape), begin, end


def _whole(values: list[object]) -> bool:
    """Whole numbers from 0, all of them."""
    for value in values:  # noqa: SIM110, twice as fast as all()
        if type(value) is not int or not 0 <= value < MAX_SIZE:  # a truth value is no number here
            return False
    return True


def _error(path: Path, name: str, what: str) -> UserError:
    return UserError(f"{path}: tensor {name[:200]!r} {what}. Fetch the file again.")
