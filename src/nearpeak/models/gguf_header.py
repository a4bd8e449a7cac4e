"""The header of a GGUF file, versions 2 and 3: keys with values, then tensors with shape, type and place.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count, length and place is held against the
size of the file before anything is made of it. Long arrays (the vocabulary) are passed over, not kept.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from nearpeak.models.place import Place
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError

# number in the file: our name, numbers a block, bytes a block
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("fp32", 1, 4), 1: ("fp16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 40), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136),
    24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("fp64", 1, 8),
    29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18),
}  # fmt: skip

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
KEPT = 65_536  # longest array of numbers that is kept: one number a layer
MAX_TEXT = 1 << 20  # longest text that is kept
MAX_KEY = 65_535
MAX_COUNT = 1_000_000  # tensors, or keys; the largest model we know of has 2,000
MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class Skipped:
    """An array that was passed over."""

    length: int


@dataclass(frozen=True)
class GgufHeader:
    """metadata: key → number, text, truth value, tuple of these, or Skipped; tensors as in safetensors order
    (outputs first); places: where each lies."""

    path: Path
    metadata: dict[str, object]
    tensors: dict[str, Weight]
    places: dict[str, Place] = field(default_factory=dict)


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises UserError naming key or tensor where anything does not add up."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb", buffering=1 << 20) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise UserError(f"{path} is no plain file. Name a .gguf file.")
            return _Reader(path, file, facts.st_size).header()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}. Check the path and its permissions."
        ) from error


class _Reader:
    """Reads forward; `at` is where in the file, `doing` what is being read, for errors."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.at, self.doing = 0, "the first bytes"

    def header(self) -> GgufHeader:
        tensors, keys = self._start()
        metadata: dict[str, object] = {}
        for _ in range(keys):
            self.doing = f"the key after {next(reversed(metadata), 'the first bytes')!r}"
            key = self._text(MAX_KEY)
            self.doing = f"key {key[:200]!r}"
            if key in metadata:
                raise self._error("stands twice")
            metadata[key] = self._value(self._whole("I"), 0)
        places: list[tuple[int, str, Weight]] = []
        found: dict[str, Weight] = {}
        for _ in range(tensors):
            name, weight, offset = self._tensor(next(reversed(found), ""))
            if name in found:
                raise self._error("stands twice")
            found[name] = weight
            places.append((offset, name, weight))
        start = self._check_places(places, self._alignment(metadata))
        where = {name: Place(self.path, start + offset) for offset, name, _ in places}
        return GgufHeader(self.path, metadata, found, where)

    def _start(self) -> tuple[int, int]:
        magic = self._take(4)
        if magic != b"GGUF":
            if magic == b"vers":
                raise UserError(
                    f"{self.path} is a pointer of Git LFS, not the file itself. Fetch it with git lfs pull."
                )
            raise UserError(f"{self.path} begins with {magic!r}, not with GGUF: it is no GGUF file.")
        version = self._whole("I")
        if version not in (2, 3):
            why = "big-endian files are not read" if version in (2 << 24, 3 << 24) else "2 and 3 are read"
            raise UserError(f"{self.path} has GGUF version {version}: {why}.")
        tensors, keys = self._whole("Q"), self._whole("Q")
        # a key takes 12 bytes and its value, a tensor 8 + 4 + 8 + 4 + 8
        for what, count, least in (("tensors", tensors, 32), ("keys", keys, 13)):
            if count > MAX_COUNT or count * least > self.size:
                raise UserError(f"{self.path} says it has {count:,} {what}, in {self.size:,} bytes. It is damaged.")
        return tensors, keys

    def _tensor(self, before: str) -> tuple[str, Weight, int]:
        self.doing = f"the tensor after {before[:200]!r}" if before else "the first tensor"
        name = self._text(MAX_KEY)
        self.doing = f"tensor {name[:200]!r}"
        count = self._whole("I")
        if not 1 <= count <= MAX_DIMENSIONS:
            raise self._error(f"has {count:,} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        sizes = struct.unpack(f"<{count}Q", self._take(8 * count))
        kind, offset = self._whole("I"), self._whole("Q")
        if kind not in TYPES:
            raise self._error(f"has type {kind}, which nearpeak does not know")
        label, block, block_bytes = TYPES[kind]
        if min(sizes) < 1 or math.prod(sizes) > 1 << 60:
            raise self._error(f"has the shape {list(sizes)}")
        if sizes[0] % block:
            raise self._error(f"has rows of {sizes[0]:,}, which blocks of {block} ({label}) do not divide")
        weight = Weight.plain(tuple(reversed(sizes)), math.prod(sizes) // block * block_bytes, label)
        return name, weight, offset

    def _alignment(self, metadata: dict[str, object]) -> int:
        alignment = metadata.get("general.alignment", 32)
        self.doing = "key 'general.alignment'"
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self._error(f"is {str(alignment)[:40]}: a power of two from 8 is expected")
        return alignment

    def _check_places(self, places: list[tuple[int, str, Weight]], alignment: int) -> int:
        """Where the data begins."""
        start = -(-self.at // alignment) * alignment
        end, before = 0, ""
        for offset, name, weight in sorted(places, key=lambda place: place[0]):
            self.doing = f"tensor {name[:200]!r}"
            if offset % alignment:
                raise self._error(f"lies at byte {offset:,} of the data, which {alignment} does not divide")
            if offset < end:
                raise self._error(f"lies at byte {offset:,} of the data, inside tensor {before[:200]!r}")
            end, before = offset + weight.bytes, name
            if start + end > self.size:
                raise self._error(f"ends at byte {start + end:,} of a file of {self.size:,}: it is cut off")
        return start

    def _value(self, kind: int, depth: int) -> object:
        if kind in NUMBERS:
            return struct.unpack("<" + NUMBERS[kind], self._take(struct.calcsize("<" + NUMBERS[kind])))[0]
        if kind == STRING:
            return self._text(MAX_TEXT)
        if kind == ARRAY and depth == 0:
            return self._array()
        raise self._error(f"has a value of type {kind}" + (" in an array" if depth else ""))

    def _array(self) -> object:
        kind, length = self._whole("I"), self._whole("Q")
        if kind == STRING:
            if 8 * length > self.size - self.at:
                raise self._error(f"is an array of {length:,} texts: more than the file has room for")
            for _ in range(length):
                self._skip(self._whole("Q"))
            return Skipped(length)
        if kind not in NUMBERS:
            raise self._error(f"is an array of type {kind}")
        size = struct.calcsize("<" + NUMBERS[kind])
        if length * size > self.size - self.at:
            raise self._error(f"is an array of {length:,} numbers: more than the file has room for")
        if length > KEPT:
            self._skip(length * size)
            return Skipped(length)
        return struct.unpack(f"<{length}{NUMBERS[kind]}", self._take(length * size))

    def _text(self, longest: int) -> str:
        length = self._whole("Q")
        if length > longest:
            if length > self.size - self.at or longest == MAX_KEY:
                raise self._error(f"has a text of {length:,} bytes, with {self.size - self.at:,} left in the file")
            self._skip(length)
            return ""
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error("is no UTF-8") from error

    def _whole(self, code: str) -> int:
        value: int = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]
        return value

    def _take(self, count: int) -> bytes:
        data = self.file.read(count) if count <= self.size - self.at else b""
        if len(data) < count:
            raise UserError(
                f"{self.path}: the file ends at byte {self.size:,}, in {self.doing}: it is cut off. Fetch it again."
            )
        self.at += count
        return data

    def _skip(self, count: int) -> None:
        if count > self.size - self.at:
            self._take(count)
        if count < 4096:
            self.file.read(count)  # faster than seeking while it lies in the buffer
        else:
            self.file.seek(count, os.SEEK_CUR)
        self.at += count

    def _error(self, what: str) -> UserError:
        return UserError(f"{self.path}: {self.doing} {what}. The file is damaged: fetch it again.")
