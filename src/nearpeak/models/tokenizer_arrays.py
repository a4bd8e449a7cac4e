"""The tokenizer's keys of a GGUF file, their long arrays in full: `gguf_header` passes these over."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearpeak.models.gguf_header import NUMBERS, STRING
from nearpeak.models.tokenizer_parts import MAX_TOKENS
from nearpeak.records.errors import UserError

MAX_TEXT = 1 << 20  # bytes of one text: a template; a token has far fewer
MAX_BYTES = 256 << 20  # of an array
PREFIX = b"tokenizer."


def read_tokenizer_keys(path: Path) -> dict[str, object]:
    """Key → number, text, truth value, or list of these, for all keys that begin with "tokenizer.".

    For a file whose header `read_gguf_header` has found whole. Raises UserError naming the key: longer than any
    tokenizer's, or no UTF-8.
    """
    with _mapped(path) as data:
        try:
            return _Walk(path, data).keys()
        except UserError:
            raise
        except (struct.error, IndexError, ValueError) as error:  # it changed since then
            raise UserError(
                f"{path}: the keys cannot be read: {error}. The file is damaged: fetch it again."
            ) from error


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}. Check the path and its permissions.") from error


class _Walk:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.key = path, data, 8, ""

    def keys(self) -> dict[str, object]:
        _, count = self._numbers("Q", 2)
        found: dict[str, object] = {}
        for _ in range(count):
            key = self._bytes()
            kind = self._numbers("I", 1)[0]
            self.key = key.decode("utf-8", "replace")
            if key.startswith(PREFIX):
                found[self.key] = self._value(kind)
            else:
                self._pass(kind)
        return found

    def _value(self, kind: int) -> object:
        if kind == STRING:
            return self._text(self._bytes())
        if kind in NUMBERS:
            return self._numbers(NUMBERS[kind], 1)[0]
        inner, count = self._array()
        if count > MAX_TOKENS:
            raise self._error(f"has {count:,} entries; no tokenizer has more than {MAX_TOKENS:,}")
        if inner != STRING:
            return list(self._numbers(NUMBERS[inner], count))
        return self._texts(count)

    def _texts(self, count: int) -> list[str]:
        """A loop of its own: half a million texts are usual."""
        data, at, length = self.data, self.at, struct.Struct("<Q").unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                end = at + 8 + length(data, at)[0]
                if end - at > MAX_TEXT:
                    raise self._error(f"[{len(texts)}] has a text of {end - at:,} bytes; {MAX_TEXT:,} are possible")
                texts.append(data[at + 8 : end].decode())
                at = end
                if at - self.at > MAX_BYTES:
                    raise self._error(f"has more than {MAX_BYTES:,} bytes of text")
        except UnicodeDecodeError as error:
            raise self._error(f"[{len(texts)}] is no UTF-8") from error
        self.at = at
        return texts

    def _pass(self, kind: int) -> None:
        if kind == STRING:
            self._bytes()
        elif kind in NUMBERS:
            self._numbers(NUMBERS[kind], 1)
        else:
            inner, count = self._array()
            if inner == STRING:
                for _ in range(count):
                    self._bytes()
            else:
                self.at += count * struct.calcsize("<" + NUMBERS[inner])

    def _array(self) -> tuple[int, int]:
        inner, count = self._numbers("I", 1)[0], self._numbers("Q", 1)[0]
        if inner != STRING and inner not in NUMBERS:
            raise ValueError(f"an array of type {inner}")
        return inner, count

    def _bytes(self) -> bytes:
        (length,) = struct.unpack_from("<Q", self.data, self.at)
        start = self.at + 8
        self.at = start + length
        if self.at > len(self.data):
            raise ValueError("a text ends beyond the file")
        return self.data[start : self.at]

    def _text(self, text: bytes) -> str:
        if len(text) > MAX_TEXT:
            raise self._error(f"has a text of {len(text):,} bytes; {MAX_TEXT:,} are possible")
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error("is no UTF-8") from error

    def _numbers(self, code: str, count: int) -> tuple[int, ...]:
        found = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += count * struct.calcsize("<" + code)
        return found

    def _error(self, what: str) -> UserError:
        return UserError(
            f"{self.path}: key {self.key[:200]}{'' if what.startswith('[') else ' '}{what}. Fetch it again."
        )
