"""Ops on elements: copy, transpose, sums over everything, and functions of each element."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from nearpeak.kernelcheck.kernel import Sizes, Tensors
from nearpeak.kernelcheck.op import Op, OpTensor, Rows, Truth, tensor

FIELDS = 8  # of a structure in field_sum
_Function = Callable[..., torch.Tensor]

# name: (function, FLOPs an element, what it is)
UNARY: dict[str, tuple[_Function, int, str]] = {
    "relu": (torch.relu, 1, "max(x, 0)"),
    "silu": (F.silu, 4, "x ÷ (1 + e^−x)"),
    "gelu": (F.gelu, 5, "x · Φ(x), with erf"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), 8, "x · Φ(x), by the formula with tanh"),
    "sigmoid": (torch.sigmoid, 3, "1 ÷ (1 + e^−x)"),
    "tanh": (torch.tanh, 1, "tanh(x)"),
    "exp": (torch.exp, 1, "e^x"),
    "square": (torch.square, 1, "x²"),
}
BINARY: dict[str, tuple[_Function, str]] = {
    "add": (torch.add, "a + b"),
    "subtract": (torch.sub, "a − b"),
    "multiply": (torch.mul, "a · b"),
    "maximum": (torch.maximum, "max(a, b)"),
}


def element_ops() -> list[Op]:
    """All ops of this family."""
    unary = [_unary(name, *entry) for name, entry in UNARY.items()]
    binary = [_binary(name, *entry) for name, entry in BINARY.items()]
    return [_copy(), _transpose(), _reduction(), _field_sum(True), _field_sum(False), *unary, *binary]


def _exactly(value: torch.Tensor) -> Truth:
    value = value.double()
    return Truth(value, torch.zeros_like(value))


def _copy() -> Op:
    return Op(
        name="copy",
        about="y = x: x and y (n)",
        sizes=("n",),
        tensors=(tensor("x", "n"), tensor("y", "n", out=True)),
        truth=lambda inputs, sizes, rows: _exactly(inputs["x"][rows]),
        rows=lambda s: s["n"],
        flop=lambda s: 0,
        source="none: it only moves data",
        library=lambda inputs, sizes: inputs["x"].clone(),
        exact=True,
        nan_in=("x",),
        inf_in=("x",),
    )


def _transpose() -> Op:
    return Op(
        name="transpose",
        about="y = xᵀ: x (rows, columns), y (columns, rows)",
        sizes=("rows", "columns"),
        tensors=(tensor("x", "rows", "columns"), tensor("y", "columns", "rows", out=True)),
        truth=lambda inputs, sizes, rows: _exactly(inputs["x"].t()[rows]),
        rows=lambda s: s["columns"],
        flop=lambda s: 0,
        source="none: it only moves data",
        library=lambda inputs, sizes: inputs["x"].t().contiguous(),
        exact=True,
        nan_in=("x",),
        inf_in=("x",),
    )


def _sum_truth(x: torch.Tensor) -> Truth:
    """A sum errs like a product's: see `ops_matrix._product_truth`. x is 1-D, of any stride."""
    parts = [part.double() for part in x.split(2**25)]
    value = torch.stack([part.sum() for part in parts]).sum()
    size = (torch.stack([part.square().sum() for part in parts]).sum() + value.square()).sqrt()
    return Truth(value[None], math.sqrt(x.numel()) * size[None], x.numel())


def _reduction() -> Op:
    return Op(
        name="reduction",
        about="y = Σ x: x (n), y (1)",
        sizes=("n",),
        tensors=(tensor("x", "n"), _one()),
        truth=lambda inputs, sizes, rows: _sum_truth(inputs["x"]),
        rows=lambda s: 1,
        flop=lambda s: s["n"],
        source="n additions",
        library=lambda inputs, sizes: inputs["x"].sum()[None],
        nan_in=("x",),
        inf_in=("x",),
        terms=lambda s: s["n"],
        exact_sums=True,
    )


def _field_sum(structures: bool) -> Op:
    """The sum of the first of 8 fields, kept as an array of structures or as a structure of arrays."""

    def field(inputs: Tensors) -> torch.Tensor:
        return inputs["x"][:, 0] if structures else inputs["x"][0]

    shape = "(n, 8)" if structures else "(8, n)"
    return Op(
        name="field_sum_structures" if structures else "field_sum_arrays",
        about=f"y = Σ of the first of 8 fields: x {shape}, y (1)",
        sizes=("n",),
        tensors=(
            OpTensor("x", "input", lambda s: (s["n"], FIELDS) if structures else (FIELDS, s["n"])),
            _one(),
        ),
        truth=lambda inputs, sizes, rows: _sum_truth(field(inputs)),
        rows=lambda s: 1,
        flop=lambda s: s["n"],
        source="n additions",
        library=lambda inputs, sizes: field(inputs).sum()[None],
        read=lambda s: {"x": s["n"]},
        terms=lambda s: s["n"],
        exact_sums=True,
    )


def _one() -> OpTensor:
    return OpTensor("y", "output", lambda sizes: (1,))


def _unary(name: str, function: _Function, flop: int, formula: str) -> Op:
    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        x = inputs["x"][rows].double()
        value = function(x)
        if name == "relu":
            return Truth(value, torch.zeros_like(value))
        # A few ulp, and those of the argument of e^x; 1 + erf(x) and 1 + tanh(x) cancel, so gelu errs absolutely too.
        size = value.abs() * (4 + 2 * x.abs().clamp(max=100.0))
        if name.startswith("gelu"):
            size = size + 2 * x.abs().clamp(max=8.0)
        return Truth(value, size, floor=4 * x.abs().clamp(1.0, 200.0))

    return Op(
        name=name,
        about=f"y = {formula}: x and y (n)",
        sizes=("n",),
        tensors=(tensor("x", "n"), tensor("y", "n", out=True)),
        truth=truth,
        rows=lambda s: s["n"],
        flop=lambda s: flop * s["n"],
        source=f"{flop} an element, each function counted as one",
        library=lambda inputs, sizes: function(inputs["x"]),
        nan_in=("x",),
        inf_in=("x",),  # +Inf only: see draws
        degree=2 if name == "square" else 1,
    )


def _binary(name: str, function: _Function, formula: str) -> Op:
    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        value = function(inputs["a"][rows].double(), inputs["b"][rows].double())
        return Truth(value, value.abs())

    return Op(
        name=name,
        about=f"c = {formula}: a, b and c (n)",
        sizes=("n",),
        tensors=(tensor("a", "n"), tensor("b", "n"), tensor("c", "n", out=True)),
        truth=truth,
        rows=lambda s: s["n"],
        flop=lambda s: s["n"],
        source="1 an element",
        library=lambda inputs, sizes: function(inputs["a"], inputs["b"]),
        nan_in=("a", "b"),
        inf_in=("a", "b"),
        degree=2 if name == "multiply" else 1,
    )
