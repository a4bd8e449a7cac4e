"""The arrows between packages, and what a command may import."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_arrows_point_one_way() -> None:
    """The layers and bans of pyproject.toml, [tool.importlinter]."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kept, 0 broken" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = run(
        "import sys\n"
        "from nearpeak.cli.main import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'rich', 'pydantic', 'matplotlib', 'pynvml', 'psutil', 'triton'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    assert heavy.endswith("HEAVY []")


def test_help_answers_in_under_a_quarter_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "nearpeak", "--help"], check=True, capture_output=True, cwd=ROOT)
        return time.perf_counter() - start

    # The least of several: other work on the machine only ever adds.
    assert min(seconds() for _ in range(7)) < 0.25


def test_finding_a_spec_imports_no_torch() -> None:
    code = "import sys; from nearpeak.hardware.catalogue import find_by_name; find_by_name('RTX 3090')"
    assert run(code + "; print('torch' in sys.modules)") == "False"
