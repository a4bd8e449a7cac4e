"""What a kernel's file says of it, in comment lines such as `// nearpeak: grid ceil(m / 16), ceil(n / 16)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from nearpeak.kernelcheck import expression
from nearpeak.kernelcheck.kernel import Declaration
from nearpeak.records.errors import UserError

LAUNCH_KEYS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
SEVERAL = 3  # dimensions of a grid and of a block, at most
KEYS = tuple(field.name for field in fields(Declaration) if field.name not in ("kernel", "line"))


def read_declarations(text: str, comment: str, path: str = "", line_offset: int = 0) -> tuple[Declaration, ...]:
    """The declarations of all kernels in a file, in its order.

    comment is "//" or "#"; line_offset is added to line numbers, for text that starts further down its file.
    Raises UserError with file and line: a key before any kernel, an unknown or repeated key, an unreadable value.
    """
    found: list[Declaration] = []
    seen: set[str] = set()
    pattern = re.compile(rf"\s*{re.escape(comment)}+\s*nearpeak:\s*(\S*)\s*(.*?)\s*$")
    for number, line in enumerate(text.splitlines(), 1 + line_offset):
        match = pattern.match(line)
        if match is None:
            continue
        key, value = match[1], match[2]
        try:
            if key == "kernel":
                if not value:
                    raise UserError("'kernel' names no function")
                if any(value == other.kernel for other in found):
                    raise UserError(f"kernel '{value}' is declared twice")
                found.append(Declaration(kernel=value, line=number))
                seen = set()
                continue
            if not found:
                raise UserError(f"'{key}' comes before any 'kernel' line")
            if key in seen:
                raise UserError(f"'{key}' is given twice for kernel '{found[-1].kernel}'")
            seen.add(key)
            found[-1] = replace(found[-1], **{key: parse_value(key, value)})
        except UserError as error:
            raise UserError(f"{path or 'declaration'}:{number}: {error}") from None
    return tuple(found)


def choose(declarations: Sequence[Declaration], name: str | None, path: str = "") -> Declaration:
    """The declaration of that name; the only one where no name is given. Raises UserError, listing them, otherwise."""
    listed = ", ".join(declaration.kernel for declaration in declarations) or "none"
    where = path or "FILE"
    if name is None:
        if len(declarations) == 1:
            return declarations[0]
        count = len(declarations) or "no"
        raise UserError(f"{where} declares {count} kernels ({listed}); name one: {where}:NAME")
    for declaration in declarations:
        if declaration.kernel == name:
            return declaration
    raise UserError(f"{where} declares no kernel '{name}'; it declares: {listed}")


def merge(declaration: Declaration, flags: Mapping[str, Any]) -> Declaration:
    """The declaration with the flags' values in place of its own; a flag that is None changes nothing.

    Values are texts as in a file's lines, or already what `Declaration` holds. Single constants and launch options are
    replaced, the others kept. Raises UserError for a flag that is no key of a declaration.
    """
    changed: dict[str, Any] = {}
    for key, value in flags.items():
        if value is None:
            continue
        if key not in KEYS:
            raise UserError(f"'{key}' is no key of a declaration; keys: {', '.join(KEYS)}")
        try:
            parsed = parse_value(key, value) if isinstance(value, str) else value
        except UserError as error:
            raise UserError(f"--{key.replace('_', '-')}: {error}") from None
        if isinstance(parsed, Mapping):
            parsed = {**getattr(declaration, key), **parsed}
        changed[key] = parsed
    return replace(declaration, **changed)


def parse_value(key: str, value: str) -> Any:
    """The value of one key, as `Declaration` holds it. Raises UserError."""
    if key not in KEYS:
        raise UserError(f"unknown key '{key}'; keys: kernel, {', '.join(KEYS)}")
    if not value:
        raise UserError(f"'{key}' has no value")
    return _PARSERS.get(key, str)(value)


def split(text: str) -> tuple[str, ...]:
    """Parts between the commas that stand outside of all brackets, blanks around them removed."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return tuple(part.strip() for part in parts)


def _dimensions(text: str) -> tuple[str, ...]:
    parts = split(text)
    if len(parts) > SEVERAL:
        raise UserError(f"'{text}' has {len(parts)} dimensions, at most {SEVERAL}")
    return tuple(_checked(part) for part in parts)


def _checked(text: str) -> str:
    expression.parse(text)
    return text


def _args(text: str) -> tuple[str, ...]:
    parts = split(text)
    if not all(parts):
        raise UserError(f"'{text}' has an empty argument")
    return tuple(_checked(part) for part in parts)


def _pairs(text: str) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for part in split(text):
        match = re.fullmatch(r"(\w+)\s*=\s*(.+)", part)
        if match is None:
            raise UserError(f"'{part}' is not of the form NAME=NUMBER")
        if match[1] in pairs:
            raise UserError(f"'{match[1]}' is given twice")
        pairs[match[1]] = expression.evaluate(match[2], {})
    return pairs


def _launch(text: str) -> dict[str, int]:
    pairs = _pairs(text)
    for name in pairs:
        if name not in LAUNCH_KEYS:
            raise UserError(f"unknown launch option '{name}'; options: {', '.join(LAUNCH_KEYS)}")
    return pairs


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "grid": _dimensions,
    "block": _dimensions,
    "shared": _checked,
    "args": _args,
    "require": _checked,
    "constants": _pairs,
    "launch": _launch,
}
