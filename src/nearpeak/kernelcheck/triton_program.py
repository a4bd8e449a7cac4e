"""A Triton kernel as its compiler leaves it for a GPU: PTX and resources, without running it, and without a GPU.

Done in a process of its own: one that interprets Triton's functions cannot compile them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearpeak.kernelcheck import launch
from nearpeak.kernelcheck.cubin import resources
from nearpeak.kernelcheck.kernel import Declaration, Sizes
from nearpeak.kernelcheck.launch import Geometry
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.program import Program, argument, on_paper
from nearpeak.kernelcheck.ptx import parse
from nearpeak.kernelcheck.source import Source
from nearpeak.kernelcheck.trace_records import Launch

TIMEOUT_S = 120.0
DIVISOR = 16  # Triton compiles apart for addresses and sizes that are multiples of it
_TYPES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64", "bool": "i1",
}  # fmt: skip
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class NotCompiled(Exception):
    """Why Triton's compiler gave nothing to look at."""


def triton_program(
    source: Source, declaration: Declaration, op: Op, sizes: Sizes, architecture: str, tuned: Mapping[str, int] | None
) -> Program:
    """sizes: with `sms`; architecture: "sm_90"; tuned: constants and options that an autotuned kernel has chosen, None
    where it has not run: then the first of its configurations is taken. Raises NotCompiled."""
    asked = {
        "path": str(source.path),
        "declaration": dataclasses.asdict(declaration),
        "tensors": {t.name: [str(t.dtype(declaration.precision)).removeprefix("torch."), list(t.shape(sizes))]
                    for t in op.tensors},
        "sizes": dict(sizes),
        "architecture": int(architecture.split("_")[-1].rstrip("af")),
        "tuned": None if tuned is None else dict(tuned),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="nearpeak-") as folder:
        answer = _ask(Path(folder), asked)
        text, image = answer["text"], (Path(folder) / "image").read_bytes()
    known = {**sizes, **answer["constants"]}
    block = (32 * answer["warps"], 1, 1)
    shape = Geometry(launch.check_grid(declaration, known), block, answer["shared"])
    paper = on_paper(op, declaration.precision, sizes)
    given = dict(zip(answer["names"], launch.values(declaration, paper, known), strict=False))
    passed = [argument(given[name], op, declaration.precision, sizes) for name in answer["passed"]]
    names = [text if text in paper else name for name, text in zip(answer["names"], declaration.args, strict=False)]
    names = [name for name, own in zip(names, answer["names"], strict=True) if own in answer["passed"]]
    missing = len(parse(text).kernels[answer["symbol"]].parameters) - len(passed)  # scratch memory, here of none
    return Program(
        text,
        answer["symbol"],
        resources(image, answer["symbol"]),
        shape,
        Launch(shape.grid, block, (*passed, *[0] * missing), tuple(names), answer["shared"]),
        " for its first configuration" if answer["untuned"] else "",
    )


def _ask(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the child found. Nothing of it stays in the user's folders."""
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    own["TRITON_CACHE_DIR"] = str(folder / "cache")
    (folder / "asked.json").write_text(json.dumps(asked))
    command = [sys.executable, "-m", "nearpeak.kernelcheck.triton_program", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=own)
    except subprocess.TimeoutExpired:
        raise NotCompiled(f"no end after {TIMEOUT_S:.0f} s") from None
    if not (folder / "answer.json").exists():
        last = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotCompiled(last[-1].strip() if last else f"it ended with exit code {done.returncode}")
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def _child(folder: Path) -> None:
    """Compile as asked; leave the answer and the compiled image in the folder."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nearpeak.kernelcheck.python_kernel import TritonKernel

    asked = json.loads((folder / "asked.json").read_text())
    kept: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in asked["declaration"].items()
    }
    declaration = Declaration(**kept)
    kernel = TritonKernel(Source(Path(asked["path"]), "", "Triton", declaration.kernel, ()), declaration,
                          torch.device("cuda"))  # fmt: skip
    paper = {name: torch.empty(shape, dtype=getattr(torch, kind), device="meta")
             for name, (kind, shape) in asked["tensors"].items()}  # fmt: skip
    known = {**asked["sizes"], **declaration.constants}
    given = kernel.named(launch.values(declaration, paper, known))
    function, first = _plain(kernel.function)
    chosen = asked["tuned"] if asked["tuned"] is not None else first
    constants = {**{k: v for k, v in chosen.items() if k not in _OPTIONS}, **declaration.constants}
    options = {**{k: v for k, v in chosen.items() if k in _OPTIONS and v is not None}, **declaration.launch}
    signature: dict[str, str] = {}
    fixed: dict[tuple[int, ...], Any] = {}
    hints: dict[tuple[int, ...], Any] = {}
    for place, parameter in enumerate(function.params):
        name = parameter.name
        value = given.get(name, constants.get(name, parameter.default))
        if name not in given or (isinstance(value, int) and value == 1):  # Triton takes a 1 for a constant
            signature[name], fixed[place,] = "constexpr", value
            continue
        tensor = isinstance(value, torch.Tensor)
        kind = "*" + _TYPES[str(value.dtype).removeprefix("torch.")] if tensor else "i32" if value < 2**31 else "i64"
        signature[name] = kind
        if tensor or value % DIVISOR == 0:
            hints[place,] = [["tt.divisibility", DIVISOR]]
    target = GPUTarget("cuda", asked["architecture"], 32)
    compiled = triton.compile(ASTSource(function, signature, fixed, hints), target=target, options=options)
    (folder / "image").write_bytes(compiled.asm["cubin"])
    answer = {
        "text": compiled.asm["ptx"],
        "symbol": compiled.metadata.name,
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
        "constants": {k: v for k, v in constants.items() if isinstance(v, int)},
        "names": list(given),
        "passed": [name for name, kind in signature.items() if kind != "constexpr"],
        "untuned": bool(first) and asked["tuned"] is None,
    }
    (folder / "answer.json").write_text(json.dumps(answer))


def _plain(function: Any) -> tuple[Any, dict[str, Any]]:
    """The function under @autotune and @heuristics, and the first configuration of an autotuned one."""
    first: dict[str, Any] = {}
    while hasattr(function, "fn") and not hasattr(function, "params"):
        if hasattr(function, "values"):
            raise SystemExit("constants by @triton.heuristics are known only in a run")
        if not first and getattr(function, "configs", None):
            config = function.configs[0]
            first = {**config.kwargs, **{name: getattr(config, name, None) for name in _OPTIONS}}
        function = function.fn
    return function, first


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
