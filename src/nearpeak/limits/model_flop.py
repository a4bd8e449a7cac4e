"""FLOPs as the literature counts them, for MFU: three conventions, told apart by name."""

from __future__ import annotations

from typing import Literal

from nearpeak.limits.maps import trained_parameters
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Attention, Convolution, Linear, ModelSpec, Part, Table, Vector
from nearpeak.records.workload import Workload

Convention = Literal["causal", "full", "all"]
CONVENTIONS: tuple[Convention, ...] = ("causal", "full", "all")


def model_flop(spec: ModelSpec, workload: Workload, convention: Convention = "causal") -> float:
    """FLOPs of one step, nothing computed twice counted.

    causal   6 · (parameters in products) + 6 · layers · width · length a position: attention counted half, as causal
             kernels compute it (Megatron-Bridge 25.11, MaxText, verl; ours for MFU)
    full     6 · (parameters in products) + 12 · layers · width · length (PaLM, appendix B; Megatron-LM's Llama
             example, torchtitan)
    all      6 · all parameters + 12 · layers · width · length (llm-foundry)

    Parameters in products: without the input embedding, tied heads with it; of experts the chosen ones. A forward pass
    alone is 2 in place of 6. LoRA: frozen maps need no gradient of their weights, so 4, and 6 for the adapters; no less
    for what lies below the first adapter. Windows are no longer than they are. Raises UserError for another convention.
    """
    if convention not in CONVENTIONS:
        raise UserError(f"no FLOP convention {convention!r}: {', '.join(CONVENTIONS)}")
    training = workload.training
    adapters = trained_parameters(spec, training) if training and training.method != "full" else 0
    passes = (2.0 if adapters else 3.0) if training else 1.0
    total = sum(part.count * _uses(spec, workload, part, convention) for part in spec.parts)
    scores = sum(part.count * _scores(spec, workload, part, convention) for part in spec.parts)
    beside = 6.0 * adapters * workload.batch * workload.tokens
    return 2.0 * passes * total + beside + 2.0 * (3.0 if training else 1.0) * scores


def _uses(spec: ModelSpec, workload: Workload, part: Part, convention: Convention) -> float:
    """Multiply-adds of one piece's weights, in a forward pass."""
    size = part.parameters if convention == "all" else part.active
    if isinstance(part, Convolution):
        return float(workload.batch * part.positions * size)
    if isinstance(part, Table | Vector) and convention != "all":
        return 0.0
    items = workload.batch if isinstance(part, Linear) and part.once else _positions(spec, workload, part.stream)
    return float(items * size)


def _positions(spec: ModelSpec, workload: Workload, stream: str) -> int:
    return workload.batch * (spec.streams.get(stream) or workload.tokens)


def _scores(spec: ModelSpec, workload: Workload, part: Part, convention: Convention) -> float:
    """Multiply-adds of one piece's scores and weighted sums."""
    if not isinstance(part, Attention):
        return 0.0
    keys = spec.streams.get(part.reads or part.stream) or workload.context + workload.tokens
    seen = float(keys)
    if convention == "causal" and part.causal:
        seen = workload.context + workload.tokens / 2
    if part.window:
        seen = min(seen, part.window)
    return _positions(spec, workload, part.stream) * part.heads * (part.head_dim + part.value_dim) * seen
