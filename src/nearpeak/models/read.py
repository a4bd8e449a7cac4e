"""One door: a folder, a file or a known name → ModelSpec."""

from __future__ import annotations

from pathlib import Path

from nearpeak.models.known import find_known, known_names, nearest_names, read_known
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec


def read_model(what: str) -> ModelSpec:
    """The spec of a model folder, a .gguf file, or a known name, in this order.

    Reads headers only: no weights, no torch. Raises UserError that says what was found, or which names are nearest.
    """
    if not what or "\0" in what:
        raise UserError(f"{what!r} names no model. Give a folder, a .gguf file or a known name such as llama-3.1-8b.")
    path = Path(what).expanduser()
    if _there(path):
        raise UserError("not yet")
    name = find_known(what)
    if name is None:
        near = nearest_names(what)
        hint = f"Nearest known names: {', '.join(near)}." if near else f"{len(known_names())} names are known."
        raise UserError(f"{what!r} is no folder, no .gguf file and no known name. {hint}")
    return read_known(name)


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True
