"""`nearpeak kernel check` on every kernel of examples/kernels/, and its predicted gains beside the measured ones.

    PYTHONPATH=src python benchmarks/kernel_checks.py OUT.json COMMIT [--seconds 480] [--only matmul_1,transpose]

Runs the command itself, one process a file, most telling first; stops starting new ones when the seconds are spent.
For each pair of a kernel with a planted fault and the same kernel mended it says whether the measured gain lies in the
interval that was predicted from the faulty kernel alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "examples" / "kernels"
CHECKS = {  # file[:kernel] → shape
    "matmul_1_plain.cu": "4096,4096,4096",
    "matmul_2_along_rows.cu": "4096,4096,4096",
    "transpose_uncoalesced.cu": "16384,16384",
    "transpose_tiled.cu": "16384,16384",
    "copy_strided.cu": "268435456",
    "copy_contiguous.cu": "268435456",
    "sum_structures.cu": "33554432",
    "sum_arrays.cu": "33554432",
    "matmul_5_vector_loads.cu": "4096,4096,4096",
    "matmul_7_pipelined.cu": "4096,4096,4096",
    "matmul_6_matrix_units.cu": "4096,4096,4096",
    "matmul_4_register_tiles.cu": "4096,4096,4096",
    "matmul_3_shared_tiles.cu": "4096,4096,4096",
    "matmul_triton.py:matmul_nt_bf16_tensors": "4096,4096,4096",
    "matmul_triton.py:matmul_nt_bf16": "4096,4096,4096",
    "matmul_triton.py:matmul_fp32": "4096,4096,4096",
}
PAIRS = [
    ("matmul_1_plain.cu", "matmul_2_along_rows.cu"),
    ("transpose_uncoalesced.cu", "transpose_tiled.cu"),
    ("copy_strided.cu", "copy_contiguous.cu"),
    ("sum_structures.cu", "sum_arrays.cu"),
]


def check(file: str, shape: str, page: Path | None) -> dict:
    """The Outcome of one check, its exit code and seconds."""
    words = [sys.executable, "-m", "nearpeak", "kernel", "check", file, "--shape", shape, "--json"]
    if page:
        words += ["--html", str(page)]
    start = time.monotonic()
    try:
        done = subprocess.run(words, cwd=KERNELS, capture_output=True, text=True, timeout=150)
    except subprocess.TimeoutExpired:
        return {"exit_code": None, "seconds": time.monotonic() - start, "error": "no end after 150 s"}
    answer = {"exit_code": done.returncode, "seconds": time.monotonic() - start}
    if done.returncode in (0, 3):
        return answer | {"outcome": json.loads(done.stdout)}
    return answer | {"error": done.stderr.strip().splitlines()[-1:]}


def line(file: str, found: dict) -> str:
    """What a person wants to see of one check."""
    if "outcome" not in found:
        return f"{file:42} exit {found['exit_code']} {found.get('error')}"
    result = found["outcome"]["result"]
    speed, share = result["speed"], result.get("share_of_library")
    warm = speed["kernel"]["warm"] if speed else None
    causes = (result["why"] or {}).get("causes") or []
    first = f"{causes[0]['name']} {causes[0]['gain']}" if causes else "–"
    return (
        f"{file:42} right {result['right']!s:5} {warm * 1e6 if warm else 0:10.1f} µs  of library "
        f"{share if share is None else round(share, 3)!s:6}  {first}  ({found['seconds']:.0f} s)"
    )


def gains(found: dict[str, dict]) -> list[dict]:
    """Predicted and measured gain of each pair that was checked."""
    rows = []
    for bad, good in PAIRS:
        if not all("outcome" in found.get(file, {}) for file in (bad, good)):
            continue
        results = [found[file]["outcome"]["result"] for file in (bad, good)]
        if not all(result["speed"] for result in results):
            continue
        before, after = (result["speed"]["kernel"]["warm"] for result in results)
        causes = (results[0]["why"] or {}).get("causes") or []
        low, high = causes[0]["gain"] if causes else (None, None)
        held = low is not None and low <= before / after <= high
        rows.append({"faulty": bad, "mended": good, "predicted": [low, high], "measured": before / after, "held": held})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("commit")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    start, found = time.monotonic(), {}
    for file, shape in CHECKS.items():
        if asked.only and not any(word in file for word in asked.only.split(",")):
            continue
        if time.monotonic() - start > asked.seconds:
            found[file] = {"exit_code": None, "error": "not started: the time was spent"}
            continue
        page = asked.out.with_name("plain.html") if file == "matmul_1_plain.cu" else None
        found[file] = check(file, shape, page)
        print(line(file, found[file]), flush=True)
    rows = gains(found)
    for row in rows:
        print(f"{row['faulty']:28} predicted {row['predicted']} measured {row['measured']:.2f} held {row['held']}")
    machine = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,power.limit,clocks.max.sm,temperature.gpu", "--format=csv"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    facts = {"command": "python " + " ".join(sys.argv), "commit": asked.commit, "machine": machine}
    facts["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    asked.out.write_text(json.dumps({**facts, "checks": found, "gains": rows}, indent=1))


if __name__ == "__main__":
    main()
