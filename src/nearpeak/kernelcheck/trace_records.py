"""What a trace yields: which addresses the threads of a few blocks touched, and how often each instruction ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearpeak.kernelcheck.ptx_records import Instruction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nearpeak.kernelcheck.trace_memory import AddressOnly, TensorMap


@dataclass(frozen=True)
class Launch:
    """How the kernel is started.

    grid, block  up to three extents each
    arguments    in the order of the parameters: a numpy array (real memory, written in place), an AddressOnly (a buffer
                 without contents), a TensorMap, a number, or bytes for a structure
    names        of the arguments, for the reports; missing ones are called "argument 0", …
    shared       bytes of dynamic shared memory
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[NDArray[Any] | AddressOnly | TensorMap | int | float | np.generic | bytes, ...]
    names: tuple[str, ...] = ()
    shared: int = 0

    @property
    def blocks(self) -> int:
        return self._product(self.grid)

    @property
    def threads(self) -> int:
        return self._product(self.block)

    @staticmethod
    def _product(extents: tuple[int, ...]) -> int:
        result = 1
        for extent in extents:
            result *= extent
        return result


@dataclass(frozen=True)
class Access:
    """All warp-wide executions ("requests") of one memory instruction that reached one buffer.

    kind       "read", "write" or "atomic"
    space      "global", "shared" or "local"
    buffer     the array's name; "shared memory" or "local memory" else
    element    bytes of one element; `width`: bytes a thread moves at once (a vector has several elements)
    addresses  (requests, 32) bytes, within the buffer for global memory; `active`: likewise, which threads take part
    block, warp, step  (requests,): which traced block (0, 1, …), which warp of it, and when
    weight     (requests,): how many blocks of the grid this block stands for
    """

    index: int
    instruction: Instruction
    kind: str
    space: str
    buffer: str
    element: int
    width: int
    addresses: NDArray[np.int64]
    active: NDArray[np.bool_]
    block: NDArray[np.int32]
    warp: NDArray[np.int32]
    step: NDArray[np.int64]
    weight: NDArray[np.float64]

    @property
    def line(self) -> int:
        return self.instruction.line


@dataclass(frozen=True)
class Trace:
    """The outcome.

    blocks       indices of the traced blocks in the grid, and `weights`: how many blocks each stands for
    issues       (instructions,): warp instructions in the whole grid, extrapolated by the weights
    lanes        (instructions,): active threads in them, likewise
    instructions the kernel's
    stopped      why the trace ended early: an unknown instruction, an access out of bounds, a deadlock; None if it
                 did not
    cut          True where a warp reached the cap of instructions before its end
    sizes        bytes of each global buffer by name
    """

    launch: Launch
    blocks: tuple[int, ...]
    weights: tuple[float, ...]
    instructions: tuple[Instruction, ...]
    issues: NDArray[np.float64]
    lanes: NDArray[np.float64]
    accesses: tuple[Access, ...]
    sizes: dict[str, int]
    shared_bytes: int
    stopped: str | None = None
    cut: bool = False
