"""Loads, stores, atomics and asynchronous copies of PTX over all threads of a block at once; each is noted as it is
made.

Meaning: NVIDIA, "Parallel Thread Execution ISA", 9.7.9 (data movement) and 9.7.13 (atom, red). A `cp.async` is
carried out at once, which is one of the orders that the hardware may choose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from nearpeak.kernelcheck.ptx_integer import Step
from nearpeak.kernelcheck.ptx_records import TYPE_BYTES, Instruction
from nearpeak.kernelcheck.ptx_registers import DTYPES, Array, NotTraced, Registers, Where, unknown
from nearpeak.kernelcheck.trace_memory import Memory

SPACES = ("global", "shared", "local", "const", "param")
_HINTS = (
    "weak",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "volatile",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "noftz",
    "shared::cta",
    "v2",
    "v4",
)


class Context(Protocol):
    """What the memory instructions need of the tracer."""

    memory: Memory
    parameters: dict[str, bytes]
    lanes: Array

    def note(self, index: int, space: str, kind: str, addresses: Array, where: Where) -> None: ...


def _space(i: Instruction) -> str:
    words = [m for m in i.modifiers if m.split("::")[0] in SPACES]
    extra = [
        m
        for m in i.modifiers
        if m not in words and m not in DTYPES and m not in _HINTS and m[:4] not in ("L1::", "L2::")
    ]
    if extra or len(words) > 1 or (words and words[0].endswith("::cluster")):
        raise unknown(i)
    return words[0].split("::")[0] if words else "generic"


def _addresses(r: Registers, operand: str) -> Callable[[], Array]:
    """A function that gives a new array of the addresses of all threads, as 64-bit integers."""
    base, offset = r.address(operand)
    if base is None:
        return lambda: np.full(r.threads, offset, np.int64)
    return lambda: base.astype(np.int64) + offset


def _chosen(values: Any, where: Where) -> Any:
    """The active threads' part of an operand."""
    return values if where is True or np.ndim(values) == 0 else values[where]


def load(index: int, i: Instruction, r: Registers, context: Context) -> Step:
    """ld in all spaces, scalar or vector."""
    space, kind = _space(i), i.modifiers[-1]
    if kind not in DTYPES or kind == "pred":
        raise unknown(i)
    names = [n.strip() for n in i.operands[0].strip("{} ").split(",")]
    targets = [r.write(n, kind) if n != "_" else None for n in names]
    dtype, each = DTYPES[kind], TYPE_BYTES[kind]
    if space == "param":
        return _load_parameter(i, targets, kind, context)
    addresses, memory, size = _addresses(r, i.operands[1]), context.memory, each * len(names)

    def step(where: Where) -> None:
        every = addresses()
        context.note(index, space, "read", every, where)
        active, threads = _chosen(every, where), _chosen(context.lanes, where)
        for place, buffer, offsets, which in memory.split(active, space):
            memory.check(place, buffer, offsets, size, f"the read in line {i.line}")
            for k, target in enumerate(targets):
                if target is not None:
                    value = memory.load(place, buffer, offsets + each * k, dtype, threads[which])
                    if where is True and isinstance(which, slice):
                        target[...] = value
                    else:
                        target[threads[which]] = value

    return step


def _load_parameter(i: Instruction, targets: list[Array | None], kind: str, context: Context) -> Step:
    name, _, offset = i.operands[1].strip("[] ").partition("+")
    if name.strip() not in context.parameters:
        raise unknown(i, "reads parameters through an address, which is not known to the tracer")
    data, each = context.parameters[name.strip()], TYPE_BYTES[kind]
    start = int(offset or "0")
    values = np.frombuffer(data[start : start + each * len(targets)], DTYPES[kind])

    def step(where: Where) -> None:
        for target, value in zip(targets, values, strict=True):
            if target is not None:
                np.copyto(target, value, where=where)

    return step


def save(index: int, i: Instruction, r: Registers, context: Context) -> Step:
    """st in all spaces, scalar or vector."""
    space, kind = _space(i), i.modifiers[-1]
    if kind not in DTYPES or space in ("param", "const"):
        raise unknown(i)
    values = [r.read(n.strip(), kind) for n in i.operands[1].strip("{} ").split(",")]
    dtype, each = DTYPES[kind], TYPE_BYTES[kind]
    addresses, memory, size = _addresses(r, i.operands[0]), context.memory, each * len(values)

    def step(where: Where) -> None:
        every = addresses()
        context.note(index, space, "write", every, where)
        active, threads = _chosen(every, where), _chosen(context.lanes, where)
        for place, buffer, offsets, which in memory.split(active, space):
            memory.check(place, buffer, offsets, size, f"the write in line {i.line}")
            for k, value in enumerate(values):
                part = value if np.ndim(value) == 0 else value[threads[which]]
                memory.store(place, buffer, offsets + each * k, part, dtype, threads[which])

    return step


def _wrap_up(old: Any, limit: Any) -> Any:
    return old * 0 if old >= limit else old + old.dtype.type(1)


def _wrap_down(old: Any, limit: Any) -> Any:
    return limit if old == 0 or old > limit else old - old.dtype.type(1)


_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "exch": lambda old, b: b,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "inc": _wrap_up,
    "dec": _wrap_down,
}


def atomic(index: int, i: Instruction, r: Registers, context: Context) -> Step:
    """atom and red: the threads one after the other, in their order."""
    words = [m for m in i.modifiers if m in _ATOMIC or m == "cas"]
    kind = i.modifiers[-1]
    rest = Instruction(i.opcode, tuple(m for m in i.modifiers if m not in words), i.operands, line=i.line)
    space = _space(rest)
    if (
        len(words) != 1
        or kind not in DTYPES
        or kind in ("f16x2", "bf16x2", "bf16")
        or "v2" in i.modifiers
        or "v4" in i.modifiers
    ):
        raise unknown(i)
    operands = list(i.operands) if i.opcode == "atom" else ["_", *i.operands]
    target = r.write(operands[0], kind) if operands[0] != "_" else None
    inputs = [r.read(o, kind) for o in operands[2:]]
    dtype, size = DTYPES[kind], TYPE_BYTES[kind]
    addresses, memory = _addresses(r, operands[1]), context.memory

    def step(where: Where) -> None:
        every = addresses()
        context.note(index, space, "atomic", every, where)
        active, threads = _chosen(every, where), _chosen(context.lanes, where)
        for place, buffer, offsets, which in memory.split(active, space):
            memory.check(place, buffer, offsets, size, f"the atomic operation in line {i.line}")
            for thread, offset in zip(threads[which], offsets, strict=True):
                one, lane = np.array([offset]), np.array([thread])
                old = memory.load(place, buffer, one, dtype, lane)[0]
                b = [v if np.ndim(v) == 0 else v[thread] for v in inputs]
                new = (b[1] if old == b[0] else old) if words[0] == "cas" else _ATOMIC[words[0]](old, b[0])
                memory.store(place, buffer, one, new, dtype, lane)
                if target is not None:
                    target[thread] = old

    return step


def copy_async(index: int, i: Instruction, r: Registers, context: Context) -> Step | None:
    """cp.async of 4, 8 or 16 bytes from global to shared memory; None for its commit and wait, which have nothing to
    do."""
    words = i.modifiers[1:] if i.modifiers and i.modifiers[0] == "async" else ()
    if words and words[0] in ("commit_group", "wait_group", "wait_all") and len(words) == 1:
        return None
    plain = tuple(w for w in words if not w.startswith("L2::"))
    if plain[:1] not in (("ca",), ("cg",)) or plain[1:] not in (("shared", "global"), ("shared::cta", "global")):
        raise unknown(i)
    size = r.integer(i.operands[2])
    if size not in (4, 8, 16) or len(i.operands) > 4:
        raise unknown(i)
    to, source, memory = _addresses(r, i.operands[0]), _addresses(r, i.operands[1]), context.memory
    given = r.read(i.operands[3], "u32") if len(i.operands) > 3 else np.uint32(size)

    def step(where: Where) -> None:
        targets, sources = to(), source()
        bytes_of = np.broadcast_to(given, (r.threads,))
        wanted = (bytes_of > 0) if where is True else where & (bytes_of > 0)
        context.note(index, "shared", "write", targets, where)
        active = _chosen(targets, where)
        memory.check("shared", None, active, size, f"the copy in line {i.line}")
        data = np.zeros((r.threads, size), np.uint8)
        if wanted.any():
            context.note(index, "global", "read", sources, wanted)
            threads = np.flatnonzero(wanted)
            for place, buffer, offsets, which in memory.split(sources[wanted], "global"):
                lengths = bytes_of[threads[which]]
                if (offsets % size).any():
                    raise NotTraced(
                        f"misaligned: the copy in line {i.line} needs addresses that are multiples of {size}"
                    )
                for byte in range(int(lengths.max())):
                    some = lengths > byte
                    memory.check(place, buffer, offsets[some] + byte, 1, f"the copy in line {i.line}")
                    if buffer is None:
                        raise unknown(i, "copies from elsewhere than global memory")
                    data[threads[which][some], byte] = buffer.load(offsets[some] + byte, np.uint8)
        words = data.view(np.uint32)
        words = words if where is True else words[where]
        for k in range(size // 4):
            memory.store("shared", None, active + 4 * k, words[:, k], np.uint32, active)

    return step
