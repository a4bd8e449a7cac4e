"""JSON of unknown origin: bounded in size and depth, no key twice, no NaN, or a UserError that says which file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from nearpeak.records.errors import UserError

MAX_BYTES = 64 << 20  # the largest index we know of (DeepSeek-V3's) has 9 MB


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, object]:
    """The object in a JSON file. Raises UserError where it cannot be read or holds anything else."""
    return parse_json(read_bytes(path, max_bytes), str(path))


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """A plain file's content. Raises UserError: missing, a link to itself, no plain file, larger than `max_bytes`."""
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise UserError(f"{path} is no plain file. Name a model's folder, or its .gguf file.")
            if facts.st_size > max_bytes:
                raise UserError(
                    f"{path} has {facts.st_size:,} bytes; at most {max_bytes:,} are read. It is no model's JSON file."
                )
            return file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}. Check the path and its permissions.") from error


def parse_json(data: bytes, where: str) -> dict[str, object]:
    """The object that `data` holds. `where` names the source in errors."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is no UTF-8 at byte {error.start}: it is damaged. Fetch it again.") from error
    except RecursionError as error:
        raise UserError(f"{where} is nested too deeply to be a model's. Fetch it again.") from error
    except ValueError as error:
        raise UserError(f"{where} is no valid JSON: {error}. Fetch it again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} holds {_kind(value)}; an object in braces is expected. Fetch it again.")
    return value


def _no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:200]!r} stands twice")
    return result


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON number")


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), "null")
