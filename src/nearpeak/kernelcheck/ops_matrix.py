"""Products: matrix by matrix, matrix by vector, attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from nearpeak.ceilings.products import product
from nearpeak.kernelcheck.kernel import Sizes, Tensors
from nearpeak.kernelcheck.op import Checksum, Op, Rows, Truth, tensor
from nearpeak.kernelcheck.rounding import product_dtype

CHECKSUM_BLOCK = 64  # columns that one checksum covers


def products() -> list[Op]:
    """All ops of this family."""
    return [_matmul(False), _matmul(True), _matvec(), _attention(False), _attention(True)]


def _matmul(transposed: bool) -> Op:
    def second(inputs: Tensors) -> torch.Tensor:
        return inputs["b"].t() if transposed else inputs["b"]

    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        return _product_truth(inputs["a"][rows].double(), second(inputs).double())

    def library(inputs: Tensors, sizes: Sizes) -> torch.Tensor:
        a, b = inputs["a"], second(inputs)
        if a.dtype in (torch.int8, torch.float8_e4m3fn):
            precision = "int8" if a.dtype == torch.int8 else "fp8"
            return product(precision, "fp32", a.device)(a, b.t().contiguous())
        return torch.mm(a, b)

    def checksum(inputs: Tensors, out: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> Checksum:
        return _product_checksum(inputs["a"], second(inputs), out, generator)

    return Op(
        name="matmul_nt" if transposed else "matmul",
        about="C = A·Bᵀ: a (m, k), b (n, k), c (m, n)" if transposed else "C = A·B: a (m, k), b (k, n), c (m, n)",
        sizes=("m", "n", "k"),
        tensors=(
            tensor("a", "m", "k"),
            tensor("b", "n", "k") if transposed else tensor("b", "k", "n"),
            tensor("c", "m", "n", dtype=product_dtype, out=True),
        ),
        truth=truth,
        rows=lambda s: s["m"],
        flop=lambda s: 2 * s["m"] * s["n"] * s["k"],
        source="2·m·n·k, a multiply and an add for each",
        library=library,
        nan_in=("a", "b"),
        inf_in=("a", "b"),
        degree=2,
        terms=lambda s: s["k"],
        checksum=checksum,
        exact_sums=True,
    )


def _product_truth(a: torch.Tensor, b: torch.Tensor) -> Truth:
    """a (rows, k) and b (k, n) in fp64.

    The partial sums of K products walk at random over √Σ a²b², and towards the result where the products have one sign;
    each addition adds u × the partial sum. Together about 0.4·√K·u·√(Σ a²b² + R²) for the plainest order, a single
    accumulator; less for every other.
    """
    value = a @ b
    size = ((a * a) @ (b * b) + value * value).sqrt()
    return Truth(value, math.sqrt(a.shape[1]) * size, a.shape[1], inputs=size)


def _product_checksum(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, generator: torch.Generator) -> Checksum:
    """C·V against A·(B·V), V random whole numbers of 5 to 8 with either sign, in blocks of 64 columns.

    It costs 1/64 of the product.

    What can hide: with whole numbers as inputs all is exact, so one wrong element is always seen, and several in
    one row and block cancel with a chance of 1 in 8 at most (V is drawn anew each time). With random inputs an
    element's own error can hide where it is below 4·√64·1.3 times the rounding error of one element.
    """
    n = b.shape[1]
    signs = torch.randint(0, 2, (n,), generator=generator, device=b.device) * 2 - 1
    v = torch.randint(5, 9, (n,), generator=generator, device=b.device).double() * signs
    edges = list(range(0, n, CHECKSUM_BLOCK))

    def folded(matrix: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [matrix[:, i : i + CHECKSUM_BLOCK].double() @ weights[i : i + CHECKSUM_BLOCK] for i in edges], 1
        )

    def squares(matrix: torch.Tensor) -> torch.Tensor:
        parts = [
            matrix[:, i : i + CHECKSUM_BLOCK].double().square() @ v[i : i + CHECKSUM_BLOCK].square() for i in edges
        ]
        return torch.stack(parts, 1)

    left = a.double()
    stored = squares(out)
    size = (left.square() @ squares(b) + stored).sqrt()
    truth = Truth(left @ folded(b, v), math.sqrt(a.shape[1]) * size, a.shape[1], inputs=size)
    return Checksum(folded(out, v), truth, stored.sqrt())


def _matvec() -> Op:
    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        t = _product_truth(inputs["a"][rows].double(), inputs["x"].double()[:, None])
        return Truth(t.value[:, 0], t.sums[:, 0], t.terms, t.inputs[:, 0] if t.inputs is not None else None)

    return Op(
        name="matvec",
        about="y = A·x: a (m, n), x (n), y (m)",
        sizes=("m", "n"),
        tensors=(tensor("a", "m", "n"), tensor("x", "n"), tensor("y", "m", dtype=product_dtype, out=True)),
        truth=truth,
        rows=lambda s: s["m"],
        flop=lambda s: 2 * s["m"] * s["n"],
        source="2·m·n, a multiply and an add for each",
        library=lambda inputs, sizes: torch.mv(inputs["a"], inputs["x"]),
        nan_in=("a", "x"),
        inf_in=("a", "x"),
        degree=2,
        terms=lambda s: s["n"],
        exact_sums=True,
    )


def _attention(causal: bool) -> Op:
    names = ("batch", "heads", "length", "head_dim")

    def truth(inputs: Tensors, sizes: Sizes, rows: Rows) -> Truth:
        return _attention_truth(inputs, sizes, rows, causal)

    def library(inputs: Tensors, sizes: Sizes) -> torch.Tensor:
        return F.scaled_dot_product_attention(inputs["q"], inputs["k"], inputs["v"], is_causal=causal)

    share = 2 if causal else 4
    return Op(
        name="attention_causal" if causal else "attention",
        about="O = softmax(Q·Kᵀ ÷ √head_dim)·V" + (", each query sees the keys up to its own" if causal else ""),
        sizes=names,
        tensors=(*(tensor(name, *names) for name in ("q", "k", "v")), tensor("o", *names, out=True)),
        truth=truth,
        rows=lambda s: s["batch"] * s["heads"] * s["length"],
        flop=lambda s: share * s["batch"] * s["heads"] * s["length"] ** 2 * s["head_dim"],
        source=f"{share}·batch·heads·length²·head_dim: two products" + (", half of each (causal)" if causal else ""),
        library=library,
        # A NaN in a masked value may or may not meet its weight of 0, so causal attention is asked in Q alone.
        nan_in=("q",) if causal else ("q", "v"),
        degree=1,
        terms=lambda s: s["length"],
    )


def _attention_truth(inputs: Tensors, sizes: Sizes, rows: Rows, causal: bool) -> Truth:
    """Head by head. rows: numbers of (batch, head, query), flattened."""
    length, depth = sizes["length"], sizes["head_dim"]
    q, k, v = (inputs[name].reshape(-1, length, depth) for name in ("q", "k", "v"))
    total = sizes["batch"] * sizes["heads"] * length
    numbers = torch.arange(total, device=q.device)[rows] if isinstance(rows, slice) else rows
    values, sums, inside = [], [], []
    for head in (numbers // length).unique_consecutive().tolist():
        mine = numbers[numbers // length == head] % length
        scores = q[head, mine].double() @ k[head].double().t() / math.sqrt(depth)
        size = (q[head, mine].double().square() @ k[head].double().square().t()).sqrt()  # √depth and its root cancel
        if causal:
            hidden = torch.arange(length, device=q.device)[None, :] > mine[:, None]
            scores, size = scores.masked_fill(hidden, -math.inf), size.masked_fill(hidden, 0.0)
        weights, v64 = scores.softmax(1), v[head].double()
        value = weights @ v64
        # A score off by d changes its weight by the factor 1 + d; exp itself errs by its argument.
        apart = (scores.amax(1, keepdim=True) - scores).masked_fill(scores == -math.inf, 0.0)
        off = weights * (size + 2 * apart + scores.masked_fill(scores == -math.inf, 0.0).abs() + 4)
        walked = (weights.square() @ v64.square() + value.square()).sqrt()
        values.append(value)
        sums.append(off @ v64.abs() + off.sum(1, keepdim=True) * value.abs() + math.sqrt(length) * walked)
        inside.append(walked)
    return Truth(torch.cat(values), torch.cat(sums), length, inside=torch.cat(inside))
