"""Where the bytes of a tensor lie."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """The file, and the byte in it where the tensor begins; how long it is, its Weight says."""

    path: Path
    begin: int
