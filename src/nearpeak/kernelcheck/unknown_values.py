"""Which registers hang on what the trace does not compute (products of matrix units), and whether that decides where a
kernel goes or what it accesses."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nearpeak.kernelcheck.ptx_matrix import is_product
from nearpeak.kernelcheck.ptx_records import Instruction

_REGISTER = re.compile(r"%\w+|\b[A-Za-z_]\w*__\d+\b")  # the compiler's, and those that inline assembly declares
_STORES = ("st", "stmatrix", "red")
_NO_RESULT = (*_STORES, "bra", "bar", "barrier", "ret", "exit", "mbarrier", "cp", "fence", "membar")


def decided_by_unknown(code: Sequence[Instruction]) -> str | None:
    """The first branch or address that hangs on the result of a matrix product, in words; None where none does.

    Memory is followed as a whole: once such a result is stored in shared or local memory, whatever is loaded from there
    may be it. (What a kernel loads from global memory is made up in any case.)
    """
    if not any(is_product(i) for i in code):
        return None
    unknown: set[str] = set()
    stored = False
    while True:
        before = (len(unknown), stored)
        for i in code:
            reads, writes = _reads(i), _writes(i)
            if i.opcode in _STORES:
                shared = not any(m.startswith("global") for m in i.modifiers)
                stored |= shared and bool(unknown & _names(i.operands[1:]))
            elif is_product(i) or unknown & reads or (stored and _loads_shared(i)):
                unknown |= writes
        if (len(unknown), stored) == before:
            break
    for i in code:
        where = f" (line {i.line})" if i.line else ""
        if unknown & _addresses(i):
            return f"not traced: the address of {i.name}{where} hangs on the result of a matrix product"
        if i.predicate in unknown and i.opcode in (*_NO_RESULT, "ld", "atom"):
            return f"not traced: whether {i.name}{where} happens hangs on the result of a matrix product"
    return None


def _names(operands: Sequence[str]) -> set[str]:
    return {name for operand in operands for name in _REGISTER.findall(operand)}


def _reads(i: Instruction) -> set[str]:
    guard = {i.predicate} if i.predicate else set()
    return guard | _names(i.operands if i.opcode in _NO_RESULT else i.operands[1:])


def _writes(i: Instruction) -> set[str]:
    return set() if i.opcode in _NO_RESULT else _names(i.operands[:1])


def _loads_shared(i: Instruction) -> bool:
    spaces = [m.split("::")[0] for m in i.modifiers]
    return i.opcode == "ldmatrix" or (i.opcode in ("ld", "atom") and not {"global", "param", "const"} & set(spaces))


def _addresses(i: Instruction) -> set[str]:
    """Registers inside brackets: addresses and coordinates."""
    return _names([part for operand in i.operands for part in re.findall(r"\[[^\]]*\]", operand)])
