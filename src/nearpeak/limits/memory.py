"""Bytes that a workload takes on the fullest device at its fullest moment, part by part.

States by Rajbhandari et al. 2020 (ZeRO), section 3; activations by `limits.activations`; docs/limits.md derives both.
What an allocator and a driver keep beside is not counted here.
"""

from __future__ import annotations

import math

from nearpeak.limits.activations import Keeping, block_input, keeping, kept_bytes, selected_bytes, widths
from nearpeak.limits.maps import trained_parameters
from nearpeak.limits.precision import number_bytes
from nearpeak.limits.sharding import Share, Stage, pieces_on, share_of
from nearpeak.limits.weights import Widths, is_head
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Attention, Convolution, Experts, FeedForward, Linear, ModelSpec, Recurrent
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Workload

# Bytes a trained parameter on the device. Paged: the optimizer's state lies in host memory once the device is full.
OPTIMIZER_BYTES = {
    "adamw": 8.0, "adamw_bf16": 4.0, "adamw_8bit": 2.0, "adamw_8bit_paged": 0.0, "sgd_momentum": 4.0, "sgd": 0.0,
}  # fmt: skip
# Bytes a logit at the peak of a plain loss in 16 bits: logits, log-softmax in fp32, and its gradient before and after
# the softmax's backward pass (2 + 4 + 4 + 4); vramcalc 0.1.2 measured as much. In the forward pass the last is not
# there yet. In fp32 the logits are their own copy (4 · 4).
LOGIT_BYTES, LOGIT_BYTES_FORWARD = 14, 10
# Upcast in chunks (eight, as torchtune does): all logits in 16 bits, beside them the log-softmax in fp32 of all chunks,
# or of one where a compiled loss computes it again. "chunked": one chunk of positions is alive.
UPCAST_LOGIT_BYTES, UPCAST_FUSED_LOGIT_BYTES, CHUNK = 6.0, 2.5, 1024
STATE_BYTES = 4.0  # of a number of a recurrent state: engines keep them in fp32
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "kv", "temporary")


def memory_of(spec: ModelSpec, workload: Workload, layout: Layout | None = None) -> dict[str, int]:
    """Bytes by PARTS; their sum is the peak. kv: all growing and fixed state of sequences; temporary: weights gathered
    from shards, copies in the precision of the products, unpacked weights.

    A pipeline's first stage (most micro-batches in flight, embedding) and last (head, logits) are both counted, the
    fuller one is given. Raises UserError for an unknown precision or optimizer, or targets that fit no map.
    """
    layout = layout or Layout()
    if workload.phase == "train" and workload.training is None:
        raise UserError("a train step needs to know its method: full, lora or qlora")
    stages: tuple[Stage, ...] = ("first", "last") if layout.pipeline > 1 else ("only",)
    count = _training if workload.training else _inference
    fullest = max((count(spec, workload, layout, stage) for stage in stages), key=lambda parts: sum(parts.values()))
    return {name: math.ceil(fullest.get(name, 0.0)) for name in PARTS}


def at_once(workload: Workload, layout: Layout) -> int:
    """Sequences that one replica works on at the same time: the layout's micro-batch; all of the step's where a layout
    leaves micro-batches out (1 and 1)."""
    if workload.training and (layout.micro_batch, layout.micro_batches) != (1, 1):
        return layout.micro_batch
    return math.ceil(workload.batch / layout.data)


# --- training ---


def _training(spec: ModelSpec, workload: Workload, layout: Layout, stage: Stage) -> dict[str, float]:
    """The fuller of two moments: as the loss's backward pass begins (all activations, logits), and as the last
    gradients come (all gradients, one block's activations)."""
    training = workload.training
    assert training is not None
    trained_parameters(spec, training)  # refuses targets that fit nothing
    how = keeping(workload, layout)
    share = share_of(spec, Widths(spec, kept_in(workload)), layout, stage, training)
    trained = share.parameters if how.full else share.adapters
    states = {"weights": share.weights, "optimizer": trained * _optimizer_bytes(workload, how)}
    if not how.full:
        states["weights"] += share.adapters * _adapter_bytes(how)
    gradients = trained * number_bytes(training.gradient)
    early = gradients if training.keep_gradients == "always" or layout.micro_batches > 1 else 0.0
    late = gradients if training.keep_gradients != "never" else 0.0

    saved, block = _saved(spec, workload, layout, stage, how)
    logits, copies = _loss(spec, workload, layout, stage, how, share)
    at_loss = {"gradients": early, "activations": saved, "logits": logits}
    at_loss["temporary"] = copies + _gathered(share, layout, how, workload, share.outer + share.block)
    at_end = {"gradients": max(early, late), "activations": block}
    unsharded = 0.0
    if layout.sharded > 1 and how.full:  # a block's gradients before they are reduced; in a pipeline a whole stage's
        whole = share.parameters * layout.sharded if layout.pipeline > 1 else share.block
        unsharded = whole * number_bytes(training.gradient)
        at_loss["temporary"] += unsharded if layout.pipeline > 1 else 0.0
    at_end["temporary"] = unsharded + _gathered(share, layout, how, workload, 2 * share.block)
    moment = max(at_loss, at_end, key=lambda parts: sum(parts.values()))
    return {**states, **moment}


def kept_in(workload: Workload) -> str:
    """The precision that a workload's weights lie in."""
    return "nf4" if workload.training and workload.training.method == "qlora" else workload.weights


def _optimizer_bytes(workload: Workload, how: Keeping) -> float:
    """A trained parameter: the optimizer's numbers, and an fp32 copy where the weight itself is narrower."""
    training = how.training
    if training.optimizer not in OPTIMIZER_BYTES:
        raise UserError(f"no optimizer {training.optimizer!r}. Known: {', '.join(OPTIMIZER_BYTES)}.")
    kept = how.size if workload.weights == "stored" else number_bytes(workload.weights)
    if not how.full:
        kept = _adapter_bytes(how)
    return OPTIMIZER_BYTES[training.optimizer] + (4.0 if training.master and kept < 4 else 0.0)


def _adapter_bytes(how: Keeping) -> float:
    """peft keeps adapters in fp32; fused engines in the precision of the products."""
    return 4.0 if how.eager else how.size


def _saved(
    spec: ModelSpec, workload: Workload, layout: Layout, stage: Stage, how: Keeping
) -> tuple[float, float]:  # fmt: skip
    """Activations kept for the backward pass by all pieces of a stage, and those of the largest block alone."""
    sequences, width = at_once(workload, layout), widths(spec)
    recompute, layers = how.training.recompute, spec.layers
    mixer = wide = kept = 0.0
    for part in spec.parts:
        length = spec.streams.get(part.stream) or workload.tokens / layout.context
        positions = sequences * (1 if isinstance(part, Convolution) else length)
        if isinstance(part, Linear) and part.once:
            positions = sequences
        seen = spec.streams.get(getattr(part, "reads", None) or part.stream) or workload.tokens
        whole = positions * kept_bytes(part, how, width.get(part.stream, 0), seen)
        if isinstance(part, Attention | Recurrent):
            mixer = max(mixer, whole)
        elif isinstance(part, FeedForward | Experts):
            wide = max(wide, whole)
        inside = part.count > 1 or isinstance(part, Attention | Recurrent | FeedForward | Experts)
        if recompute == "full" and inside:
            whole = positions * block_input(part, how)
        elif recompute == "selective" and inside:
            whole = positions * selected_bytes(part, how)
        kept += pieces_on(part, spec, layout, stage, layers) * whole
    in_flight = min(layout.pipeline, layout.micro_batches) if stage == "first" else 1
    return kept * in_flight, mixer + wide


def _loss(
    spec: ModelSpec, workload: Workload, layout: Layout, stage: Stage, how: Keeping, share: Share
) -> tuple[float, float]:  # fmt: skip
    """Logits at their peak, and copies of weights that autocast has made by then.

    Autocast's copies of trained weights live until the forward pass ends, and on where the backward pass reads them
    (not in blocks that are computed again); the logits' gradients come only then.
    """
    loss, trained = how.training.loss, how.full
    positions = at_once(workload, layout) * workload.tokens / layout.context
    if loss == "chunked":
        positions = min(positions, CHUNK)
    count = 0.0 if stage == "first" else positions * _vocabulary(spec) / layout.tensor
    forward, backward = float(LOGIT_BYTES_FORWARD), float(LOGIT_BYTES)
    if how.size >= 4:
        forward, backward = 8.0, 16.0
    if loss == "upcast_in_chunks":
        forward = backward = UPCAST_LOGIT_BYTES if how.eager else UPCAST_FUSED_LOGIT_BYTES
    copies = 2.0 * share.products if how.autocast and layout.sharded == 1 else 0.0
    head = 0.0 if stage == "first" else sum(p.active for p in spec.parts if is_head(p)) / layout.tensor
    later = 2.0 * head if copies and how.training.recompute == "full" else copies
    if loss != "plain" and trained:  # the head's gradient so far, and what a chunk adds to it
        later += 2 * how.size * head
    if trained and count * forward + copies > count * backward + later:
        return count * forward, copies
    return count * backward, later


def _gathered(share: Share, layout: Layout, how: Keeping, workload: Workload, parameters: float) -> float:
    """Weights whole on the device for a moment: those gathered from shards, in the precision of the products (packed
    ones packed); with packed weights one map unpacked, taken as a third of a block.

    In a pipeline all of a stage stay gathered, as the next micro-batch needs them again.
    """
    packed = number_bytes(kept_in(workload)) if kept_in(workload) != "stored" else 2.0
    unpacked = share.block / 3 * how.size if packed < 1 else 0.0
    if layout.sharded == 1:
        return unpacked
    if layout.pipeline > 1:
        parameters = share.parameters * layout.sharded
    return parameters * min(how.size, packed) + unpacked


def _vocabulary(spec: ModelSpec) -> int:
    return max((p.outputs for p in spec.parts if isinstance(p, Linear) and is_head(p)), default=0)


# --- inference ---


def _inference(spec: ModelSpec, workload: Workload, layout: Layout, stage: Stage) -> dict[str, float]:
    """Weights, cache, and the fuller of a block's tensors and the logits beside the hidden state."""
    share = share_of(spec, Widths(spec, workload.weights), layout, stage, None)
    parts = {"weights": share.weights, "kv": cache_bytes(spec, workload, layout)}
    hidden, block = _passing(spec, workload, layout)
    logits = 0.0
    if stage != "first":
        each = workload.tokens if workload.logits == "all" or workload.phase != "prefill" else 1
        # all: as the products give them; the last ones are turned to fp32 for the sampler
        size = 4.0 if each == 1 else max(2.0, number_bytes(workload.compute))
        logits = at_once(workload, layout) * each * _vocabulary(spec) * size / layout.tensor
    if block > hidden + logits:
        return {**parts, "activations": block}
    return {**parts, "activations": hidden, "logits": logits}


def cache_bytes(spec: ModelSpec, workload: Workload, layout: Layout | None = None) -> float:
    """Keys and values (or latents, or states) of all sequences on one device.

    A window's layers keep the window; cross-attention keeps the other stream's positions. Key-value heads are split
    over the tensor-parallel devices as far as there are heads; a latent is on every one. A pipeline's fullest stage has
    ⌈layers ÷ stages⌉ of the layers.
    """
    if spec.task == "encode":
        return 0.0
    layout = layout or Layout()
    total = workload.context + workload.tokens
    size, numbers = number_bytes(workload.cache), 0.0
    for part in spec.parts:
        pieces = pieces_on(part, spec, layout, "last")
        if isinstance(part, Recurrent):
            numbers += pieces * part.state / layout.tensor * STATE_BYTES
        elif isinstance(part, Attention) and (part.causal or part.reads):
            length = spec.streams.get(part.reads or part.stream) or total
            kept = min(length, part.window) if part.window else length
            split = layout.context * (1 if part.latent else min(layout.tensor, part.kv_heads))
            numbers += pieces * part.cached * kept / split * size
    return math.ceil(workload.batch / layout.data) * numbers


def _passing(spec: ModelSpec, workload: Workload, layout: Layout) -> tuple[float, float]:
    """Bytes of the hidden state, and of the tensors of a block that live at once: its input twice and what it widens
    to."""
    size = max(2.0, number_bytes(workload.compute))
    hidden = widest = 0.0
    for part in spec.parts:
        positions = at_once(workload, layout) * (spec.streams.get(part.stream) or workload.tokens) / layout.context
        numbers = 0.0
        if isinstance(part, Attention):
            hidden = max(hidden, positions * part.width)
            numbers = 2 * part.width + 2 * part.heads * (part.head_dim + part.value_dim) / layout.tensor
        elif isinstance(part, FeedForward):
            numbers = 2 * part.width + part.matrices * part.hidden / layout.tensor
        elif isinstance(part, Experts):
            width = part.chosen * part.hidden + part.shared_hidden
            numbers = (2 + part.chosen) * part.width + 3 * width / layout.tensor
        elif isinstance(part, Recurrent):
            numbers = sum(outputs for _, outputs in part.shapes.values()) / layout.tensor
        elif isinstance(part, Convolution):
            positions, numbers = at_once(workload, layout), 2.0 * part.outputs * part.positions
        widest = max(widest, positions * numbers)
    return hidden * size, widest * size
