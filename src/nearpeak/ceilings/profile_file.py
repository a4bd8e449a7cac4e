"""A machine profile as a JSON file: kept, shared, compared."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nearpeak.records.errors import UserError
from nearpeak.records.files import write_text_atomically
from nearpeak.records.machine_profile import SCHEMA, MachineProfile

LARGEST_FILE = 64 * 2**20
"""Bytes. A profile of an eight-GPU machine is under 1 MB; more than this is some other file."""


def default_path(machine_id: str) -> Path:
    """Where the profile of a machine is kept: one file per machine id in the user's data folder (not created here)."""
    from platformdirs import user_data_path

    name = re.sub(r"[^A-Za-z0-9_-]", "_", machine_id)[:100] or "machine"
    return user_data_path("nearpeak", appauthor=False) / f"machine-{name}.json"


def to_json(profile: MachineProfile) -> str:
    """The profile as JSON text: SI base units, numbers as numbers, null where absent.

    Raises ValueError, naming the key, for a NaN or an infinity: JSON has none, and a missing figure is None.
    """
    document = dataclasses.asdict(profile)
    for key in _not_finite(document):
        raise ValueError(f"{key} is no finite number: a missing figure must be None")
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def save(profile: MachineProfile, path: Path | str) -> None:
    """Write the profile to `path`, whole or not at all. Raises UserError, naming the path, where that cannot be."""
    write_text_atomically(path, to_json(profile))


def load(path: Path | str) -> MachineProfile:
    """Read a profile that `save` wrote.

    Raises UserError with one line that names the file and, where there is one, the key: file missing, over 64 MB, cut
    short or not JSON, of another program or another schema version, a key missing, unknown, of a wrong type, or NaN.
    """
    content = _read(path)
    document = _parse(path, content)
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("nearpeak.machine-profile/"):
        raise UserError(f"{path} is no nearpeak machine profile: it has no key schema saying {SCHEMA}")
    if document["schema"] != SCHEMA:
        raise UserError(
            f"{path}: schema is {_short(document['schema'])}, this nearpeak reads {SCHEMA}. Measure again to renew it."
        )
    for key in _not_finite(document):
        raise UserError(f"{path}: {key} is no finite number")
    return _build(path, content, document)


def _read(path: Path | str) -> bytes:
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise UserError(f"cannot read {path}: it is no plain file. Name a machine profile.")
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}. Name a machine profile that nearpeak saved.") from error
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path} is over {LARGEST_FILE // 2**20} MiB, too large to be a machine profile")
    return content


def _parse(path: Path | str, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{path} is not JSON, or was cut short: {error.msg} at {where}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not JSON: no UTF-8 text at byte {error.start}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested too deep
        raise UserError(f"{path} is no machine profile: its JSON holds a number too long or nests too deep") from error


def _build(path: Path | str, content: bytes, document: dict[str, Any]) -> MachineProfile:
    """Strictly: no text for a number, no unknown key. The list around it lets the records take the strictness on."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    adapter = TypeAdapter(tuple[MachineProfile], config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
    try:
        return adapter.validate_json(b"[" + content + b"]")[0]
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = first["loc"][1:]
        key = _key(document, location, whole=first["type"] in ("missing", "missing_argument"))
        union = len(location) > 1 and not key.endswith(f"{location[-1]}") and not isinstance(location[-1], int)
        what = (
            "has a value of the wrong type"
            if union
            else {
                "missing": "is missing",
                "missing_argument": "is missing",
                "unexpected_keyword_argument": "is a key that this nearpeak does not know",
            }.get(first["type"], f"has a wrong value: {first['msg'][:200]}")
        )
        raise UserError(f"{path}: {key or 'the document'} {what}") from error


def _key(document: Any, location: tuple[int | str, ...], whole: bool) -> str:
    """The location as devices[0].name, without the parts that only name a member of a union (those index nothing)."""
    text, here = "", document
    for part in location:
        try:
            here = here[part]
        except (LookupError, TypeError):
            if not whole:
                break
        text += f"[{part}]" if isinstance(part, int) else f".{_short(part)}"
    return text.removeprefix(".")


def _short(value: object) -> str:
    """A foreign value in one line of at most 60 characters."""
    return "".join(c if c.isprintable() else "�" for c in str(value))[:60]


def _not_finite(value: Any, key: str = "") -> Iterator[str]:
    """The keys of the NaNs and infinities in a document."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _not_finite(item, f"{key}.{_short(name)}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{key}[{index}]")
