"""What accesses cost: counted by hand for known patterns, and the examples' planted faults against their twins."""

from __future__ import annotations

import numpy as np
import pytest

from nearpeak.kernelcheck.access import AccessReport, LineAccess, analyse
from nearpeak.kernelcheck.axes import with_axes_swapped
from nearpeak.kernelcheck.ptx import parse
from nearpeak.kernelcheck.request_cost import bank_passes, sectors_and_lines
from nearpeak.kernelcheck.trace import trace
from nearpeak.kernelcheck.trace_records import Launch
from ptx_compile import line_of, ptx
from traced_examples import SIDE, WORDS, N, traced


def find(report: AccessReport, buffer: str, kind: str = "read") -> LineAccess:
    """The dearest line of a buffer."""
    return next(x for x in report.lines if x.buffer == buffer and x.kind == kind)


@pytest.mark.parametrize(
    ("stride", "width", "sectors", "lines", "least"),
    [(4, 4, 4, 1, 4), (8, 4, 8, 2, 4), (32, 4, 32, 8, 4), (128, 4, 32, 32, 4), (0, 4, 1, 1, 1), (16, 16, 16, 4, 16),
     (2, 2, 2, 1, 2), (64, 16, 32, 16, 16)],
)  # fmt: skip
def test_sectors_of_strides(stride: int, width: int, sectors: int, lines: int, least: int) -> None:
    addresses = (np.arange(32) * stride)[None] + np.array([[0], [4096]])
    found = sectors_and_lines(addresses, width)
    assert [f.tolist() for f in found[:3]] == [[sectors] * 2, [lines] * 2, [least] * 2]


def test_sectors_against_a_plain_count() -> None:
    random = np.random.default_rng(0)
    addresses = random.integers(0, 400, (50, 32)) * 4
    sectors, lines, least, _ = sectors_and_lines(addresses, 4)
    for row, s, c, n in zip(addresses, sectors, lines, least, strict=True):
        assert s == len({a // 32 for a in row})
        assert c == len({a // 128 for a in row})
        assert n == -(-len(set(row)) * 4 // 32)


@pytest.mark.parametrize(
    ("addresses", "width", "passes", "least"),
    [
        (np.arange(32) * 4, 4, 1, 1),
        (np.arange(32) * 128, 4, 32, 1),  # a column of a tile of 32 × 32
        (np.arange(32) * 132, 4, 1, 1),  # a column of a tile of 32 × 33
        (np.zeros(32, int), 4, 1, 1),  # all the same word
        (np.arange(32) * 8, 4, 2, 1),
        (np.arange(32) * 16, 16, 4, 4),
        (np.arange(32) * 8, 8, 2, 2),
        (np.arange(32) * 2, 2, 1, 1),
        (np.arange(32) * 32, 16, 8, 4),
    ],
)
def test_bank_conflicts(addresses: np.ndarray, width: int, passes: int, least: int) -> None:
    got, without, merged = bank_passes(addresses[None], np.ones((1, 32), bool), width)
    assert (got[0], without[0]) == (passes, least)
    assert merged[0] <= got[0]


def test_bank_conflicts_against_a_plain_count() -> None:
    random = np.random.default_rng(1)
    addresses, active = random.integers(0, 500, (40, 32)) * 4, random.random((40, 32)) < 0.7
    active[:, 0] = True
    got, _, merged = bank_passes(addresses, active, 4)
    for row, on, n in zip(addresses, active, got, strict=True):
        words = {int(a) // 4 for a in row[on]}
        assert n == max(sum(1 for w in words if w % 32 == bank) for bank in range(32))
    assert np.array_equal(got, merged)


def test_the_plain_product_and_its_twin() -> None:
    plain, mended = analyse(traced("matmul_1_plain")), analyse(traced("matmul_2_along_rows"))
    a = find(plain, "a")
    assert a.line == line_of("matmul_1_plain", "sum += a[")
    assert a.coalescing == pytest.approx(8)
    assert a.cache_lines / a.requests == pytest.approx(16)
    assert a.in_words() == "neighbouring threads read elements of a that lie 4096 elements (16384 bytes) apart"
    assert find(plain, "c", "write").coalescing == pytest.approx(
        4
    )  # sixteen sectors where two runs of 64 bytes need four
    assert a.requests == pytest.approx(N**3 / 32)
    for buffer, kind in (("b", "read"), ("c", "write")):
        assert find(mended, buffer, kind).coalescing == pytest.approx(1)
        assert find(mended, buffer, kind).in_words().startswith("neighbouring threads ")
    assert find(mended, "a").cache_lines / find(mended, "a").requests == pytest.approx(2)


def test_exchanging_the_axes_gives_the_twin() -> None:
    swapped, mended = with_axes_swapped(traced("matmul_1_plain")), analyse(traced("matmul_2_along_rows"))
    assert swapped is not None
    report = analyse(swapped)
    for buffer, kind in (("a", "read"), ("b", "read"), ("c", "write")):
        mine, theirs = find(report, buffer, kind), find(mended, buffer, kind)
        assert mine.requests == pytest.approx(theirs.requests, rel=0.01)
        assert mine.cache_lines / mine.requests == pytest.approx(theirs.cache_lines / theirs.requests)
        assert mine.sectors / mine.requests == pytest.approx(theirs.sectors / theirs.requests)
    assert with_axes_swapped(traced("copy_strided")) is None


def test_transposes() -> None:
    bad, good = analyse(traced("transpose_uncoalesced")), analyse(traced("transpose_tiled"))
    assert find(bad, "x").coalescing == pytest.approx(1)
    assert find(bad, "y", "write").coalescing == pytest.approx(8)
    assert find(bad, "y", "write").stride == SIDE * 4
    assert find(bad, "y", "write").line == line_of("transpose_uncoalesced", "if (row < rows")
    for buffer, kind in (("x", "read"), ("y", "write")):
        assert find(good, buffer, kind).coalescing == pytest.approx(1)
    assert find(good, "shared memory").conflict_degree == pytest.approx(1)


@pytest.mark.parametrize(("pitch", "degree"), [(32, 32), (33, 1), (34, 2)])
def test_conflicts_of_a_tile_by_its_pitch(pitch: int, degree: int) -> None:
    source = f"""extern "C" __global__ void k(const float* x, float* y) {{ __shared__ float tile[32][{pitch}];
        for (int i = threadIdx.y; i < 32; i += 8) tile[i][threadIdx.x] = x[i * 32 + threadIdx.x];
        __syncthreads();
        for (int i = threadIdx.y; i < 32; i += 8) y[i * 32 + threadIdx.x] = tile[threadIdx.x][i]; }}"""
    x, y = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
    result = trace(parse(ptx(source)), "k", Launch((1,), (32, 8), (x, y), ("x", "y")))
    assert np.array_equal(y, x.T)
    read = find(analyse(result), "shared memory")
    assert read.line == 4
    assert read.conflict_degree == pytest.approx(degree)


def test_copies() -> None:
    bad, good = analyse(traced("copy_strided")), analyse(traced("copy_contiguous"))
    for buffer, kind in (("x", "read"), ("y", "write")):
        strided, contiguous = find(bad, buffer, kind), find(good, buffer, kind)
        assert strided.coalescing == pytest.approx(8)
        assert strided.successive > 0.9
        assert contiguous.coalescing == pytest.approx(1)
        assert contiguous.stride == 4
        assert contiguous.requests == pytest.approx(WORDS / 32)
    traffic = {t.kind: t for t in bad.traffic}
    assert traffic["read"].windowed == pytest.approx(WORDS * 4)  # a block's sectors stay in its first-level cache …
    assert traffic["write"].windowed == pytest.approx(WORDS * 32)  # … but each write goes through
    small = {t.kind: t for t in analyse(traced("copy_strided"), l1_bytes=4 * 1024).traffic}
    assert small["read"].windowed > 1.5 * WORDS * 4


def test_an_array_of_structures() -> None:
    bad, good = analyse(traced("sum_structures")), analyse(traced("sum_arrays"))
    x = find(bad, "x")
    assert x.coalescing == pytest.approx(8)
    assert x.sector_use == pytest.approx(1 / 8)
    assert x.stride == 32
    assert find(good, "x").coalescing == pytest.approx(1)
    assert find(good, "x").sector_use == pytest.approx(1)
    moved = {t.buffer: t for t in bad.traffic}["x"]
    assert moved.memory / moved.needed == pytest.approx(8)


def test_idle_threads_are_found_by_line() -> None:
    source = """extern "C" __global__ void k(float* x) {
        int i = threadIdx.x; float v = x[i];
        if (i % 4 == 0)
            for (int j = 0; j < 50; ++j) v = v * v + 1;
        x[i] = v; }"""
    result = trace(parse(ptx(source)), "k", Launch((1,), (64,), (np.zeros(64, np.float32),)))
    idle = analyse(result).idle
    assert idle[4] == pytest.approx(0.75, abs=0.05)
    assert idle[2] == pytest.approx(0)


def test_an_access_that_starts_off_a_sector() -> None:
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x + 1] += 1; }'
    result = trace(parse(ptx(source)), "k", Launch((1,), (32,), (np.zeros(64, np.float32),), ("x",)))
    read = find(analyse(result), "x")
    assert (read.sectors, read.least, read.stride) == (5, 4, 4)
