"""Instructions of PTX by which hardware copies whole boxes of a matrix (TMA), and the barriers by which threads wait
for them (mbarrier).

A copy is carried out for its addresses only: the box's rows, as warps of 16-byte accesses, which is how coalesced they
are. Zeros arrive in shared memory, as good as any made-up values, and waiting ends at once: which thread waits for whom
decides the time, not what is accessed. Meaning: NVIDIA, "Parallel Thread Execution ISA", 9.7.9.27 (copies), 9.7.13.15
(mbarrier).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_integer import Step
from nearpeak.kernelcheck.ptx_memory import Context
from nearpeak.kernelcheck.ptx_records import Instruction
from nearpeak.kernelcheck.ptx_registers import Registers, Where, unknown
from nearpeak.kernelcheck.ptx_warp import WARP
from nearpeak.kernelcheck.trace_memory import TensorMap

PIECE = 16  # bytes of one access that a copy is noted as
_NOTHING = (("bulk", "commit_group"), ("bulk", "wait_group"), ("bulk", "wait_group", "read"))
_BARRIERS = ("init", "inval", "arrive", "expect_tx", "complete_tx", "arrive_drop")


def is_bulk(i: Instruction) -> bool:
    return i.opcode == "cp" and i.modifiers[:2] == ("async", "bulk")


def copy_box(index: int, i: Instruction, r: Registers, context: Context) -> Step:
    """cp.async.bulk.tensor.2d from global to shared memory or back, and the ordering of such copies."""
    memory = context.memory
    words = i.modifiers[1:]
    if words in _NOTHING:
        return lambda where: None
    if words[:3] != ("bulk", "tensor", "2d") or "im2col" in words:
        raise unknown(i)
    loads = words[3].startswith("shared") and words[4] == "global"
    if not loads and not (words[3] == "global" and words[4].startswith("shared")):
        raise unknown(i)
    found = re.fullmatch(r"\[\s*([^,\s]+)\s*,\s*\{\s*([^,]+?)\s*,\s*([^,]+?)\s*\}\s*\]", i.operands[1 if loads else 0])
    if found is None:
        raise unknown(i)
    base, offset = r.address(f"[{found[1]}]")
    column, row = r.read(found[2], "s32"), r.read(found[3], "s32")
    to, further = r.address(i.operands[0 if loads else 1])

    def step(where: Where) -> None:
        for thread in np.flatnonzero(np.ones(r.threads, bool) if where is True else where):
            address = offset + (0 if base is None else int(base[thread]))
            box = memory.maps.get(address)
            if box is None:
                raise unknown(i, "copies by a tensor map that is no parameter")
            start, first = (int(x if np.ndim(x) == 0 else x[thread]) for x in (column, row))
            here = np.array([further + (0 if to is None else int(to[thread]))])
            size = box.box[0] * box.box[1] * box.element
            memory.check("shared", None, here, 1, f"the copy in line {i.line}")
            memory.check("shared", None, here + size - 1, 1, f"the copy in line {i.line}")
            if loads:
                memory.shared[here[0] : here[0] + size] = 0
            for addresses, active in pieces(box, start, first, r.threads):
                context.note(index, "global", "read" if loads else "write", addresses + memory.base_of(box), active)

    return step


def pieces(box: TensorMap, column: int, row: int, threads: int) -> list[tuple[Any, Any]]:
    """The part of a box that lies in the matrix, as accesses of so many threads: [(bytes from the start, active)]."""
    rows = np.arange(max(row, 0), min(row + box.box[0], box.shape[0]), dtype=np.int64)
    columns = max(column, 0), min(column + box.box[1], box.shape[1])
    if not len(rows) or columns[0] >= columns[1]:
        return []
    inside = np.arange(columns[0] * box.element // PIECE * PIECE, columns[1] * box.element, PIECE, dtype=np.int64)
    all_of_it = (rows[:, None] * box.shape[1] * box.element + inside).reshape(-1)
    result = []
    for start in range(0, len(all_of_it), threads):
        part = all_of_it[start : start + threads]
        addresses = np.full(threads, part[0])
        addresses[: len(part)] = part
        result.append((addresses, np.arange(threads) < len(part)))
    return result


def barrier(i: Instruction, r: Registers) -> Step:
    """mbarrier: nothing to do, but that whoever looks finds the phase over."""
    word = i.modifiers[0]
    if word in ("try_wait", "test_wait"):
        over = r.predicate(i.operands[0].split("|")[0].strip())
        return lambda where: np.copyto(over, np.bool_(True), where=where)
    if word not in _BARRIERS or (word == "arrive" and i.operands[0].strip() != "_"):
        raise unknown(i)
    return lambda where: None


def in_cluster(i: Instruction, r: Registers) -> Step:
    """mapa: the same place in another block of the cluster; of the blocks only one is here, so it is its own."""
    kind = i.modifiers[-1]
    if kind not in ("u32", "u64"):
        raise unknown(i)
    target, source = r.write(i.operands[0], kind), r.read(i.operands[1], kind)
    return lambda where: np.copyto(target, source, where=where)


assert WARP * PIECE == 512  # four cache lines a request, as wide as any
