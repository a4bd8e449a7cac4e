"""The shapes that a kernel is checked at besides the one asked for: small, and where kernels go wrong."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.op import Op

# Ones; multiples of exactly 16, 32, 64 and 128, so that a kernel right for some multiple only is told from others;
# one off those; primes; one long side.
ONE = (1, 2, 16, 31, 32, 33, 48, 127, 128, 129, 257, 1000, 1024, 1025, 4096, 4097, 100_003)
TWO = (
    (1, 1), (64, 64), (96, 96), (48, 80), (96, 160), (64, 320), (128, 384), (33, 65), (127, 129), (17, 19), (257, 131),
    (1, 1000), (1000, 1), (3, 4097), (2050, 5),
)  # fmt: skip
THREE = (
    (1, 1, 1), (64, 64, 64), (96, 96, 96), (48, 80, 112), (96, 32, 160), (192, 64, 320), (128, 384, 128), (17, 19, 23),
    (33, 65, 127), (129, 63, 31), (1, 257, 65), (257, 1, 33), (40, 72, 1), (24, 40, 1031), (1040, 24, 40), (9, 1000, 8),
)  # fmt: skip
# batch, heads, length; head_dim stays as asked: most kernels are built for one
ATTENTION = ((1, 1, 1), (1, 2, 64), (2, 3, 17), (1, 1, 128), (2, 1, 129), (1, 2, 257), (3, 2, 96), (1, 1, 500))
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def shapes_for(op: Op, asked: Sizes, require: str | None = None) -> tuple[dict[str, int], ...]:
    """Sizes by name, each within `require` (rounded up to a multiple where that helps), none twice, the asked one left
    out. Raises UserError where `require` cannot be read.
    """
    found: list[dict[str, int]] = []
    for sizes in _candidates(op, asked):
        fitting = _fitted(sizes, asked, _holds(require))
        if fitting is not None and fitting not in found and fitting != dict(asked):
            found.append(fitting)
    return tuple(found)


def ragged_shape(op: Op, asked: Sizes, require: str | None = None) -> dict[str, int]:
    """The one of `shapes_for` that sticks out over tiles in most directions, the largest of these: for tools under
    which a kernel runs slowly. The asked one where there is no other."""

    def raggedness(sizes: dict[str, int]) -> tuple[int, int, int]:
        ones = sum(size == 1 for size in sizes.values())
        return sum(size % 16 != 0 for size in sizes.values()) - 2 * ones, -ones, prod(sizes.values())

    return max(shapes_for(op, asked, require), key=raggedness, default=dict(asked))


def _candidates(op: Op, asked: Sizes) -> list[dict[str, int]]:
    names = op.sizes
    if names[:3] == ("batch", "heads", "length"):
        return [dict(asked, batch=b, heads=h, length=length) for b, h, length in ATTENTION]
    tables: dict[int, tuple[tuple[int, ...], ...]] = {1: tuple((n,) for n in ONE), 2: TWO, 3: THREE}
    if len(names) in tables:
        return [dict(zip(names, sizes, strict=True)) for sizes in tables[len(names)]]
    return [dict(asked, **{name: size}) for name in names for size in (1, 17, 64)]


def _fitted(sizes: dict[str, int], asked: Sizes, holds: Callable[[Sizes], bool]) -> dict[str, int] | None:
    """The sizes, or as few of them as need be rounded up to the smallest multiple that `require` admits."""
    for step in STEPS:
        for names in [*([name] for name in sizes), list(sizes)]:
            rounded = {n: -(-s // step) * step if n in names else s for n, s in sizes.items()}
            if holds(rounded):
                return rounded
    # Sizes that may have one value only keep the asked one.
    for name in sizes:
        kept = {**sizes, name: asked[name]}
        if holds(kept):
            return kept
    return None


def _holds(require: str | None) -> Callable[[Sizes], bool]:
    if require is None:
        return lambda sizes: True
    from nearpeak.kernelcheck.expression import holds

    return lambda sizes: holds(require, sizes)
