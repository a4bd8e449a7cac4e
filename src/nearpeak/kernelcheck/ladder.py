"""The measured ladder of matrix products (examples/kernels) that a checked product is shown beside."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.op import Op


def measured_ladder() -> dict[str, Any]:
    """Written by benchmarks/ladder_data.py from the committed run: device, date, commit, and steps with precision, n,
    flop_per_s."""
    content: dict[str, Any] = json.loads((files("nearpeak.kernelcheck") / "data" / "ladder.json").read_text())
    return content


def ladder_beside(op: Op, precision: str, sizes: Sizes, device: str) -> dict[str, Any] | None:
    """The steps of this precision at the measured size nearest to these; {"missing": reason} where they are left out,
    None where the op is no plain matrix product.

    A rate of another model says nothing about this one, so it is never scaled.
    """
    if op.name not in ("matmul", "matmul_nt"):
        return None
    ladder = measured_ladder()
    steps = [step for step in ladder["steps"] if step["precision"] == precision]
    if not steps:
        return {"missing": f"the ladder has no step in {precision}"}
    if device.strip() != ladder["device"]:
        return {"missing": f"the ladder was measured on an {ladder['device']}, and is left out on another device"}
    size = (sizes["m"] * sizes["n"] * sizes["k"]) ** (1 / 3)
    n = min({step["n"] for step in steps}, key=lambda one: max(one / size, size / one))
    return {
        **{key: ladder[key] for key in ("device", "date", "commit", "source")},
        "precision": precision,
        "n": n,
        "flop_per_byte": op.flop(at := dict.fromkeys(op.sizes, n)) / op.bytes(at, precision),
        "steps": [{key: step[key] for key in ("step", "file", "flop_per_s")} for step in steps if step["n"] == n],
    }
