"""What a kernel's accesses would be with the roles of threadIdx.x and threadIdx.y exchanged: the same work, other
warps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nearpeak.kernelcheck.trace_records import Access, Trace

WARP = 32
_MOST = 512  # times that one instruction ran which are looked at; the others are taken to be alike


def with_axes_swapped(trace: Trace) -> Trace | None:
    """The trace with x and y exchanged (and the block's extents with them); None for blocks of one dimension.

    The addresses of each thread stay what they were; only the warp and the lane that it runs in change.
    """
    x, y, *rest = (*trace.launch.block, 1, 1)[:3]
    if x == 1 or y == 1 or rest != [1] or x * y % WARP:
        return None
    thread = np.arange(x * y)
    old = thread // y + x * (thread % y)  # the new thread (i, j) does what thread (j, i) did
    return replace(trace, accesses=tuple(_rearranged(a, old) for a in trace.accesses))


def _rearranged(access: Access, old: np.ndarray) -> Access:
    warps = len(old) // WARP
    key = access.step * (int(access.block.max()) + 1) + access.block
    keys, first, row = np.unique(key, return_index=True, return_inverse=True)
    every = -(-len(keys) // _MOST)
    chosen = row % every == 0
    rows = row[chosen] // every
    shape = (-(-len(keys) // every), len(old))
    addresses, active = np.zeros(shape, np.int64), np.zeros(shape, bool)
    columns = access.warp[chosen, None] * WARP + np.arange(WARP)
    addresses[rows[:, None], columns] = access.addresses[chosen]
    active[rows[:, None], columns] = access.active[chosen]
    addresses, active = addresses[:, old].reshape(-1, WARP), active[:, old].reshape(-1, WARP)
    used = active.any(axis=1)
    first = first[::every]
    weight = np.repeat(access.weight[first], warps)[used]
    threads = (access.weight * access.active.sum(axis=1)).sum()  # all threads do what they did before
    weight = weight * (threads / (weight * active[used].sum(axis=1)).sum())
    return replace(
        access,
        addresses=addresses[used],
        active=active[used],
        block=np.repeat(access.block[first], warps)[used],
        step=np.repeat(access.step[first], warps)[used],
        warp=np.tile(np.arange(warps, dtype=np.int32), shape[0])[used],
        weight=weight,
    )
