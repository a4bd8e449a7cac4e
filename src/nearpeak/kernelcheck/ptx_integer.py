"""Integer and logic instructions of PTX over all threads of a block at once.

Each decoder takes an instruction and the registers, and returns a function that carries it out where threads are
active. Meanings: NVIDIA, "Parallel Thread Execution ISA", 9.7.1 (integer) and 9.7.8 (logic and shift).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_records import TYPE_BYTES, Instruction
from nearpeak.kernelcheck.ptx_registers import DTYPES, Array, Registers, Where, kind_of, unknown

Step = Callable[[Where], None]
Decoder = Callable[[Instruction, Registers], Step]


def computed(target: Array, value: Callable[[], Any]) -> Step:
    """A step that computes a value for all threads and keeps it for the active ones."""
    return lambda where: np.copyto(target, value(), where=where, casting="unsafe")


def binary(function: np.ufunc, allowed: tuple[str, ...] = ()) -> Decoder:
    """add, sub, and, …: one numpy function of two operands of one type."""

    def decode(i: Instruction, r: Registers) -> Step:
        kind = kind_of(i, allowed)
        target, a, b = r.write(i.operands[0], kind), r.read(i.operands[1], kind), r.read(i.operands[2], kind)
        if target.dtype != a.dtype:
            raise unknown(i)
        return lambda where: function(a, b, out=target, where=where)

    return decode


def unary(function: np.ufunc) -> Decoder:
    def decode(i: Instruction, r: Registers) -> Step:
        kind = kind_of(i)
        target, a = r.write(i.operands[0], kind), r.read(i.operands[1], kind)
        return lambda where: function(a, out=target, where=where)

    return decode


def _wide(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


def _high(a: Any, b: Any, kind: str) -> Any:
    """The upper half of a product of two integers."""
    if kind in ("u64", "s64"):  # 64 × 64 → the upper 64 bits, from 32-bit halves
        x, y = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        x0, x1, y0, y1 = x & low, x >> shift, y & low, y >> shift
        middle = x1 * y0 + (x0 * y0 >> shift)
        other = x0 * y1 + (middle & low)
        high = x1 * y1 + (middle >> shift) + (other >> shift)
        if kind == "u64":
            return high
        zero = np.uint64(0)
        return (high - np.where(np.asarray(a) < 0, y, zero) - np.where(np.asarray(b) < 0, x, zero)).view(np.int64)
    wide = DTYPES[_wide(kind)]
    bits = 8 * TYPE_BYTES[kind]
    return np.asarray(np.multiply(a, b, dtype=wide) >> wide(bits)).astype(DTYPES[kind])


def multiply(i: Instruction, r: Registers) -> Step:
    """mul.lo, mul.wide, mul.hi, and mad with a third operand."""
    kind = kind_of(i, ("lo", "wide", "hi"))
    a, b = r.read(i.operands[1], kind), r.read(i.operands[2], kind)
    result = _wide(kind) if "wide" in i.modifiers else kind
    target = r.write(i.operands[0], result)
    c = r.read(i.operands[3], result) if i.opcode == "mad" else None
    if "hi" in i.modifiers:
        return computed(target, lambda: _high(a, b, kind) if c is None else _high(a, b, kind) + c)
    dtype = DTYPES[result]
    if c is None:
        return lambda where: np.multiply(a, b, out=target, where=where, dtype=dtype)
    return computed(target, lambda: np.multiply(a, b, dtype=dtype) + c)


def divide(i: Instruction, r: Registers) -> Step:
    """div and rem, which round towards zero; a division by zero gives all ones, as the hardware does."""
    kind = kind_of(i)
    a, b, target = r.read(i.operands[1], kind), r.read(i.operands[2], kind), r.write(i.operands[0], kind)

    def value() -> Any:
        divisor = np.where(b == 0, np.ones_like(b), b)
        quotient = np.floor_divide(a, divisor)
        rest = a - quotient * divisor
        if kind[0] == "s":
            quotient = quotient + ((rest != 0) & ((rest < 0) != (a < 0))).astype(quotient.dtype)
        if i.opcode == "rem":
            return np.where(b == 0, a, a - quotient * divisor)
        return np.where(b == 0, np.array(-1).astype(quotient.dtype), quotient)

    return computed(target, value)


def shift(i: Instruction, r: Registers) -> Step:
    """shl, shr: an amount of the width and more gives zero, or the sign."""
    kind = kind_of(i)
    a, by, target = r.read(i.operands[1], kind), r.read(i.operands[2], "u32"), r.write(i.operands[0], kind)
    dtype, bits = DTYPES[kind], 8 * TYPE_BYTES[kind]
    function = np.left_shift if i.opcode == "shl" else np.right_shift
    if np.ndim(by) == 0 and int(by) < bits:
        amount = dtype(int(by))
        return lambda where: function(a, amount, out=target, where=where)
    if kind[0] == "s" and i.opcode == "shr":
        return computed(target, lambda: np.right_shift(a, np.minimum(by, bits - 1).astype(dtype)))
    zero = dtype(0)
    return computed(target, lambda: np.where(by < bits, function(a, np.minimum(by, bits - 1).astype(dtype)), zero))


def funnel_shift(i: Instruction, r: Registers) -> Step:
    """shf.l / shf.r: 32 bits out of a pair of words."""
    kind_of(i, ("l", "r", "wrap", "clamp"))
    low, high, by = (r.read(o, "u32") for o in i.operands[1:4])
    target = r.write(i.operands[0], "u32")

    def value() -> Any:
        amount = (by & np.uint32(31) if "wrap" in i.modifiers else np.minimum(by, 32)).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
        moved = (both << amount) >> np.uint64(32) if "l" in i.modifiers else both >> amount
        return moved & np.uint64(0xFFFFFFFF)

    return computed(target, value)


def extract_field(i: Instruction, r: Registers) -> Step:
    """bfe: `length` bits from `position` on, extended by sign for signed types."""
    kind = kind_of(i)
    dtype, bits = DTYPES[kind], 8 * TYPE_BYTES[kind]
    a, position, length = r.read(i.operands[1], kind), r.read(i.operands[2], "u32"), r.read(i.operands[3], "u32")

    def value() -> Any:
        start = np.minimum(position & np.uint32(255), bits)
        count = np.minimum(length & np.uint32(255), bits - np.minimum(start, bits))
        wide = np.asarray(a).astype(object)
        fields = (wide >> start.astype(object)) & ((1 << count.astype(object)) - 1)
        if kind[0] == "s":
            fields = fields - ((fields >> np.maximum(count.astype(object) - 1, 0)) & 1) * (1 << count.astype(object))
            fields = np.where(count == 0, 0, fields)
        return np.asarray(fields).astype(dtype)

    return computed(r.write(i.operands[0], kind), value)


def insert_field(i: Instruction, r: Registers) -> Step:
    """bfi: put the low bits of one operand into another."""
    kind = kind_of(i)
    unsigned = DTYPES[f"u{8 * TYPE_BYTES[kind]}"]
    bits = 8 * TYPE_BYTES[kind]
    a, b = r.read(i.operands[1], kind), r.read(i.operands[2], kind)
    position, length = r.read(i.operands[3], "u32"), r.read(i.operands[4], "u32")

    def value() -> Any:
        start = np.minimum(position & np.uint32(255), bits).astype(object)
        count = np.minimum(length & np.uint32(255), bits).astype(object)
        mask = (((1 << count) - 1) << start) & ((1 << bits) - 1)
        moved = (np.asarray(a).astype(object) << start) & mask
        return np.asarray(moved | (np.asarray(b).astype(object) & ((1 << bits) - 1 - mask))).astype(unsigned)

    return computed(r.write(i.operands[0], kind), value)


def permute(i: Instruction, r: Registers) -> Step:
    """prmt, the plain form: four bytes chosen out of eight by the nibbles of the third operand, bit 3 copying the
    sign."""
    kind_of(i)
    a, b, choice = (r.read(o, "u32") for o in i.operands[1:4])

    def value() -> Any:
        both = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | np.asarray(a).astype(np.uint64)
        result: Any = np.uint64(0)
        for place in range(4):
            nibble = (choice >> np.uint32(4 * place)) & np.uint32(15)
            byte = (both >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            result = result | (np.where(nibble & np.uint32(8), sign, byte) << np.uint64(8 * place))
        return result

    return computed(r.write(i.operands[0], "u32"), value)


def lookup3(i: Instruction, r: Registers) -> Step:
    """lop3: any logic function of three words, by its truth table."""
    kind_of(i)
    a, b, c = (r.read(o, "u32") for o in i.operands[1:4])
    table = int(r.immediate(i.operands[4], "u32"))

    def value() -> Any:
        result: Any = np.uint32(0)
        for row in range(8):
            if table >> row & 1:
                result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
        return result

    return computed(r.write(i.operands[0], "u32"), value)


def bits(i: Instruction, r: Registers) -> Step:
    """popc, clz, brev, bfind are not needed for addresses often: the first three only."""
    kind = kind_of(i)
    width = 8 * TYPE_BYTES[kind]
    a = r.read(i.operands[1], kind)

    def value() -> Any:
        words = np.atleast_1d(a).view(f"u{width // 8}")
        table = ((words[:, None] >> np.arange(width, dtype=words.dtype)) & words.dtype.type(1)).astype(np.uint64)
        if i.opcode == "popc":
            return table.sum(axis=1)
        if i.opcode == "clz":
            return np.where(table.any(axis=1), np.argmax(table[:, ::-1], axis=1), width)
        return (table[:, ::-1] << np.arange(width, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)

    return computed(r.write(i.operands[0], kind if i.opcode == "brev" else "u32"), value)


INTEGER: dict[str, Decoder] = {
    "add": binary(np.add), "sub": binary(np.subtract), "and": binary(np.bitwise_and), "or": binary(np.bitwise_or),
    "xor": binary(np.bitwise_xor), "min": binary(np.minimum), "max": binary(np.maximum), "not": unary(np.invert),
    "neg": unary(np.negative), "abs": unary(np.absolute), "mul": multiply, "mad": multiply, "div": divide,
    "rem": divide, "shl": shift, "shr": shift, "shf": funnel_shift, "bfe": extract_field, "bfi": insert_field,
    "prmt": permute, "lop3": lookup3, "popc": bits, "clz": bits, "brev": bits,
}  # fmt: skip
