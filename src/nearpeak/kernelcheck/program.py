"""A kernel as the compiler left it, and how it is launched: what the analysis starts from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from nearpeak.kernelcheck.cubin import Resources, resources
from nearpeak.kernelcheck.cuda_compile import compile_to_cubin, compile_to_ptx
from nearpeak.kernelcheck.kernel import Declaration, Sizes, Tensors
from nearpeak.kernelcheck.launch import Geometry, TensorMapRequest, geometry, values
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.source import Source
from nearpeak.kernelcheck.trace_memory import AddressOnly, TensorMap
from nearpeak.kernelcheck.trace_records import Launch

_TRACED_FOR = "sm_90"  # what is asked of memory does not depend on it; the PTX interpreter knows this one best


@dataclass(frozen=True)
class Program:
    """text: PTX; symbol: the kernel's name in it; resources: of the code that runs; launch: for the trace; note: what
    else is to be said of how it came to be."""

    text: str
    symbol: str
    resources: Resources
    geometry: Geometry
    launch: Launch
    note: str = ""


def cuda_program(source: Source, declaration: Declaration, op: Op, sizes: Sizes, architecture: str) -> Program:
    """Compiled with NVRTC. sizes: with `sms`. Raises UserError where it does not compile, or cannot be launched."""
    # Text from a string in a .py file moves down to where it stands there, so that lines are the file's.
    source = replace(source, text="\n" * source.line_offset + source.text, line_offset=0)
    shape = geometry(declaration, sizes)
    compiled = compile_to_cubin(source, declaration.kernel, device_arch=architecture.rstrip("af"))
    text = compile_to_ptx(source, declaration.kernel, device_arch=_TRACED_FOR)
    given = values(declaration, on_paper(op, declaration.precision, sizes), sizes)
    return Program(
        text,
        compiled.symbol,
        resources(compiled.image, compiled.symbol),
        shape,
        Launch(
            shape.grid,
            shape.block,
            tuple(argument(one, op, declaration.precision, sizes) for one in given),
            declaration.args,
            shared=shape.shared,
        ),
    )


def on_paper(op: Op, precision: str, sizes: Sizes) -> Tensors:
    """The op's tensors without memory: shapes and dtypes."""
    return {t.name: torch.empty(t.shape(sizes), dtype=t.dtype(precision), device="meta") for t in op.tensors}


def argument(
    value: torch.Tensor | int | TensorMapRequest, op: Op, precision: str, sizes: Sizes
) -> AddressOnly | TensorMap | int:
    """A value of the launch as the trace takes it: a size, or a buffer of which only addresses count."""
    if isinstance(value, int):
        return value
    if isinstance(value, TensorMapRequest):
        tensor = on_paper(op, precision, sizes)[value.name]
        rows, columns = tensor.shape
        return TensorMap(value.name, (rows, columns), (value.box_rows, value.box_columns), tensor.element_size())
    return AddressOnly(value.numel() * value.element_size(), _NUMPY.get(value.dtype, "uint8"))


_NUMPY = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.int32: "int32"}
