"""The launch ceilings against a ten-line reference, interleaved in one run.

PYTHONPATH=src python benchmarks/launch_reference.py OUT_FOLDER COMMIT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import measure_reference
import torch


def reference():
    found = {}
    for kind, calls, work in measure_reference.launches():
        found[kind] = measure_reference.seconds_on_host(work, calls)
    return found


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for turn in range(3):
        theirs = reference()
        torch.cuda.empty_cache()
        profile, _ = measure_reference.measure(folder / "launch.json", kinds=("launch", "launch_graph"))
        for c in profile["devices"][0]["ceilings"]:
            share = theirs[c["kind"]] / c["burst"]
            rows.append({"turn": turn, "kind": c["kind"], "ours": c["burst"], "reference": theirs[c["kind"]]})
            rows[-1] |= {"reference_by_ours": share, "spread": c["spread"]}
            print(
                f"{c['kind']:14} ours {c['burst'] * 1e6:7.3f} µs  reference {theirs[c['kind']] * 1e6:7.3f}  {share:.3f}"
            )
    facts = {"command": "python " + " ".join(sys.argv), "commit": sys.argv[2], "machine": profile["machine"]}
    (folder / "launch-reference.json").write_text(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
