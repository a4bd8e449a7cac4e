"""Triton kernels that only read, or only write, device memory; each with its plain torch reference.

They need `triton`, which comes with torch's CUDA and ROCm builds, and run in its interpreter on the CPU in tests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024  # int32 values a program handles at once: one 16-byte access for each of its 256 threads


@triton.jit
def _sum_kernel(x, partial, n, BLOCK: tl.constexpr, LOADS: tl.constexpr):
    """partial[program] = Σ of LOADS × BLOCK neighbouring int32 values, wrapping."""
    program = tl.program_id(0)
    start = program.to(tl.int64) * (BLOCK * LOADS)
    total = tl.zeros([BLOCK], tl.int32)
    for i in tl.static_range(LOADS):
        offsets = start + i * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x + offsets, mask=offsets < n, other=0)
    tl.store(partial + program, tl.sum(total, 0))


@triton.jit
def _fill_kernel(y, n, seed, BLOCK: tl.constexpr, STORES: tl.constexpr):
    """y[i] = a number that looks random: the index and the seed, multiplied and folded, as int32."""
    start = tl.program_id(0).to(tl.int64) * (BLOCK * STORES)
    for i in tl.static_range(STORES):
        offsets = start + i * BLOCK + tl.arange(0, BLOCK)
        mixed = (offsets.to(tl.int32) ^ seed) * 0x2C1B3C6D
        tl.store(y + offsets, (mixed ^ (mixed >> 15)) * 0x297A2D39, mask=offsets < n)


@triton.jit
def _cached_sum_kernel(x, partial, tiles, rounds, stride, BLOCK: tl.constexpr, LOADS: tl.constexpr):
    """Each program sums `rounds` tiles of LOADS × BLOCK values, `stride` tiles apart, past the first-level cache."""
    program = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    tile = program % tiles
    for _ in range(rounds):
        for i in tl.static_range(LOADS):
            offsets = tile * (BLOCK * LOADS) + i * BLOCK + tl.arange(0, BLOCK)
            # .cg keeps the line out of the first-level cache, which would otherwise serve a small working set
            total += tl.load(x + offsets, cache_modifier=".cg")
        tile = (tile + stride) % tiles
    tl.store(partial + program, tl.sum(total, 0))


def read_sum(x: torch.Tensor, partial: torch.Tensor, loads: int = 8) -> None:
    """Read every element of x (1-D int32) once; partial (int32) gets one wrapped sum per `loads` × BLOCK elements.

    partial must hold `partial_count(x.numel(), loads)` elements.
    """
    _sum_kernel[(partial_count(x.numel(), loads),)](x, partial, x.numel(), BLOCK=BLOCK, LOADS=loads, num_warps=8)


def read_sum_reference(x: torch.Tensor, loads: int = 8) -> torch.Tensor:
    """What `read_sum` writes: wrapped int32 sums of neighbouring runs."""
    count = partial_count(x.numel(), loads)
    padded = torch.nn.functional.pad(x.long(), (0, count * loads * BLOCK - x.numel()))
    return padded.view(count, -1).sum(1).to(torch.int32)  # conversion keeps the low 32 bits, as wrapping does


def write_random(y: torch.Tensor, seed: int, stores: int = 1) -> None:
    """Write y (1-D int32) with numbers that look random, so that no compression helps and the power is that of data."""
    count = partial_count(y.numel(), stores)
    _fill_kernel[(count,)](y, y.numel(), seed, BLOCK=BLOCK, STORES=stores, num_warps=8)


def write_random_reference(n: int, seed: int) -> torch.Tensor:
    """What `write_random` writes."""
    mixed = (torch.arange(n, dtype=torch.int32) ^ seed) * 0x2C1B3C6D
    return (mixed ^ (mixed >> 15)) * 0x297A2D39


def read_sum_cached(x: torch.Tensor, partial: torch.Tensor, rounds: int, loads: int = 8) -> int:
    """Each of partial.numel() programs reads `rounds` tiles of x (1-D int32, whole tiles); returns the bytes read."""
    tiles = x.numel() // (BLOCK * loads)
    if tiles < 1 or tiles * BLOCK * loads != x.numel():
        raise ValueError(f"{x.numel()} elements are no whole number of tiles of {BLOCK * loads}")
    programs = partial.numel()
    _cached_sum_kernel[(programs,)](
        x, partial, tiles, rounds, cache_stride(tiles), BLOCK=BLOCK, LOADS=loads, num_warps=8
    )
    return int(programs * rounds * BLOCK * loads * x.element_size())


def read_sum_cached_reference(x: torch.Tensor, programs: int, rounds: int, loads: int = 8) -> torch.Tensor:
    """What `read_sum_cached` writes."""
    sums = x.long().view(-1, BLOCK * loads).sum(1)
    tiles = sums.numel()
    turns = torch.arange(programs)[:, None] + torch.arange(rounds)[None, :] * cache_stride(tiles)
    return sums[turns % tiles].sum(1).to(torch.int32)


def partial_count(n: int, loads: int) -> int:
    """Programs that n elements need."""
    return -(-n // (BLOCK * loads))


def cache_stride(tiles: int) -> int:
    """Tiles between a program's turns: odd and about 0.6 of all, so that programs never walk in step."""
    return int(tiles * 0.618) | 1
