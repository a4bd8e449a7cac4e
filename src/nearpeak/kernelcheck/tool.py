"""Tools of the CUDA toolkit that watch a kernel run: where they are, and how a run under one of them ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Where installers put them, besides PATH and CUDA_HOME. Of several versions the last by name is taken.
FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/nsight-compute/*")


@dataclass(frozen=True)
class Ended:
    """How a run ended. text: what tool and program printed; code: exit status, None where its time was over."""

    text: str
    code: int | None


def find_tool(name: str, folders: Sequence[str] = FOLDERS) -> Path | None:
    """The tool on PATH, in CUDA_HOME or CUDA_PATH, or in one of the usual folders; None where it is in none."""
    if found := shutil.which(name):
        return Path(found)
    own = [f"{os.environ[key]}/bin" for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    for pattern in (*own, *folders):
        root = Path(pattern.removesuffix("/*"))
        places = sorted(root.glob("*"), reverse=True) if pattern.endswith("/*") else [root]
        for place in places:
            if os.access(place / name, os.X_OK) and (place / name).is_file():
                return place / name
    return None


def run_tool(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run it for so many seconds at most; then it ends with all that it started. Raises OSError where it cannot start.

    What it prints goes to a file: a program that it started may hold a pipe open beyond its end.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):  # whatever it has left behind, it alone is in this group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Ended(output.read(), code)
