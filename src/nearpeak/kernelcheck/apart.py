"""Run a check in a process of its own: a kernel can hang, crash, or leave the GPU unusable for its process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nearpeak.kernelcheck.check import Request
from nearpeak.records.errors import UserError

TIMEOUT_S = 300.0


def check_apart(request: Request, timeout: float = TIMEOUT_S) -> dict[str, Any]:
    """The Outcome of `check_kernel` as plain data. A kernel that hangs or kills its process is one that is not right.

    The child's own output goes to standard error. Raises UserError as check_kernel does; RuntimeError with the child's
    last words where the check itself failed.
    """
    with tempfile.TemporaryDirectory(prefix="nearpeak-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "nearpeak.kernelcheck.apart", str(answer)]
        text = json.dumps(dataclasses.asdict(request) | {"seconds": timeout})
        quiet = {"PYOPENCL_NO_CACHE": "1", "POCL_KERNEL_CACHE": "0"}  # nothing is left in the user's folders
        try:
            done = subprocess.run(
                command, input=text, text=True, stdout=sys.stderr, timeout=timeout, env={**os.environ, **quiet}
            )
        except subprocess.TimeoutExpired:
            return lost(request, f"no end after {timeout:g} s: it hangs, or is far too slow; a barrier that not all "
                        "threads reach, or a loop that never ends")  # fmt: skip
        if not answer.exists():
            if done.returncode < 0:
                return lost(request, f"it ended the whole process with signal {-done.returncode}")
            raise RuntimeError(f"the check ended with exit code {done.returncode} and no answer")
        content: dict[str, Any] = json.loads(answer.read_text())
    if "user_error" in content:
        raise UserError(content["user_error"])
    if "failed" in content:
        raise RuntimeError(content["failed"])
    return content


def lost(request: Request, what: str) -> dict[str, Any]:
    """The outcome of a kernel that gave none."""
    from nearpeak.records.outcome import SCHEMA, Outcome

    verdict = {"right": False, "findings": [{"check": "crash", "shape": "", "text": what, "numbers": {}}]}
    result = {"file": request.file, "right": False, "verdict": verdict, "speed": None, "why": None}
    return dataclasses.asdict(Outcome(SCHEMA, "kernel check", "", {}, {}, {}, {}, None, None, (), result))


def _child() -> None:
    """Read a request from standard input, write the answer to the file that is named."""
    from nearpeak.kernelcheck.check import check_kernel

    asked = json.loads(sys.stdin.read())
    asked["inputs"] = tuple(asked["inputs"])
    try:
        outcome = check_kernel(Request(**asked), lambda text: print(text, file=sys.stderr, flush=True))
        content: dict[str, Any] = dataclasses.asdict(outcome)
    except UserError as error:
        content = {"user_error": str(error)}
    except Exception as error:
        content = {"failed": f"{type(error).__name__}: {error}"}
    Path(sys.argv[1]).write_text(json.dumps(content))


if __name__ == "__main__":
    _child()
