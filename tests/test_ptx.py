"""Taking PTX apart: parameters, registers, scopes, labels, lines, variables."""

from __future__ import annotations

import pytest

from nearpeak.kernelcheck.ptx import parse
from ptx_compile import EXAMPLES, example, line_of, ptx

ALL = sorted(path.stem for path in EXAMPLES.glob("*.cu"))


def test_parameters_registers_and_lines() -> None:
    kernel = parse(example("matmul_1_plain")).kernels["matmul_plain"]
    assert [(p.type, p.size) for p in kernel.parameters] == [("u64", 8)] * 3 + [("u32", 4)] * 3
    loads = [i for i in kernel.instructions if i.name == "ld.global.f32"]
    assert {i.line for i in loads} == {line_of("matmul_1_plain", "sum += a[")}
    assert all(i.file.endswith("matmul_1_plain.cu") for i in loads)
    stores = [i for i in kernel.instructions if i.opcode == "st"]
    assert [i.line for i in stores] == [line_of("matmul_1_plain", "] = sum")]
    assert kernel.registers["%f1"] == "f32"
    assert kernel.registers["%p1"] == "pred"
    branches = [i for i in kernel.instructions if i.opcode == "bra"]
    assert all(i.operands[0] in kernel.labels for i in branches)
    assert any(i.predicate for i in branches)


@pytest.mark.parametrize("name", ALL)
def test_every_example_is_read_whole(name: str) -> None:
    text = example(name)
    module = parse(text)
    (kernel,) = module.kernels.values()
    body = text[text.index("{\n") :]
    statements = [s.split("//")[0].strip() for s in body.split("\n")]
    ends = [s for s in statements if s.endswith("ret;")]
    assert len([i for i in kernel.instructions if i.opcode == "ret"]) == len(ends)
    assert all(i.opcode.isalnum() for i in kernel.instructions)
    assert all(0 <= at <= len(kernel.instructions) for at in kernel.labels.values())
    assert module.target == "sm_90"


def test_shared_memory_is_summed() -> None:
    assert parse(example("matmul_3_shared_tiles")).kernels["matmul_shared_tiles"].shared_bytes == 2 * 32 * 32 * 4
    assert parse(example("transpose_tiled")).kernels["transpose_tiled"].shared_bytes == 32 * 33 * 4
    assert parse(example("matmul_5_vector_loads")).kernels["matmul_vector_loads"].shared_bytes == 0


def test_module_variables_have_their_values() -> None:
    source = "__constant__ int table[3] = {7, -1, 9}; __device__ unsigned done = 5;"
    source += 'extern "C" __global__ void k(int* x) { x[0] = table[x[1]] + atomicAdd(&done, 1u); }'
    variables = {v.name: v for v in parse(ptx(source)).variables}
    assert (variables["done"].space, variables["done"].size, variables["done"].initial[:1]) == ("global", 4, b"\5")
    assert variables["table"].size == 12


def test_scopes_of_inline_assembly_keep_their_registers_apart() -> None:
    add = 'asm("{ .reg .s32 t; add.s32 t, %1, 1; add.s32 %0, t, t; }" : "=r"(y) : "r"(y));'
    kernel = parse(ptx(f'extern "C" __global__ void k(int* x) {{ int y = x[0]; {add} {add} x[0] = y; }}')).kernels["k"]
    own = {name for name in kernel.registers if name.startswith("t_")}
    assert len(own) == 2
    assert sum(any(o in own for o in i.operands) for i in kernel.instructions) == 4


def test_two_kernels_and_a_structure_as_parameter() -> None:
    source = """struct Four { int a, b, c, d; };
    extern "C" __global__ void first(Four f, int* x) { x[0] = f.c; }
    extern "C" __global__ void second(float y, double z, char c, double* x) { x[0] = y + z + c; }"""
    kernels = parse(ptx(source)).kernels
    assert [(p.type, p.size, p.align) for p in kernels["first"].parameters] == [("b8", 16, 4), ("u64", 8, 8)]
    assert [p.type for p in kernels["second"].parameters] == ["f32", "f64", "u8", "u64"]


def test_vectors_are_one_operand() -> None:
    source = 'extern "C" __global__ void k(float4* x) { float4 a = x[0]; a.x += a.w; x[1] = a; }'
    loads = [i for i in parse(ptx(source)).kernels["k"].instructions if i.name == "ld.global.v4.f32"]
    assert len(loads) == 1
    assert loads[0].operands[0].count("%f") == 4
