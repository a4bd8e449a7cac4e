"""Instructions of PTX in which the threads of a warp exchange values: shfl, vote, redux, activemask, bar.warp.sync.

Meaning: NVIDIA, "Parallel Thread Execution ISA", 9.7.9.6 (shfl), 9.7.13 (vote, redux, activemask). The tracer sees to
it that all threads named in the member mask have arrived.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_integer import Step
from nearpeak.kernelcheck.ptx_records import Instruction
from nearpeak.kernelcheck.ptx_registers import Array, Registers, Where, unknown

WARP = 32


def _present(where: Where, threads: int) -> Array:
    return np.ones(threads, bool) if where is True else where


def shuffle(i: Instruction, r: Registers) -> Step:
    modes = [m for m in i.modifiers if m in ("up", "down", "bfly", "idx")]
    if i.modifiers[:1] != ("sync",) or len(modes) != 1 or i.modifiers[-1] != "b32":
        raise unknown(i)
    names = [n.strip() for n in i.operands[0].split("|")]
    target = r.write(names[0], "b32")
    valid = r.predicate(names[1]) if len(names) > 1 and names[1] != "_" else None
    a, b, c = (r.read(o, "u32") for o in i.operands[1:4])
    lane = np.arange(r.threads, dtype=np.int64) % WARP
    warp = np.arange(r.threads, dtype=np.int64) - lane

    def step(where: Where) -> None:
        by, clamp = np.asarray(b).astype(np.int64) & 31, np.asarray(c).astype(np.int64) & 31
        segment = np.asarray(c).astype(np.int64) >> 8 & 31
        last, first = (lane & segment) | (clamp & ~segment), lane & segment
        if modes[0] == "up":
            source = lane - by
            inside = source >= last
        else:
            source = {"down": lane + by, "bfly": lane ^ by, "idx": first | (by & ~segment)}[modes[0]]
            inside = source <= last
        values = np.broadcast_to(a, (r.threads,))[warp + np.where(inside, source, lane)]
        np.copyto(target, values, where=where)
        if valid is not None:
            np.copyto(valid, inside, where=where)

    return step


def vote(i: Instruction, r: Registers) -> Step:
    modes = [m for m in i.modifiers if m in ("all", "any", "uni", "ballot")]
    if i.modifiers[:1] != ("sync",) or len(modes) != 1:
        raise unknown(i)
    kind = "b32" if modes[0] == "ballot" else "pred"
    target = r.write(i.operands[0], kind)
    negated, source = i.operands[1].startswith("!"), r.read(i.operands[1].lstrip("!"), "pred")

    def step(where: Where) -> None:
        present = _present(where, r.threads).reshape(-1, WARP)
        said = (np.broadcast_to(source, (r.threads,)) ^ negated).reshape(-1, WARP)
        yes, no = said & present, ~said & present
        if modes[0] == "ballot":
            result: Any = (yes.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
        else:
            result = {"all": ~no.any(axis=1), "any": yes.any(axis=1), "uni": ~(yes.any(axis=1) & no.any(axis=1))}[
                modes[0]
            ]
        np.copyto(target, np.repeat(result, WARP), where=where)

    return step


def active_mask(i: Instruction, r: Registers) -> Step:
    target = r.write(i.operands[0], "b32")

    def step(where: Where) -> None:
        present = _present(where, r.threads).reshape(-1, WARP)
        masks = (present.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
        np.copyto(target, np.repeat(masks, WARP), where=where)

    return step


_REDUCE: dict[str, np.ufunc] = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
                                "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip


def reduce(i: Instruction, r: Registers) -> Step:
    words = [m for m in i.modifiers if m in _REDUCE]
    kind = i.modifiers[-1]
    if len(words) != 1 or kind not in ("u32", "s32", "b32"):
        raise unknown(i)
    target, source, function = r.write(i.operands[0], kind), r.read(i.operands[1], kind), _REDUCE[words[0]]

    def step(where: Where) -> None:
        values = np.broadcast_to(source, (r.threads,)).reshape(-1, WARP)
        present = _present(where, r.threads).reshape(-1, WARP)
        for warp in np.flatnonzero(present.any(axis=1)):
            total = function.reduce(values[warp][present[warp]])
            target[warp * WARP : (warp + 1) * WARP][present[warp]] = total

    return step


def nothing(i: Instruction, r: Registers) -> Step:
    return lambda where: None


WARP_WIDE = {"shfl": shuffle, "vote": vote, "redux": reduce, "bar.warp": nothing}
