"""What single requests of a warp cost: sectors and cache lines of global memory, passes through shared memory's banks.

Facts of the hardware used here. Global memory is moved in sectors of 32 bytes, four to a cache line of 128, and a
warp's request touches each of its sectors once (NVIDIA, "CUDA C++ Best Practices Guide", coalesced access). Shared
memory has 32 banks of 4 bytes; a request takes as many passes ("wavefronts") as the busiest bank has different words,
for 8- and 16-byte accesses by half and quarter warps (NVIDIA, "CUDA C++ Programming Guide", compute capability 5.x
and newer).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearpeak.kernelcheck.trace_records import Access

SECTOR, CACHE_LINE, BANKS, WORD, WARP = 32, 128, 32, 4, 32


def filled(access: Access) -> Any:
    """(requests, 32) addresses; idle threads repeat one of the active, so that they add nothing."""
    first = np.argmax(access.active, axis=1)
    some = np.take_along_axis(access.addresses, first[:, None], axis=1)
    return np.where(access.active, access.addresses, some)


def distinct(values: Any) -> Any:
    """(rows,) how many different values each row has."""
    ordered = np.sort(values, axis=1)
    return 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)


def sectors_and_lines(addresses: Any, width: int) -> tuple[Any, Any, Any, Any]:
    """Per request: (sectors, cache lines, fewest sectors, fewest lines). Accesses are aligned to their width."""
    ordered = np.sort(addresses, axis=1)
    different = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1
    sectors = ((ordered[:, 1:] // SECTOR) != (ordered[:, :-1] // SECTOR)).sum(axis=1) + 1
    lines = ((ordered[:, 1:] // CACHE_LINE) != (ordered[:, :-1] // CACHE_LINE)).sum(axis=1) + 1
    asked = different * width
    return sectors, lines, -(-asked // SECTOR), -(-asked // CACHE_LINE)


def bank_passes(addresses: Any, active: Any, width: int) -> tuple[Any, Any, Any]:
    """Per request to shared memory: (passes, passes without conflicts, lower bound as if all phases were merged)."""
    phases = max(1, width // WORD)
    rows, lanes = addresses.shape
    split = addresses.reshape(rows * phases, lanes // phases)
    present = active.reshape(rows * phases, lanes // phases)
    passes = _busiest_bank(split, present, phases).reshape(rows, phases)
    merged = _busiest_bank(addresses, active, phases)
    return (
        passes.sum(axis=1),
        np.maximum(present.any(axis=1).reshape(rows, phases).sum(axis=1), 1),
        np.maximum(merged, 1),
    )


def _busiest_bank(addresses: Any, active: Any, words: int) -> Any:
    """(rows,) how many different words the busiest bank of each row has to serve."""
    rows = len(addresses)
    each = (addresses // WORD)[:, :, None] + np.arange(words)
    each = np.where(active[:, :, None], each, -1).reshape(rows, -1)
    each.sort(axis=1)
    new = np.ones(each.shape, bool)
    new[:, 1:] = each[:, 1:] != each[:, :-1]
    new &= each >= 0
    key = np.arange(rows)[:, None] * BANKS + each % BANKS
    counts = np.bincount(key[new], minlength=rows * BANKS)
    return counts.reshape(rows, BANKS).max(axis=1)
