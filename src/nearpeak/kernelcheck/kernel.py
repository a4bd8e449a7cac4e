"""A kernel that can be run, whatever it is written in. Loaders make them; the checks know nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

Language = Literal["CUDA", "OpenCL", "Triton", "Python"]
Sizes = Mapping[str, int]
Tensors = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class Declaration:
    """What a kernel says of itself in `nearpeak:` comment lines, or the user in flags (flags win).

    kernel     the function's name
    op         "matmul", "matmul_nt", "transpose", …: a name of `ops.OPS`; None where --reference is used instead
    precision  "fp32", "bf16", …: of the inputs
    grid, block  one to three expressions over the op's sizes (m, n, k, …), `sms`, ceil(a / b), min, max, + - * / // %
    shared     bytes of dynamic shared memory, an expression
    args       names of the op's tensors and sizes in the order that the kernel takes them; a tensor may stand as
               tensormap(a, 64, 128, swizzle128). Sizes are passed as 32-bit integers
    require    an expression that the sizes must satisfy; None where every size is valid
    layout     of an op that has several ("arrays", "structures")
    constants, launch   Triton's constexprs, and num_warps, num_stages
    line       1-based line of the declaration in its file; 0 where it came from flags
    """

    kernel: str
    op: str | None = None
    precision: str = "fp32"
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    shared: str = "0"
    args: tuple[str, ...] = ()
    require: str | None = None
    layout: str | None = None
    constants: Mapping[str, int] = field(default_factory=dict)
    launch: Mapping[str, int] = field(default_factory=dict)
    line: int = 0


class Call(Protocol):
    """One kernel bound to its tensors: ready to run any number of times."""

    def run(self) -> None:
        """Launch once. On a GPU this returns before the work is done."""
        ...

    def outputs(self) -> Tensors:
        """The op's outputs after the work is done, by name: the tensors bound, or new ones that a callable gave."""
        ...

    def seconds(self, samples: int) -> tuple[float, ...] | None:
        """Seconds of so many runs by the queue's own clock (OpenCL); None where nearpeak's timer is to be used."""
        ...


class Kernel(Protocol):
    """A compiled kernel. `device` is where its tensors must lie."""

    declaration: Declaration
    language: Language
    device: torch.device

    def bind(self, tensors: Tensors, sizes: Sizes) -> Call:
        """Bind inputs and preallocated outputs, by the op's names. Raises UserError where it cannot be launched."""
        ...
