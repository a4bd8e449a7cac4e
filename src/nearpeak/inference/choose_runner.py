"""Which way to run a loaded decoder: the fast path of the device where it can, else the reference path, and why."""

from __future__ import annotations

import torch

from nearpeak.inference.quantized_linear import quantize_decoder
from nearpeak.inference.reference_runner import ReferenceRunner
from nearpeak.inference.runner import Runner
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.decoder_shape import DecoderShape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
QUANTIZED = ("int8", "int4")


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
        shape = decoder.shape  # a graph holds the same launches at any length; a mixture's depend on the tokens
        graphed = not shape.changes_with_length and shape.experts is None
        return reference_runner(decoder, precision, capacity, graphed), reason
    refused = _cpu_refusal(decoder.shape, capacity)
    if refused:
        return reference_runner(decoder, precision, capacity), f"the fast path on a CPU cannot run {refused}"
    from nearpeak.inference.cpu_runner import CpuRunner

    return CpuRunner(decoder, capacity, precision), None


def reference_runner(decoder: Decoder, precision: str, capacity: int, graphed: bool = False) -> ReferenceRunner:
    """The plain way; weights of 8 and 4 bits are unpacked as they are used."""
    if precision in QUANTIZED:
        quantize_decoder(decoder, precision)
    return ReferenceRunner(decoder, capacity, graphed)


def _cpu_refusal(shape: DecoderShape, capacity: int) -> str | None:
    try:
        from nearpeak.inference import cpu_runner
    except ImportError as error:  # numba is not everywhere
        return f"without its compiler ({error})"
    return cpu_runner.refusal(shape, capacity)
