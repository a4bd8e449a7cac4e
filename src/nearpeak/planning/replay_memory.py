"""A measured row of memory, counted by the formulas that plans are made with.

Sources measure different things (`scope` in the row's recipe): "tensors" are those alone (peak allocated, peak active);
"process" is what a monitor shows, with the allocator's slack, context and libraries; "card" is a card that a run just
fills; "cache" is one position's. The recipe's other words are those of `records.workload.Training`, and facts of an
engine that its source or its published configuration tells (below, each with where it stands).
"""

from __future__ import annotations

from typing import Any

from nearpeak.limits.maps import trained_parameters
from nearpeak.limits.memory import LOGIT_BYTES, cache_bytes, memory_of
from nearpeak.planning.measured import Row
from nearpeak.planning.memory import training_memory
from nearpeak.planning.replay import CannotCompute, known_facts, known_spec
from nearpeak.records.model_spec import ModelSpec
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training, Workload

GIB = 2.0**30
# Bytes a logit where nothing turns them to fp32 (DeepSpeed's 16-bit engines, without autocast): logits, their shifted
# copy, log-softmax, and its gradient.
LOGIT_BYTES_16BIT = 8.0
# Bytes a score in transformers' eager attention in bf16, at its softmax in fp32: the scores, what torch turns them to
# first (it does without for fp16 alone; ATen's softmax), and what comes out.
WHOLE_SCORES = 2.0 + 4.0 + 4.0
# DeepSpeed, stage 2: two buckets of gradients (`overlap_comm`), each of Qwen's ds_config_zero2.json in 16 bits; at the
# update a flat copy of the gradients in 16 bits and one in fp32 (stage_1_and_2.py, step); 16-bit copies of the weights.
BUCKETS = 2 * 2e8 * 2.0
FLAT_GRADIENTS, BESIDE_MASTER = 2.0 + 4.0, 2.0


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
    training, layout = training_of(row, recipe), layout_of(row)
    batch = layout.micro_batch * layout.micro_batches * layout.data
    weights = "int4" if "packing" in recipe else recipe.get("weights", "bf16")
    work = Workload("train", batch, row.length, 0, weights, "bf16", "bf16", training)
    memory = training_memory(spec, work, layout, row.engine, 0.0)
    tensors = float(memory.total - memory.overhead)
    if row.chunks > 1:  # interleaved: the first stage has more in flight (Korthikanti et al. 2022, section 4.2.3)
        kept = memory_of(spec, work, layout)["activations"]
        tensors += kept * (layout.pipeline - 1) / (layout.pipeline * row.chunks)
    if recipe.get("logits") == "16bit":
        tensors -= (LOGIT_BYTES - LOGIT_BYTES_16BIT) * layout.micro_batch * row.length * facts.vocab
    if row.engine == "transformers" and row.method == "qlora" and "packing" not in recipe:
        # peft's prepare_model_for_kbit_training turns what is not packed to fp32, but for GPTQ's models
        tensors += 2.0 * (facts.head + facts.table)
    if recipe.get("deepspeed") == "2":
        tensors = _deepspeed(spec, training, tensors, memory.activations)
    if recipe.get("embeddings") == "trained":  # embedding and head: gradients, and two fp32 numbers each
        tensors += (facts.table + facts.head) * (2.0 + 8.0)
    return tensors, tensors + memory.overhead


def _deepspeed(spec: ModelSpec, training: Training, tensors: float, passing: float) -> float:
    """The fuller of two moments: as the loss is computed, and at the update, when nothing passes."""
    trained = trained_parameters(spec, training)
    kept = tensors + BESIDE_MASTER * trained
    return max(kept + BUCKETS, kept - passing + FLAT_GRADIENTS * trained)


def training_of(row: Row, recipe: dict[str, str]) -> Training:
    """How the row's engine trains."""
    words: dict[str, Any] = {
        "method": "lora" if "packing" in recipe else row.method, "recompute": recipe["recompute"],
        "loss": recipe["loss"], "keep_gradients": recipe.get("keep", "always"),
    }  # fmt: skip
    if row.method != "full":
        words |= {"rank": int(recipe.get("rank", 8)), "targets": tuple(recipe["targets"].split(","))}
    return Training(
        **words, master=recipe["master"] == "yes", optimizer=recipe["optimizer"], gradient=recipe["gradient"],
        fused=recipe.get("fused") == "yes", sequence_parallel=recipe.get("parallel") == "sequence",
    )  # fmt: skip


def layout_of(row: Row) -> Layout:
    """As the row has it; without splits of the model all cards share the states, each with the row's batch."""
    if row.layout.tensor * row.layout.pipeline > 1:
        return row.layout
    cards = max(1, row.cards)
    return Layout(data=cards, sharded=cards, micro_batch=max(1, int(row.batch)))


def _forward(row: Row, recipe: dict[str, str]) -> float:
    """A forward pass; of all positions' logits where the row's engine gives them, beside the cache."""
    spec, facts = known_spec(row.spec), known_facts(row.spec)
    batch = max(1, int(row.batch))
    logits: Any = recipe.get("logits", "last")
    parts = memory_of(spec, Workload("prefill", batch, row.length, logits=logits), Layout())
    total = float(sum(parts.values()))
    if recipe.get("scores") == "whole":  # of one block, before there are logits
        total = max(total, total - parts["logits"] + WHOLE_SCORES * batch * facts.heads * row.length**2)
    return total
