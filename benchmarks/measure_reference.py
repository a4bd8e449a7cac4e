"""`nearpeak measure` against ten-line references of the same operations, in one run: measure, references, measure.

Run on the GPU machine from the repository's root:

    PYTHONPATH=src python benchmarks/measure_reference.py OUT_FOLDER COMMIT [KIND …]

The kinds are those of the second run, all where none is named. Writes first.json and second.json (machine profiles),
page.html, and reference.json: each ceiling ÷ its reference, and how far the two runs agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import torch

BURST_S, SUSTAINED_S = 0.04, 4.0


def seconds_per_call(work, calls):
    """The reference's timing: two events around a train of calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / calls


def burst(work):
    time.sleep(0.6)
    for _ in range(3):
        work()
    once = seconds_per_call(work, 3)
    return seconds_per_call(work, max(3, round(BURST_S / once)))


def sustained(work):
    once = seconds_per_call(work, 3)
    calls, start = max(1, round(0.25 / once)), time.perf_counter()
    rates = []
    while time.perf_counter() - start < SUSTAINED_S:
        rates.append(seconds_per_call(work, calls))
    late = sorted(rates[len(rates) // 2 :])
    return late[len(late) // 2]


def products():
    """precision → (FLOP a call, call), at the shapes that people use first."""
    one = torch.ones((), device="cuda")
    for precision, n, dtype in [
        ("fp64", 8192, torch.float64),
        ("fp32", 8192, torch.float32),
        ("tf32", 8192, torch.float32),
        ("fp16", 8192, torch.float16),
        ("bf16", 8192, torch.bfloat16),
        ("fp8", 16384, torch.float8_e4m3fn),
        ("int8", 8192, torch.int8),
    ]:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        if precision == "int8":
            a, b = (torch.randint(-128, 128, (n, n), dtype=dtype, device="cuda") for _ in range(2))
            yield precision, 2 * n**3, lambda a=a, b=b: torch._int_mm(a, b.t())
        elif precision == "fp8":
            a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
            yield (
                precision,
                2 * n**3,
                lambda a=a, b=b: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
            )
        else:
            # fp64 operands drawn as fp32 would end in zero bits, and those are multiplied faster
            drawn = torch.float64 if precision == "fp64" else torch.float32
            a, b = (torch.randn(n, n, device="cuda", dtype=drawn).to(dtype) for _ in range(2))
            yield precision, 2 * n**3, lambda a=a, b=b: torch.mm(a, b)


def transfers():
    """kind, host memory → (bytes a call, call)."""
    n = 2**30
    x = torch.empty(n, dtype=torch.int32, device="cuda")
    for part in x.split(2**26):
        part.random_()
    y = torch.empty_like(x)
    floats = x.view(torch.float32)
    yield "memory_read", None, 4 * n, lambda: floats.sum()
    yield "memory_write", None, 4 * n, lambda: y.fill_(7)
    yield "memory_copy", None, 8 * n, lambda: y.copy_(x)
    small = x[: 2**22]  # 16 MiB, inside the last-level cache
    yield "cache_read", None, 4 * 2**22, lambda: small.view(torch.float32).sum()
    for memory in ("pinned", "pageable"):
        host = torch.empty(2**26, dtype=torch.int32).random_()
        host = host.pin_memory() if memory == "pinned" else host
        device = x[: 2**26]
        yield "host_to_device", memory, 2**28, lambda device=device, host=host: device.copy_(host, non_blocking=True)
        yield "device_to_host", memory, 2**28, lambda device=device, host=host: host.copy_(device, non_blocking=True)


def launches():
    one = torch.zeros(1, device="cuda")
    yield "launch", 1000, lambda: [one.add_(1) for _ in range(1000)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            one.add_(1)
    yield "launch_graph", 1000, graph.replay


def seconds_on_host(work, calls):
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 10 / calls


def references():
    found = {}
    for precision, flop, work in products():
        found["matmul", precision, None] = {"burst": flop / burst(work), "sustained": flop / sustained(work)}
    torch.set_float32_matmul_precision("highest")
    for kind, memory, size, work in transfers():
        found[kind, None, memory] = {"burst": size / burst(work), "sustained": size / sustained(work)}
    for kind, calls, work in launches():
        found[kind, None, None] = {"burst": seconds_on_host(work, calls), "sustained": None}
    return found


def measure(out, page=None, kinds=()):
    start = time.perf_counter()
    command = [sys.executable, "-m", "nearpeak", "measure", "--out", str(out)]
    command += [word for kind in kinds for word in ("--only", kind)]
    subprocess.run(command + (["--html", str(page)] if page else []), check=True, stderr=subprocess.DEVNULL)
    return json.loads(out.read_text()), time.perf_counter() - start


def ceilings(profile):
    """The best of each kind and precision (fp8 and fp16 stand twice, by accumulation)."""
    found = {}
    for c in profile["devices"][0]["ceilings"]:
        key = c["kind"], c["precision"], c["conditions"]["notes"].get("host_memory")
        for figure in ("burst", "sustained"):
            if c[figure] is not None:
                one = found.setdefault(key, {})
                one[figure] = max(one.get(figure, 0), c[figure])
    return found


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    profile, first_s = measure(folder / "first.json", folder / "page.html")
    reference = references()
    torch.cuda.empty_cache()
    again, second_s = measure(folder / "second.json", kinds=sys.argv[3:])
    first, second = ceilings(profile), ceilings(again)
    rows = []
    for (kind, precision, memory), theirs in reference.items():
        for figure in ("burst", "sustained"):
            if theirs[figure] is None:
                continue
            ours, ours_again = (run.get((kind, precision, memory), {}).get(figure) for run in (first, second))
            share = ours / theirs[figure]
            if kind.startswith("launch"):
                share = 1 / share
            rows.append(
                {
                    "kind": kind,
                    "precision": precision,
                    "host_memory": memory,
                    "figure": figure,
                    "first": ours,
                    "second": ours_again,
                    "reference": theirs[figure],
                    "share_of_reference": share,
                    "second_by_first": ours_again / ours if ours_again else None,
                }
            )
            print(
                f"{kind:18} {precision or memory or '':9} {figure:10} {ours:10.4g} {theirs[figure]:10.4g}"
                f"  ours ÷ reference {share:6.3f}"
                + (f"   second ÷ first {ours_again / ours:6.3f}" if ours_again else "")
            )
    print(f"measure took {first_s:.0f} and {second_s:.0f} s")
    facts = {
        "command": "python " + " ".join(sys.argv),
        "commit": sys.argv[2],
        "machine": profile["machine"],
        "seconds": [first_s, second_s],
    }
    (folder / "reference.json").write_text(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
