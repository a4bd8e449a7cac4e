"""Ops that work along rows: softmax and the norms."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from nearpeak.kernelcheck.kernel import Sizes, Tensors
from nearpeak.kernelcheck.op import Op, Rows, Truth, tensor

EPS = 1e-5  # added to the mean square or the variance


def row_ops() -> list[Op]:
    """All ops of this family."""
    return [_softmax(), _rmsnorm(), _layernorm()]


def _softmax() -> Op:
    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        x = inputs["x"][rows].double()
        value = x.softmax(1)
        # exp errs by its argument (2 + 1.2·|x| ulp for the fast one), the sum by √n.
        apart = (x.amax(1, keepdim=True) - x).nan_to_num(0.0, 0.0, 0.0)
        return Truth(value, value * (4 + 2 * apart + math.sqrt(x.shape[1])), x.shape[1])

    return Op(
        name="softmax",
        about="y = softmax of each row of x: x and y (rows, columns)",
        sizes=("rows", "columns"),
        tensors=(tensor("x", "rows", "columns"), tensor("y", "rows", "columns", out=True)),
        truth=truth,
        rows=lambda s: s["rows"],
        flop=lambda s: 5 * s["rows"] * s["columns"],
        source="5 an element: maximum, difference, exponential, sum, quotient",
        library=lambda inputs, sizes: torch.softmax(inputs["x"], 1),
        nan_in=("x",),
        inf_in=("x",),
        terms=lambda s: s["columns"],
    )


def _rmsnorm() -> Op:
    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        x = inputs["x"][rows].double()
        value = x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * inputs["weight"].double()
        return Truth(value, value.abs() * (4 + math.sqrt(x.shape[1])), x.shape[1])

    return Op(
        name="rmsnorm",
        about=f"y = x ÷ √(mean of x² over the row + {EPS:g}) · weight: x and y (rows, columns), weight (columns)",
        sizes=("rows", "columns"),
        tensors=(
            tensor("x", "rows", "columns"),
            tensor("weight", "columns"),
            tensor("y", "rows", "columns", out=True),
        ),
        truth=truth,
        rows=lambda s: s["rows"],
        flop=lambda s: 4 * s["rows"] * s["columns"],
        source="4 an element: square, sum, two products",
        library=lambda inputs, sizes: F.rms_norm(inputs["x"], (sizes["columns"],), inputs["weight"], EPS),
        nan_in=("x", "weight"),
        inf_in=("weight",),
        degree=2,
        terms=lambda s: s["columns"],
    )


def _layernorm() -> Op:
    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        x, weight, bias = inputs["x"][rows].double(), inputs["weight"].double(), inputs["bias"].double()
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        variance = centred.square().mean(1, keepdim=True)
        inverse = (variance + EPS).rsqrt()
        value = centred * inverse * weight + bias
        # One pass (mean of squares − square of the mean) loses mean² ÷ variance; it is slower to be right, not wrong.
        lost = 1 + mean.square() / (variance + EPS)
        size = inverse * weight.abs() * (centred.abs() * lost + x.abs() + mean.abs())
        return Truth(value, size * (4 + math.sqrt(x.shape[1])) + bias.abs() + value.abs(), x.shape[1])

    return Op(
        name="layernorm",
        about=f"y = (x − mean) ÷ √(variance + {EPS:g}) · weight + bias, along each row: x and y (rows, columns)",
        sizes=("rows", "columns"),
        tensors=(
            tensor("x", "rows", "columns"),
            tensor("weight", "columns"),
            tensor("bias", "columns"),
            tensor("y", "rows", "columns", out=True),
        ),
        truth=truth,
        rows=lambda s: s["rows"],
        flop=lambda s: 7 * s["rows"] * s["columns"],
        source="7 an element: sum, difference, square, sum, two products, sum",
        library=lambda inputs, sizes: F.layer_norm(
            inputs["x"], (sizes["columns"],), inputs["weight"], inputs["bias"], EPS
        ),
        nan_in=("x", "weight", "bias"),
        inf_in=("bias",),
        terms=lambda s: s["columns"],
    )
