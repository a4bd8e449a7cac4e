"""The registers of a thread block, one numpy array over its threads each, and the reading of PTX operands.

A register holds raw bits (unsigned); an instruction sees it through a view of its own type. Views are made once and
stay valid, because a register is only ever written in place.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearpeak.kernelcheck.ptx_records import TYPE_BYTES, Instruction

Array = NDArray[Any]
Where = Any  # True (all threads of the block) or a boolean array over them


class NotTraced(Exception):
    """Why the trace stops here: an instruction that is not known, or a fault of the kernel itself."""


DTYPES: dict[str, type[np.generic]] = {
    "u8": np.uint8, "s8": np.int8, "b8": np.uint8, "u16": np.uint16, "s16": np.int16, "b16": np.uint16,
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "u64": np.uint64, "s64": np.int64, "b64": np.uint64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16, "f16x2": np.uint32, "bf16x2": np.uint32,
    "pred": np.bool_,
}  # fmt: skip
_RAW: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_IMMEDIATE = re.compile(r"^[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")


def unknown(instruction: Instruction, why: str = "is not known to the tracer") -> NotTraced:
    """The reason that names opcode and line."""
    where = f" (line {instruction.line})" if instruction.line else ""
    return NotTraced(f"not traced: {instruction.name}{where} {why}")


def kind_of(instruction: Instruction, allowed: tuple[str, ...] = ()) -> str:
    """The type an instruction works on, its last type modifier. Raises where it has a modifier that is not allowed:
    a modifier ignored would be a wrong answer."""
    kinds = [m for m in instruction.modifiers if m in DTYPES]
    if not kinds or any(m not in DTYPES and m not in allowed for m in instruction.modifiers):
        raise unknown(instruction)
    return kinds[-1]


class Registers:
    """All registers of one block's threads, and the special registers, which `specials` holds by name ("%tid.x")."""

    def __init__(self, threads: int, declared: dict[str, str], symbols: dict[str, int]) -> None:
        self.threads, self.declared, self.symbols = threads, declared, symbols
        self.specials: dict[str, Array] = {}
        self._raw: dict[str, Array] = {}

    def clear(self) -> None:
        """Forget all values: a new block begins. Fills with a pattern, not zero, so that nothing relies on it."""
        for raw in self._raw.values():
            raw.fill(raw.dtype.type(0) if raw.dtype == np.bool_ else np.iinfo(raw.dtype).max // 3)

    def raw(self, name: str) -> Array:
        if name not in self._raw:
            kind = self.declared.get(name)
            if kind is None or TYPE_BYTES.get(kind, 16) > 8:
                raise NotTraced(f"not traced: register {name} of type {kind}")
            dtype = np.bool_ if kind == "pred" else _RAW[TYPE_BYTES[kind]]
            self._raw[name] = np.zeros(self.threads, dtype)
        return self._raw[name]

    def is_register(self, operand: str) -> bool:
        return operand in self.declared

    def predicate(self, name: str) -> Array:
        return self.raw(name)

    def read(self, operand: str, kind: str) -> Any:
        """An operand seen as a type: a view of a register (its low part where it is wider) or a numpy scalar."""
        dtype = np.dtype(DTYPES[kind])
        if operand in self.declared:
            raw = self.raw(operand)
            if kind == "pred" or raw.dtype.itemsize == dtype.itemsize:
                return raw if raw.dtype == dtype else raw.view(dtype)
            if raw.dtype.itemsize > dtype.itemsize:
                return raw.view(dtype)[:: raw.dtype.itemsize // dtype.itemsize]
            raise NotTraced(f"not traced: {operand} is narrower than {kind}")
        if operand in self.specials:
            if self.specials[operand].dtype.itemsize != dtype.itemsize:
                raise NotTraced(f"not traced: {operand} read as {kind}")
            return self.specials[operand].view(dtype)
        return self.immediate(operand, kind)

    def immediate(self, operand: str, kind: str) -> Any:
        dtype = np.dtype(DTYPES[kind])
        if operand[:2] in ("0f", "0F") and len(operand) == 10:
            value: Any = np.frombuffer(struct.pack("<I", int(operand[2:], 16)), np.float32)[0]
            return value if kind in ("f32", "f64") else np.uint32(int(operand[2:], 16)).view(dtype)
        if operand[:2] in ("0d", "0D") and len(operand) == 18:
            value = np.frombuffer(struct.pack("<Q", int(operand[2:], 16)), np.float64)[0]
            return np.float32(value) if kind == "f32" else value if kind == "f64" else np.uint64(value.view(np.uint64))
        if operand == "WARP_SZ":
            return dtype.type(32)
        number = self.integer(operand)
        if number is None:
            raise NotTraced(f"not traced: operand {operand} is not known to the tracer")
        if kind == "pred":
            return np.bool_(number)
        if dtype.kind == "f":
            return dtype.type(number)
        bits = 8 * dtype.itemsize
        return np.array(number & ((1 << bits) - 1), _RAW[dtype.itemsize]).view(dtype)[()]

    def integer(self, operand: str) -> int | None:
        """The value of an integer immediate, or of a variable's address with an offset ("tile+4")."""
        if _IMMEDIATE.match(operand):
            text = operand.rstrip("U")
            octal = re.fullmatch(r"([+-]?)0([0-7]+)", text)
            return int(octal.group(1) + octal.group(2), 8) if octal else int(text, 0)
        if operand in self.symbols:
            return self.symbols[operand]
        if found := re.fullmatch(r"([\w$.]+)\s*\+?\s*([+-]?\s*\d+)", operand):
            base = self.symbols.get(found.group(1))
            return None if base is None else base + int(found.group(2).replace(" ", ""))
        return None

    def write(self, operand: str, kind: str) -> Array:
        """Where a result of this type goes: a view that numpy can write into (a wider register is extended by sign)."""
        dtype = np.dtype(DTYPES[kind])
        raw = self.raw(operand)
        if raw.dtype == dtype:
            return raw
        if raw.dtype.itemsize == dtype.itemsize:
            return raw.view(dtype)
        if raw.dtype.itemsize > dtype.itemsize and dtype.kind in "iu":
            return raw.view(np.dtype(f"{dtype.kind}{raw.dtype.itemsize}"))
        raise NotTraced(f"not traced: {operand} cannot take a {kind}")

    def address(self, operand: str) -> tuple[Array | None, int]:
        """(register with the base as 64-bit integers or None, constant offset in bytes) of "[%rd1+4]"."""
        inner = operand.strip("[] ")
        found = re.fullmatch(r"([%\w$.]+)\s*(?:\+\s*([+-]?\s*(?:0x)?[0-9a-fA-F]+)|([+-]\s*\d+))?", inner)
        if found and found.group(1) in self.declared:
            offset = int((found.group(2) or found.group(3) or "0").replace(" ", ""), 0)
            return self.raw(found.group(1)), offset
        number = self.integer(inner)
        if number is None:
            raise NotTraced(f"not traced: address {operand}")
        return None, number
