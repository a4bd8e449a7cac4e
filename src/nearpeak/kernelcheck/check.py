"""The whole check of one kernel: load it, is it right, how fast, how fast could it be, and why is it not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nearpeak.kernelcheck.kernel import Declaration, Sizes, Tensors
from nearpeak.kernelcheck.source import Source, read_source
from nearpeak.records.errors import UserError
from nearpeak.records.outcome import Outcome

if TYPE_CHECKING:
    from nearpeak.kernelcheck.explain import Explanation
    from nearpeak.kernelcheck.fast import Speed
    from nearpeak.kernelcheck.kernel import Kernel
    from nearpeak.kernelcheck.limit import Limit
    from nearpeak.kernelcheck.op import Op
    from nearpeak.records.device import Device
    from nearpeak.records.machine_profile import DeviceProfile

Progress = Callable[[str], None]

# What is looked at where the user names no sizes: large enough to leave the caches, quick enough on a CPU.
DEFAULT_SIZE = {"gpu": 4096, "cpu": 512}
DEFAULT_LENGTH = {"gpu": 2**28, "cpu": 2**22}


@dataclass(frozen=True)
class Request:
    """What the user asked for. flags: keys of a declaration, as text; they win over the file's own.

    tools     ncu and compute-sanitizer may run the kernel again, each in a process of its own
    seconds   that the whole check may take; tools for which too little is left are left out
    """

    file: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    shape: str | None = None
    accumulate: str | None = None
    reference: str | None = None
    inputs: tuple[str, ...] = ()
    output: str | None = None
    device: str | None = None
    unordered: bool = False
    tools: bool = True
    seconds: float | None = None


def check_kernel(request: Request, progress: Progress = lambda text: None) -> Outcome:
    """Everything that can be said of the kernel on this machine. Raises UserError for what the user can put right.

    Without a GPU, OpenCL and Triton kernels run on the CPU; CUDA kernels are compiled and analysed, not run.
    """
    from nearpeak.hardware.devices import find_devices, select_devices
    from nearpeak.kernelcheck.load import declaration_of

    source = read_source(request.file)
    declaration = declaration_of(source, request.flags)
    [device] = select_devices(find_devices(), [request.device] if request.device else [])[:1]
    on_gpu = device.kind == "gpu"
    if source.language == "Triton" and not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported: later, in this process alone
    op = op_of(request, declaration)
    _passes_its_output(source, declaration, op)
    sizes = sizes_of(op, request.shape, "gpu" if on_gpu else "cpu")
    if source.language == "CUDA" and not on_gpu:
        return _analysed_only(request, source, declaration, op, sizes)
    return _Check(request, source, declaration, op, sizes, device, progress).outcome()


def _passes_its_output(source: Source, declaration: Declaration, op: Op) -> None:
    """Raises UserError where a kernel is never given the op's output."""
    named = re.findall(r"\w+", " ".join(declaration.args))
    if source.language in ("CUDA", "OpenCL") and named and op.output.name not in named:
        raise UserError(
            f"'args {', '.join(declaration.args)}' does not name {op.output.name}, the output of {op.name}; "
            f"its tensors are {', '.join(t.name for t in op.tensors)}"
        )


def op_of(request: Request, declaration: Declaration) -> Op:
    """The op by name, or the user's own function. Raises UserError where neither is given."""
    from nearpeak.kernelcheck.ops import find_op, load_function, op_of_function

    if request.reference:
        if not request.inputs or not request.output or not request.shape:
            raise UserError("--reference needs --input 'x=m, n' for each input, --output 'y=m, n' and --shape m=…,n=…")
        names = [part.partition("=")[0].strip() for part in request.shape.split(",")]
        return op_of_function(load_function(request.reference), names, request.inputs, request.output)
    if declaration.op is None:
        raise UserError(
            f"{request.file} does not say what it computes: give --op matmul (or another), or --reference file.py:fn"
        )
    return find_op(declaration.op, declaration.layout)


def sizes_of(op: Op, shape: str | None, kind: str) -> dict[str, int]:
    """The sizes asked for, or usual ones. Raises UserError for a wrong count or no numbers."""
    from nearpeak.kernelcheck.ops import parse_shape

    if shape is not None:
        return parse_shape(op, ",".join(part.partition("=")[2] or part for part in shape.split(",")))
    if len(op.sizes) == 1:
        return {op.sizes[0]: DEFAULT_LENGTH[kind]}
    small = {"batch": 2, "heads": 8, "head_dim": 64, "length": DEFAULT_SIZE[kind] // 4}
    return {name: small.get(name, DEFAULT_SIZE[kind]) for name in op.sizes}


@dataclass
class _Check:
    """One kernel on one device, step by step."""

    request: Request
    source: Source
    declaration: Declaration
    op: Op
    sizes: Sizes
    here: Device
    progress: Progress

    def outcome(self) -> Outcome:
        import torch

        from nearpeak.kernelcheck.explain import with_counters
        from nearpeak.kernelcheck.load import load_kernel
        from nearpeak.kernelcheck.outcome import outcome_of
        from nearpeak.kernelcheck.right import check
        from nearpeak.kernelcheck.tools import Tools

        self.progress("compiling")
        device = torch.device(self.here.torch_name or "cpu")
        tools = Tools(self.request, self.source, self.declaration, self.op, self.sizes, device, self.progress)
        kernel = load_kernel(self.request.file, self.request.flags, device)
        verdict = check(
            kernel,
            self.op,
            self.sizes,
            accumulate=self.request.accumulate,
            unordered=self.request.unordered,
            progress=self.progress,
        )
        verdict = tools.watch(verdict)
        interpreted = kernel.language == "Triton" and device.type == "cpu"  # its time says nothing
        if not verdict.right or interpreted:  # nor does that of a kernel that is not right
            speed, profile, limit = None, None, None
        else:
            speed, profile = self._speed(kernel)
            limit = self._limit(profile)
        why = self._why(kernel, profile, speed, limit) if verdict.right else None
        if isinstance(why, str):
            verdict = replace(verdict, notes=(*verdict.notes, why))
            why = None
        if why is not None:
            why = with_counters(why, "no GPU is here" if interpreted else tools.count())
        return outcome_of(
            self.source, self.declaration, self.op, self.sizes, self.here.name, verdict, speed, limit, why
        )

    def _speed(self, kernel: Kernel) -> tuple[Speed, DeviceProfile]:
        import torch

        from nearpeak.ceilings.bench import Bench
        from nearpeak.ceilings.needed import measure_needed
        from nearpeak.ceilings.products import exactly
        from nearpeak.hardware.catalogue import find_spec
        from nearpeak.hardware.devices import sensors_of
        from nearpeak.kernelcheck.draws import draw
        from nearpeak.kernelcheck.fast import time_kernel
        from nearpeak.kernelcheck.rounding import default_accumulate

        precision = self.declaration.precision
        sums = self.request.accumulate or default_accumulate(precision)
        inputs = draw(self.op, self.sizes, precision, "normal", torch.Generator(kernel.device))
        out = self.op.output
        empty = torch.empty(out.shape(self.sizes), dtype=out.dtype(precision), device=kernel.device)
        call = kernel.bind({**inputs, out.name: empty}, self.sizes)
        here = self.here
        sensors = sensors_of(here)
        with exactly(precision, sums):
            library = _library(self.op, inputs, self.sizes)
            speed = time_kernel(
                call, library, kernel.device, sensors, cache_bytes=here.cache.number, progress=self.progress
            )
        del call, library, inputs, empty
        self.progress("this device's ceilings")
        bench = Bench(here, kernel.device, sensors, find_spec(here), quick=True, progress=self.progress)
        return speed, measure_needed(bench, (precision, sums))

    def _limit(self, profile: DeviceProfile) -> Limit:
        from nearpeak.kernelcheck.limit import limit_of

        return limit_of(self.op, self.sizes, self.declaration.precision, profile, accumulate=self.request.accumulate)

    def _why(
        self, kernel: Kernel, profile: DeviceProfile | None, speed: Speed | None, limit: Limit | None
    ) -> Explanation | str | None:
        """None where there is nothing to look at, or no time to hold it against; a reason where that failed."""
        from nearpeak.kernelcheck.explain import ASSUMED, ASSUMED_NAME, chip_of, explain, sheet_rate
        from nearpeak.kernelcheck.triton_program import NotCompiled

        if self.source.language not in ("CUDA", "Triton"):
            return None
        chip, warm, tuned = chip_of(profile) if profile else None, None, None
        rate = self.op.flop(self.sizes) / limit.flop_seconds if limit and limit.flop_seconds else None
        if self.here.kind != "gpu":
            chip, rate = ASSUMED, sheet_rate(self.declaration.precision)
        elif chip is None or speed is None or speed.refused:
            return None
        else:
            warm, tuned = speed.kernel.warm, getattr(kernel, "chosen", lambda: None)()
        self.progress("tracing")
        try:
            why = explain(self.source, self.declaration, self.op, self.sizes, chip, warm, limit, rate, tuned)
        except NotCompiled as error:
            return f"not analysed: Triton's compiler gave no code for {chip.architecture}: {error}"
        return why if warm else replace(why, how=f"{why.how}, as for {ASSUMED_NAME}" if why.how else "")


def _library(op: Op, inputs: Tensors, sizes: Sizes) -> Callable[[], object] | None:
    """The library's function on these inputs; None where torch has none for the precision."""
    try:
        op.library(inputs, sizes)
    except (RuntimeError, NotImplementedError):
        return None
    return lambda: op.library(inputs, sizes)


def _analysed_only(
    request: Request, source: Source, declaration: Declaration, op: Op, sizes: dict[str, int]
) -> Outcome:
    from nearpeak.kernelcheck.explain import ASSUMED, ASSUMED_NAME, explain, sheet_rate, with_counters
    from nearpeak.kernelcheck.outcome import outcome_of

    if request.shape is None:
        sizes = sizes_of(op, None, "gpu")
    why = explain(source, declaration, op, sizes, ASSUMED, flop_per_s=sheet_rate(declaration.precision))
    why = with_counters(why, "no GPU is here")
    return outcome_of(source, declaration, op, sizes, ASSUMED_NAME, None, None, None, why)
