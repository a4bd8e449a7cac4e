"""The measured ladder as the package keeps it: what the page of `nearpeak kernel check` draws beside a matrix product.

    python3 benchmarks/ladder_data.py    # after benchmarks/results/ladder-h200/matmul.json was measured anew

Writes src/nearpeak/kernelcheck/data/ladder.json: the files of examples/kernels as they are, without their variants.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "results" / "ladder-h200" / "matmul.json"
TARGET = ROOT / "src" / "nearpeak" / "kernelcheck" / "data" / "ladder.json"
SCHEMA = "nearpeak ladder points 1"


def points(measured: dict[str, Any], source: str, commit: str | None) -> dict[str, Any]:
    """The document that the package keeps, from the document that benchmarks/ladder.py wrote."""
    jobs = {job["id"]: job for job in measured["jobs"]}
    steps = [
        {
            "step": step_name(jobs[row["name"]]),
            "file": jobs[row["name"]]["file"],
            "kernel": jobs[row["name"]]["kernel"],
            "precision": jobs[row["name"]]["precision"],
            "n": row["shape"]["m"],
            "flop_per_s": float(f"{row['rate']:.4g}"),
            "share_of_library": float(f"{row['share_of_library']:.4g}"),
        }
        for row in measured["rows"]
        if row["name"] in jobs and not jobs[row["name"]]["variant"] and len(set(row["shape"].values())) == 1
    ]
    return {
        "schema": SCHEMA,
        "device": measured["machine"]["device"],
        "date": measured["date"][:10],
        "commit": measured.get("commit") or commit,
        "source": source,
        "steps": sorted(steps, key=lambda step: (step["precision"], step["n"], step["file"], step["flop_per_s"])),
    }


def step_name(job: dict[str, Any]) -> str:
    """ "3 shared tiles" of matmul_3_shared_tiles.cu; "Triton" and what tells two of its kernels apart."""
    if job["file"].endswith(".cu"):
        return re.sub(r"^matmul_|\.cu$", "", job["file"]).replace("_", " ")
    return "Triton, tensors" if job["kernel"].endswith("_tensors") else "Triton"


def last_commit(path: Path) -> str | None:
    """The commit that last changed the file; None outside of a repository."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or None


def main() -> int:
    document = points(json.loads(MEASURED.read_text()), str(MEASURED.relative_to(ROOT)), last_commit(MEASURED))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    print(f"{TARGET.relative_to(ROOT)}: {len(document['steps'])} points of {document['device']}, {document['date']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
