"""The recipe examples/cnn.yaml against the script examples/plain_cnn.py on a CPU: images/s and loss curves over seeds.

    python benchmarks/train_cpu.py OUT.json [pairs]

Runs follow each other as A B B A (recipe, script, script, recipe), each in a process of its own, one epoch over the
8,000 images of examples/data, with a new seed each time. The same seed gives both the same first weights, not the same
order of images. Whatever else runs on the machine meets both alike.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = (
    "import json, sys; sys.path.insert(0, 'examples'); import plain_cnn\n"
    "losses, rate = plain_cnn.main(epochs=1, seed=int(sys.argv[1]))\n"
    "print(json.dumps({'losses': losses, 'images_per_s': rate}))\n"
)
IMAGES = 8000
BLOCK = 25
"""Steps whose mean loss is one point of a curve."""


def recipe(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "nearpeak", "train", "examples/cnn.yaml", "--epochs", "1", "--json"]
        done = subprocess.run(
            [*command, "--seed", str(seed), "--out", out], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
    outcome = json.loads(done.stdout)
    result = outcome["result"]
    seconds = result["seconds"]
    return {
        "what": "recipe", "seed": seed, "images_per_s": outcome["got"]["images_per_s"],
        "images_per_s_with_trial": result["images_done_here"] / (seconds["training"] + seconds["trial"]),
        "trial_s": seconds["trial"],
        "limit": outcome["limit"]["images_per_s"], "share": outcome["share"]["images_per_s"],
        "losses": [line["loss"] for line in result["curve"] if "loss" in line],
        "accuracy": result["test_accuracy"], "settings": result["settings"],
    }  # fmt: skip


def script(seed: int) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(seed)], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    *said, last = done.stdout.decode().splitlines()
    accuracy = float(said[0].rpartition("accuracy ")[2].removesuffix(" %")) / 100
    return {"what": "script", "seed": seed, **json.loads(last), "accuracy": accuracy}


def blocks(losses: list[float]) -> list[float]:
    return [statistics.fmean(losses[at : at + BLOCK]) for at in range(0, len(losses), BLOCK)]


def judged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Speed as medians and their ratio; curves: distance of the mean curves beside the spread that seeds alone make."""
    by = {what: [run for run in runs if run["what"] == what] for what in ("recipe", "script")}
    speed = {what: [run["images_per_s"] for run in found] for what, found in by.items()}
    curves = {what: [blocks(run["losses"]) for run in found] for what, found in by.items()}
    mean = {what: [statistics.fmean(point) for point in zip(*found, strict=True)] for what, found in curves.items()}
    spread = [
        max(statistics.stdev(point) for point in points)
        for points in zip(*(list(zip(*curves[what], strict=True)) for what in curves), strict=True)
    ]
    pairs = list(zip(speed["recipe"], speed["script"], strict=True))
    return {
        "images_per_s": {what: statistics.median(rates) for what, rates in speed.items()},
        "range": {what: [min(rates), max(rates)] for what, rates in speed.items()},
        "ratio": statistics.median(speed["recipe"]) / statistics.median(speed["script"]),
        "ratio_by_pair": [a / b for a, b in pairs],
        "ratio_with_trial": statistics.median(run["images_per_s_with_trial"] for run in by["recipe"])
        / statistics.median(speed["script"]),
        # The trial is made once a run, and the recipe has five epochs:
        "ratio_of_five_epochs_with_trial": statistics.median(
            5 * IMAGES / (5 * IMAGES / run["images_per_s"] + run["trial_s"]) for run in by["recipe"]
        )
        / statistics.median(speed["script"]),
        "loss_by_block": mean,
        "distance_by_block": [abs(a - b) for a, b in zip(mean["recipe"], mean["script"], strict=True)],
        "seed_deviation_by_block": spread,
        "accuracy": {what: [run["accuracy"] for run in found] for what, found in by.items()},
    }


def main() -> int:
    out, pairs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    runs: list[dict[str, Any]] = []
    load = os.getloadavg()
    for seed in range(pairs):
        for one in (recipe, script) if seed % 2 == 0 else (script, recipe):
            runs.append(one(seed))
            print(f"{runs[-1]['what']}, seed {seed}: {runs[-1]['images_per_s']:.0f} images/s", flush=True)
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    about = {
        "method": "train_cpu/1", "command": f"python benchmarks/train_cpu.py {out.name} {pairs}",
        "commit": git.stdout.strip(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": next((line.partition(": ")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                     if line.startswith("model name")), platform.processor()),
        "cores": len(os.sched_getaffinity(0)), "load_average_before": load, "load_average_after": os.getloadavg(),
        "versions": {name: version(name) for name in ("torch", "numpy", "nearpeak")},
    }  # fmt: skip
    verdict = judged(runs)
    out.write_text(json.dumps({**about, **verdict, "runs": runs}, indent=1) + "\n")
    print(json.dumps({key: verdict[key] for key in ("images_per_s", "ratio", "ratio_with_trial")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
