"""Whether a kernel is right, and what was seen where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nearpeak.kernelcheck.kernel import Sizes

Check = Literal[
    "values",  # differs from the truth by more than rounding
    "precision",  # computed in a lower precision than declared
    "layout",  # the right numbers in the wrong order
    "unwritten",  # elements of the output that were never written
    "drift",  # what the output held before is added in
    "cached",  # an old result, though the inputs changed
    "nan",  # NaN or infinity lost, or spread
    "inputs",  # inputs overwritten
    "bounds",  # memory outside of the tensors written, or read
    "race",  # runs on the same inputs differ
    "address",  # another address, another result
    "stream",  # work on another stream
    "result",  # the output is no plain tensor of the right shape
    "launch",  # cannot be launched at a shape that it declares
    "crash",  # an error while it ran
    "pattern",  # which shapes are right
]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. shape: "m=64 n=65 k=66"; text: what was seen, in plain words."""

    check: Check
    shape: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """right: no finding.

    error, error_of_library   ‖C − R‖F ÷ ‖R‖F on normal inputs at the asked shape, R in fp64; None where not had
    noise                     the same for the largest rounding error that the precision and its sums explain
    shapes, failed            all that were run, and those that were wrong
    compared                  how the asked shape was compared: every element, or a sample and checksums
    notes                     what was not checked, and why
    """

    right: bool
    findings: tuple[Finding, ...]
    error: float | None
    error_of_library: float | None
    noise: float | None
    shapes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    compared: str = ""
    notes: tuple[str, ...] = ()


def shape_text(sizes: Sizes) -> str:
    """ "m=64 n=65 k=66" """
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def pattern_of(passed: Sequence[Sizes], failed: Sequence[Sizes]) -> str | None:
    """Which shapes are right, in words, where a simple rule tells all that passed from all that failed; else None."""
    if len(passed) < 2 or not failed:
        return None
    names = list(passed[0])
    for divisor in (256, 128, 64, 32, 16, 8, 4, 2):
        for group in [names, *([name] for name in names)]:

            def fits(sizes: Sizes, group: list[str] = group, divisor: int = divisor) -> bool:
                return all(sizes[name] % divisor == 0 for name in group)

            if all(map(fits, passed)) and not any(map(fits, failed)):
                verb = "is a multiple" if len(group) == 1 else "are all multiples"
                return f"right only where {_listed(group)} {verb} of {divisor}"
    pairs = [[a, b] for i, a in enumerate(names) for b in names[i + 1 :]]
    for group in [*pairs, names] if len(names) > 1 else []:

        def equal(sizes: Sizes, group: list[str] = group) -> bool:
            return len({sizes[name] for name in group}) == 1

        # A size of 1 forgives a mixed-up stride, so such shapes say nothing here.
        telling = [sizes for sizes in passed if 1 not in sizes.values()]
        if len(telling) > 1 and all(map(equal, telling)) and not any(map(equal, failed)):
            return f"right only where {_listed(group)} are equal"
    return None


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
