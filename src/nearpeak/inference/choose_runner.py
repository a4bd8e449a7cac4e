"""Which way to run a loaded decoder: the fast path of the device where it can, else the reference path, and why."""

from __future__ import annotations

import torch

from nearpeak.inference import cpu_pack, cpu_runner
from nearpeak.inference.cpu_linear import CpuLinear
from nearpeak.inference.cpu_runner import CpuRunner
from nearpeak.inference.quantized_linear import quantize_decoder
from nearpeak.inference.reference_runner import ReferenceRunner
from nearpeak.inference.runner import Runner
from nearpeak.networks.decoder import Decoder

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
QUANTIZED = ("int8", "int4")
SAMPLE_BYTES = 64 << 20
"""Weights that the ways to multiply are tried on: more than most caches hold."""


def weights_dtype(precision: str) -> torch.dtype:
    """What weights are loaded as before they are packed."""
    return DTYPES.get(precision, torch.bfloat16)


def fast_runner(decoder: Decoder, precision: str, capacity: int) -> tuple[Runner, str | None]:
    """A runner, and why it is not the fast path (None where it is). The decoder may be used up.

    decoder     on the device, its weights in `weights_dtype(precision)`
    capacity    positions that the cache has room for
    """
    device = next(decoder.parameters()).device
    if device.type == "cuda":
        reason = "the kernels of the fast path come with the next version"
        return reference_runner(decoder, precision, capacity, graphed=not decoder.shape.changes_with_length), reason
    refused = cpu_runner.refusal(decoder.shape, capacity)
    if refused:
        return reference_runner(decoder, precision, capacity), f"the fast path on a CPU cannot run {refused}"
    if precision in QUANTIZED:
        return CpuRunner(decoder, capacity, lambda w, name: cpu_pack.packed(precision, w, name), torch.bfloat16), None
    way = cpu_pack.fastest(precision, _samples(decoder))

    def pack(weight: torch.Tensor, name: str) -> CpuLinear:
        return cpu_pack.head_of(weight, way) if name == "head" else way(weight)

    return CpuRunner(decoder, capacity, pack, weights_dtype(precision)), None


def reference_runner(decoder: Decoder, precision: str, capacity: int, graphed: bool = False) -> ReferenceRunner:
    """The plain way; weights of 8 and 4 bits are unpacked as they are used."""
    if precision in QUANTIZED:
        quantize_decoder(decoder, precision)
    return ReferenceRunner(decoder, capacity, graphed)


def _samples(decoder: Decoder) -> list[torch.Tensor]:
    """Maps of the first layers, up to SAMPLE_BYTES."""
    found: list[torch.Tensor] = []
    for block in decoder.layers:
        for linear in (block.attention.q, block.attention.o, block.feed_forward.up, block.feed_forward.down):
            found.append(linear.weight.detach())
        if sum(weight.nbytes for weight in found) >= SAMPLE_BYTES:
            break
    return found
