"""Floating-point instructions of PTX over all threads of a block at once: fp16, bf16 (also in pairs), fp32, fp64.

Sums, products, quotients and roots are rounded as the hardware rounds them. A fused multiply-add is computed in the
next wider type and rounded once more, which differs by one unit in the last place in rare cases; the `.approx`
instructions are computed exactly where the hardware is off by a few units. Other roundings than to nearest (.rz, .rm,
.rp) are known of fp32 multiply-adds alone, which expf needs. Meanings: NVIDIA, "Parallel Thread Execution ISA", 9.7.3
to 9.7.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_integer import Decoder, Step, computed
from nearpeak.kernelcheck.ptx_records import Instruction
from nearpeak.kernelcheck.ptx_registers import DTYPES, Registers, kind_of, unknown

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
_ALLOWED = ("rn", "ftz", "sat", "approx", "full", "relu", "NaN")


def bf16_to_float(bits: Any) -> Any:
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def float_to_bf16(value: Any) -> Any:
    """The nearest bf16 (ties to even) of fp32 values, as bits."""
    value = np.atleast_1d(np.asarray(value, np.float32))
    words = value.view(np.uint32)
    rounded = (words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FFF), rounded).astype(np.uint16)


def unpack(words: Any, kind: str) -> Any:
    """(threads,) 32-bit words → (threads, 2) fp32 values, the low half first."""
    halves = np.atleast_1d(words).view(np.uint32).copy().view(np.uint16).reshape(-1, 2)
    return halves.view(np.float16).astype(np.float32) if kind == "f16x2" else bf16_to_float(halves)


def pack(values: Any, kind: str) -> Any:
    """(threads, 2) values → (threads,) words."""
    halves = (
        values.astype(np.float16).view(np.uint16) if kind == "f16x2" else float_to_bf16(values).reshape(values.shape)
    )
    return np.ascontiguousarray(halves).view(np.uint32)[:, 0]


def reader(r: Registers, operand: str, kind: str) -> Callable[[], Any]:
    """A function that gives an operand's values in a type that numpy computes in."""
    bits = r.read(operand, kind)
    if kind in ("f16x2", "bf16x2"):
        return lambda: unpack(bits, kind)
    if kind == "bf16":
        return lambda: bf16_to_float(bits)
    if kind == "f16":
        return lambda: np.asarray(bits).astype(np.float32)
    return lambda: bits


def writer(r: Registers, operand: str, kind: str) -> tuple[Any, Callable[[Any], Any]]:
    """(where a result goes, how it is rounded to the type)."""
    target = r.write(operand, kind)
    if kind in ("f16x2", "bf16x2"):
        return target, lambda v: pack(np.broadcast_to(v, (r.threads, 2)), kind)
    if kind == "bf16":
        return target, lambda v: float_to_bf16(v)
    dtype = DTYPES[kind]
    return target, lambda v: np.asarray(v).astype(dtype)


def flushed(value: Any) -> Any:
    """Subnormal fp32 numbers replaced by zero (`.ftz`)."""
    return np.where(np.abs(value) < np.float32(1.1754944e-38), np.copysign(np.float32(0), value), value)


def _operation(function: Callable[..., Any], operands: int, wider: bool = False) -> Decoder:
    def decode(i: Instruction, r: Registers) -> Step:
        kind = kind_of(i, _ALLOWED)
        if kind not in FLOATS:
            raise unknown(i)
        extra = [m for m in i.modifiers if m in ("ftz", "sat", "relu", "NaN")]
        if "NaN" in extra and i.opcode not in ("min", "max"):
            raise unknown(i)
        if isinstance(function, np.ufunc) and kind in ("f32", "f64") and not extra:
            target, inputs = r.write(i.operands[0], kind), [r.read(o, kind) for o in i.operands[1 : 1 + operands]]
            return lambda where: function(*inputs, out=target, where=where)
        sources = [reader(r, o, kind) for o in i.operands[1 : 1 + operands]]
        target, rounded = writer(r, i.operands[0], kind)
        inside: Any = np.longdouble if kind == "f64" else np.float64

        def value() -> Any:
            values = [s() for s in sources]
            if "ftz" in extra and kind in ("f32",):
                values = [flushed(v) for v in values]
            if "NaN" in extra:
                result = np.where(np.isnan(values[0]) | np.isnan(values[1]), np.nan, function(*values))
            else:
                result = function(*(np.asarray(v).astype(inside) for v in values)) if wider else function(*values)
            if "sat" in extra:
                result = np.where(np.isnan(result), 0, np.clip(result, 0, 1))
            if "relu" in extra:
                result = np.where(np.isnan(result), result, np.maximum(result, 0))
            return rounded(
                flushed(np.asarray(result).astype(np.float32)) if "ftz" in extra and kind == "f32" else result
            )

        return computed(target, value)

    return decode


def fused(i: Instruction, r: Registers) -> Step:
    """fma, and mad of floats, which is the same."""
    if i.modifiers[-1] == "f32" and set(i.modifiers) & set(_TOWARDS):
        return _directed(i, r)
    kind = kind_of(i, _ALLOWED)
    if kind != "f32" or any(m in ("ftz", "sat", "relu") for m in i.modifiers):
        return _operation(lambda a, b, c: a * b + c, 3, wider=True)(i, r)
    target = r.write(i.operands[0], "f32")
    a, b, c = (r.read(o, "f32") for o in i.operands[1:4])
    product = np.empty(r.threads, np.float64)  # a product of two fp32 numbers is exact in fp64

    def step(where: Any) -> None:
        np.multiply(a, b, out=product, dtype=np.float64)
        np.add(product, c, out=product)
        np.copyto(target, product, where=where, casting="same_kind")

    return step


def _directed(i: Instruction, r: Registers) -> Step:
    """fma.rz, .rm, .rp of fp32: rounded towards zero, down, up."""
    mode = next(m for m in i.modifiers if m in _TOWARDS)
    kind_of(i, (mode,))
    sources = [r.read(o, "f32") for o in i.operands[1:4]]

    def value() -> Any:
        a, b, c = (np.asarray(s).astype(np.float64) for s in sources)
        exact = a * b + c
        near = exact.astype(np.float32)
        over = {"rm": near > exact, "rp": near < exact, "rz": np.abs(near) > np.abs(exact)}[mode]
        return np.where(over, np.nextafter(near, np.float32(_TOWARDS[mode])), near)

    return computed(r.write(i.operands[0], "f32"), value)


_TOWARDS = {"rm": -np.inf, "rp": np.inf, "rz": 0.0}


def test_class(i: Instruction, r: Registers) -> Step:
    """testp: is a number finite, infinite, a NaN, normal, subnormal."""
    kind, what = i.modifiers[-1], i.modifiers[0]
    a, target = r.read(i.operands[1], kind), r.predicate(i.operands[0])
    tiny = np.finfo(np.dtype(DTYPES[kind])).tiny
    tests: dict[str, Callable[[], Any]] = {
        "finite": lambda: np.isfinite(a),
        "infinite": lambda: np.isinf(a),
        "number": lambda: ~np.isnan(a),
        "notanumber": lambda: np.isnan(a),
        "normal": lambda: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda: (a != 0) & (np.abs(a) < tiny),
    }
    if what not in tests or kind not in ("f32", "f64"):
        raise unknown(i)
    return computed(target, tests[what])


FLOAT: dict[str, Decoder] = {
    "add": _operation(np.add, 2),
    "sub": _operation(np.subtract, 2),
    "mul": _operation(np.multiply, 2),
    "div": _operation(np.divide, 2),
    "fma": fused,
    "mad": fused,
    "min": _operation(np.fmin, 2),
    "max": _operation(np.fmax, 2),
    "neg": _operation(np.negative, 1),
    "abs": _operation(np.absolute, 1),
    "sqrt": _operation(np.sqrt, 1),
    "rcp": _operation(np.reciprocal, 1),
    "rsqrt": _operation(lambda a: 1 / np.sqrt(a), 1, wider=True),
    "ex2": _operation(np.exp2, 1),
    "lg2": _operation(np.log2, 1),
    "sin": _operation(np.sin, 1),
    "cos": _operation(np.cos, 1),
    "tanh": _operation(np.tanh, 1),
    "copysign": _operation(lambda a, b: np.copysign(b, a), 2),
    "testp": test_class,
}
