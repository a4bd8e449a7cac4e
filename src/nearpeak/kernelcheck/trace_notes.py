"""Collects the memory accesses of a trace, and sorts them by instruction and buffer at its end."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_bulk import PIECE, is_bulk
from nearpeak.kernelcheck.ptx_records import TYPE_BYTES, Instruction
from nearpeak.kernelcheck.ptx_registers import Array, Where
from nearpeak.kernelcheck.ptx_warp import WARP
from nearpeak.kernelcheck.trace_memory import LOCAL_REGION, REGION_BITS, SHARED_REGION, Memory
from nearpeak.kernelcheck.trace_records import Access

LIMIT = 12_000_000  # addresses kept of one block: about 100 MB


class Notes:
    """Every access as (step, addresses of all threads, active threads), by (instruction, space, kind)."""

    def __init__(self, memory: Memory, code: list[Instruction]) -> None:
        self.memory, self.code = memory, code
        self.taken: dict[tuple[int, str, str], list[tuple[int, float, int, Array, Where]]] = defaultdict(list)
        self.number, self.weight, self.kept = 0, 1.0, 0

    @property
    def full(self) -> bool:
        return self.kept > LIMIT

    def begin(self, number: int, weight: float) -> None:
        self.number, self.weight, self.kept = number, weight, 0

    def add(self, index: int, space: str, kind: str, addresses: Array, where: Where, step: int) -> None:
        if space == "const":
            return
        self.kept += len(addresses)
        kept = where if where is True else where.copy()
        self.taken[index, space, kind].append((self.number, self.weight, step, addresses, kept))

    def accesses(self) -> tuple[Access, ...]:
        found = []
        for (index, space, kind), notes in self.taken.items():
            threads = len(notes[0][3])
            warps = threads // WARP
            addresses = np.stack([n[3] for n in notes]).reshape(-1, WARP)
            everyone = np.ones(threads, bool)
            active = np.stack([everyone if n[4] is True else n[4] for n in notes]).reshape(-1, WARP)
            columns: dict[str, Any] = {
                "block": np.repeat([n[0] for n in notes], warps).astype(np.int32),
                "weight": np.repeat([n[1] for n in notes], warps),
                "step": np.repeat([n[2] for n in notes], warps),
                "warp": np.tile(np.arange(warps, dtype=np.int32), len(notes)),
            }
            for name, where, base, mask in self._buffers(space, addresses, active):
                rows = mask.any(axis=1)
                found.append(
                    Access(index, self.code[index], kind, where, name, *self._widths(self.code[index]),
                           addresses[rows] - base, mask[rows], **{k: v[rows] for k, v in columns.items()})
                )  # fmt: skip
        return tuple(sorted(found, key=lambda a: (a.index, a.space, a.buffer)))

    def _buffers(self, space: str, addresses: Array, active: Array) -> list[tuple[str, str, int, Array]]:
        """(buffer's name, space, base, which threads reach it) of the active addresses."""
        if space in ("shared", "local"):
            return [(f"{space} memory", space, 0, active)]
        regions = addresses >> REGION_BITS
        result = []
        for region in np.unique(regions[active]):
            mask = active & (regions == region)
            if region in (SHARED_REGION, LOCAL_REGION):
                name = "shared" if region == SHARED_REGION else "local"
                result.append((f"{name} memory", name, int(region) << REGION_BITS, mask))
            elif int(region) in self.memory.buffers:
                buffer = self.memory.buffers[int(region)]
                result.append((buffer.name, "global", buffer.base, mask))
        return result

    def _widths(self, i: Instruction) -> tuple[int, int]:
        """(bytes of an element, bytes of a thread's access)."""
        if is_bulk(i) or i.opcode in ("ldmatrix", "stmatrix"):
            return PIECE, PIECE
        if i.opcode == "cp":
            size = int(i.operands[2], 0)
            return size, size
        each = TYPE_BYTES[i.modifiers[-1]]
        vector = next((int(m[1:]) for m in i.modifiers if m in ("v2", "v4", "v8")), 1)
        return each, each * vector
