"""How far a result is from the truth, and whether rounding explains it. Pure functions on tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from nearpeak.kernelcheck.kernel import Sizes, Tensors
from nearpeak.kernelcheck.op import Op, Rows, Truth
from nearpeak.kernelcheck.rounding import Rounding

# The largest error of one element, as a multiple of its bound: the plainest order of summation errs by 0.4 bounds
# (one standard deviation), so 4 is ten deviations.
WORST = 4.0
# Root mean square of error ÷ bound: 0.4 as above; few elements scatter more.
TYPICAL, SCATTER = 1.0, 3.0
LIBRARY_MARGIN, LIBRARY_CAP = 2.0, 4.0
CHUNK = 2**23  # elements whose truth is computed at once
SAMPLE_EVERY = 64  # rows


@dataclass(frozen=True)
class Element:
    """One element that is off, at its flat index in the output."""

    at: int
    got: float
    expected: float
    bound: float


@dataclass(frozen=True)
class Deviation:
    """Sums over the elements compared. class_*: NaN, infinite or finite where the truth is something else.

    wrong     elements whose error exceeds WORST bounds, NaN among them; of_wrong the worst
    worst     the largest error ÷ bound
    error2, value2, bound2   Σ of squares, of finite elements
    """

    elements: int = 0
    wrong: int = 0
    worst: float = 0.0
    of_wrong: Element | None = None
    class_wrong: int = 0
    of_class: Element | None = None
    error2: float = 0.0
    value2: float = 0.0
    bound2: float = 0.0
    scaled2: float = 0.0
    terms: int = 1

    @property
    def error(self) -> float:
        """‖C − R‖F ÷ ‖R‖F; infinite where an element is NaN that must not be."""
        if self.class_wrong or not math.isfinite(self.error2):
            return math.inf
        return math.sqrt(self.error2 / self.value2) if self.value2 else (math.inf if self.error2 else 0.0)

    @property
    def noise(self) -> float:
        """‖bound‖F ÷ ‖R‖F: what rounding may do by nature."""
        return math.sqrt(self.bound2 / self.value2) if self.value2 else 0.0

    @property
    def typical(self) -> float:
        """Root mean square of error ÷ bound."""
        return math.sqrt(self.scaled2 / self.elements) if self.elements else 0.0

    def plus(self, other: Deviation) -> Deviation:
        return Deviation(
            self.elements + other.elements,
            self.wrong + other.wrong,
            max(self.worst, other.worst),
            self.of_wrong if self.worst >= other.worst and self.of_wrong else other.of_wrong or self.of_wrong,
            self.class_wrong + other.class_wrong,
            self.of_class or other.of_class,
            self.error2 + other.error2,
            self.value2 + other.value2,
            self.bound2 + other.bound2,
            self.scaled2 + other.scaled2,
            max(self.terms, other.terms),
        )


def bound_of(truth: Truth, rounding: Rounding, dtype: torch.dtype, exact: bool) -> torch.Tensor:
    """The rounding error of each element by nature, fp64. exact: only storing the result may round."""
    stored = truth.value.to(dtype).double()
    if exact:
        return (stored - truth.value).abs().nan_to_num(0.0, 0.0, 0.0) * 1.001
    bound = rounding.sums * truth.sums + rounding.output * truth.value.abs()
    bound = bound + rounding.floor * (1.0 if truth.floor is None else truth.floor)
    if truth.inputs is not None:
        bound = bound + rounding.inputs * truth.inputs
    if truth.inside is not None:
        bound = bound + rounding.inside * truth.inside
    return bound


def deviation(got: torch.Tensor, truth: Truth, bound: torch.Tensor, dtype: torch.dtype, first: int = 0) -> Deviation:
    """got in any dtype, truth.value and bound in fp64, all of one shape. first: flat index of the first element."""
    flat, value, bound = got.reshape(-1).double(), truth.value.reshape(-1), bound.reshape(-1)
    expected = value.to(dtype).double()
    class_wrong = _class_of(flat) != _class_of(expected)
    compared = torch.isfinite(expected) & ~class_wrong
    error = torch.where(compared, (flat - value).abs(), 0.0)
    limit = torch.where(compared, bound, 0.0)
    ratio = torch.where(error == 0, 0.0, error / limit)
    wrong = ~(ratio <= WORST) | class_wrong
    worst_at, class_at = int(ratio.argmax()), int(class_wrong.int().argmax())

    def element(at: int) -> Element:
        return Element(first + at, float(flat[at]), float(expected[at]), float(bound[at]))

    classes = int(class_wrong.sum())
    return Deviation(
        elements=flat.numel(),
        wrong=int(wrong.sum()),
        worst=float(ratio[worst_at]),
        of_wrong=element(worst_at) if float(ratio[worst_at]) > 0 else None,
        class_wrong=classes,
        of_class=element(class_at) if classes else None,
        error2=float(error.square().sum()),
        value2=float(torch.where(compared, value, 0.0).square().sum()),
        bound2=float(limit.square().sum()),
        scaled2=float(ratio.square().sum()),
        terms=truth.terms,
    )


def compare(
    op: Op, inputs: Tensors, got: torch.Tensor, sizes: Sizes, rounding: Rounding, exact: bool, rows: torch.Tensor | None
) -> Deviation:
    """The output against the truth: every row, or the rows whose numbers are given."""
    table = got.reshape(op.rows(sizes), -1)
    total = Deviation()
    for part in _parts(table.shape[0], table.shape[1], rows):
        truth = op.truth(inputs, sizes, part)
        bound = bound_of(truth, rounding, got.dtype, exact or op.exact)
        if isinstance(part, slice):
            found = deviation(table[part], truth, bound, got.dtype, int(part.start) * table.shape[1])
        else:
            found = _numbered(deviation(table[part], truth, bound, got.dtype), part, table.shape[1])
        total = total.plus(found)
    return total


def sampled_rows(rows: int, generator: torch.Generator) -> torch.Tensor:
    """One row, chosen at random, of every 64 that follow each other: a faulty tile of rows cannot be missed."""
    starts = torch.arange(0, rows, SAMPLE_EVERY, device=generator.device)
    step = torch.randint(0, SAMPLE_EVERY, starts.shape, generator=generator, device=generator.device)
    return (starts + step).clamp(max=rows - 1)


def refused(found: Deviation, library: Deviation | None, trust_library: bool = False) -> bool:
    """Whether the result is wrong: not (error ≤ bound), so that NaN never passes.

    Where the library errs by more than the bound too, as much as twice its error is allowed, but not beyond 4 bounds.
    """
    if found.class_wrong > 0:
        return True
    typical = TYPICAL + SCATTER / math.sqrt(max(found.elements, 1))
    worst = WORST
    if library is not None and library.class_wrong == 0:
        cap = math.inf if trust_library else LIBRARY_CAP
        typical = max(typical, min(LIBRARY_MARGIN * library.typical, cap * typical))
        worst = max(worst, min(LIBRARY_MARGIN * library.worst, cap * worst))
    return not (found.typical <= typical and found.worst <= worst)


def _class_of(x: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +Inf, 3 −Inf."""
    return x.isnan() + 2 * (x == math.inf) + 3 * (x == -math.inf)


def _parts(rows: int, columns: int, chosen: torch.Tensor | None) -> Iterator[Rows]:
    step = max(1, CHUNK // max(columns, 1))
    if chosen is not None:
        yield from chosen.split(step)
        return
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _numbered(found: Deviation, rows: torch.Tensor, columns: int) -> Deviation:
    """Flat indices in the whole output in place of those among the sampled rows."""

    def there(e: Element | None) -> Element | None:
        return e and replace(e, at=int(rows[e.at // columns]) * columns + e.at % columns)

    return replace(found, of_wrong=there(found.of_wrong), of_class=there(found.of_class))
