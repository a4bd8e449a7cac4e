"""The run's log: one JSON object a line, in step order, also after a resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nearpeak.records.files import write_text_atomically


class Log:
    """Appends to `path`. Lines of steps after `resumed_at`, which are run again, are dropped first, and so is what is
    left of a line that a kill cut."""

    def __init__(self, path: Path, resumed_at: int) -> None:
        self.path = path
        self.lines = [line for line in _read(path) if line["step"] <= resumed_at] if resumed_at else []
        write_text_atomically(path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def add(self, **line: Any) -> None:
        """`step` is one of them. A full disk loses lines of the file, not the run."""
        self.lines.append(line)
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError:
            pass

    def sync(self) -> None:
        """To disk, before a checkpoint that counts on it."""
        try:
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError:
            pass


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        raw = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for text in raw:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            found.append(line)
    return found
