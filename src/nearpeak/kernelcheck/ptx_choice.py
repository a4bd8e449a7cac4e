"""Moves, comparisons and selections of PTX over all threads of a block at once, for all types.

Meanings: NVIDIA, "Parallel Thread Execution ISA", 9.7.6 (comparison and selection) and 9.7.9 (mov).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_integer import Decoder, Step, computed
from nearpeak.kernelcheck.ptx_records import TYPE_BYTES, Instruction
from nearpeak.kernelcheck.ptx_registers import DTYPES, Registers, Where, kind_of, unknown


def move(i: Instruction, r: Registers) -> Step:
    """mov, also between a wide register and a vector of narrow ones; cvta of addresses that need no change."""
    kind = kind_of(i)
    to, source = i.operands[0], i.operands[1]
    if source.startswith("{") or to.startswith("{"):
        parts = (source if source.startswith("{") else to).strip("{} ").split(",")
        part = f"b{8 * TYPE_BYTES[kind] // len(parts)}"
        dtype, width = DTYPES[kind], 8 * TYPE_BYTES[part]
        if source.startswith("{"):
            words = [r.read(p.strip(), part) for p in parts]
            return computed(
                r.write(to, kind),
                lambda: sum(np.asarray(w).astype(dtype) << dtype(width * k) for k, w in enumerate(words)),
            )
        whole, targets = (
            r.read(source, kind),
            [(k, r.write(p.strip(), part)) for k, p in enumerate(parts) if p.strip() != "_"],
        )

        def split(where: Where) -> None:
            pieces = [whole >> dtype(width * k) for k, _ in targets]
            for (_, target), piece in zip(targets, pieces, strict=True):
                np.copyto(target, piece, where=where, casting="unsafe")

        return split
    target, value = r.write(to, kind), r.read(source, kind)
    return lambda where: np.copyto(target, value, where=where)


def select(i: Instruction, r: Registers) -> Step:
    kind = kind_of(i)
    a, b, chosen = r.read(i.operands[1], kind), r.read(i.operands[2], kind), r.read(i.operands[3], "pred")
    return computed(r.write(i.operands[0], kind), lambda: np.where(chosen, a, b))


_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
            "hs": np.greater_equal}  # fmt: skip
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compare(i: Instruction, r: Registers) -> Step:
    """setp, with an optional second result and a predicate to combine with. For floats a comparison with NaN is false,
    but for ne and the unordered forms (equ, neu, ltu, …; num, nan)."""
    kind = i.modifiers[-1]
    words = [m for m in i.modifiers[:-1] if m != "ftz"]
    how, combine = words[0], words[1] if len(words) > 1 else None
    unordered = how in ("equ", "neu", "ltu", "leu", "gtu", "geu")
    known = kind in DTYPES and (
        how.removesuffix("u") in _COMPARE if unordered else how in _COMPARE or how in ("num", "nan")
    )
    if not known or len(words) > 2 or (combine is not None and combine not in _COMBINE) or kind in ("f16x2", "bf16x2"):
        raise unknown(i)
    a, b = r.read(i.operands[1], kind), r.read(i.operands[2], kind)
    targets = [r.predicate(p.strip()) if p.strip() != "_" else None for p in i.operands[0].split("|")]
    if (
        combine is None
        and len(targets) == 1
        and targets[0] is not None
        and not unordered
        and kind[0] not in "fb"
        and how in _COMPARE
    ):
        function, only = _COMPARE[how], targets[0]
        return lambda where: function(a, b, out=only, where=where)
    other = i.operands[3] if combine else "1"
    negated, other = other.startswith("!"), other.lstrip("!")
    third: Any = r.read(other, "pred") if combine else np.bool_(True)

    def result() -> Any:
        x, y = (a, b) if kind != "bf16" else ((np.asarray(v).astype(np.uint32) << 16).view(np.float32) for v in (a, b))
        if kind[0] == "f" or kind == "bf16":
            nan = np.isnan(x) | np.isnan(y)
            if how in ("num", "nan"):
                return nan if how == "nan" else ~nan
            found = _COMPARE[how.removesuffix("u") if unordered else how](x, y)
            return found | nan if unordered else found & ~nan
        return _COMPARE[how](x, y)

    def step(where: Where) -> None:
        found = result()
        also = ~third if negated else third
        for target, value in zip(targets, (found, ~found), strict=False):
            if target is not None:
                np.copyto(target, _COMBINE[combine](value, also) if combine else value, where=where)

    return step


CHOICE: dict[str, Decoder] = {"mov": move, "selp": select, "setp": compare}
