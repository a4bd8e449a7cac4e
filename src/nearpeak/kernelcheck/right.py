"""Is a kernel right: on every kind of input, at every kind of shape, every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from nearpeak.kernelcheck.deviation import Deviation
from nearpeak.kernelcheck.kernel import Kernel, Sizes
from nearpeak.kernelcheck.kernel_failed import KernelFailed, OutputRefused
from nearpeak.kernelcheck.one_shape import ShapeResult, check_shape
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.rounding import rounding_of
from nearpeak.kernelcheck.run_once import Job
from nearpeak.kernelcheck.shapes import shapes_for
from nearpeak.kernelcheck.streams import Waits, own_stream, waits_of
from nearpeak.kernelcheck.verdict import Finding, Verdict, pattern_of, shape_text
from nearpeak.records.errors import UserError, first_line

# Up to so many FLOPs the truth is computed for every element, in fp64: about a second on a slow device.
FULL_ON_CPU, FULL_ON_GPU = 5e9, 1e12


def check(
    kernel: Kernel,
    op: Op,
    sizes: Sizes,
    *,
    precision: str | None = None,
    accumulate: str | None = None,
    unordered: bool = False,
    shapes: Sequence[Sizes] | None = None,
    repeats: int = 20,
    patience: float = 5.0,
    full_flop: float | None = None,
    specials: bool = True,
    seed: int | None = None,
    waits: Waits | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Run the kernel at the asked sizes and at those of `shapes_for`, or at `shapes`; every finding, one a shape.

    precision, accumulate   of the declaration, and fp32 sums, where None
    unordered               runs may differ by rounding (atomics)
    specials                NaN and infinity among the inputs
    seed                    of the random inputs; None: another each time
    waits                   replaced in tests
    Raises UserError where the kernel cannot be launched at the asked sizes.
    """
    precision = precision or kernel.declaration.precision
    device = kernel.device
    generator = torch.Generator(device)
    generator.seed() if seed is None else generator.manual_seed(seed)
    job = Job(
        kernel=kernel,
        op=op,
        precision=precision,
        rounding=rounding_of(precision, accumulate, op.output.dtype(precision)),
        unordered=unordered,
        repeats=repeats,
        patience=patience,
        full_flop=full_flop or (FULL_ON_CPU if device.type == "cpu" else FULL_ON_GPU),
        waits=waits or waits_of(device),
        watch_stream=waits is not None or device.type != "cpu",
        generator=generator,
        specials=specials,
    )
    others = shapes_for(op, sizes, kernel.declaration.require) if shapes is None else shapes
    results: list[ShapeResult] = []
    with own_stream(device):
        for number, one in enumerate([sizes, *others]):
            progress(f"right? {shape_text(one)}")
            result, lost = _checked(job, one, asked=number == 0)
            results.append(result)
            if lost:
                result.notes.append("the GPU can run nothing more in this process: further shapes were left out")
                break
    return verdict_of(op, results)


def verdict_of(op: Op, results: Sequence[ShapeResult]) -> Verdict:
    """The verdict from what each shape gave, the asked shape first."""
    findings = [r.finding for r in results if r.finding]
    failed = [r.sizes for r in results if r.finding]
    pattern = pattern_of([r.sizes for r in results if not r.finding], failed)
    if pattern:
        wrong = ", ".join(shape_text(s) for s in failed[:3])
        findings.append(Finding("pattern", "", f"{pattern}; wrong at {wrong}" + (" …" if len(failed) > 3 else "")))
    asked = results[0]
    return Verdict(
        right=not findings,
        findings=tuple(findings),
        error=_error(asked.normal),
        error_of_library=_error(asked.library),
        noise=asked.normal.noise if asked.normal else None,
        shapes=tuple(shape_text(r.sizes) for r in results),
        failed=tuple(shape_text(s) for s in failed),
        compared=_compared(op, asked),
        notes=tuple(dict.fromkeys(note for r in results for note in r.notes)),
    )


def _checked(job: Job, sizes: Sizes, asked: bool) -> tuple[ShapeResult, bool]:
    """What one shape gave, and whether the device is lost for this process."""
    where = shape_text(sizes)
    try:
        return check_shape(job, sizes), False
    except UserError as error:
        if asked:
            raise
        text = f"it cannot be launched here: {error}; if the shape is not meant to work, declare it with require"
        return ShapeResult(sizes, Finding("launch", where, text)), False
    except OutputRefused as error:
        return ShapeResult(sizes, Finding("result", where, str(error))), False
    except KernelFailed as error:
        return ShapeResult(sizes, Finding("crash", where, str(error))), error.context_lost
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(f"{where}: not enough memory to check it: {first_line(error)}") from error


def _error(found: Deviation | None) -> float | None:
    return found.error if found else None


def _compared(op: Op, asked: ShapeResult) -> str:
    if not asked.sampled:
        return "every element against fp64"
    rows = "one row of every 64 against fp64"
    if op.checksum is None:
        return (
            f"{rows} (a fault of fewer than 64 rows may be missed at this shape; smaller shapes were compared in full)"
        )
    return f"{rows}, and every element through checksums: exact for whole numbers, within 42 rounding errors for others"
