"""`nearpeak kernel check`: is a kernel right, how fast, how fast could it be, and why is it slow."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

A_CHECK_DID_NOT_HOLD = 3


@click.group("kernel")
def kernel() -> None:
    """Work on GPU kernels.

    Example: nearpeak kernel check matmul.cu --shape 4096,4096,4096
    """


@kernel.command("check")
@click.argument("file", metavar="FILE[:NAME]")
@click.option(
    "--op", help="What it computes: matmul, matmul_nt, softmax, transpose, copy, reduction, elementwise:add, …"
)
@click.option("--shape", help="Sizes in the op's order, such as 4096,4096,4096 for m, n, k.")
@click.option("--precision", help="fp64, fp32, tf32, bf16, fp16, fp8 or int8: of the inputs.")
@click.option("--accumulate", help="What sums are kept in, where it is not the usual (fp32).")
@click.option("--grid", help="Blocks, as expressions over the sizes: 'ceil(n / 16), ceil(m / 16)'.")
@click.option("--block", help="Threads of a block: '16, 16'.")
@click.option("--shared", help="Bytes of dynamic shared memory.")
@click.option("--args", help="Tensors and sizes in the kernel's order: 'a, b, c, m, n, k'.")
@click.option("--require", help="What sizes must satisfy: 'k % 8 == 0'.")
@click.option("--reference", help="file.py:function that computes the op, instead of --op.")
@click.option(
    "--input", "inputs", multiple=True, help="With --reference: an input and its shape, 'x=m, n'; may repeat."
)
@click.option("--output", help="With --reference: the output and its shape, 'y=m, n'.")
@click.option("--unordered", is_flag=True, help="Runs may differ by rounding (atomic additions).")
@click.option("--device", help='"cpu", "gpu", or a device\'s id or its beginning.')
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds until it hangs."
)
@click.option("--no-tools", is_flag=True, help="Leave out ncu and compute-sanitizer, which run the kernel again.")
@click.option("--html", type=click.Path(path_type=Path), help="Write one self-contained page with a roofline.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON document.")
def check(
    file: str,
    shape: str | None,
    accumulate: str | None,
    reference: str | None,
    inputs: tuple[str, ...],
    output: str | None,
    unordered: bool,
    device: str | None,
    timeout: float,
    no_tools: bool,
    html: Path | None,
    as_json: bool,
    **flags: str | None,
) -> int:
    """Check a CUDA (.cu), OpenCL (.cl), Triton or Python (.py) kernel against fp64 on fresh random inputs, several
    shapes and hostile memory; time it beside the library and the limit of this machine; and say what wastes time, in
    which line, and what mending it would give.

    The file says what it computes in comment lines ("// nearpeak: op matmul"), or flags do. Without a GPU, CUDA is
    compiled and analysed but not run.

    Exit code 3: the kernel is not right.

    Example: nearpeak kernel check examples/kernels/matmul_1_plain.cu --shape 4096,4096,4096
    """
    from nearpeak.kernelcheck.apart import check_apart
    from nearpeak.kernelcheck.check import Request
    from nearpeak.records.files import check_writable, write_text_atomically

    if html:
        check_writable(html)
    given = {key: value for key, value in flags.items() if value is not None}
    request = Request(file, given, shape, accumulate, reference, inputs, output, device, unordered, not no_tools)
    outcome = check_apart(request, timeout)
    if html:
        from nearpeak.report.kernel_page import page

        write_text_atomically(html, page(outcome))
        print(f"Page: {html}", file=sys.stderr)
    _show(outcome, as_json)
    return A_CHECK_DID_NOT_HOLD if outcome["result"]["right"] is False else 0


def _show(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(_finite(outcome), ensure_ascii=False, allow_nan=False, indent=1))
        return
    from rich.console import Console

    from nearpeak.report.kernel_table import render

    render(outcome, Console(width=None if sys.stdout.isatty() else 110, highlight=False))


def _finite(value: Any) -> Any:
    """The same without NaN and infinity (a wrong kernel's errors), which JSON has no numbers for: null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
