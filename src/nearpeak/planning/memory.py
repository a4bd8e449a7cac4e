"""Bytes on the fullest device, with what engines, allocators and drivers keep beside the model's own.

Of a plan's parts, `activations` holds all that comes and goes: activations, logits, and weights that are gathered,
copied or unpacked for a moment (`limits.memory`'s "temporary").
"""

from __future__ import annotations

from dataclasses import replace

from nearpeak.limits.memory import memory_of
from nearpeak.records.model_spec import Attention, Linear, ModelSpec
from nearpeak.records.plan import Layout, Memory
from nearpeak.records.workload import Workload

# Bytes that a process takes on a card before any tensor: the driver's context and libraries' workspaces. llama.cpp: 107
# MiB measured for the context on an RTX 4060 Ti (PR 23604) and its products' workspace; torch: context, cuBLAS and
# cuDNN workspaces. NCCL keeps buffers of its own on every card of a group.
CONTEXT = {"llama.cpp": 0.20e9, "torch": 0.55e9}
NCCL = 0.35e9
# Share of what comes and goes (activations, logits, gradients) that the allocator holds without using it.
ALLOCATOR = 0.04
# Positions that an engine reads at once, and so the most that are alive between blocks.
CHUNK = {"llama.cpp": 512, "vllm": 8192, "trtllm": 8192, "sglang": 8192}
# Share of a card that serving engines take for their pool whatever they need (vLLM's gpu_memory_utilization).
POOL = {"vllm": 0.90, "sglang": 0.88, "trtllm": 0.90}


def inference_memory(spec: ModelSpec, work: Workload, layout: Layout, engine: str, capacity: float) -> Memory:
    """While `work` (a decode step at the longest context) runs, after prompts were read in the engine's chunks."""
    parts = memory_of(spec, work, layout)
    total = work.context + work.tokens
    chunk = min(total, CHUNK.get(engine, total))
    reading = replace(work, phase="prefill", batch=layout.data, tokens=chunk, context=total - chunk)
    passing = memory_of(spec, reading, layout) if spec.task == "generate" else parts
    activations = max(parts["activations"] + parts["logits"], passing["activations"] + passing["logits"])
    beside = compute_buffer(spec, total, chunk, layout) if engine == "llama.cpp" else 0.0
    return Memory(
        weights=parts["weights"], kv=parts["kv"], activations=int(max(activations, beside)), gradients=0, optimizer=0,
        overhead=int(fixed_overhead(engine, layout) + ALLOCATOR * activations), capacity=int(capacity),
    )  # fmt: skip


def training_memory(spec: ModelSpec, work: Workload, layout: Layout, engine: str, capacity: float) -> Memory:
    """At the peak of a training step."""
    parts = memory_of(spec, work, layout)
    passing = parts["activations"] + parts["logits"] + parts["temporary"]
    overhead = fixed_overhead(engine, layout) + ALLOCATOR * (passing + parts["gradients"])
    return Memory(
        weights=parts["weights"], kv=0, activations=int(passing), gradients=parts["gradients"],
        optimizer=parts["optimizer"], overhead=int(overhead), capacity=int(capacity),
    )  # fmt: skip


def fixed_overhead(engine: str, layout: Layout) -> float:
    """Bytes on each card that do not depend on the model."""
    cards = layout.data * layout.tensor * layout.pipeline * layout.context
    beside = NCCL if cards > 1 and engine != "llama.cpp" else 0.0
    return CONTEXT["llama.cpp" if engine == "llama.cpp" else "torch"] + beside


def compute_buffer(spec: ModelSpec, context: int, chunk: int, layout: Layout) -> float:
    """llama.cpp's graph buffer: logits of a chunk in fp32, and, where its flash attention lacks the shape (MLA), the
    scores of a chunk against the whole context, twice (before and after the softmax)."""
    vocabulary = max((p.outputs for p in spec.parts if isinstance(p, Linear) and p.name == "head"), default=0)
    size = 4.0 * chunk * vocabulary
    latent = [p for p in spec.parts if isinstance(p, Attention) and p.latent]
    if latent:
        size += 2 * 4.0 * chunk * context * max(p.heads for p in latent) / layout.tensor
    return size


def expanded_cache(spec: ModelSpec, work: Workload) -> float:
    """Bytes of all sequences' keys and values where latent attention's are kept expanded, in 16 bits; 0 for models
    without it. So llama.cpp did before pull request 12801 (April 2025)."""
    each = sum(
        p.count * p.heads * (p.head_dim + p.value_dim) for p in spec.parts if isinstance(p, Attention) and p.latent
    )
    return 2.0 * each * work.batch * (work.context + work.tokens)


def pool_bytes(engine: str, capacity: float) -> float | None:
    """What a serving engine takes of a card from the start, and what a monitor then shows: no measure of the need.
    None for engines that take what they need."""
    share = POOL.get(engine)
    return share * capacity if share else None


def short_by(need: float, capacity: float, free: float | None = None, own: float = 0.0) -> float:
    """Bytes that are missing, 0 or less where it fits.

    free   what a monitor reports as free now; own: what the asking process already holds of the card. Its need
           includes that, so it may use both: counting its context against it twice refuses jobs that ran before.
    """
    room = capacity if free is None else min(capacity, free + own)
    return need - room
