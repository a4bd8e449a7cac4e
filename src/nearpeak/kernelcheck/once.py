"""Run a kernel once in a process of its own, for a tool that watches it from outside (ncu, compute-sanitizer)."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.kernelcheck.kernel import Sizes

if TYPE_CHECKING:
    from nearpeak.kernelcheck.check import Request

ASKED, RAN = "asked.json", "ran"


def once_command(folder: Path, request: Request, sizes: Sizes, device: str, profiled: bool) -> list[str]:
    """The command that runs the kernel once at these sizes; it leaves the file RAN in the folder when all went well.

    device    torch's name of it
    profiled  a first run goes before it, and the second alone is marked for a profiler (cudaProfilerStart): so the
              compilers are done, and an autotuned kernel has chosen
    """
    asked = {"request": dataclasses.asdict(request), "sizes": dict(sizes), "device": device, "profiled": profiled}
    (folder / ASKED).write_text(json.dumps(asked))
    return [sys.executable, "-m", "nearpeak.kernelcheck.once", str(folder)]


def _child(folder: Path) -> None:
    import torch

    from nearpeak.kernelcheck.check import Request, op_of
    from nearpeak.kernelcheck.draws import draw
    from nearpeak.kernelcheck.load import load_kernel

    asked = json.loads((folder / ASKED).read_text())
    asked["request"]["inputs"] = tuple(asked["request"]["inputs"])
    request, sizes, device = Request(**asked["request"]), asked["sizes"], torch.device(asked["device"])
    kernel = load_kernel(request.file, request.flags, device)
    op, precision = op_of(request, kernel.declaration), kernel.declaration.precision
    # Small inputs are drawn on the CPU: then no kernel but the user's runs under the tool.
    maker = torch.Generator(device if asked["profiled"] else "cpu")
    inputs = {name: x.to(device) for name, x in draw(op, sizes, precision, "normal", maker).items()}
    out = op.output
    empty = torch.empty(out.shape(sizes), dtype=out.dtype(precision), device=device)
    call = kernel.bind({**inputs, out.name: empty}, sizes)
    call.run()
    call.outputs()
    if asked["profiled"]:
        torch.cuda.cudart().cudaProfilerStart()
        call.run()
        call.outputs()
        torch.cuda.cudart().cudaProfilerStop()
    (folder / RAN).touch()


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
