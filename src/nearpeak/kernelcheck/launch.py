"""From a declaration and sizes to what is launched: grid, block, shared bytes and the values of the arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearpeak.kernelcheck import expression
from nearpeak.kernelcheck.c_functions import Function, Parameter
from nearpeak.kernelcheck.kernel import Declaration, Sizes, Tensors
from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import torch

Three = tuple[int, int, int]

MAX_THREADS = 1024  # of a block, on every NVIDIA and AMD GPU
MAX_BLOCK: Three = (1024, 1024, 64)
MAX_GRID: Three = (2**31 - 1, 65535, 65535)
SWIZZLES = ("none", "swizzle32", "swizzle64", "swizzle128")


@dataclass(frozen=True)
class TensorMapRequest:
    """An argument `tensormap(a, box_columns, box_rows, swizzle)`; the box in elements of a row-major matrix."""

    name: str
    box_columns: int
    box_rows: int
    swizzle: str


@dataclass(frozen=True)
class Geometry:
    """grid in blocks (work-groups, programs), block in threads, shared in bytes."""

    grid: Three
    block: Three
    shared: int


def geometry(declaration: Declaration, sizes: Sizes, comment: str = "//") -> Geometry:
    """What is launched for these sizes.

    Raises UserError: `require` does not hold, no grid or block declared, a grid or block outside of what a GPU takes.
    """
    check_required(declaration, sizes)
    for key in ("grid", "block"):
        if not getattr(declaration, key):
            example = "ceil(n / 16), ceil(m / 16)" if key == "grid" else "16, 16"
            raise UserError(
                f"kernel '{declaration.kernel}' declares no {key}; add the line '{comment} nearpeak: {key} {example}' "
                f"or give --{key} '{example}'"
            )
    block = _three(declaration.block, sizes)
    grid = check_grid(declaration, sizes)
    for value, most, axis in zip(block, MAX_BLOCK, "xyz", strict=True):
        if not 1 <= value <= most:
            raise UserError(f"block.{axis} is {value}; it must lie between 1 and {most}")
    if (threads := block[0] * block[1] * block[2]) > MAX_THREADS:
        raise UserError(f"a block of {_times(block)} = {threads} threads; at most {MAX_THREADS}")
    shared = expression.evaluate(declaration.shared, sizes)
    if shared < 0:
        raise UserError(f"'shared {declaration.shared}' is {shared} bytes")
    return Geometry(grid, block, shared)


def check_required(declaration: Declaration, sizes: Sizes) -> None:
    """Raises UserError where the sizes are not among those that the kernel says it takes."""
    if declaration.require is not None and not expression.holds(declaration.require, sizes):
        given = ", ".join(f"{name} = {sizes[name]}" for name in sorted(expression.names(declaration.require)))
        raise UserError(f"kernel '{declaration.kernel}' requires {declaration.require}; here {given}")


def check_grid(declaration: Declaration, sizes: Sizes) -> Three:
    """The grid in blocks. Raises UserError where a GPU does not take it."""
    grid = _three(declaration.grid, sizes)
    for value, most, axis, text in zip(grid, MAX_GRID, "xyz", (*declaration.grid, "1", "1"), strict=False):
        if not 1 <= value <= most:
            used = ", ".join(f"{name} = {sizes[name]}" for name in sorted(expression.names(text)) if name in sizes)
            raise UserError(
                f"grid.{axis} is {value} ('{text}'{', ' + used if used else ''}); it must lie between 1 and {most}"
            )
    return grid


def values(
    declaration: Declaration, tensors: Tensors, sizes: Sizes
) -> tuple[torch.Tensor | int | TensorMapRequest, ...]:
    """The arguments' values in order. Raises UserError for one that names neither a tensor nor sizes."""
    return tuple(_value(text, tensors, sizes) for text in declaration.args)


def _value(text: str, tensors: Tensors, sizes: Sizes) -> torch.Tensor | int | TensorMapRequest:
    if text in tensors:
        return tensors[text]
    if re.match(r"tensormap\s*\(", text):
        return _tensor_map(text, tensors, sizes)
    try:
        return expression.evaluate(text, sizes)
    except UserError as error:
        raise UserError(f"argument '{text}': {error}; its tensors: {', '.join(tensors) or 'none'}") from None


def _tensor_map(text: str, tensors: Tensors, sizes: Sizes) -> TensorMapRequest:
    tree = expression.parse(text)
    parts = [ast.unparse(part) for part in tree.args] if isinstance(tree, ast.Call) and not tree.keywords else []
    if len(parts) not in (3, 4):
        raise UserError(f"'{text}': a tensor map is tensormap(tensor, box_columns, box_rows, swizzle128)")
    swizzle = parts[3] if len(parts) == 4 else "none"
    if parts[0] not in tensors:
        raise UserError(f"'{text}' names no tensor of this op; its tensors: {', '.join(tensors) or 'none'}")
    if swizzle not in SWIZZLES:
        raise UserError(f"'{text}': the swizzle is one of {', '.join(SWIZZLES)}")
    columns, rows = (expression.evaluate(part, sizes) for part in parts[1:3])
    return TensorMapRequest(parts[0], columns, rows, swizzle)


def check_arguments(function: Function, declaration: Declaration, given: Sequence[object]) -> None:
    """Compare values with the function's parameters: their number, and addresses where addresses are expected.

    Raises UserError that shows the parameter list.
    """
    shown = function.listed()
    if not declaration.args:
        raise UserError(
            f"kernel '{declaration.kernel}' declares no args; name the op's tensors and sizes in the order of {shown}"
        )
    if len(given) != len(function.parameters):
        raise UserError(
            f"{shown} takes {len(function.parameters)} arguments, the declaration names {len(given)}: "
            + ", ".join(declaration.args)
        )
    for parameter, value, text in zip(function.parameters, given, declaration.args, strict=True):
        whole = isinstance(value, int)
        if whole and parameter.pointer:
            raise UserError(f"parameter '{parameter}' of {function.name} takes an address, '{text}' is a number")
        if not whole and not isinstance(value, TensorMapRequest) and not parameter.pointer:
            raise UserError(f"parameter '{parameter}' of {function.name} takes no address, '{text}' is a tensor")
        if isinstance(value, TensorMapRequest) and parameter.pointer:
            raise UserError(
                f"parameter '{parameter}' of {function.name}: a tensor map is passed as a value, "
                "const __grid_constant__ CUtensorMap"
            )


def check_type(parameter: Parameter, tensor: torch.Tensor, text: str) -> None:
    """Raises UserError where a pointer to single floating-point numbers gets a tensor of others.

    Vector types, chars, integers and the file's own names pass: kernels read any tensor through them.
    """
    expected = _POINTEES.get(_bare(parameter.type))
    actual = str(tensor.dtype).removeprefix("torch.")
    if expected is not None and tensor.dtype.is_floating_point and actual != expected:
        raise UserError(
            f"parameter '{parameter}' takes {expected}, tensor '{text}' holds {actual}; give the right --precision"
        )


_POINTEES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "__half": "float16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
}
_QUALIFIERS = (
    r"\b(const|volatile|restrict|__restrict__|__restrict|__grid_constant__|__global|global|__constant|constant)\b"
)


def _bare(type_text: str) -> str:
    """The type without qualifiers and asterisks."""
    return " ".join(re.sub(_QUALIFIERS + r"|\*", " ", type_text).split())


def _three(expressions: Sequence[str], sizes: Sizes) -> Three:
    x, y, z = (expression.evaluate(text, sizes) for text in (*expressions, "1", "1")[:3])
    return x, y, z


def _times(three: Three) -> str:
    return " × ".join(map(str, three))
