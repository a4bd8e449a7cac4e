"""The last steps of the ladder in Triton: the compiler lays out shared memory, registers and the pipeline by itself.

`matmul_fp32` is what steps 3 to 5 build by hand (ieee fp32, no tf32); `matmul_nt_bf16` is steps 6 and 7 with plain
pointers, copied ahead by `num_stages` tiles; `matmul_nt_bf16_tensors` the same with tensor descriptors (TMA) and
programs that stay and take several tiles. Tiles are taken in groups of GROUP rows, so that programs running at the same
time share what they read through the second-level cache.
What holds them back: the compiler chooses. No warp group only copies, and no two blocks share a tile of B.

Runs in Triton's interpreter too (TRITON_INTERPRET=1), where products of bf16 are done in fp32.
"""

# nearpeak: kernel matmul_fp32
# nearpeak: op matmul
# nearpeak: precision fp32
# nearpeak: grid ceil(m / 128) * ceil(n / 128)
# nearpeak: args a, b, c, m, n, k
# nearpeak: constants BLOCK_M=128, BLOCK_N=128, BLOCK_K=16, GROUP=8
# nearpeak: launch num_warps=8, num_stages=3

# nearpeak: kernel matmul_nt_bf16
# nearpeak: op matmul_nt
# nearpeak: precision bf16
# nearpeak: grid ceil(m / 128) * ceil(n / 256)
# nearpeak: args a, b, c, m, n, k
# nearpeak: constants BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=8
# nearpeak: launch num_warps=8, num_stages=3

# nearpeak: kernel matmul_nt_bf16_tensors
# nearpeak: op matmul_nt
# nearpeak: precision bf16
# nearpeak: grid min(sms, ceil(m / 128) * ceil(n / 256))
# nearpeak: args a, b, c, m, n, k
# nearpeak: constants BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=8
# nearpeak: launch num_warps=8, num_stages=3
# nearpeak: require k % 8 == 0 and n % 8 == 0

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")


@triton.jit
def tile_place(number, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column, in tiles, of tile `number`: down a group of GROUP rows, then one column to the right."""
    down, across = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    group, within = number // (GROUP * across), number % (GROUP * across)
    rows = min(GROUP, down - group * GROUP)
    return group * GROUP + within % rows, within // rows


@triton.jit
def add_product(a, b, sums):
    """sums + a · b of bf16 tiles, in fp32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision="ieee")
    else:
        return tl.dot(a, b, sums)


@triton.jit
def matmul_fp32(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):
    """c = a · b: a (m, k), b (k, n), c (m, n), all row-major."""
    tile_row, tile_column = tile_place(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    rows = tile_row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_column * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    a_at = a + rows[:, None].to(tl.int64) * k + steps[None, :]
    b_at = b + steps[:, None].to(tl.int64) * n + columns[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        left = k - first
        a_tile = tl.load(a_at, mask=(rows[:, None] < m) & (steps[None, :] < left), other=0.0)
        b_tile = tl.load(b_at, mask=(steps[:, None] < left) & (columns[None, :] < n), other=0.0)
        sums = tl.dot(a_tile, b_tile, sums, input_precision="ieee")
        a_at += BLOCK_K
        b_at += BLOCK_K * tl.cast(n, tl.int64)
    c_at = c + rows[:, None].to(tl.int64) * n + columns[None, :]
    tl.store(c_at, sums, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def matmul_nt_bf16(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):
    """c = a · bᵀ: a (m, k), b (n, k), c (m, n), all row-major."""
    tile_row, tile_column = tile_place(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    rows = tile_row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_column * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    # Rows past the edge read the first rows again: what is computed from them is never stored.
    a_at = a + (rows % m)[:, None].to(tl.int64) * k + steps[None, :]
    b_at = b + (columns % n)[None, :].to(tl.int64) * k + steps[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        left = k - first
        a_tile = tl.load(a_at, mask=steps[None, :] < left, other=0.0)
        b_tile = tl.load(b_at, mask=steps[:, None] < left, other=0.0)
        sums = add_product(a_tile, b_tile, sums)
        a_at += BLOCK_K
        b_at += BLOCK_K
    c_at = c + rows[:, None].to(tl.int64) * n + columns[None, :]
    tl.store(c_at, sums.to(tl.bfloat16), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def matmul_nt_bf16_tensors(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr
):
    """As `matmul_nt_bf16`. Before the launch give Triton memory for the descriptors: `triton.set_allocator`."""
    a_tensor = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BLOCK_M, BLOCK_K])
    b_tensor = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BLOCK_N, BLOCK_K])
    c_tensor = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_row, tile_column = tile_place(number, m, n, BLOCK_M, BLOCK_N, GROUP)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for first in range(0, k, BLOCK_K):
            a_tile = a_tensor.load([tile_row * BLOCK_M, first])
            b_tile = b_tensor.load([tile_column * BLOCK_N, first])
            sums = add_product(a_tile, b_tile.T, sums)
        c_tensor.store([tile_row * BLOCK_M, tile_column * BLOCK_N], sums.to(tl.bfloat16))
