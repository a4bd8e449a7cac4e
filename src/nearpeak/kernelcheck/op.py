"""What an op is: its sizes and tensors, its true result in fp64, its FLOPs and bytes, the library's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

import torch

from nearpeak.kernelcheck.kernel import Sizes, Tensors
from nearpeak.kernelcheck.rounding import input_dtype

Rows: TypeAlias = slice | torch.Tensor  # which rows of the output: a range, or their numbers


@dataclass(frozen=True)
class OpTensor:
    """One tensor. shape: of the sizes; dtype: of the precision's name."""

    name: str
    role: Literal["input", "output"]
    shape: Callable[[Sizes], tuple[int, ...]]
    dtype: Callable[[str], torch.dtype] = input_dtype


@dataclass(frozen=True)
class Truth:
    """The true values of some elements in fp64, and the magnitudes that rounding errors are relative to.

    sums     × the accumulate type's roundoff: error of the sums (√K × the magnitude of what is summed)
    inputs   × what rounding the operands does (tf32)
    inside   × the precision's roundoff, where something is rounded half-way
    floor    × the number below which all may be flushed to zero, where that is multiplied before it is stored
    terms    K, the length of the longest sum, for the text
    """

    value: torch.Tensor
    sums: torch.Tensor
    terms: int = 1
    inputs: torch.Tensor | None = None
    inside: torch.Tensor | None = None
    floor: torch.Tensor | None = None


@dataclass(frozen=True)
class Checksum:
    """Sums over parts of the output, as the kernel gave them and as they must be."""

    got: torch.Tensor
    truth: Truth
    stored: torch.Tensor  # × the output's roundoff: error of the stored elements that were summed


@dataclass(frozen=True)
class Op:
    """truth(inputs, sizes, rows): inputs as the kernel got them, in their own dtypes; rows of the output seen as 2-D.

    rows           how many such rows the output has
    flop, source   a function of the sizes, and where the formula is from
    read           elements of each input that must be read; None: all of them
    library        torch's own function of the inputs; raises RuntimeError or NotImplementedError where it has none
    exact          moves data and computes nothing: every bit must be right
    specials       inputs in which NaN, and in which Inf, has one meaning only
    degree         how many inputs are multiplied with each other, to choose a range that does not overflow
    checksum       for outputs too large to be computed in fp64 (a product); None elsewhere
    exact_sums     integers as inputs give exact integers as sums, so that every bit can be compared
    trust_library  no model of the error is known, so the library's own error is what the kernel's is held against
    """

    name: str
    about: str
    sizes: tuple[str, ...]
    tensors: tuple[OpTensor, ...]
    truth: Callable[[Tensors, Sizes, Rows], Truth]
    rows: Callable[[Sizes], int]
    flop: Callable[[Sizes], int]
    source: str
    library: Callable[[Tensors, Sizes], torch.Tensor]
    read: Callable[[Sizes], dict[str, int]] | None = None
    exact: bool = False
    nan_in: tuple[str, ...] = ()
    inf_in: tuple[str, ...] = ()
    degree: int = 1
    terms: Callable[[Sizes], int] = lambda sizes: 1
    checksum: Callable[[Tensors, torch.Tensor, Sizes, torch.Generator], Checksum] | None = None
    exact_sums: bool = False
    trust_library: bool = False

    @property
    def inputs(self) -> tuple[OpTensor, ...]:
        return tuple(t for t in self.tensors if t.role == "input")

    @property
    def output(self) -> OpTensor:
        return next(t for t in self.tensors if t.role == "output")

    def bytes_read(self, sizes: Sizes, precision: str) -> int:
        """Compulsory bytes read: each needed element once."""
        needed = self.read(sizes) if self.read else {}
        return sum(needed.get(t.name, prod(t.shape(sizes))) * t.dtype(precision).itemsize for t in self.inputs)

    def bytes_written(self, sizes: Sizes, precision: str) -> int:
        """Compulsory bytes written: the output once."""
        return int(prod(self.output.shape(sizes)) * self.output.dtype(precision).itemsize)

    def bytes(self, sizes: Sizes, precision: str) -> int:
        """Compulsory bytes read and written."""
        return self.bytes_read(sizes, precision) + self.bytes_written(sizes, precision)

    def footprint(self, sizes: Sizes, precision: str) -> int:
        """Bytes that all tensors take in memory."""
        return sum(prod(t.shape(sizes)) * t.dtype(precision).itemsize for t in self.tensors)


def tensor(name: str, *names: str, dtype: Callable[[str], torch.dtype] = input_dtype, out: bool = False) -> OpTensor:
    """A tensor whose shape is the sizes of these names."""
    return OpTensor(name, "output" if out else "input", lambda sizes: tuple(sizes[n] for n in names), dtype)
