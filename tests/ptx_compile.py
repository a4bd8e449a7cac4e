"""CUDA source → PTX for tests, through NVRTC alone: no driver and no GPU are needed."""

from __future__ import annotations

from pathlib import Path

from cuda.bindings import nvrtc

EXAMPLES = Path(__file__).parents[1] / "examples" / "kernels"


def ptx(source: str, name: str = "test.cu") -> str:
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    assert int(error) == 0
    (error,) = nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=compute_90", b"-lineinfo"])
    if int(error):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode()


def example(name: str) -> str:
    """The PTX of examples/kernels/NAME.cu."""
    path = EXAMPLES / f"{name}.cu"
    return ptx(path.read_text(encoding="utf-8"), path.name)


def line_of(name: str, text: str) -> int:
    """1-based number of the first line of an example that holds a text."""
    lines = (EXAMPLES / f"{name}.cu").read_text(encoding="utf-8").split("\n")
    return next(n for n, line in enumerate(lines, 1) if text in line)
