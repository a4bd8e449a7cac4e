"""Run all blocks of a small kernel through the trace, as the tests of the interpreter do."""

from __future__ import annotations

from typing import Any

from nearpeak.kernelcheck.ptx import parse
from nearpeak.kernelcheck.trace import trace
from nearpeak.kernelcheck.trace_records import Launch, Trace
from ptx_compile import ptx


def run(
    text: str, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any, shared: int = 0, cap: int = 10**6
) -> Trace:
    """All blocks of the only kernel of a PTX text."""
    module = parse(text)
    launch = Launch(grid, block, arguments, shared=shared)
    return trace(module, next(iter(module.kernels)), launch, tuple(range(launch.blocks)), cap)


def done(text: str, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any, shared: int = 0) -> Trace:
    result = run(text, grid, block, *arguments, shared=shared)
    assert result.stopped is None
    assert not result.cut
    return result


def one(body: str, *parameters: str) -> str:
    return ptx(f'extern "C" __global__ void k({", ".join(parameters)}) {{ {body} }}')


def up(a: int, b: int) -> int:
    return -(-a // b)
