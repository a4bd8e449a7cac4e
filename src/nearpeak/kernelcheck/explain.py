"""Why a CUDA kernel takes the time it takes: compiled to PTX, traced, analysed. Needs no GPU and no counters."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from nearpeak.hardware.catalogue import find_by_name
from nearpeak.kernelcheck import access, advice, occupancy, ptx, trace, trace_records
from nearpeak.kernelcheck.bounds import Chip
from nearpeak.kernelcheck.cubin import Resources, resources
from nearpeak.kernelcheck.cuda_compile import compile_to_cubin, compile_to_ptx
from nearpeak.kernelcheck.kernel import Declaration, Sizes, Tensors
from nearpeak.kernelcheck.launch import Geometry, TensorMapRequest, geometry, values
from nearpeak.kernelcheck.limit import Limit
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.rounding import default_accumulate
from nearpeak.kernelcheck.source import Source
from nearpeak.kernelcheck.trace_memory import AddressOnly
from nearpeak.records.machine_profile import DeviceProfile

# Without a GPU a kernel is looked at as if for this one: an H200 by its sheet (132 multiprocessors, up to 1.98 GHz).
ASSUMED = Chip("sm_90", 132, 1.98e9, memory=4.8e12)
ASSUMED_NAME = "an H200 by its data sheet, since no GPU is here"
_TRACED_FOR = "compute_90"  # what is asked of memory does not depend on it; the PTX interpreter knows this one best


def sheet_rate(precision: str) -> float | None:
    """FLOP/s of that GPU by its sheet, so that no prediction goes beyond them; None where the sheet has none."""
    rate = find_by_name("H200 SXM 141 GB").rate(precision, default_accumulate(precision))
    return rate.figure.value if rate else None


@dataclass(frozen=True)
class Explanation:
    """advice, and the facts it stands on. stopped: why nothing was traced, else None."""

    advice: advice.Advice
    lines: tuple[access.LineAccess, ...]
    traffic: tuple[access.Traffic, ...]
    occupancy: occupancy.Occupancy | None
    resources: Resources
    geometry: Geometry
    how: str
    stopped: str | None


def chip_of(profile: DeviceProfile) -> Chip | None:
    """The GPU in the numbers that the model of it needs; None where the architecture is not known to it, or no memory
    ceiling is there."""
    device = profile.device
    read = profile.ceiling("memory_read")
    if device.kind != "gpu" or not device.architecture or not device.units or read is None or not read.burst:
        return None
    clock = device.max_clock.number
    cache, launch = profile.ceiling("cache_read"), profile.ceiling("launch")
    return Chip(
        device.architecture,
        device.units,
        clock or ASSUMED.clock_hz,
        read.burst,
        cache.burst if cache else None,
        launch.burst if launch else None,
    )


def explain(
    source: Source,
    declaration: Declaration,
    op: Op,
    sizes: Sizes,
    chip: Chip,
    measured: float | None = None,
    limit: Limit | None = None,
    flop_per_s: float | None = None,
) -> Explanation:
    """What the kernel asks of the GPU at these sizes, and what a change would give.

    measured  seconds of a warm run; without it the model's own time stands in.
    Raises UserError where the kernel does not compile or the launch is not possible.
    """
    # Text from a string in a .py file moves down to where it stands there, so that lines are the file's.
    source = replace(source, text="\n" * source.line_offset + source.text, line_offset=0)
    sizes = {**sizes, "sms": chip.multiprocessors}
    shape = geometry(declaration, sizes)
    compiled = compile_to_cubin(source, declaration.kernel, device_arch=chip.architecture.rstrip("af"))
    used = resources(compiled.image, compiled.symbol)
    text = compile_to_ptx(source, declaration.kernel, device_arch=_TRACED_FOR.replace("compute", "sm"))
    module = ptx.parse(text)
    arguments = values(declaration, _on_paper(op, declaration.precision, sizes), sizes)
    launch = trace_records.Launch(
        shape.grid,
        shape.block,
        tuple(_argument(one) for one in arguments),
        tuple(name for name in declaration.args if name in {t.name for t in op.tensors}),
        shared=shape.shared,
    )
    traced = trace.trace(module, compiled.symbol, launch)
    threads = shape.block[0] * shape.block[1] * shape.block[2]
    shared = traced.shared_bytes or (used.shared_bytes or 0) + shape.shared
    fit = occupancy.occupancy(chip.architecture, threads, used.registers or 32, shared)
    report = access.analyse(traced, occupancy.first_level_cache(chip.architecture, fit, shared))
    waves = occupancy.waves(launch.blocks, fit.blocks, chip.multiprocessors) if fit and fit.blocks else None
    facts = advice.Facts(
        traced,
        report,
        chip,
        fit,
        waves,
        measured,
        limit.seconds if limit else None,
        flop=op.flop(sizes),
        compulsory=op.bytes(sizes, declaration.precision),
        flop_per_s=flop_per_s,
        matmul=op.name.startswith("matmul"),
        precision=declaration.precision,
        matrix_units=bool(re.search(r"\b(wgmma|mma|wmma|tcgen05)\b", text)),
        spills=used.local_bytes or 0,
    )
    how = f"traced {len(traced.blocks)} of {launch.blocks} blocks from the compiler's PTX" if not traced.stopped else ""
    return Explanation(advice.advise(facts), report.lines, report.traffic, fit, used, shape, how, traced.stopped)


def _on_paper(op: Op, precision: str, sizes: Sizes) -> Tensors:
    """The op's tensors without memory: shapes and dtypes."""
    return {t.name: torch.empty(t.shape(sizes), dtype=t.dtype(precision), device="meta") for t in op.tensors}


def _argument(value: torch.Tensor | int | TensorMapRequest) -> AddressOnly | int | bytes:
    if isinstance(value, int):
        return value
    if isinstance(value, TensorMapRequest):
        return bytes(128)  # a tensor map; whoever uses one is not traced
    return AddressOnly(value.numel() * value.element_size(), _NUMPY.get(value.dtype, "uint8"))


_NUMPY = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.int32: "int32"}
