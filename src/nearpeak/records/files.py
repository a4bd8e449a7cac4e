"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearpeak.records.errors import UserError


def write_text_atomically(path: Path | str, text: str) -> None:
    """Write text as UTF-8 under a temporary name in the same folder, bring it to disk, then rename it to `path`.

    Whoever reads `path` sees the old content or the new, never a part. A symbolic link keeps pointing to its target.
    A lone surrogate, which UTF-8 cannot hold, becomes "?".

    Raises UserError, naming the path, where the folder is missing or not writable, the disk is full, or `path` is
    something other than a plain file. No temporary file stays behind.
    """
    with _aside(path) as (temporary, handle):
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, _target(path))
    _sync_folder(_target(path).parent)


def check_writable(path: Path | str) -> None:
    """Raise the UserError that writing `path` would end in, before the work whose result it is to hold.

    A full disk can still come later.
    """
    with _aside(path) as (_, handle):
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder of nearpeak's own, and those on the way. Raises UserError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror or error}. Name a file by --out.") from error


def _target(path: Path | str) -> Path:
    """Where `path` leads, links followed. Raises UserError where something other than a plain file is in the way."""
    target = Path(os.path.realpath(path))
    try:
        in_the_way = target.exists() and not target.is_file()
    except OSError as error:  # a name longer than the file system takes
        raise UserError(f"cannot write {path}: {error.strerror or error}. Name a file that can be written.") from error
    if in_the_way:
        what = "a folder" if target.is_dir() else "no plain file"
        raise UserError(f"cannot write {path}: it is {what}. Name a file.")
    return target


@contextmanager
def _aside(path: Path | str) -> Iterator[tuple[Path, int]]:
    """A new file beside `path` and its handle; gone afterwards unless it was renamed. OSErrors become UserErrors."""
    temporary = _target(path).parent / f".nearpeak-{secrets.token_hex(8)}.tmp"
    try:
        try:
            yield temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}. Name a file that can be written.") from error


def _sync_folder(folder: Path) -> None:
    """Bring the rename itself to disk, where the system can do that for a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some file systems refuse; the content is safe, only the rename may be late
    finally:
        os.close(handle)
