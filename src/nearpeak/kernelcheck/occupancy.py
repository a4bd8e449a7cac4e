"""How many blocks of a kernel fit on a multiprocessor at a time, what limits them, and how evenly the grid fills the
GPU.

Limits and sizes of the unified data cache (first-level cache and shared memory together): NVIDIA, "CUDA Programming
Guide" 13, section 5.1 "Compute Capabilities", tables 30 to 32
(docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html); for 7.0, which is no longer in
it, the "CUDA C++ Programming Guide" 12, "Technical Specifications per Compute Capability" and "Compute Capability 7.x".
Allocation units (registers by 256 a warp; shared memory by 128 bytes, 256 on 7.x; 1 KB of it kept for the system per
block from 8.0 on): the occupancy calculator of Nsight Compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

REGISTERS, REGISTER_UNIT, WARP = 65536, 256, 32
PARTITIONS = 4  # a multiprocessor's warp schedulers; each has a quarter of the registers, and warps go to them in turn


@dataclass(frozen=True)
class MultiprocessorLimits:
    """What one multiprocessor holds at a time; shared memory in bytes, `block_shared` the most that one block may
    have; cache: bytes of the unified data cache, of which shared memory takes its part."""

    warps: int
    blocks: int
    shared: int
    block_shared: int
    cache: int
    shared_unit: int = 128
    system_shared: int = 1024


_KB = 1024


def _limits(warps: int, blocks: int, shared: int, block_shared: int, cache: int) -> MultiprocessorLimits:
    return MultiprocessorLimits(warps, blocks, shared * _KB, block_shared * _KB, cache * _KB)


LIMITS: dict[str, MultiprocessorLimits] = {
    "sm_70": MultiprocessorLimits(64, 32, 96 * _KB, 96 * _KB, 128 * _KB, 256, 0),
    "sm_75": MultiprocessorLimits(32, 16, 64 * _KB, 64 * _KB, 96 * _KB, 256, 0),
    "sm_80": _limits(64, 32, 164, 163, 192),
    "sm_86": _limits(48, 16, 100, 99, 128),
    "sm_87": _limits(48, 16, 164, 163, 192),
    "sm_89": _limits(48, 24, 100, 99, 128),
    "sm_90": _limits(64, 32, 228, 227, 256),
    "sm_100": _limits(64, 32, 228, 227, 256),
    "sm_103": _limits(64, 32, 228, 227, 256),
    "sm_110": _limits(48, 24, 228, 227, 256),
    "sm_120": _limits(48, 24, 100, 99, 128),
    "sm_121": _limits(48, 24, 100, 99, 128),
}


@dataclass(frozen=True)
class Occupancy:
    """blocks, warps: at a time on one multiprocessor; share: of the warps it can hold; limited_by: "threads",
    "registers", "shared memory", "blocks", or "" where the block cannot run at all, with the reason in `refused`."""

    blocks: int
    warps: int
    share: float
    limited_by: str
    refused: str | None = None


def limits_of(architecture: str) -> MultiprocessorLimits | None:
    """Limits of "sm_90", "sm_90a", "compute_90"; None for an architecture that is not in the table."""
    return LIMITS.get("sm_" + architecture.split("_")[-1].rstrip("af"))


def occupancy(architecture: str, threads: int, registers: int, shared: int) -> Occupancy | None:
    """Of blocks of so many threads, with registers a thread and bytes of shared memory (static + dynamic) a block.

    None for an unknown architecture.
    """
    limits = limits_of(architecture)
    if limits is None:
        return None
    if threads > 1024:
        return Occupancy(0, 0, 0.0, "", f"{threads} threads in a block; 1024 are allowed")
    if shared > limits.block_shared:
        return Occupancy(
            0, 0, 0.0, "", f"{shared} bytes of shared memory in a block; {limits.block_shared} are allowed"
        )
    warps = ceil(threads / WARP)
    by_warp = ceil(registers * WARP / REGISTER_UNIT) * REGISTER_UNIT
    warps_by_registers = REGISTERS // PARTITIONS // by_warp * PARTITIONS if registers else limits.warps
    taken = shared + limits.system_shared
    taken = ceil(taken / limits.shared_unit) * limits.shared_unit
    fits = {
        "threads": limits.warps // warps,
        "registers": warps_by_registers // warps,
        "shared memory": limits.shared // taken if taken else limits.blocks,
        "blocks": limits.blocks,
    }
    blocks = min(fits.values())
    limited_by = next(name for name, most in fits.items() if most == blocks)
    if not blocks:
        return Occupancy(0, 0, 0.0, "", f"{registers} registers × {threads} threads do not fit on a multiprocessor")
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.warps, limited_by)


@dataclass(frozen=True)
class Waves:
    """waves: rounds in which the grid runs, 2.1 meaning two full ones and a tenth; imbalance: work of the busiest
    multiprocessor ÷ the mean over all (1 is best); idle: multiprocessors that get no block at all."""

    waves: float
    imbalance: float
    idle: int


def waves(grid_blocks: int, blocks_at_a_time: int, multiprocessors: int) -> Waves:
    """How evenly so many equal blocks fill the GPU. Blocks are handed out one by one as others end, so that the busiest
    multiprocessor works through ceil(blocks ÷ multiprocessors) of them, a whole wave at least counted as shared
    evenly."""
    busiest = ceil(grid_blocks / multiprocessors)
    return Waves(
        grid_blocks / (blocks_at_a_time * multiprocessors),
        busiest * multiprocessors / grid_blocks,
        max(0, multiprocessors - grid_blocks),
    )


def launch_bound(seconds: float, launch_seconds: float) -> bool:
    """Whether a run is so short that starting it counts: less than five times what a launch costs."""
    return seconds < 5 * launch_seconds


def unified_cache(architecture: str) -> int:
    """Bytes of first-level cache and shared memory together; the smaller of today's sizes where it is not known."""
    limits = limits_of(architecture)
    return limits.cache if limits else 128 * _KB


def first_level_cache(architecture: str, fit: Occupancy | None, shared: int) -> float:
    """Bytes of the first-level cache that one block has to itself: what shared memory leaves, among the blocks there.

    Half of the whole where the fit is not known.
    """
    together = unified_cache(architecture)
    if fit is None or not fit.blocks:
        return together / 2
    return max(together / fit.blocks - shared, 8 * _KB)
