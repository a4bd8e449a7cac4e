"""One shape: a kernel on every kind of input, and the reason where it is not right."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from nearpeak.ceilings.products import exactly
from nearpeak.kernelcheck.deviation import Deviation, bound_of, compare, deviation, refused, sampled_rows
from nearpeak.kernelcheck.diagnose_error import element_name, lower_precision, number, seen, transposed
from nearpeak.kernelcheck.draws import WHAT, Kind, draw, kinds_of
from nearpeak.kernelcheck.guarded import bits_of, same_bits
from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.run_once import BoundKernel, Job, Refused, number_at
from nearpeak.kernelcheck.verdict import Check, Finding, shape_text
from nearpeak.records.errors import first_line

LEAST_REPEATS = 3


@dataclass
class ShapeResult:
    """What one shape gave. normal, library: deviations on normal inputs."""

    sizes: Sizes
    finding: Finding | None = None
    normal: Deviation | None = None
    library: Deviation | None = None
    sampled: bool = False
    notes: list[str] = field(default_factory=list)


def check_shape(job: Job, sizes: Sizes) -> ShapeResult:
    """Stops at the first finding, since more would only confuse. Raises UserError where it cannot be bound."""
    result = ShapeResult(sizes)
    try:
        _Shape(job, sizes, result).check()
    except Refused as refusal:
        result.finding = Finding(refusal.check, shape_text(sizes), refusal.text, refusal.numbers)
    return result


class _Shape:
    def __init__(self, job: Job, sizes: Sizes, result: ShapeResult) -> None:
        self.job, self.op, self.sizes, self.result = job, job.op, sizes, result
        self.bound = BoundKernel(job, sizes)
        self.inputs: dict[str, torch.Tensor] = {}
        result.sampled = job.op.flop(sizes) > job.full_flop and job.op.rows(sizes) > 64

    def check(self) -> None:
        previous: torch.Tensor | None = None
        for kind in kinds_of(self.op, self.job.precision):
            if kind in ("nan", "inf") and not self.job.specials:
                continue
            self.inputs = draw(self.op, self.sizes, self.job.precision, kind, self.job.generator)
            self.bound.load(self.inputs)
            got = self.bound.run()
            if kind == "normal":
                self._written(got)
            self._compare(got, kind, previous)
            if kind == "normal":
                self._output_read(got)
                self._repeats(got)
                self._elsewhere(got)
                self._on_our_stream()
            previous = got

    def _written(self, got: torch.Tensor) -> None:
        """Elements that kept both patterns were never written."""
        poison, other = self.bound.memory.poison_bits(), self.bound.memory.poison_bits(number=True)
        kept = bits_of(got) == poison
        if not bool(kept.any()):
            return
        kept &= bits_of(self.bound.run(number=True)) == other
        count = int(kept.sum())
        if count:
            first = element_name(self.op, self.sizes, int(kept.view(-1).nonzero()[0]))
            raise Refused(
                "unwritten",
                f"{count} of {got.numel()} elements of the output were never written, {first} first: they kept "
                "what the memory held before",
                elements=count,
            )

    def _compare(self, got: torch.Tensor, kind: Kind, previous: torch.Tensor | None) -> None:
        found, library = self._deviation(got, kind), None
        if kind == "normal":
            self.result.normal = found
            library = self.result.library = self._library(kind)
        if not refused(found, library, self.op.trust_library):
            self._checksum(got, kind)
            return
        library = library or self._library(kind)
        if kind in ("nan", "inf") and library is not None and refused(library, None):
            self.result.notes.append(f"with {WHAT[kind]} the library itself differs from fp64: not judged")
            return
        if refused(found, library, self.op.trust_library):
            raise self._explained(got, kind, found, previous)

    def _deviation(self, got: torch.Tensor, kind: Kind) -> Deviation:
        rows = sampled_rows(self.op.rows(self.sizes), self.job.generator) if self.result.sampled else None
        return compare(self.op, self.inputs, got, self.sizes, self.job.rounding, self._exact(kind), rows)

    def _exact(self, kind: Kind) -> bool:
        wide = self.job.rounding.sums <= 2.0**-24
        return self.job.precision == "int8" or (kind in ("integers", "one_hot") and wide)

    def _library(self, kind: Kind) -> Deviation | None:
        """The library's own error on the same inputs; None where it has no such function."""
        accumulate = "fp16" if self.job.rounding.accumulate == "fp16" else "fp32"
        try:
            with exactly(self.job.precision, accumulate):
                out = self.op.library(self.inputs, self.sizes)
            return self._deviation(out.reshape(self.op.output.shape(self.sizes)), kind)
        except (RuntimeError, NotImplementedError) as error:
            self.result.notes.append(f"the library has no result to compare with: {first_line(error)}")
            return None

    def _checksum(self, got: torch.Tensor, kind: Kind) -> None:
        if not self.result.sampled or self.op.checksum is None or kind not in ("normal", "integers"):
            return
        sums = self.op.checksum(self.inputs, got, self.sizes, self.job.generator)
        if kind == "integers" and self._exact(kind):
            bound = torch.zeros_like(sums.got)
        else:
            bound = bound_of(sums.truth, self.job.rounding, torch.float64, False)
            bound = bound + self.job.rounding.output * sums.stored
        found = deviation(sums.got, sums.truth, bound, torch.float64)
        if refused(found, None) and found.of_wrong is not None:
            row, block = divmod(found.of_wrong.at, sums.got.shape[1])
            at_row = torch.tensor([row], device=got.device)
            exact = compare(self.op, self.inputs, got, self.sizes, self.job.rounding, self._exact(kind), at_row)
            element = f": {seen(self.op, self.sizes, exact.of_wrong)}" if exact.of_wrong else ""
            raise Refused(
                "values",
                f"with {WHAT[kind]} the checksum of row {row}, columns {64 * block} to {64 * block + 63} is "
                f"{number(found.of_wrong.got)}, expected {number(found.of_wrong.expected)}{element}",
                row=row,
            )

    def _explained(self, got: torch.Tensor, kind: Kind, found: Deviation, previous: torch.Tensor | None) -> Refused:
        """The refusal, with the reason where one of the guesses fits."""
        e = (found.of_class if found.class_wrong else found.of_wrong) or found.of_wrong
        what = seen(self.op, self.sizes, e) if e else "elements differ"
        numbers = {"error": found.error, "noise": found.noise, "wrong": found.wrong, "elements": found.elements}
        if e is not None:
            numbers |= {"got": e.got, "expected": e.expected}
        where = f"with {WHAT[kind]} {what}"
        if previous is not None and same_bits(got, previous):
            return Refused(
                "cached", f"{where}: the result did not change when the inputs at the same addresses did", **numbers
            )
        if not same_bits(again := self.bound.run(look=False), got) and not self.job.unordered:
            at = int((bits_of(again) != bits_of(got)).view(-1).nonzero()[0])
            name = element_name(self.op, self.sizes, at)
            return Refused(
                "race",
                f"{where}; run again on the same inputs, {name} went from {number_at(got, at)} to "
                f"{number_at(again, at)}: a race",
                **numbers,
            )
        if self._right(lambda: self.bound.run(zeros=True, look=False), kind):
            return Refused(
                "drift",
                f"{where}; with an output full of zeros before the run it is right: what the output held before is "
                "added in, so a second run gives another result",
                **numbers,
            )
        self.bound.memory.guard(zeros=True)
        outside = self._right(lambda: self.bound.run(look=False), kind)
        self.bound.memory.guard()
        if outside:
            return Refused(
                "bounds",
                f"{where}; the memory around the tensors held NaN, with zeros there it is right: values outside of the "
                "inputs are read and used",
                **numbers,
            )
        if kind in ("nan", "inf"):
            lost = "is lost or changed" if found.class_wrong else "changes other elements"
            return Refused("nan", f"{where}: it {lost} on the way ({found.wrong} elements)", **numbers)
        if transposed(self.op, self.inputs, got, self.sizes, self.job.rounding):
            return Refused("layout", f"{where}; the right numbers lie transposed in memory", **numbers)
        text = f"{where}, {found.wrong} of {found.elements} elements are off by more than rounding"
        if found.class_wrong:
            return Refused("values", f"{text}, {found.class_wrong} of them not finite where they must be", **numbers)
        sums = f"sums of {found.terms} terms in {self.job.rounding.accumulate}" if found.terms > 1 else "rounding"
        text += f"; the error is {found.error:.2g} of the result, {sums} explain {found.noise:.2g}"
        why = lower_precision(self.op, self.inputs, got, self.sizes, self.job.rounding, found)
        if why is not None and kind not in ("integers", "one_hot"):
            return Refused("precision", f"{text}: {why}", **numbers)
        return Refused("values", text, **numbers)

    def _right(self, run: Callable[[], torch.Tensor], kind: Kind) -> bool:
        try:
            return not refused(self._deviation(run(), kind), None)
        except Refused:
            return False

    def _output_read(self, got: torch.Tensor) -> None:
        """Whether what the output holds before a run changes the result."""
        other = self.bound.run(number=True)
        if same_bits(got, other):
            return
        steady = same_bits(got, self.bound.run()) and same_bits(other, self.bound.run(number=True))
        when = "with another pattern in the output before the run" if steady else "run again on the same inputs"
        self._same(got, other, when, "drift" if steady else "race")

    def _repeats(self, got: torch.Tensor) -> None:
        start = time.perf_counter()
        for turn in range(2, self.job.repeats + 1):
            if turn > LEAST_REPEATS and time.perf_counter() - start > self.job.patience:
                self.result.notes.append(f"{turn - 1} runs on the same inputs in place of {self.job.repeats}")
                return
            self._same(got, self.bound.run(), f"in run {turn} on the same inputs", "race")

    def _elsewhere(self, got: torch.Tensor) -> None:
        """The same values at other addresses."""
        other = BoundKernel(self.job, self.sizes, shift=256)
        other.load(self.inputs)
        self._same(got, other.run(), "with the same inputs at other addresses", "address")

    def _same(self, first: torch.Tensor, second: torch.Tensor, when: str, check: Check) -> None:
        if same_bits(first, second):
            return
        at = int((bits_of(first) != bits_of(second)).view(-1).nonzero()[0])
        worse = refused(self._deviation(second, "normal"), self.result.library, self.op.trust_library)
        if self.job.unordered and not worse:
            return
        if worse:
            how = "far beyond rounding" + (": a race" if check == "race" else "")
        else:
            how = "by rounding only; if the order of its sums is meant to vary (atomics), say --unordered"
        raise Refused(
            check,
            f"{when} {element_name(self.op, self.sizes, at)} is {number_at(second, at)}, before it was "
            f"{number_at(first, at)}: it differs {how}",
            first=float(first.reshape(-1)[at]),
            second=float(second.reshape(-1)[at]),
        )

    def _on_our_stream(self) -> None:
        if self.bound.written_elsewhere():
            raise Refused(
                "stream",
                "the output was written while torch's current stream was still held back: the work runs on another "
                "stream, which no timing on this one sees; launch on torch's current stream",
            )
