"""`make demo`: the main jobs, one after the other, on whatever this machine has. Each step is one nearpeak command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "demo"

# (what it shows, the command's arguments). Later commands are added here.
STEPS = [
    (
        "What can this machine really do?",
        ["measure", "--quick", "--out", OUT / "machine-profile.json", "--html", OUT / "measure.html"],
    ),
]


def main() -> int:
    OUT.mkdir(exist_ok=True)
    for title, arguments in STEPS:
        shown = [str(a.relative_to(OUT.parent)) if isinstance(a, Path) else a for a in arguments]
        print(f"\n== {title}\n$ nearpeak {' '.join(shown)}", flush=True)
        done = subprocess.run([sys.executable, "-m", "nearpeak", *map(str, arguments)])
        if done.returncode:
            return done.returncode
    print(f"\nOpen {OUT / 'measure.html'} in a browser for the charts.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
