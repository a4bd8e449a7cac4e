"""The memory that a traced kernel sees: arrays given by the caller, address-only buffers, shared and local memory.

A generic address is a region number (the upper bits) and an offset, so an address that runs past its array is caught
and named instead of landing in another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_registers import Array, NotTraced

REGION_BITS = 40  # each array has a terabyte of addresses to itself, and lies in the middle of it
SHARED_REGION, LOCAL_REGION, MAP_REGION, FIRST_REGION = 1, 2, 3, 16
MIDDLE = 1 << (REGION_BITS - 1)
SHARED_BASE = 1024  # the first KB of shared memory belongs to the system (compute capability 8.0 and newer)
_PATTERN = 4096


@dataclass(frozen=True)
class AddressOnly:
    """A buffer of so many bytes without contents: loads give random values of `dtype` (floats normal, integers 0 or
    1, the same value at the same place), stores are checked for their address and dropped."""

    nbytes: int
    dtype: str = "float32"


@dataclass(frozen=True)
class TensorMap:
    """A matrix and a box of it, as a tensor map (CUtensorMap) describes them to the hardware that copies whole boxes.

    name of the tensor; shape and box: (rows, columns) in elements of so many bytes
    """

    name: str
    shape: tuple[int, int]
    box: tuple[int, int]
    element: int

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.element


class Buffer:
    """One global array under a name; real (numpy, written in place) or address-only."""

    def __init__(self, name: str, region: int, contents: Array | AddressOnly) -> None:
        self.name, self.base, self.nbytes = name, (region << REGION_BITS) + MIDDLE, int(contents.nbytes)
        self.real = isinstance(contents, np.ndarray)
        self._views: dict[Any, Array] = {}
        if isinstance(contents, np.ndarray):
            if not contents.flags.c_contiguous:
                raise ValueError(f"{name} must be contiguous")
            self._bytes = contents.reshape(-1).view(np.uint8)
        else:
            random = np.random.default_rng(0)
            values = random.standard_normal(_PATTERN) if "float" in contents.dtype else random.integers(0, 2, _PATTERN)
            if contents.dtype == "bfloat16":
                self._bytes = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            else:
                self._bytes = values.astype(contents.dtype).view(np.uint8)

    def view(self, dtype: Any) -> Array:
        if dtype not in self._views:
            size = np.dtype(dtype).itemsize
            self._views[dtype] = self._bytes[: len(self._bytes) // size * size].view(dtype)
        view: Array = self._views[dtype]
        return view

    def load(self, offsets: Array, dtype: Any) -> Array:
        index = offsets // np.dtype(dtype).itemsize
        view = self.view(dtype)
        values: Array = view.take(index if self.real else index % len(view))
        return values

    def store(self, offsets: Array, values: Any, dtype: Any) -> None:
        if self.real:
            self.view(dtype)[offsets // np.dtype(dtype).itemsize] = values


class Memory:
    """Everything addressable: `regions` by number, shared memory of the block, local memory a thread."""

    def __init__(self, threads: int, shared_bytes: int, local_bytes: int) -> None:
        self.buffers: dict[int, Buffer] = {}
        self.maps: dict[int, TensorMap] = {}  # by the address of the parameter that holds it
        self.threads = threads
        self.shared_bytes, self.local_bytes = SHARED_BASE + shared_bytes, local_bytes
        self.shared = np.zeros((self.shared_bytes + 15) // 16 * 16, np.uint8)
        self.local_pitch = (local_bytes + 15) // 16 * 16
        self.local = np.zeros(threads * self.local_pitch, np.uint8)

    def add(self, name: str, contents: Array | AddressOnly) -> int:
        """Make room for an array; gives its address."""
        region = FIRST_REGION + len(self.buffers)
        self.buffers[region] = Buffer(name, region, contents)
        return self.buffers[region].base

    def add_map(self, box: TensorMap) -> int:
        """Make room for the matrix that a tensor map describes; gives the map's own address."""
        if not any(buffer.name == box.name for buffer in self.buffers.values()):
            self.add(box.name, AddressOnly(box.nbytes))
        address = (MAP_REGION << REGION_BITS) + 128 * len(self.maps)
        self.maps[address] = box
        return address

    def base_of(self, box: TensorMap) -> int:
        """The address of the matrix that a tensor map describes."""
        return next(buffer.base for buffer in self.buffers.values() if buffer.name == box.name)

    def new_block(self) -> None:
        """Shared memory holds no defined values at the start of a block: a pattern that is neither zero nor a NaN."""
        self.shared.fill(0x41)
        self.local.fill(0x41)

    def split(self, addresses: Array, space: str) -> list[tuple[str, Buffer | None, Array, Any]]:
        """Addresses → [(space, buffer, offsets, which of the addresses)]: one entry unless threads reach several
        arrays."""
        if space in ("shared", "local"):
            return [(space, None, addresses, slice(None))]
        regions = addresses >> REGION_BITS
        first = int(regions[0])
        if (regions == first).all():
            return [(*self._place(first, addresses), slice(None))]
        return [(*self._place(int(n), addresses[regions == n]), regions == n) for n in np.unique(regions)]

    def _place(self, region: int, addresses: Array) -> tuple[str, Buffer | None, Array]:
        if region in (SHARED_REGION, LOCAL_REGION):
            return "shared" if region == SHARED_REGION else "local", None, addresses - (region << REGION_BITS)
        buffer = self.buffers.get(region)
        if buffer is None:
            raise NotTraced(
                f"out of bounds: address {int(addresses[0]):#x} belongs to no array that the kernel was given"
            )
        return "global", buffer, addresses - buffer.base

    def check(self, space: str, buffer: Buffer | None, offsets: Array, size: int, what: str) -> None:
        """Raise where an access leaves its array or is not aligned to its size, which the GPU does not allow."""
        first = SHARED_BASE if space == "shared" else 0
        low, high = int(offsets.min()) - first, int(offsets.max())
        limit = buffer.nbytes if buffer else self.shared_bytes if space == "shared" else self.local_bytes
        name = buffer.name if buffer else f"{space} memory"
        if low < 0 or high + size > limit:
            where = f"{-low} bytes before the start" if low < 0 else f"{high + size - limit} bytes past the end"
            raise NotTraced(f"out of bounds: {what} reaches {where} of {name}")
        if (offsets % size).any():
            raise NotTraced(f"misaligned: {what} needs addresses that are multiples of {size} in {name}")

    def load(self, space: str, buffer: Buffer | None, offsets: Array, dtype: Any, threads: Array) -> Array:
        if buffer is not None:
            return buffer.load(offsets, dtype)
        index = offsets + threads * self.local_pitch if space == "local" else offsets
        view: Array = (self.local if space == "local" else self.shared).view(dtype)
        values: Array = view.take(index // np.dtype(dtype).itemsize)
        return values

    def store(self, space: str, buffer: Buffer | None, offsets: Array, values: Any, dtype: Any, threads: Array) -> None:
        if buffer is not None:
            buffer.store(offsets, values, dtype)
            return
        index = offsets + threads * self.local_pitch if space == "local" else offsets
        (self.local if space == "local" else self.shared).view(dtype)[index // np.dtype(dtype).itemsize] = values
