"""How large rounding errors are by nature: unit roundoffs of a precision and of the type that sums are kept in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nearpeak.ceilings.products import DTYPES, result_dtype
from nearpeak.records.errors import UserError

# u = 2^-p for p significant bits, the largest relative error of one rounding (Higham, Accuracy and Stability, §2.1).
ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "fp8": 2.0**-4,
    "fast": 2.0**-13,  # fp8's narrow accumulator keeps about 14 bits
    "int32": 0.0,
    "int8": 0.0,
}
_OF_DTYPE = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Rounding:
    """What one precision does to numbers, as relative errors.

    sums     of each addition, by the accumulate type
    inputs   of each operand before it is multiplied: 0 but for tf32, whose units may cut off instead of rounding (2u)
    inside   of what is rounded to the precision half-way (attention's weights before they meet V)
    output   of the result when it is stored
    floor    absolute: numbers below it may be flushed to zero
    """

    precision: str
    accumulate: str
    sums: float
    inputs: float
    inside: float
    output: float
    floor: float


def rounding_of(precision: str, accumulate: str | None, output: torch.dtype) -> Rounding:
    """Raises UserError for a name that is not known."""
    sums_in = accumulate or default_accumulate(precision)
    for name in (precision, sums_in):
        if name not in ROUNDOFF:
            raise UserError(f"{name} is no precision that is known; these are: {', '.join(ROUNDOFF)}")
    # Sums kept in fp16 stall on long rows of one sign, so their error grows faster than √K.
    sums = ROUNDOFF[sums_in] * (2 if sums_in in ("fp16", "bf16") else 1)
    if precision == "fp8":
        sums = max(sums, ROUNDOFF["fast"])
    return Rounding(
        precision,
        sums_in,
        sums,
        2 * ROUNDOFF["tf32"] if precision == "tf32" else 0.0,
        ROUNDOFF[precision],
        ROUNDOFF[_OF_DTYPE[output]] if output in _OF_DTYPE else 0.0,
        _floor(output),
    )


def default_accumulate(precision: str) -> str:
    """What sums are kept in where nothing is said: fp32, and fp64 and int32 for fp64 and int8."""
    return {"fp64": "fp64", "int8": "int32"}.get(precision, "fp32")


def input_dtype(precision: str) -> torch.dtype:
    """The dtype of input tensors. Raises UserError for a precision that is not known."""
    if precision not in DTYPES:
        raise UserError(f"precision {precision} is not known; these are: {', '.join(DTYPES)}")
    return DTYPES[precision]


def product_dtype(precision: str) -> torch.dtype:
    """The dtype of a product: bf16 for fp8, int32 for int8, else that of the inputs."""
    input_dtype(precision)
    return result_dtype(precision)


def _floor(output: torch.dtype) -> float:
    if not output.is_floating_point:
        return 0.0
    # fp16's smallest normal number, 6e-5, is a size that results have: there only one subnormal step is forgiven.
    return 2.0**-24 if output == torch.float16 else float(torch.finfo(output).tiny)
