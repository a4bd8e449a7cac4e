"""Instructions of PTX for matrix units: products (mma, wgmma) count as work, tiles (ldmatrix, stmatrix) are moved.

What a product gives is not computed: `unknown_values` sees to it that no address and no branch hangs on it. Meaning and
layouts: NVIDIA, "Parallel Thread Execution ISA", 9.7.14 (warp level, "Matrix fragments for ldmatrix") and 9.7.15
(wgmma).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_integer import Step
from nearpeak.kernelcheck.ptx_memory import Context
from nearpeak.kernelcheck.ptx_records import Instruction
from nearpeak.kernelcheck.ptx_registers import Array, NotTraced, Registers, Where, unknown
from nearpeak.kernelcheck.ptx_warp import WARP

PRODUCTS = ("mma", "wgmma")
ROW_BYTES, ROWS = 16, 8  # of one of the 8×8 matrices of 16-bit elements that ldmatrix and stmatrix move
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


def is_product(i: Instruction) -> bool:
    """Whether the instruction multiplies matrices, and does not only wait or order."""
    return i.opcode in PRODUCTS and any(_SHAPE.fullmatch(m) for m in i.modifiers)


def flop_a_thread(i: Instruction) -> float:
    """FLOPs of a product by the threads that order it: a warp (mma), or four (wgmma)."""
    shape = next((found for m in i.modifiers if (found := _SHAPE.fullmatch(m))), None)
    if i.opcode not in PRODUCTS or shape is None:
        return 0.0
    m, n, k = (int(extent) for extent in shape.groups())
    return 2.0 * m * n * k / (4 * WARP if i.opcode == "wgmma" else WARP)


def product(i: Instruction, values: bool) -> Step:
    """A product, or its ordering (wgmma.fence, .commit_group, .wait_group): the registers keep what they held.

    values   the trace is to compute the kernel's result, which it cannot
    """
    if is_product(i) and values:
        raise unknown(i, "computes values that the tracer does not")
    if not is_product(i) and i.modifiers[:1] not in (("fence",), ("commit_group",), ("wait_group",)):
        raise unknown(i)
    return lambda where: None


def move_tiles(index: int, i: Instruction, r: Registers, context: Context) -> Step:
    """ldmatrix and stmatrix: lanes 8·k to 8·k + 7 of a warp name the rows of its matrix k."""
    words = [m for m in i.modifiers if m not in ("sync", "aligned", "m8n8", "shared", "shared::cta", "b16", "trans")]
    if "m8n8" not in i.modifiers or words not in (["x1"], ["x2"], ["x4"]):
        raise unknown(i)
    count, loads, turned = int(words[0][1]), i.opcode == "ldmatrix", "trans" in i.modifiers
    place, rest = (i.operands[1], i.operands[0]) if loads else (i.operands[0], i.operands[1])
    registers = [r.raw(name.strip()).view(np.uint32) for name in rest.strip("{} ").split(",")]
    base, offset = r.address(place)
    named = np.arange(r.threads) % WARP < ROWS * count  # threads whose address is used
    memory = context.memory

    def step(where: Where) -> None:
        whole = np.ones(r.threads, bool) if where is True else where
        if (whole.reshape(-1, WARP).any(axis=1) != whole.reshape(-1, WARP).all(axis=1)).any():
            raise NotTraced(f"not traced: {i.name} (line {i.line}) by a part of a warp")
        addresses = np.full(r.threads, offset, np.int64) if base is None else base.astype(np.int64) + offset
        active = whole & named
        context.note(index, "shared", "read" if loads else "write", addresses, active)
        memory.check("shared", None, addresses[active], ROW_BYTES, f"the {i.opcode} in line {i.line}")
        at = addresses[active].reshape(-1, count, ROWS)[..., None] + np.arange(0, ROW_BYTES, 2)
        cells = memory.shared.view(np.uint16)
        if loads:
            words = _fragments(cells[at // 2], turned)
            for k, register in enumerate(registers):
                register[whole] = words[:, k].reshape(-1)
        else:
            held = np.stack([register[whole].reshape(-1, WARP) for register in registers], axis=1)
            cells[at // 2] = _matrices(held, turned)

    return step


def _fragments(matrices: Array, turned: bool) -> Array:
    """(warps, count, 8, 8) elements → (warps, count, 32) words: lane 4·row + c holds elements 2·c and 2·c + 1."""
    ordered = np.ascontiguousarray(matrices.swapaxes(2, 3) if turned else matrices)
    words: Array = ordered.view(np.uint32).reshape(*matrices.shape[:2], WARP)
    return words


def _matrices(words: Any, turned: bool) -> Array:
    """The other way round."""
    elements: Array = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape[:2], ROWS, ROWS)
    return elements.swapaxes(2, 3) if turned else elements
