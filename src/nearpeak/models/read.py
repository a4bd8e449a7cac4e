"""One door: a folder, a file or a known name → ModelSpec."""

from __future__ import annotations

from pathlib import Path

from nearpeak.models.folder import read_folder
from nearpeak.models.gguf_model import first_files, read_gguf
from nearpeak.models.known import find_known, known_names, nearest_names, read_known
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec


def read_model(what: str) -> ModelSpec:
    """The spec of a model folder, a .gguf file, or a known name, in this order.

    Reads headers only: no weights, no torch. Raises UserError that says what was found, or which names are nearest.
    """
    if not what or "\0" in what:
        raise UserError(f"{what!r} names no model. Give a folder, a .gguf file or a known name such as llama-3.1-8b.")
    path = _path(what)
    if _there(path):
        return _read_path(path)
    name = find_known(what)
    if name is None and (what.endswith(".gguf") or "/" in what or what.startswith((".", "~"))):
        raise UserError(f"{what} does not exist. Name a folder with config.json, or a .gguf file.")
    if name is None:
        near = nearest_names(what)
        hint = f"Nearest known names: {', '.join(near)}." if near else f"{len(known_names())} names are known."
        raise UserError(f"{what!r} is no folder, no .gguf file and no known name. {hint}")
    return read_known(name)


def _read_path(path: Path) -> ModelSpec:
    if path.is_dir():
        ggufs = [] if (path / "config.json").exists() else first_files(path)
        if len(ggufs) > 1:
            raise UserError(f"{path} has {len(ggufs)} GGUF models: name one of them, such as {ggufs[0]}.")
        return read_gguf(ggufs[0]) if ggufs else read_folder(path)
    if path.name.endswith(".gguf"):
        return read_gguf(path)
    if path.name.endswith(".safetensors") or path.name == "config.json":
        raise UserError(f"{path} is one file of a model: name its folder, {path.parent}.")
    if not path.exists():
        raise UserError(f"{path} is a link that leads nowhere, or to itself. Name the file or folder itself.")
    raise UserError(f"{path} is no model file. Name a folder with config.json, or a .gguf file.")


def _path(what: str) -> Path:
    try:
        return Path(what).expanduser()
    except RuntimeError:  # "~nobody"
        return Path(what)


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True
