"""Why a CUDA or Triton kernel takes the time it takes: its PTX traced and analysed, with the hardware's counters where
they could be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nearpeak.hardware.catalogue import find_by_name
from nearpeak.kernelcheck import access, counted, occupancy, ptx, trace
from nearpeak.kernelcheck.advice import Advice, Facts, advise
from nearpeak.kernelcheck.bounds import Chip
from nearpeak.kernelcheck.counters import Counters
from nearpeak.kernelcheck.cubin import Resources
from nearpeak.kernelcheck.kernel import Declaration, Sizes
from nearpeak.kernelcheck.launch import Geometry
from nearpeak.kernelcheck.limit import Limit
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.program import Program, cuda_program
from nearpeak.kernelcheck.rounding import default_accumulate
from nearpeak.kernelcheck.source import Source
from nearpeak.kernelcheck.triton_program import triton_program
from nearpeak.records.machine_profile import DeviceProfile

# Without a GPU a kernel is looked at as if for this one: an H200 by its sheet (132 multiprocessors, up to 1.98 GHz).
ASSUMED = Chip("sm_90", 132, 1.98e9, memory=4.8e12)
ASSUMED_NAME = "an H200 by its data sheet, since no GPU is here"


def sheet_rate(precision: str) -> float | None:
    """FLOP/s of that GPU by its sheet, so that no prediction goes beyond them; None where the sheet has none."""
    rate = find_by_name("H200 SXM 141 GB").rate(precision, default_accumulate(precision))
    return rate.figure.value if rate else None


@dataclass(frozen=True)
class Explanation:
    """advice, and the facts it stands on. stopped: why nothing was traced, else None.

    counters    of the hardware, beside what the trace says of the same; uncounted: why there are none, else None
    """

    advice: Advice
    lines: tuple[access.LineAccess, ...]
    traffic: tuple[access.Traffic, ...]
    occupancy: occupancy.Occupancy | None
    resources: Resources
    geometry: Geometry
    how: str
    stopped: str | None
    facts: Facts
    counters: Counters | None = None
    compared: tuple[counted.Comparison, ...] = ()
    uncounted: str | None = None


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
    tuned: Mapping[str, int] | None = None,
) -> Explanation:
    """What a CUDA or Triton kernel asks of the GPU at these sizes, and what a change would give.

    measured  seconds of a warm run; without it the model's own time stands in.
    tuned     what an autotuned Triton kernel has chosen; None: its first configuration is looked at
    Raises UserError where a CUDA kernel does not compile or the launch is not possible, NotCompiled for Triton.
    """
    known = {**sizes, "sms": chip.multiprocessors}
    if source.language == "Triton":
        program = triton_program(source, declaration, op, known, chip.architecture, tuned)
    else:
        program = cuda_program(source, declaration, op, known, chip.architecture)
    return explain_program(program, op, sizes, declaration.precision, chip, measured, limit, flop_per_s)


def explain_program(
    program: Program,
    op: Op,
    sizes: Sizes,
    precision: str,
    chip: Chip,
    measured: float | None = None,
    limit: Limit | None = None,
    flop_per_s: float | None = None,
) -> Explanation:
    """Likewise, of what is compiled already."""
    launch, used, text = program.launch, program.resources, program.text
    traced = trace.trace(ptx.parse(text), program.symbol, launch)
    shared = traced.shared_bytes or (used.shared_bytes or 0) + launch.shared
    fit = occupancy.occupancy(chip.architecture, launch.threads, used.registers or 32, shared)
    report = access.analyse(traced, occupancy.first_level_cache(chip.architecture, fit, shared))
    waves = occupancy.waves(launch.blocks, fit.blocks, chip.multiprocessors) if fit and fit.blocks else None
    facts = Facts(
        traced,
        report,
        chip,
        fit,
        waves,
        measured,
        limit.seconds if limit else None,
        flop=op.flop(sizes),
        compulsory=op.bytes(sizes, precision),
        flop_per_s=flop_per_s,
        matmul=op.name.startswith("matmul"),
        precision=precision,
        matrix_units=bool(re.search(r"\b(wgmma|mma|wmma|tcgen05)\b", text)),
        spills=used.local_bytes or 0,
    )
    how = f"{len(traced.blocks)} of {launch.blocks} blocks, from the compiler's PTX{program.note}"
    return Explanation(
        advise(facts),
        report.lines,
        report.traffic,
        fit,
        used,
        program.geometry,
        how if not traced.stopped else "",
        traced.stopped,
        facts,
    )


def with_counters(why: Explanation, counters: Counters | str) -> Explanation:
    """The explanation with what the hardware counted, or the reason why it did not. Where nothing was traced, causes
    that counters alone can tell come from them."""
    if isinstance(counters, str):
        return replace(why, uncounted=counters)
    compared = counted.compare(counters, why.facts, why.resources, copies=_copies(why))
    why = replace(why, counters=counters, compared=compared)
    if why.stopped:
        found = counted.causes_of(counters, why.facts)
        names = {cause.name for cause in found}
        kept = tuple(c for c in why.advice.causes if c.name not in names)
        return replace(why, advice=replace(why.advice, causes=(*found, *kept)))
    return why


def _copies(why: Explanation) -> bool:
    """Whether the kernel copies to shared memory without going through registers: counted apart from other reads."""
    return any(i.opcode == "cp" for i in why.facts.trace.instructions)
