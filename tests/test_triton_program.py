"""Triton kernels compiled for a GPU that is not here, traced and analysed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nearpeak.kernelcheck.check import Request, check_kernel
from nearpeak.kernelcheck.explain import ASSUMED, Explanation, explain, sheet_rate
from nearpeak.kernelcheck.load import declaration_of
from nearpeak.kernelcheck.ops import find_op
from nearpeak.kernelcheck.source import read_source
from nearpeak.kernelcheck.triton_program import NotCompiled

EXAMPLES = Path(__file__).parents[1] / "examples" / "kernels"
KERNELS = '''
import triton
import triton.language as tl

# nearpeak: kernel strided
# nearpeak: op copy
# nearpeak: grid ceil(n / 8192)
# nearpeak: args n, x, y
# nearpeak: constants BLOCK=256, EACH=32
@triton.jit
def strided(n, x, y, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """Each thread copies a run of its own."""
    first = tl.program_id(0) * BLOCK * EACH + tl.arange(0, BLOCK) * EACH
    for i in range(EACH):
        value = tl.load(x + first + i, mask=first + i < n)
        tl.store(y + first + i, value, mask=first + i < n)


# nearpeak: kernel tuned
# nearpeak: op copy
# nearpeak: grid ceil(n / 1024)
# nearpeak: args x, y, n
@triton.autotune(configs=[triton.Config({"BLOCK": 1024}, num_warps=2)], key=["n"])
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


# nearpeak: kernel broken
# nearpeak: op copy
# nearpeak: grid 1
# nearpeak: args x, y, n
@triton.jit
def broken(x, y, n):
    tl.store(y + tl.arange(0, 33), 0.0)
'''


def explained(file: Path | str, **sizes: int) -> Explanation:
    source = read_source(str(file))
    declaration = declaration_of(source, {})
    op = find_op(str(declaration.op))
    return explain(source, declaration, op, sizes, ASSUMED, flop_per_s=sheet_rate(declaration.precision))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("triton") / "kernels.py"
    path.write_text(KERNELS)
    return path


def test_a_fault_is_named_with_its_line(kernels: Path) -> None:
    why = explained(f"{kernels}:strided", n=2**26)
    assert why.stopped is None
    cause = why.advice.causes[0]
    line = 1 + KERNELS.split("\n").index("        value = tl.load(x + first + i, mask=first + i < n)")
    assert (cause.name, cause.where) == ("access pattern", f"kernels.py:{line}")
    assert cause.gain[0] > 1.5
    assert {x.buffer for x in why.lines} == {"x", "y"}  # though a size comes first among the arguments
    assert why.resources.registers
    assert why.occupancy is not None
    assert why.geometry.grid == (2**26 // 8192, 1, 1)


def test_what_an_autotuned_kernel_chose_or_else_its_first_configuration(kernels: Path) -> None:
    why = explained(f"{kernels}:tuned", n=2**20)
    assert why.geometry.block == (64, 1, 1)
    assert "for its first configuration" in why.how
    source = read_source(f"{kernels}:tuned")
    declaration = declaration_of(source, {})
    chosen = {"BLOCK": 2048, "num_warps": 8}
    why = explain(source, declaration, find_op("copy"), {"n": 2**20}, ASSUMED, tuned=chosen)
    assert why.geometry.block == (256, 1, 1)
    assert "first configuration" not in why.how


def test_what_does_not_compile_is_a_reason(kernels: Path) -> None:
    with pytest.raises(NotCompiled) as error:
        explained(f"{kernels}:broken", n=64)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["matmul_fp32", "matmul_nt_bf16"])
def test_the_triton_steps_of_the_ladder_are_traced(name: str) -> None:
    why = explained(EXAMPLES / f"matmul_triton.py:{name}", m=4096, n=4096, k=4096)
    assert why.stopped is None
    reads = [x for x in why.lines if x.space == "global" and x.kind == "read"]
    assert {x.buffer for x in reads} == {"a", "b"}
    assert all(x.coalescing == pytest.approx(1.0) for x in reads)
    assert not [c for c in why.advice.causes if c.name in ("access pattern", "no matrix units")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where no GPU is")
def test_the_check_on_the_cpu_says_for_which_gpu_it_was_analysed(kernels: Path) -> None:
    result = check_kernel(Request(f"{kernels}:tuned", shape="1000")).result
    assert result["right"] is True
    assert "H200" in result["why"]["how"]
    assert result["why"]["counters"] == {"missing": "no GPU is here"}
    json.dumps(result["why"])


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "shape"), [("matmul_fp32", "2048,2048,2048"), ("matmul_nt_bf16", "2048,2048,2048")])
def test_a_triton_kernel_is_analysed_and_counted_on_a_gpu(name: str, shape: str) -> None:
    result = check_kernel(Request(str(EXAMPLES / f"matmul_triton.py:{name}"), shape=shape)).result
    assert result["right"] is True, result["verdict"]
    why = result["why"]
    assert why["stopped"] is None
    assert why["lines"]
    if "missing" in why["counters"]:
        pytest.skip(why["counters"]["missing"])
    found = {c["what"]: c for c in why["counters"]["compared"]}
    registers = found["registers a thread"]
    assert registers["counted"] == registers["traced"]
