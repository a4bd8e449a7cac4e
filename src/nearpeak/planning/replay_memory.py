"""A measured row of memory, counted by the formulas that plans are made with.

Sources measure different things (`scope` in the row's recipe): "tensors" are those alone (peak allocated, peak active);
"process" is what a monitor shows, with the allocator's slack, context and libraries; "card" is a card that a run just
fills; "cache" is one position's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nearpeak.limits.memory import LOGIT_BYTES, cache_bytes, memory_of
from nearpeak.planning.measured import Row
from nearpeak.planning.memory import training_memory
from nearpeak.planning.replay import CannotCompute, known_facts, known_spec
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training, Workload

GIB = 2.0**30


def predict_memory(row: Row) -> tuple[float, float]:
    """Bytes as counted and as measured. Raises CannotCompute."""
    recipe = dict(item.split("=") for item in row.recipe.split())
    if row.left_out or not recipe:
        raise CannotCompute(row.left_out or "no recipe")
    if recipe["scope"] == "cache":
        return cache_bytes(known_spec(row.spec), Workload("decode", 1, 1)), row.value
    if row.method:
        tensors, process = _training(row, recipe)
    else:
        tensors = process = _forward(row, recipe)
    if recipe["scope"] == "card":
        return process, float(row.gpu.split()[0]) * GIB * 0.98
    scale = 1e6 if row.unit.startswith("MB") else GIB if row.unit.startswith("GiB") else 1e9
    cards = row.cards if "total over" in row.unit else 1
    return cards * (tensors if recipe["scope"] == "tensors" else process), row.value * scale


def _training(row: Row, recipe: dict[str, str]) -> tuple[float, float]:
    """Bytes of tensors, and of the process, on one card."""
    spec, facts = known_spec(row.spec), known_facts(row.spec)
    method: Any = row.method
    recompute: Any = recipe["recompute"]
    loss: Any = recipe["loss"]
    training = Training(
        method=method, rank=int(recipe.get("rank", 8)), targets=tuple(recipe.get("targets", "q,v").split(",")),
        recompute=recompute, master=recipe["master"] == "yes", optimizer=recipe["optimizer"],
        gradient=recipe["gradient"], loss=loss,
    )  # fmt: skip
    batch = max(1, int(row.batch))
    cards = max(1, row.cards)
    layout = replace(row.layout, micro_batch=batch, micro_batches=1)
    if row.layout.tensor * row.layout.pipeline == 1:
        layout = Layout(data=cards, sharded=cards, micro_batch=batch)
    else:
        layout = replace(row.layout, micro_batch=1, micro_batches=max(1, int(row.batch) // row.layout.data))
    work = Workload(
        "train", batch * layout.data, row.length, 0, recipe.get("weights", "bf16"), "bf16", "bf16", training
    )
    memory = training_memory(spec, work, layout, row.engine, 0.0)
    tensors = float(memory.total - memory.overhead)
    if recipe.get("copies") == "yes":  # autocast keeps a bf16 copy of each fp32 weight until the step ends
        tensors += 2.0 * facts.parameters
    if recipe.get("logits") == "16bit":  # never turned to fp32: logits, their shifted copy, softmax, two gradients
        tensors -= (LOGIT_BYTES - 10.0) * batch * row.length * facts.vocab
    if row.engine == "transformers" and row.method == "qlora":
        tensors += 2.0 * (facts.head + facts.table)  # PEFT turns what is not quantised to fp32 (prepare for k-bit)
    if recipe.get("update") == "in-backward":  # each gradient is used and freed at once
        tensors -= memory.gradients
    if recipe.get("embeddings") == "trained":  # embedding and head: gradients, and two fp32 numbers each
        tensors += (facts.table + facts.head) * (2.0 + 8.0)
    return tensors, tensors + memory.overhead


def _forward(row: Row, recipe: dict[str, str]) -> float:
    """A forward pass that gives logits of every position, and keeps the cache."""
    spec, facts = known_spec(row.spec), known_facts(row.spec)
    batch = max(1, int(row.batch))
    parts = memory_of(spec, Workload("prefill", batch, row.length), Layout())
    total = float(sum(parts.values()))
    total += 2.0 * batch * row.length * facts.vocab - parts["logits"]
    if recipe.get("scores") == "whole":  # scores in bf16 and their softmax in fp32
        total += 6.0 * batch * facts.heads * row.length**2 - parts["activations"]
    return total
