"""The GPU's own counters of one run of a kernel, read with NVIDIA's ncu (Nsight Compute): facts only.

Names of counters: NVIDIA, "Nsight Compute CLI", section "Nvprof Transition Guide", and the sections that ncu ships
(MemoryWorkloadAnalysis, WarpStateStats, SchedulerStats). Its raw page as CSV is one line of names, one of units, and
one for each launch.
"""

from __future__ import annotations

import csv
import math
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.once import once_command
from nearpeak.kernelcheck.tool import find_tool, run_tool
from nearpeak.records.errors import first_line

if TYPE_CHECKING:
    from nearpeak.kernelcheck.check import Request

TIMEOUT_S = 60.0  # importing torch and compiling take some 20 s of it under ncu
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "short_scoreboard", "sleeping",
    "tex_throttle", "wait",
)  # fmt: skip
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_COUNTERS: dict[str, str] = {
    "seconds": "gpu__time_duration.sum",
    "memory_read": "dram__bytes_read.sum",
    "memory_written": "dram__bytes_write.sum",
    "cache_bytes": "lts__t_bytes.sum",
    "read_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "read_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "write_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "write_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "read_use": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "write_use": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "local_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "shared_passes": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "matrix_units": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "threads": "smsp__thread_inst_executed_per_inst_executed.ratio",
}
METRICS = (*_COUNTERS.values(), *(_STALL.format(reason) for reason in STALLS))
# Where a GPU or an ncu lacks one, it may refuse all: these have been there since Volta.
COMMON = tuple(m for m in METRICS if not any(new in m for new in ("gmma", "sass_average", "pipe_tensor")))
_SCALE = {
    "%": 0.01, "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "kbyte": 1e3,
    "mbyte": 1e6, "gbyte": 1e9,
}  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """One run, the caches empty before it; None: this GPU has no such counter.

    seconds          of the run, at the clock of the moment
    memory_read, memory_written, cache_bytes   bytes: from memory, to memory, through the second-level cache
    read_requests, read_sectors, write_…       of warps to global memory, and the 32-byte sectors they touched
    read_use, write_use   share of those sectors' bytes that threads asked for
    local_sectors    read back from local memory (spills)
    shared_passes, bank_conflicts   passes through shared memory, and those of them that conflicts cost
    occupancy, issue, matrix_units  shares: of the warps that fit, of the issue slots, of the matrix units' time
    registers        a thread; threads: active of a warp's 32, the mean
    stalls           the three longest waits: (ncu's name, warps that wait so at each instruction issued)
    """

    seconds: float | None = None
    memory_read: float | None = None
    memory_written: float | None = None
    cache_bytes: float | None = None
    read_requests: float | None = None
    read_sectors: float | None = None
    write_requests: float | None = None
    write_sectors: float | None = None
    read_use: float | None = None
    write_use: float | None = None
    local_sectors: float | None = None
    shared_passes: float | None = None
    bank_conflicts: float | None = None
    occupancy: float | None = None
    registers: float | None = None
    issue: float | None = None
    matrix_units: float | None = None
    threads: float | None = None
    stalls: tuple[tuple[str, float], ...] = ()


def count(request: Request, sizes: Sizes, device: str, kernel: str, seconds: float = TIMEOUT_S) -> Counters | str:
    """Run the kernel under ncu. The reason in a line where that gives no counters; nothing is raised.

    device   torch's name of it; kernel: the function's name, as the source has it
    seconds  after which ncu is stopped
    """
    tool = find_tool("ncu")
    if tool is None:
        return "ncu (Nsight Compute) is not installed"
    with tempfile.TemporaryDirectory(prefix="nearpeak-") as folder:
        program = once_command(Path(folder), request, sizes, device, profiled=True)
        end = time.monotonic() + seconds
        for metrics in (METRICS, COMMON):
            try:
                ended = run_tool([str(tool), *_options(metrics), *program], max(end - time.monotonic(), 0.1))
            except OSError as error:
                return f"ncu cannot be started: {first_line(error)}"
            rows = parse(ended.text)
            if rows or ended.code is None or not re.search(r"^==ERROR==.*metric", ended.text, re.MULTILINE | re.I):
                break
    if ended.code is None:
        return f"ncu gave no answer within {seconds:.0f} s"
    names = [name for name, _ in rows]
    found = [counters for name, counters in rows if _short(kernel) in name]
    if found:
        return found[-1]
    return f"ncu saw {', '.join(names)}, not {kernel}" if names else refusal(ended.text, ended.code)


def _options(metrics: Sequence[str]) -> list[str]:
    """The clocks are left alone: what the user's machine does is measured. One launch, between start and stop."""
    return [
        "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--target-processes", "all",
        "--profile-from-start", "off", "--launch-count", "1", "--metrics", ",".join(metrics),
    ]  # fmt: skip


def _short(kernel: str) -> str:
    return kernel.split("<", 1)[0].split("::")[-1].strip()


def refusal(text: str, code: int) -> str:
    """Why there are no counters, from what ncu printed."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "the driver lets only administrators read the counters (ERR_NVGPUCTRPERM; "
            "developer.nvidia.com/ERR_NVGPUCTRPERM says how to change that)"
        )
    for mark in ("ERROR", "WARNING"):
        said = re.findall(rf"^=={mark}==\s*(.+)$", text, re.MULTILINE)
        if said:
            return f"ncu: {said[0].strip().rstrip('.')}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"ncu ended with exit code {code}" + (f": {lines[-1][:200]}" if lines else "")


def parse(text: str) -> list[tuple[str, Counters]]:
    """(kernel's name, counters) of each launch in what ncu printed with --csv --page raw, between other lines."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if re.match(r'"ID",.*"Kernel Name"', line)), None)
    if start is None:
        return []
    table = list(csv.reader(line for line in lines[start:] if line.startswith('"')))
    names = table[0]
    units = table[1] if len(table) > 1 else names
    return [
        (row[names.index("Kernel Name")], _counters(dict(zip(names, zip(row, units, strict=True), strict=True))))
        for row in table[2:]
        if len(row) == len(units) == len(names)
    ]


def _counters(cells: Mapping[str, tuple[str, str]]) -> Counters:
    values: dict[str, Any] = {field: number(*cells[metric]) for field, metric in _COUNTERS.items() if metric in cells}
    waits = [
        (reason, value)
        for reason in STALLS
        if (cell := cells.get(_STALL.format(reason))) and (value := number(*cell)) is not None and value > 0
    ]
    longest = tuple(sorted(waits, key=lambda wait: -wait[1])[:3])
    return Counters(**values, stalls=longest)


def number(text: str, unit: str) -> float | None:
    """A cell in SI units, shares from 0 to 1; None for "n/a", "nan" and what else is no number."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value * _SCALE.get(unit.strip().lower(), 1.0) if math.isfinite(value) else None
