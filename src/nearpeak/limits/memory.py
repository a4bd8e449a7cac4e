"""Bytes that a workload takes on the fullest device, part by part."""

from __future__ import annotations

import math

from nearpeak.limits.precision import number_bytes
from nearpeak.limits.weights import mean_bits, part_bytes
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Attention, Convolution, Experts, FeedForward, Linear, ModelSpec, Part, Recurrent
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training, Workload

OPTIMIZER_BYTES = {"adamw": 8.0, "adamw_bf16": 4.0, "adamw_8bit": 2.0, "sgd_momentum": 4.0, "sgd": 0.0}
# Bytes a logit at the peak of a plain fp32 loss: bf16 logits, their fp32 copy, the softmax and the gradient in fp32
# (2 + 4 + 4 + 4); vramcalc's author measured as much on one card. In chunks, one chunk of 1024 positions is alive.
LOGIT_BYTES, CHUNK = 14, 1024


def memory_of(spec: ModelSpec, workload: Workload, layout: Layout | None = None) -> dict[str, int]:
    """weights, gradients, optimizer, activations, logits, kv: bytes on the fullest device.

    What an allocator and a driver keep beside is not counted here. Raises UserError for an unknown precision or
    optimizer. Sources: Rajbhandari et al. 2020 (ZeRO) for the states, Korthikanti et al. 2022 for saved activations.
    """
    layout = layout or Layout()
    training = workload.training
    if workload.phase == "train" and training is None:
        raise UserError("a train step needs to know its method: full, lora or qlora")
    parts = {
        "weights": _weights(spec, workload, layout),
        "gradients": 0.0,
        "optimizer": 0.0,
        "activations": 0.0,
        "logits": _logits(spec, workload, layout),
        "kv": 0.0 if training else cache_bytes(spec, workload, layout),
    }
    if training:
        trained = trained_parameters(spec, training) / _model_degrees(layout) / layout.sharded
        if training.optimizer not in OPTIMIZER_BYTES:
            raise UserError(f"no optimizer {training.optimizer!r}. Known: {', '.join(OPTIMIZER_BYTES)}.")
        master = 4.0 if training.master and number_bytes(workload.compute) < 4 else 0.0
        parts["gradients"] = trained * number_bytes(training.gradient)
        parts["optimizer"] = trained * (OPTIMIZER_BYTES[training.optimizer] + master)
        parts["activations"] = saved_bytes(spec, workload, layout)
    else:
        parts["activations"] = _passing(spec, workload, layout)
    return {name: math.ceil(size) for name, size in parts.items()}


def trained_parameters(spec: ModelSpec, training: Training) -> int:
    """All of them, or those of the adapters: rank · (inputs + outputs) for each linear map that gets one."""
    if training.method == "full":
        return spec.parameters
    count = 0
    for part in spec.parts:
        for name, (inputs, outputs), copies in linear_maps(part):
            if name in training.targets:
                count += part.count * copies * training.rank * (inputs + outputs)
    return count


def linear_maps(part: Part) -> list[tuple[str, tuple[int, int], int]]:
    """name, (inputs, outputs), how many in one piece, of every linear map of a part."""
    if isinstance(part, Attention):
        return [(name, shape, 1) for name, shape in part.linear_shapes.items()]
    if isinstance(part, Recurrent):
        return [(name, shape, 1) for name, shape in part.shapes.items()]
    if isinstance(part, FeedForward | Experts):
        copies = part.experts if isinstance(part, Experts) else 1
        maps = [("up", (part.width, part.hidden), copies), ("down", (part.hidden, part.width), copies)]
        return maps + ([("gate", (part.width, part.hidden), copies)] if part.gated else [])
    if isinstance(part, Linear):
        return [(part.name, (part.inputs, part.outputs), 1)]
    return []


def cache_bytes(spec: ModelSpec, workload: Workload, layout: Layout | None = None) -> float:
    """Keys and values (or latents, or states) of all sequences on one device.

    A window's layers keep the window; cross-attention keeps the other stream's positions. Key-value heads are split
    over the tensor-parallel devices as far as there are heads; a latent is on every one.
    """
    layout = layout or Layout()
    total = workload.context + workload.tokens
    numbers = 0.0
    for part in spec.parts:
        if isinstance(part, Recurrent):
            numbers += part.count * part.state / layout.tensor
        if isinstance(part, Attention) and (part.causal or part.reads):
            length = spec.streams.get(part.reads or part.stream) or total
            kept = min(length, part.window) if part.window else length
            split = 1 if part.latent else min(layout.tensor, part.kv_heads)
            numbers += part.count * part.cached * kept / split
    if spec.task == "encode":
        numbers = 0.0
    sequences = math.ceil(workload.batch / layout.data)
    return sequences * numbers * number_bytes(workload.cache) / layout.pipeline / layout.context


def saved_bytes(spec: ModelSpec, workload: Workload, layout: Layout) -> float:
    """Activations that the backward pass needs, on the first stage of a pipeline (it holds most micro-batches).

    recompute "full": the input of each block is kept, and one block at a time is computed again. Otherwise each block
    keeps what its products and norms read; "none" adds the scores, s × s numbers a head.
    """
    training = workload.training
    assert training is not None
    size = number_bytes(workload.compute)
    sequences = layout.micro_batch or 1
    in_flight = min(layout.pipeline, layout.micro_batches) if layout.pipeline > 1 else 1
    text = workload.tokens / layout.context
    kept = largest = borders = 0.0
    for part in spec.parts:
        positions = sequences * (spec.streams.get(part.stream) or text)
        numbers = positions * _kept_numbers(part, layout)
        if isinstance(part, Attention) and training.recompute == "none":
            length = spec.streams.get(part.stream) or workload.tokens
            numbers += positions * 2.5 * part.heads * length / layout.tensor
        if isinstance(part, Attention | Recurrent):
            borders += part.count * positions * _width(part)
        kept += part.count * numbers
        largest = max(largest, numbers)
    if training.recompute == "full":
        kept = borders + 2 * largest
    return kept * size * in_flight / layout.pipeline


def _kept_numbers(part: Part, layout: Layout) -> float:
    """Numbers a position that one piece keeps for its backward pass (flash attention: no scores).

    Attention: input of the norm and of the projections, q, k, v, the output before the last map. Feed-forward: input of
    the norm and of the maps, gate, up, their product. What is split over tensor-parallel devices is divided. A frozen
    map (LoRA) needs its input only where an adapter reads it; the same tensors serve both, so little is saved.
    """
    split = layout.tensor
    if isinstance(part, Attention):
        heads = part.heads * (part.head_dim + part.value_dim) + part.kv_heads * (part.head_dim + part.value_dim)
        return 2 * part.width + heads / split
    if isinstance(part, FeedForward):
        return 2 * part.width + (4 if part.gated else 2) * part.hidden / split
    if isinstance(part, Experts):
        hidden = part.chosen * part.hidden + part.shared_hidden
        return (2 + part.chosen) * part.width + (4 if part.gated else 2) * hidden / split
    if isinstance(part, Recurrent):
        return sum(inputs + outputs for inputs, outputs in part.shapes.values()) / split
    if isinstance(part, Convolution):
        return 2.0 * part.outputs * part.positions
    if isinstance(part, Linear) and part.name != "head":
        return float(part.inputs)
    return 0.0


def _width(part: Attention | Recurrent) -> int:
    return part.width if isinstance(part, Attention) else next(iter(part.shapes.values()))[0]


def _weights(spec: ModelSpec, workload: Workload, layout: Layout) -> float:
    """Tensor and pipeline split what they can; shards are gathered one block at a time."""
    precision = _kept_in(workload)
    bits = mean_bits(spec, precision)
    total = experts = block = 0.0
    for part in spec.parts:
        one = part_bytes(part, precision, bits)
        if isinstance(part, Experts):
            experts += part.count * one
        else:
            total += part.count * one
        block = max(block, one)
    model = _model_degrees(layout)
    each = (total + experts / max(1, layout.expert / layout.tensor)) / model
    training = workload.training
    if training and training.method != "full":
        each += trained_parameters(spec, training) * number_bytes(workload.compute) / model
    if layout.sharded > 1:
        return each / layout.sharded + 2 * block / layout.tensor
    return each


def _kept_in(workload: Workload) -> str:
    if workload.training and workload.training.method == "qlora":
        return "nf4"
    return workload.weights


def _logits(spec: ModelSpec, workload: Workload, layout: Layout) -> float:
    """Of the last positions when reading, of all in training, where they are also turned to fp32 and back."""
    vocabulary = max((p.outputs for p in spec.parts if isinstance(p, Linear) and p.name == "head"), default=0)
    if workload.training:
        positions = layout.micro_batch * workload.tokens / layout.context
        if workload.training.loss == "chunked":
            positions = min(positions, CHUNK)
        return positions * vocabulary * LOGIT_BYTES / layout.tensor
    return math.ceil(workload.batch / layout.data) * vocabulary * 4.0


def _passing(spec: ModelSpec, workload: Workload, layout: Layout) -> float:
    """The largest tensors that live at once in a forward pass: a block's input twice, and what it widens to."""
    widest = 0.0
    for part in spec.parts:
        positions = math.ceil(workload.batch / layout.data) * (spec.streams.get(part.stream) or workload.tokens)
        numbers = 0.0
        if isinstance(part, Attention):
            numbers = 2 * part.width + part.heads * (part.head_dim + part.value_dim) / layout.tensor
        elif isinstance(part, FeedForward):
            numbers = 2 * part.width + part.matrices * part.hidden / layout.tensor
        elif isinstance(part, Experts):
            numbers = 2 * part.width + 3 * (part.chosen * part.hidden + part.shared_hidden) / layout.tensor
        elif isinstance(part, Convolution):
            numbers = 2.0 * part.outputs * part.positions
        widest = max(widest, positions * numbers)
    return widest * number_bytes(workload.compute)


def _model_degrees(layout: Layout) -> int:
    return layout.tensor * layout.pipeline
