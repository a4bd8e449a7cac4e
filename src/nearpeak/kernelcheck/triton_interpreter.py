"""Triton's interpreter: whether it is on, and a mend for its products of bf16."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nearpeak.records.errors import UserError


def prepare(interpret: bool) -> None:
    """Import Triton so that its functions are interpreted, or compiled: it decides that when it is first imported.

    Raises UserError where Triton is missing, or was imported before in the other way.
    """
    if interpret and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton.language as tl
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError:
        raise UserError("Triton is not installed; it comes with torch for CUDA and ROCm: pip install triton") from None
    interpreting = isinstance(tl.cdiv, InterpretedFunction)
    if interpret and not (interpreting and os.environ.get("TRITON_INTERPRET") == "1"):
        raise UserError(
            "without a GPU a Triton kernel runs in Triton's interpreter, but Triton was imported before without it; "
            "set TRITON_INTERPRET=1 before the program starts"
        )
    if not interpret and interpreting:
        raise UserError("TRITON_INTERPRET=1 is set, so Triton cannot use the GPU; unset it, or check on the CPU")


@contextmanager
def right_products() -> Iterator[None]:
    """While it lasts, the interpreter multiplies bf16 matrices by their values.

    By itself (Triton 3.6 to 3.9) it keeps bf16 as 16-bit integers and multiplies those, so that a right kernel looks
    wrong.
    """
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    original = builder.create_dot

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16 or operand.data.dtype != numpy.uint16:
            return operand
        values = (operand.data.astype(numpy.uint32) << 16).view(numpy.float32)
        return interpreter.TensorHandle(values, tl.float32)

    def create_dot(a: Any, b: Any, *rest: Any) -> Any:
        return original(widened(a), widened(b), *rest)

    builder.create_dot = create_dot
    try:
        yield
    finally:
        del builder.create_dot
