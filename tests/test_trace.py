"""The interpreter computes what the GPU would: whole kernels against numpy, on random sizes and values."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from nearpeak.kernelcheck.ptx import parse
from nearpeak.kernelcheck.trace import trace
from nearpeak.kernelcheck.trace_memory import AddressOnly
from nearpeak.kernelcheck.trace_records import Launch
from ptx_compile import example, line_of, ptx
from traced_run import done, one, run, up

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_vector_addition(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 2000))
    x, y = random.standard_normal((2, n)).astype(np.float32)
    z = np.full(n, np.nan, np.float32)
    text = one("int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) z[i] = x[i] + y[i];",
               "const float* x", "const float* y", "float* z", "int n")  # fmt: skip
    result = done(text, (up(n, 96),), (96,), x, y, z, n)
    assert np.array_equal(z, x + y)
    assert sum(int(a.active.sum()) for a in result.accesses if a.kind == "write") == n


PRODUCTS = [
    ("matmul_1_plain", lambda m, n: ((up(m, 16), up(n, 16)), (16, 16), 0)),
    ("matmul_2_along_rows", lambda m, n: ((up(n, 16), up(m, 16)), (16, 16), 0)),
    ("matmul_3_shared_tiles", lambda m, n: ((up(n, 32), up(m, 32)), (32, 32), 0)),
    ("matmul_4_register_tiles", lambda m, n: ((up(n, 128), up(m, 128)), (256,), 0)),
    ("matmul_5_vector_loads", lambda m, n: ((up(n, 256), up(m, 128)), (256,), 3 * 16 * (128 + 4 + 256) * 4)),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "geometry"), PRODUCTS)
def test_products_of_the_ladder(name: str, geometry: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    m, n, k = (int(v) for v in random.integers(1, 90, 3))
    if seed == 0:
        m, n, k = 64, 64, 48  # no ragged edge
    a, b = random.standard_normal((m, k)).astype(np.float32), random.standard_normal((k, n)).astype(np.float32)
    c = np.full((m, n), np.nan, np.float32)
    grid, block, shared = geometry(m, n)
    done(example(name), grid, block, a, b, c, m, n, k, shared=shared)
    exact = a.astype(np.float64) @ b
    assert np.abs(c - exact).max() <= 1e-6 * k**0.5 * np.abs(exact).max() + 1e-6


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "rows_of_a_block"), [("transpose_uncoalesced", 8), ("transpose_tiled", 32)])
def test_transposes(name: str, rows_of_a_block: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, columns = (int(v) for v in random.integers(1, 150, 2))
    x = random.standard_normal((rows, columns)).astype(np.float32)
    y = np.full((columns, rows), np.nan, np.float32)
    done(example(name), (up(columns, 32), up(rows, rows_of_a_block)), (32, 8), x, y, rows, columns)
    assert np.array_equal(y, x.T)


@pytest.mark.parametrize("name", ["copy_strided", "copy_contiguous"])
def test_copies(name: str) -> None:
    x = np.random.default_rng(0).standard_normal(20_011).astype(np.float32)
    y = np.full_like(x, np.nan)
    done(example(name), (up(len(x), 8192),), (256,), x, y, len(x))
    assert np.array_equal(x, y)


@pytest.mark.parametrize("n", [1, 255, 3000])
@pytest.mark.parametrize("name", ["sum_structures", "sum_arrays"])
def test_reductions_with_shuffles_and_atomics(name: str, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
    y = np.full(1, np.nan, np.float32)
    given = x if name == "sum_structures" else np.ascontiguousarray(x.T)
    done(example(name), (max(1, up(n, 256)),), (256,), given, y, n)
    assert abs(y[0] - x[:, 0].sum(dtype=np.float64)) < 1e-5 * n**0.5 + 1e-6


def test_threads_that_part_and_meet_again() -> None:
    text = one("""int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
        unsigned v = x[i]; int steps = 0;
        while (v != 1) { if (v % 2) v = 3 * v + 1; else v /= 2; if (++steps > 500) break; }
        if (i % 3 == 0) steps += 1000; else if (i % 3 == 1) { if (i % 2) steps += 2000; else steps += 3000; }
        y[i] = steps;""", "const unsigned* x", "int* y", "int n")  # fmt: skip
    x = np.random.default_rng(0).integers(1, 1000, 150).astype(np.uint32)
    y = np.full(150, -1, np.int32)
    done(text, (2,), (96,), x, y, 150)

    def steps(i: int, v: int) -> int:
        count = 0
        while v != 1:
            v = 3 * v + 1 if v % 2 else v // 2
            count += 1
            if count > 500:
                break
        return count + (1000 if i % 3 == 0 else (2000 if i % 2 else 3000) if i % 3 == 1 else 0)

    assert y.tolist() == [steps(i, int(v)) for i, v in enumerate(x)]


def test_exchange_within_a_warp() -> None:
    body = """int i = threadIdx.x, lane = i % 32; int v = x[i];
        z[i] = __shfl_sync(~0u, v, (lane * 7) % 32); z[64 + i] = __shfl_up_sync(~0u, v, 3);
        z[128 + i] = __shfl_down_sync(~0u, v, 5, 16); z[192 + i] = __shfl_xor_sync(~0u, v, 9);
        z[256 + i] = __ballot_sync(~0u, v > 0); z[320 + i] = __any_sync(~0u, v > 90);
        z[384 + i] = __all_sync(~0u, v > -200); z[448 + i] = __reduce_add_sync(~0u, v);
        if (lane < 12) z[512 + i] = __shfl_sync(0xFFFu, v, lane ^ 1) + __activemask();
        else z[512 + i] = __activemask();"""
    x = np.random.default_rng(5).integers(-99, 99, 64).astype(np.int32)
    z = np.zeros((9, 2, 32), np.int32)
    done(one(body, "const int* x", "int* z"), (1,), (64,), x, z)
    w, lane = x.reshape(2, 32), np.arange(32)
    assert np.array_equal(z[0], w[:, lane * 7 % 32])
    assert np.array_equal(z[1], w[:, np.where(lane < 3, lane, lane - 3)])
    assert np.array_equal(z[2], w[:, np.where(lane % 16 + 5 > 15, lane, lane + 5)])
    assert np.array_equal(z[3], w[:, lane ^ 9])
    for row in range(2):
        assert set(z[4, row].view(np.uint32)) == {sum(1 << int(n) for n in lane[w[row] > 0])}
        assert set(z[5, row]) == {int((w[row] > 90).any())}
        assert set(z[6, row]) == {1}
        assert set(z[7, row]) == {int(w[row].sum())}
        assert np.array_equal(z[8, row, :12], w[row, lane[:12] ^ 1] + 0xFFF)
        assert set(z[8, row, 12:].view(np.uint32)) == {0xFFFFF000}


def test_atomic_operations() -> None:
    body = """int i = blockIdx.x * blockDim.x + threadIdx.x; __shared__ int most; __shared__ float sum;
        if (threadIdx.x == 0) { most = -1000; sum = 0; } __syncthreads();
        atomicMax(&most, x[i]); atomicAdd(&sum, (float)x[i]); atomicAdd(counts + (x[i] & 7), 1); atomicInc(turns, 40);
        unsigned old = *lock, seen; do { seen = old; old = atomicCAS(lock, seen, seen + 2); } while (old != seen);
        __syncthreads(); if (threadIdx.x == 0) { atomicExch(out + blockIdx.x, most); atomicAdd(total, sum); }"""
    x = np.random.default_rng(6).integers(-500, 500, 192).astype(np.int32)
    counts, turns, lock = np.zeros(8, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    out, total = np.zeros(2, np.int32), np.zeros(1, np.float32)
    text = one(body, "const int* x", "int* counts", "unsigned* turns", "unsigned* lock", "int* out", "float* total")
    done(text, (2,), (96,), x, counts, turns, lock, out, total)
    assert np.array_equal(counts, np.bincount(x & 7, minlength=8))
    assert turns[0] == 192 % 41
    assert lock[0] == 2 * 192
    assert np.array_equal(out, x.reshape(2, 96).max(axis=1))
    assert total[0] == x.sum()


def test_barriers_of_parts_of_a_block() -> None:
    body = """extern __shared__ int box[]; int i = threadIdx.x, half = i / 64;
        if (half == 0) { box[i] = x[i] * 2; asm volatile("bar.sync 1, 64;"); y[i] = box[63 - i];
            asm volatile("bar.arrive 2, 128;"); }
        else { asm volatile("bar.sync 2, 128;"); y[i] = box[i - 64] + 1; }
        if (i % 2) return; __syncthreads(); y[128 + i] = i;"""
    x = np.arange(128, dtype=np.int32)
    y = np.full(256, -1, np.int32)
    done(one(body, "const int* x", "int* y"), (1,), (128,), x, y, shared=512)
    assert np.array_equal(y[:64], 2 * x[:64][::-1])
    assert np.array_equal(y[64:128], 2 * x[:64] + 1)
    assert np.array_equal(y[128::2], np.arange(0, 128, 2))


def test_local_arrays_structures_and_pointers_of_any_kind() -> None:
    source = """struct Pair { int a; double b; };
    extern "C" __global__ void k(Pair p, const int* x, double* y) {
        __shared__ int tile[32]; int own[8]; int i = threadIdx.x;
        for (int j = 0; j < 8; ++j) own[j] = x[(i + j) % 32];
        tile[i] = 100 + i; __syncthreads();
        const int* from = i % 2 ? tile : x;
        y[i] = own[x[i] & 7] * p.a + p.b + from[i];
    }"""
    x = np.random.default_rng(7).integers(0, 1000, 32).astype(np.int32)
    y = np.zeros(32)
    pair = np.zeros(1, np.dtype([("a", "i4"), ("b", "f8")], align=True))
    pair["a"], pair["b"] = 3, 0.25
    done(ptx(source), (1,), (32,), pair.tobytes(), x, y)
    want = [3 * int(x[(i + (x[i] & 7)) % 32]) + 0.25 + (100 + i if i % 2 else int(x[i])) for i in range(32)]
    assert y.tolist() == want


def test_three_dimensions_and_vectors() -> None:
    body = """int i = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        int n = blockDim.x * blockDim.y * blockDim.z;
        float4 v = x[i * n + t]; y[i * n + t] = make_float2(v.x + v.z, v.y * v.w);"""
    x = np.random.default_rng(8).standard_normal((2 * 3 * 2 * 4 * 3 * 2, 4)).astype(np.float32)
    y = np.zeros((len(x), 2), np.float32)
    done(one(body, "const float4* x", "float2* y"), (2, 3, 2), (4, 3, 2), x, y)
    assert np.array_equal(y, np.stack([x[:, 0] + x[:, 2], x[:, 1] * x[:, 3]], axis=1))


def test_variables_of_the_module_keep_their_values_from_block_to_block() -> None:
    source = """__constant__ int table[4] = {5, -7, 11, 13}; __device__ int calls = 100;
    __device__ float scale[2] = {0.5f, 3.f};
    extern "C" __global__ void k(float* x) { x[blockIdx.x * 4 + threadIdx.x] = table[threadIdx.x] * scale[1] + calls;
        __syncthreads(); if (threadIdx.x == 0) calls += 1; }"""
    x = np.zeros((3, 4), np.float32)
    done(ptx(source), (3,), (4,), x)
    assert np.array_equal(x, np.array([5, -7, 11, 13]) * 3.0 + 100 + np.arange(3)[:, None])


# ---- what must stop it ----------------------------------------------------------------------------------------------
def test_unknown_instructions_stop_it_with_their_name_and_line() -> None:
    source = """extern "C" __global__ void k(float* x) {
        float d[4] = {}; unsigned a = threadIdx.x;
        #define D "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 REGISTERS" : D : "r"(a));
        x[threadIdx.x] = d[0]; }""".replace("REGISTERS", "{%0,%1,%2,%3},{%4,%4,%4,%4},{%4,%4},{%0,%1,%2,%3};")
    x = np.zeros(32, np.float32)
    result = run(ptx(source), (1,), (32,), x)
    assert result.stopped is not None
    assert "mma.sync" in result.stopped
    assert "line 4" in result.stopped
    assert not x.any()


@pytest.mark.parametrize(("offset", "what"), [(1, "4 bytes past the end of x"), (-1, "4 bytes before the start of x")])
def test_out_of_bounds_is_named(offset: int, what: str) -> None:
    module = parse(one(f"x[(int)threadIdx.x + {offset}] = 1;", "float* x"))
    result = trace(module, "k", Launch((1,), (32,), (np.zeros(32, np.float32),), ("x",)))
    assert result.stopped is not None
    assert result.stopped.startswith("out of bounds: the write in line 1")
    assert what in result.stopped


def test_misaligned_vectors_and_rounding_that_is_not_known() -> None:
    x = np.zeros(64, np.float32)
    result = run(
        one("*(float4*)(x + 1 + 4 * (threadIdx.x % 4)) = make_float4(1, 2, 3, 4);", "float* x"), (1,), (32,), x
    )
    assert "misaligned" in (result.stopped or "")
    result = run(one("x[threadIdx.x] = __fadd_rz(x[threadIdx.x], 1.f);", "float* x"), (1,), (32,), x)
    assert "add.rz.f32" in (result.stopped or "")


def test_a_barrier_that_some_never_reach_is_a_deadlock() -> None:
    body = """if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");
        x[threadIdx.x] = 1;"""
    result = run(one(body, "int* x"), (1,), (64,), np.zeros(64, np.int32))
    assert "deadlock" in (result.stopped or "")


def test_endless_loops_are_cut() -> None:
    result = run(
        one("while (*(volatile int*)x == 0) {} x[1] = 1;", "int* x"), (1,), (32,), np.zeros(2, np.int32), cap=5000
    )
    assert result.cut
    assert result.stopped is None
    assert result.issues.sum() == 5000


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="takes 1 arguments, 2 are given"):
        run(one("x[0] = 1;", "int* x"), (1,), (32,), np.zeros(1, np.int32), 3)


# ---- large problems by addresses alone ------------------------------------------------------------------------------
def test_a_large_product_is_traced_whole_and_fast() -> None:
    n = 4096
    buffer = AddressOnly(n * n * 4)
    module = parse(example("matmul_1_plain"))
    start = time.perf_counter()
    result = trace(
        module, "matmul_plain", Launch((256, 256), (16, 16), (buffer, buffer, buffer, n, n, n), ("a", "b", "c"))
    )
    seconds = time.perf_counter() - start
    assert result.stopped is None
    assert not result.cut
    assert result.weights == (1, 256 * 256 - 2, 1)
    multiply = [k for k, i in enumerate(result.instructions) if i.opcode == "fma"]
    assert sum(result.lanes[k] for k in multiply) == n**3
    assert {a.line for a in result.accesses if a.buffer == "a"} == {line_of("matmul_1_plain", "sum += a[")}
    assert seconds < 10  # about 1 s alone; other work may share the machine
