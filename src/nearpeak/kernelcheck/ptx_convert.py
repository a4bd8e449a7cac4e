"""cvt, cvta: conversions between the types of PTX, over all threads of a block at once.

Meaning: NVIDIA, "Parallel Thread Execution ISA", 9.7.9 (cvt). To fp32 and narrower only rounding to nearest is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_float import flushed, pack, reader, writer
from nearpeak.kernelcheck.ptx_integer import Step, computed
from nearpeak.kernelcheck.ptx_records import TYPE_BYTES, Instruction
from nearpeak.kernelcheck.ptx_registers import DTYPES, Registers, unknown
from nearpeak.kernelcheck.trace_memory import LOCAL_REGION, REGION_BITS, SHARED_REGION

_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(i: Instruction, r: Registers) -> Step:
    """cvt.<to>.<from>, with roundings, saturation, ftz and relu."""
    kinds = [m for m in i.modifiers if m in DTYPES or m == "tf32"]
    words = [m for m in i.modifiers if m not in kinds]
    if len(kinds) != 2 or any(w not in ("rn", "rna", "sat", "ftz", "relu", *_TO_INTEGRAL) for w in words):
        raise unknown(i)
    to, source = kinds
    if to == "tf32":
        return _to_tf32(i, r)
    if to in ("f16x2", "bf16x2"):  # two fp32 values, the first into the upper half
        if source != "f32" or len(i.operands) != 3 or "sat" in words:
            raise unknown(i)
        high, low = r.read(i.operands[1], "f32"), r.read(i.operands[2], "f32")

        def packed() -> Any:
            both = np.stack(np.broadcast_arrays(np.atleast_1d(low), np.atleast_1d(high)), axis=1)
            return pack(np.where(both < 0, 0, both) if "relu" in words else both, to)

        return computed(r.write(i.operands[0], to), packed)
    if source in ("f16x2", "bf16x2", "pred") or to == "pred":
        raise unknown(i)
    if to[0] in "us" and source[0] in "us":
        return _integers(i, r, to, source, "sat" in words)
    if to[0] in "us":
        return _to_integer(i, r, to, source, words)
    value = reader(r, i.operands[1], source) if source[0] not in "us" else _constant(r.read(i.operands[1], source))
    target, rounded = writer(r, i.operands[0], to)
    integral = [_TO_INTEGRAL[w] for w in words if w in _TO_INTEGRAL]
    if "rna" in words or (integral and source[0] in "us"):
        raise unknown(i)

    def converted() -> Any:
        result = value()
        if "ftz" in words and source == "f32":
            result = flushed(result)
        if integral:
            result = integral[0](result)
        if "sat" in words:
            result = np.where(np.isnan(result), 0, np.clip(result, 0, 1))
        if "relu" in words:
            result = np.where(np.isnan(result), result, np.maximum(result, 0))
        return rounded(result)

    return computed(target, converted)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _integers(i: Instruction, r: Registers, to: str, source: str, saturate: bool) -> Step:
    a, target = r.read(i.operands[1], source), r.write(i.operands[0], to)
    if not saturate:
        dtype = DTYPES[to]
        return computed(target, lambda: np.asarray(a).astype(dtype))
    limits = np.iinfo(np.dtype(DTYPES[to]))
    low, high = max(int(limits.min), -(2**63)), int(limits.max)
    return computed(target, lambda: np.asarray(np.clip(np.asarray(a).astype(object), low, high)).astype(DTYPES[to]))


def _to_integer(i: Instruction, r: Registers, to: str, source: str, words: list[str]) -> Step:
    """Float → integer: the rounding is named; what does not fit is held at the type's limits, NaN gives 0."""
    rounding = [w for w in words if w in _TO_INTEGRAL]
    if not rounding or "relu" in words:
        raise unknown(i)
    value, target = reader(r, i.operands[1], source), r.write(i.operands[0], to)
    limits = np.iinfo(np.dtype(DTYPES[to]))
    dtype = DTYPES[to]

    def converted() -> Any:
        whole = _TO_INTEGRAL[rounding[0]](np.asarray(value()).astype(np.float64))
        below, above, bad = whole <= limits.min, whole >= float(limits.max), np.isnan(whole)
        inside = np.where(below | above | bad, 0, whole).astype(dtype)
        return np.where(bad, dtype(0), np.where(below, dtype(limits.min), np.where(above, dtype(limits.max), inside)))

    return computed(target, converted)


def _to_tf32(i: Instruction, r: Registers) -> Step:
    """fp32 → tf32: 10 bits of mantissa, ties away from zero (.rna) or to even (.rn)."""
    a, target = r.read(i.operands[1], "b32"), r.write(i.operands[0], "b32")
    away = "rna" in i.modifiers

    def converted() -> Any:
        even = np.uint32(0x1000) if away else np.uint32(0xFFF) + ((a >> np.uint32(13)) & np.uint32(1))
        special = (a & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
        return np.where(special, a, (a + even) & np.uint32(0xFFFFE000))

    return computed(target, converted)


_SPACES = ("global", "shared", "local", "const", "param")


def convert_address(i: Instruction, r: Registers) -> Step:
    """cvta: between generic addresses and those of one space. Global ones and parameters' are the same in both."""
    to, spaces = "to" in i.modifiers, [m for m in i.modifiers if m in _SPACES]
    kind = i.modifiers[-1]
    if not spaces or TYPE_BYTES.get(kind, 0) not in (4, 8) or "::" in i.name:
        if "::cta" not in i.name:
            raise unknown(i)
        spaces = ["shared"]
    target, a = r.write(i.operands[0], kind), r.read(i.operands[1], kind)
    region = {"shared": SHARED_REGION, "local": LOCAL_REGION}.get(spaces[0], 0) << REGION_BITS
    if TYPE_BYTES[kind] != 8 or not region:
        return computed(target, lambda: a)
    offset = target.dtype.type(region)
    return computed(target, (lambda: a - offset) if to else (lambda: a + offset))
