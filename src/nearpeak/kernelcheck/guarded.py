"""An op's tensors in memory that shows who touched what: guards before and after each, poison in the output."""

from __future__ import annotations

from math import prod

import torch

from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.op import Op

LEAST_GUARD, MOST_GUARD = 2**14, 2**22  # bytes on each side; 128 rows of the tensor where that lies between
ALIGNMENT = 256

# NaNs with a payload of their own, so that what was never written is told from a NaN that was computed.
_GUARDS = {8: 0x7FF8_0000_0BAD_CAFE, 4: 0x7FC0_BEEF, 2: 0x7FC5, 1: 0x7F}
_FP16_GUARD = 0x7E5A
_POISONS = {8: 0x7FF8_0000_5EED_F00D, 4: 0x7FC5_F00D, 2: 0x7FE3, 1: 0x7F}
_FP16_POISON = 0x7E63
# The other pattern: about 1235, large enough to show in a sum, small enough not to swallow it.
_NUMBERS = {8: 0x4093_4A45_6D5C_FAAD, 4: 0x449A_522B, 2: 0x449B, 1: 0x6B}
_FP16_NUMBER = 0x64D3
_INTS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


class GuardedMemory:
    """All tensors of one op on one device; `tensors` are views into larger buffers.

    The buffers live as long as this object. shift: bytes that everything lies further in, for other addresses.
    """

    def __init__(self, op: Op, sizes: Sizes, precision: str, device: torch.device, shift: int = 0) -> None:
        self.output = op.output.name
        self.tensors: dict[str, torch.Tensor] = {}
        self._zones: dict[tuple[str, str], torch.Tensor] = {}
        self._truth: dict[str, torch.Tensor] = {}
        for t in op.tensors:
            shape, dtype = t.shape(sizes), t.dtype(precision)
            size = prod(shape) * dtype.itemsize
            row = size // shape[0] if shape else size
            guard = min(max(LEAST_GUARD, 128 * row), MOST_GUARD) // ALIGNMENT * ALIGNMENT
            start = guard + shift
            words = torch.empty(start + size + guard, dtype=torch.int8, device=device)
            self.tensors[t.name] = words[start : start + size].view(dtype).view(shape)
            self._zones[t.name, "before"] = words[:start].view(_INTS[dtype.itemsize])
            self._zones[t.name, "after"] = words[start + size :].view(_INTS[dtype.itemsize])
        self.guard()

    def load(self, inputs: dict[str, torch.Tensor]) -> None:
        """Copy the inputs in, in place; keeps them to compare with."""
        for name, x in inputs.items():
            self.tensors[name].copy_(x)
        self._truth = inputs

    def guard(self, zeros: bool = False) -> None:
        """Fill the guards with NaN (zeros: with 0, to see whether they are read)."""
        for (name, _), zone in self._zones.items():
            zone.fill_(0 if zeros else self._guard_of(name))

    def poison(self, number: bool = False, zeros: bool = False) -> None:
        """Fill the output with a NaN, or with a finite number that no result has, or with zeros."""
        bits_of(self.tensors[self.output]).fill_(0 if zeros else self.poison_bits(number))

    def poison_bits(self, number: bool = False) -> int:
        """The bits that `poison` writes."""
        dtype = self.tensors[self.output].dtype
        if number:
            return _FP16_NUMBER if dtype == torch.float16 else _NUMBERS[dtype.itemsize]
        return _FP16_POISON if dtype == torch.float16 else _POISONS[dtype.itemsize]

    def overwritten(self) -> list[tuple[str, str, int]]:
        """Guards that were written to: the tensor, "before" or "after", elements from the tensor's edge."""
        found = []
        for (name, side), zone in self._zones.items():
            wrong = (zone != self._guard_of(name)).nonzero()
            if wrong.numel():
                nearest = int(wrong.max()) if side == "before" else int(wrong.min())
                found.append((name, side, zone.numel() - nearest if side == "before" else nearest + 1))
        return found

    def changed_inputs(self) -> list[tuple[str, int, float, float]]:
        """Inputs that are no longer what was loaded: name, flat index, was, is."""
        found = []
        for name, was in self._truth.items():
            wrong = (bits_of(self.tensors[name]) != bits_of(was)).view(-1).nonzero()
            if wrong.numel():
                at = int(wrong[0])
                found.append((name, at, float(was.reshape(-1)[at]), float(self.tensors[name].reshape(-1)[at])))
        return found

    def _guard_of(self, name: str) -> int:
        dtype = self.tensors[name].dtype
        return _FP16_GUARD if dtype == torch.float16 else _GUARDS[dtype.itemsize]


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers, so that NaN compares equal to itself and −0 differs from 0."""
    return x.contiguous().view(_INTS[x.dtype.itemsize])


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and bool(torch.equal(bits_of(x), bits_of(y)))


def spoil_free_memory(op: Op, sizes: Sizes, precision: str, device: torch.device) -> None:
    """Fill blocks of the output's size with NaN and give them back, so that an allocator hands out no old result."""
    shape, dtype = op.output.shape(sizes), op.output.dtype(precision)
    blocks = [torch.empty(shape, dtype=dtype, device=device) for _ in range(4)]
    for block in blocks:
        bits_of(block).fill_(_FP16_POISON if dtype == torch.float16 else _POISONS[dtype.itemsize])
