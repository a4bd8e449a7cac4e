"""Matrix units and copies of whole boxes in the trace: what they access, and where it must stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearpeak.kernelcheck.access import analyse
from nearpeak.kernelcheck.causes import traced_flop
from nearpeak.kernelcheck.explain import ASSUMED, Explanation, explain, sheet_rate
from nearpeak.kernelcheck.load import declaration_of
from nearpeak.kernelcheck.ops import find_op
from nearpeak.kernelcheck.ptx import parse
from nearpeak.kernelcheck.ptx_bulk import PIECE, pieces
from nearpeak.kernelcheck.source import read_source
from nearpeak.kernelcheck.trace import trace
from nearpeak.kernelcheck.trace_memory import AddressOnly, TensorMap
from nearpeak.kernelcheck.trace_records import Launch, Trace
from ptx_compile import EXAMPLES, ptx
from traced_run import done, run

COPY_BOX = Path(__file__).parent / "kernels" / "copy_box.cu"
BF16 = 2


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turned", [False, True])
def test_ldmatrix_and_stmatrix_move_what_the_manual_says(count: int, turned: bool) -> None:
    """ldmatrix into registers; from there stmatrix, the other way round, must give the matrices again."""
    kind = f"sync.aligned.m8n8.x{count}{'.trans' if turned else ''}.shared::cta.b16"
    registers = ", ".join(f"%{k}" for k in range(count))
    outputs, inputs = (", ".join(f'"{c}"(w[{k}])' for k in range(count)) for c in ("=r", "r"))
    load = f'asm volatile("ldmatrix.{kind} {{{registers}}}, [%{count}];" : {outputs} : "r"(at));'
    sent = ", ".join(f"%{k + 1}" for k in range(count))
    store = f'asm volatile("stmatrix.{kind} [%0], {{{sent}}};" :: "r"(at), {inputs});'
    source = f"""extern "C" __global__ void k(const unsigned short* x, unsigned* words, unsigned short* back) {{
        __shared__ __align__(16) unsigned short tile[256];
        int t = threadIdx.x; unsigned w[4];
        for (int i = t; i < {64 * count}; i += 32) tile[i] = x[i];
        __syncthreads();
        unsigned at = (unsigned)__cvta_generic_to_shared(tile + t % {8 * count} * 8);
        {load}
        for (int i = 0; i < {count}; ++i) words[i * 32 + t] = w[i];
        for (int i = t; i < {64 * count}; i += 32) tile[i] = 0;
        __syncthreads();
        {store}
        __syncthreads();
        for (int i = t; i < {64 * count}; i += 32) back[i] = tile[i]; }}"""
    x = np.arange(64 * count, dtype=np.uint16) + 7
    words, back = np.zeros((count, 32), np.uint32), np.zeros_like(x)
    result = done(ptx(source), (1,), (32,), x, words, back)
    matrices = x.reshape(count, 8, 8)
    for k in range(count):
        for lane in range(32):  # lane 4·row + c holds elements 2·c and 2·c + 1 of its row, or of its column
            row, c = divmod(lane, 4)
            pair = matrices[k, 2 * c : 2 * c + 2, row] if turned else matrices[k, row, 2 * c : 2 * c + 2]
            assert words[k, lane] == int(pair[0]) | int(pair[1]) << 16
    assert np.array_equal(back, x)
    [access] = [a for a in result.accesses if a.instruction.opcode == "ldmatrix"]
    assert (access.width, int(access.active.sum())) == (PIECE, 8 * count)


MMA = """asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%4,%4,%4},{%4,%4},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a));"""


def with_product(after: str, parameter: object) -> Trace:
    text = ptx(f"""extern "C" __global__ void k(float* x) {{ __shared__ float kept[64];
        float d[4] = {{}}; unsigned a = threadIdx.x; int t = threadIdx.x;
        for (int i = 0; i < 3; ++i) {MMA}
        {after} }}""")
    return run(text, (2,), (32,), parameter)


def test_products_count_as_work() -> None:
    result = with_product("x[t] = d[0];", AddressOnly(128))
    assert result.stopped is None
    assert traced_flop(result) == 2 * 3 * 2 * 16 * 8 * 16  # blocks, turns, FLOP of each multiply-add


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("x[(int)d[0]] = 1;", "address of st"),
        ("kept[t] = d[0]; __syncthreads(); x[(int)kept[31 - t]] = 1;", "address of st"),
        ("if (d[1] > 0) for (int i = 0; i < t; ++i) x[i] = sinf(x[i]);", "happens hangs on the result"),
        ("while (d[2] > x[t]) d[2] -= 1; x[t] = d[2];", "happens hangs on the result"),
    ],
)
def test_where_a_product_decides_the_way_it_stops(after: str, words: str) -> None:
    result = with_product(after, AddressOnly(4096))
    assert result.stopped is not None
    assert words in result.stopped
    assert not result.accesses


def test_a_choice_of_values_is_no_decision() -> None:
    result = with_product(
        "kept[t] = d[0]; __syncthreads(); x[t] = fmaxf(kept[31 - t], 0.f) + expf(d[1]);", AddressOnly(128)
    )
    assert result.stopped is None


def test_a_result_that_is_asked_for_is_not_made_up() -> None:
    x = np.zeros(32, np.float32)
    result = with_product("x[t] = d[0];", x)
    assert "mma.sync" in str(result.stopped)
    assert "computes values" in str(result.stopped)
    assert not x.any()


# ---- boxes ---------------------------------------------------------------------------------------------------------


def covered(box: TensorMap, column: int, row: int, threads: int = 64) -> set[int]:
    found = pieces(box, column, row, threads)
    every = np.concatenate([addresses[active] for addresses, active in found]) if found else np.array([], int)
    assert len(set(every.tolist())) == len(every)
    return set(every.tolist())


def test_a_box_inside_over_an_edge_and_outside() -> None:
    box = TensorMap("x", (20, 24), (8, 16), 4)  # 96 bytes a row; a box of 8 rows of 64 bytes
    assert covered(box, 0, 0) == {row * 96 + at for row in range(8) for at in range(0, 64, PIECE)}
    assert covered(box, 16, 16) == {row * 96 + at for row in range(16, 20) for at in range(64, 96, PIECE)}
    assert covered(box, -8, -7) == {row * 96 + at for row in range(1) for at in range(0, 32, PIECE)}
    assert covered(box, 24, 0) == covered(box, 0, 20) == set()


def test_a_copy_by_tensor_map_is_seen() -> None:
    rows, columns = 20, 72
    text = ptx(COPY_BOX.read_text())
    box, y = TensorMap("x", (rows, columns), (8, 32), 4), AddressOnly(rows * columns * 4)
    module = parse(text)
    launch = Launch((3, 3), (256,), (box, y, rows, columns), ("tensormap(x)", "y"))
    result = trace(module, "copy_box", launch, tuple(range(9)))
    assert result.stopped is None
    report = analyse(result)
    [read] = [t for t in report.traffic if t.buffer == "x"]
    assert read.kind == "read"
    assert read.memory == read.once == rows * columns * 4
    [line] = [x for x in report.lines if x.buffer == "x"]
    assert line.coalescing == pytest.approx(1.0, abs=0.3)


def explained(name: str, sizes: dict[str, int]) -> Explanation:
    source = read_source(str(EXAMPLES / f"{name}.cu"))
    declaration = declaration_of(source, {})
    op = find_op(str(declaration.op), declaration.layout)
    return explain(source, declaration, op, sizes, ASSUMED, flop_per_s=sheet_rate(declaration.precision))


@pytest.mark.parametrize(("name", "tile"), [("matmul_6_matrix_units", 128), ("matmul_7_pipelined", 256)])
def test_the_last_steps_of_the_ladder_are_traced(name: str, tile: int) -> None:
    n = 2048
    why = explained(name, {"m": n, "n": n, "k": n})
    assert why.stopped is None
    assert not why.facts.trace.cut
    done_flop, needed = traced_flop(why.facts.trace), 2.0 * n**3
    assert done_flop == pytest.approx(needed, rel=0.02 if tile == 128 else 0.35)  # 64 tiles on 66 clusters
    traffic = {(t.buffer, t.kind): t for t in why.traffic}
    matrix = n * n * BF16
    scale = done_flop / needed
    # Each tile of C reads a strip of A and one of B; two blocks of a cluster share that of B (step 7).
    assert traffic["a", "read"].requested / scale == pytest.approx(matrix * n / (128 if tile == 128 else 256), rel=0.1)
    assert traffic["b", "read"].requested / scale == pytest.approx(matrix * n / tile, rel=0.1)
    assert ("c", "write") in traffic
    for line in why.lines:
        if line.space == "global" and line.kind == "read":
            assert line.coalescing == pytest.approx(1.0)
    assert [c.name for c in why.advice.causes if c.name in ("access pattern", "no matrix units", "little reuse")] == []
