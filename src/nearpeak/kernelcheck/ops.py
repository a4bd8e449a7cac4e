"""The ops that a kernel can be checked as, by name, and a user's own function as one."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

import torch

from nearpeak.kernelcheck.kernel import Sizes, Tensors
from nearpeak.kernelcheck.op import Op, OpTensor, Rows, Truth
from nearpeak.kernelcheck.ops_elements import BINARY, UNARY, element_ops
from nearpeak.kernelcheck.ops_matrix import products
from nearpeak.kernelcheck.ops_rows import row_ops
from nearpeak.kernelcheck.rounding import input_dtype
from nearpeak.records.errors import UserError

OPS: dict[str, Op] = {op.name: op for op in (*products(), *row_ops(), *element_ops())}


def find_op(name: str, layout: str | None = None) -> Op:
    """The op of this name. "elementwise:gelu" is "gelu"; field_sum needs its layout, "arrays" or "structures".

    Raises UserError with the nearest names.
    """
    wanted = name.removeprefix("elementwise:").strip()
    if wanted == "field_sum" and layout in ("arrays", "structures"):
        wanted = f"field_sum_{layout}"
    if wanted in OPS:
        return OPS[wanted]
    if wanted == "field_sum":
        raise UserError("field_sum needs its layout: arrays for x (8, n), structures for x (n, 8)")
    if wanted == "elementwise":
        raise UserError(f"elementwise needs its function, as in elementwise:add; there are {', '.join(UNARY | BINARY)}")
    near = get_close_matches(wanted, OPS, 3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise UserError(
        f"no op is called {name}; {meant}There are {', '.join(OPS)}; for another give --reference file.py:fn"
    )


def parse_shape(op: Op, text: str) -> dict[str, int]:
    """Sizes from "4096,4096,4096" (also with × or x between). Raises UserError with the names that are wanted."""
    parts = [part for part in re.split(r"[,x×\s]+", text.strip()) if part]
    names = ", ".join(op.sizes)
    if len(parts) != len(op.sizes):
        raise UserError(f"--shape {text}: {op.name} takes {len(op.sizes)} sizes ({names}), not {len(parts)}")
    sizes = {}
    for name, part in zip(op.sizes, parts, strict=True):
        if not part.isdecimal() or not 1 <= int(part) < 2**31:
            raise UserError(f"--shape {text}: {name} is {part}; it must be a whole number from 1 to 2147483647")
        sizes[name] = int(part)
    return sizes


def load_function(where: str) -> Callable[..., torch.Tensor]:
    """The function of "file.py:fn". The user's own file is run: it is the one they named.

    Raises UserError where the file or the function is not there.
    """
    path, _, name = where.rpartition(":")
    if not path or not Path(path).is_file():
        raise UserError(f"--reference {where}: give file.py:function; {path or where} is no file")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"--reference {where}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"--reference {where}: {path} has no function {name}")
    return function  # type: ignore[no-any-return]


def op_of_function(
    function: Callable[..., torch.Tensor], sizes: Sequence[str], inputs: Sequence[str], output: str, flop: str = "0"
) -> Op:
    """An Op from flags: sizes "m", "n"; inputs "x=m, n" or "w=n@fp32" (a dtype of its own); output "y=m, n".

    Shapes and `flop` are expressions over the sizes. `function` takes the inputs in that order, in fp64 for the truth
    and in their own dtypes for the comparison, and returns the output.
    """
    given = [_tensor_of_flag(text, "input") for text in inputs]
    out = _tensor_of_flag(output, "output")

    def call(tensors: Tensors, wide: bool) -> torch.Tensor:
        values = [tensors[t.name].clone() for t in given]
        result = function(*(v.double() if wide and v.is_floating_point() else v for v in values))
        if not isinstance(result, torch.Tensor):
            raise UserError(f"--reference: the function returned {type(result).__name__}, no tensor")
        return result

    def truth(tensors: Tensors, of: Sizes, rows: Rows) -> Truth:
        value = call(tensors, True).double()
        if tuple(value.shape) != out.shape(of):
            raise UserError(f"--reference: the function returned shape {tuple(value.shape)}, not {out.shape(of)}")
        finite = value.nan_to_num(0.0, 0.0, 0.0)
        value = value.reshape(out.shape(of)[0], -1)[rows]
        return Truth(value, 8 * (value.abs() + finite.square().mean().sqrt()))

    return Op(
        name=getattr(function, "__name__", "reference"),
        about="the user's own function",
        sizes=tuple(sizes),
        tensors=(*given, out),
        truth=truth,
        rows=lambda of: out.shape(of)[0],
        flop=lambda of: _evaluate(flop, of),
        source="the user's own count",
        library=lambda tensors, of: call(tensors, False),
        nan_in=tuple(t.name for t in given),
        trust_library=True,
    )


def _tensor_of_flag(text: str, role: str) -> OpTensor:
    name, _, rest = text.partition("=")
    shape, _, precision = rest.partition("@")
    parts = [part.strip() for part in shape.split(",") if part.strip()]
    if not name.strip().isidentifier() or not parts:
        raise UserError(f"{text}: a tensor is given as name=size, size, as in x=m, n")

    def shape_of(sizes: Sizes) -> tuple[int, ...]:
        return tuple(_evaluate(part, sizes) for part in parts)

    own = precision.strip()
    dtype = (lambda asked: input_dtype(own)) if own else input_dtype
    return OpTensor(name.strip(), "output" if role == "output" else "input", shape_of, dtype)


def _evaluate(text: str, sizes: Sizes) -> int:
    if text.isdecimal():
        return int(text)
    if text in sizes:
        return sizes[text]
    from nearpeak.kernelcheck.expression import evaluate

    return int(evaluate(text, sizes))
