"""One kernel bound to guarded memory: run it once and look at what it did to the memory around."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from nearpeak.kernelcheck.diagnose_error import element_name, number
from nearpeak.kernelcheck.guarded import GuardedMemory, bits_of, same_bits, spoil_free_memory
from nearpeak.kernelcheck.kernel import Kernel, Sizes, Tensors
from nearpeak.kernelcheck.kernel_failed import KernelFailed, OutputRefused
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.rounding import Rounding
from nearpeak.kernelcheck.streams import Waits, written_while_asleep
from nearpeak.kernelcheck.verdict import Check
from nearpeak.records.errors import UserError

_T = TypeVar("_T")


class Refused(Exception):
    """Ends the check of a shape with what was found."""

    def __init__(self, check: Check, text: str, **numbers: float) -> None:
        super().__init__(text)
        self.check, self.text, self.numbers = check, text, numbers


@dataclass(frozen=True)
class Job:
    """What stays the same from shape to shape.

    repeats, patience   runs on the same inputs; fewer where they take longer than `patience` seconds, 3 at least
    full_flop           FLOPs up to which every element's truth is computed
    """

    kernel: Kernel
    op: Op
    precision: str
    rounding: Rounding
    unordered: bool
    repeats: int
    patience: float
    full_flop: float
    waits: Waits
    watch_stream: bool
    generator: torch.Generator
    specials: bool


class BoundKernel:
    """One kernel at one shape, in memory of its own. shift: bytes that the tensors lie further in."""

    def __init__(self, job: Job, sizes: Sizes, shift: int = 0) -> None:
        self.job, self.op, self.sizes = job, job.op, sizes
        self.memory = GuardedMemory(job.op, sizes, job.precision, job.kernel.device, shift)
        self.call = job.kernel.bind(self.memory.tensors, sizes)
        self._writes_bound = True

    def load(self, inputs: Tensors) -> None:
        self.memory.load(dict(inputs))

    def run(self, number: bool = False, zeros: bool = False, look: bool = True) -> torch.Tensor:
        """Run once on poisoned output; a copy of the output. look: at the guards and the inputs as well."""
        job, memory = self.job, self.memory
        memory.poison(number, zeros)
        spoil_free_memory(self.op, self.sizes, job.precision, job.kernel.device)
        job.waits.device()
        _running(self.call.run)
        _running(job.waits.stream)
        bound = memory.tensors[memory.output]
        # Before `outputs`, which may wait for the whole device.
        early = bound.clone() if job.watch_stream else None
        out = self._plain(_running(self.call.outputs), memory.tensors)
        self._writes_bound = out.data_ptr() == bound.data_ptr()
        if early is None or not self._writes_bound:
            early = out.clone()
        _running(job.waits.device)
        if not same_bits(early, out):
            at = int((bits_of(early) != bits_of(out)).view(-1).nonzero()[0])
            raise Refused(
                "stream",
                f"after waiting for its stream {element_name(self.op, self.sizes, at)} was "
                f"{number_at(early, at)}, after waiting for the device {number_at(out, at)}: work goes on on another "
                "stream, which no timing on this one sees; launch on torch's current stream",
            )
        if look:
            self._look_around()
        return out.detach().clone()

    def _look_around(self) -> None:
        for name, side, far in self.memory.overwritten():
            raise Refused(
                "bounds",
                f"memory outside of its tensors was written to, {side} {name}: the word {far} from its edge changed",
                elements_from_edge=far,
            )
        for name, at, was, now in self.memory.changed_inputs():
            raise Refused(
                "inputs",
                f"the input {element_name(self.op, self.sizes, at, name)} was {number(was)} and is {number(now)} after "
                "the run: a kernel must leave its inputs as they are",
            )

    def _plain(self, outputs: Tensors, bound: Tensors) -> torch.Tensor:
        """The output as a plain tensor of the right kind, or a refusal."""
        wanted, device = self.op.output, self.job.kernel.device
        shape, dtype = wanted.shape(self.sizes), wanted.dtype(self.job.precision)
        out = outputs.get(wanted.name)
        if out is None or type(out) is not torch.Tensor:
            raise Refused(
                "result",
                f"the output {wanted.name} is a {type(out).__name__}, no plain tensor: its work may be done later, "
                "when it is read, and outside of the time that is measured",
            )
        if tuple(out.shape) != shape or out.dtype != dtype:
            raise Refused(
                "result", f"the output {wanted.name} is {out.dtype} {tuple(out.shape)}; it must be {dtype} {shape}"
            )
        if out.device.type != device.type or out.layout != torch.strided:
            raise Refused("result", f"the output lies on {out.device} ({out.layout}); it must lie on {device}, dense")
        spaces = {bound[t.name].untyped_storage().data_ptr() for t in self.op.inputs}
        if out.untyped_storage().data_ptr() in spaces or not out.is_contiguous():
            raise Refused(
                "result",
                f"the output {wanted.name} is a view (strides {out.stride()}), not a tensor with memory of its own: "
                "nothing was computed or moved",
            )
        return out

    def written_elsewhere(self) -> bool | None:
        """Whether the work runs on another stream than torch's current one; None where that cannot be seen."""
        device = self.job.kernel.device
        if device.type == "cpu" or not self._writes_bound:
            return None
        self.memory.poison()
        output = self.memory.tensors[self.memory.output]
        return written_while_asleep(self.call, output, self.memory.poison_bits(), device)


def _running(step: Callable[[], _T]) -> _T:
    """A step that runs the user's code; whatever it raises is a fault of the kernel."""
    try:
        return step()
    except (UserError, KernelFailed, OutputRefused):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise KernelFailed(f"it failed while it ran: {text}", context_lost="CUDA error" in text) from error


def number_at(x: torch.Tensor, at: int) -> str:
    """The element at a flat index, as text."""
    return number(float(x.reshape(-1)[at]))
