"""How many bits a weight takes in each precision that an engine offers, and what multiplies it."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.limits.precision import head_bits, weight_bits
from nearpeak.records.model_spec import ModelSpec

# Precision of the products where weights are smaller than what is multiplied: int4 is unpacked to 16 bits.
COMPUTE = {"fp32": "fp32", "bf16": "bf16", "fp8": "fp8", "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4"}
HALF_SUMS = "fp16→fp16"  # as the tables of measure write it; every other precision here sums in fp32 or int32
GGUF = ("f16", "q2_k", "q3_k_m", "q4_0", "q4_k_s", "q4_k_m", "q5_k_m", "q6_k", "q8_0")


@dataclass(frozen=True)
class Bits:
    """Bits a weight: of dense layers, of routed experts, of the head and embeddings."""

    dense: float
    experts: float
    head: float


def bits_of(precision: str, spec: ModelSpec, engine: str = "") -> Bits:
    """What a model's weights take in a precision; "stored": as its files have them.

    Raises UserError for a precision that is not known.
    """
    if precision == "stored":
        return _stored(spec)
    bits = weight_bits(precision)
    native = _stored(spec)
    if native.experts < 6.0 and bits < 6.0:
        # experts that were trained in four bits stay as they are; only the rest is the engine's choice
        rest = 8.5 if engine == "llama.cpp" else 16.0
        return Bits(rest, native.experts, rest)
    return Bits(bits, bits, head_bits(precision))


def _stored(spec: ModelSpec) -> Bits:
    """The smallest numbers are the experts' where a model has them and its files have two kinds."""
    each = sorted((8.0 * s.bytes / s.parameters, s.parameters) for s in spec.stored.values() if s.parameters)
    if not each:
        return Bits(16.0, 16.0, 16.0)
    mean = 8.0 * spec.weight_bytes / sum(count for _, count in each)
    if len(each) > 1 and each[0][0] < 6.0 and spec.active_parameters < spec.parameters:
        return Bits(each[-1][0], each[0][0], each[-1][0])
    return Bits(mean, mean, mean)


def compute_of(precision: str, available: dict[str, float], engine: str = "", bits: float = 16.0) -> str:
    """The precision that products run in on a card with these rates: never one that it has no units for.

    llama.cpp multiplies packed weights in int8 and fp16 with fp16 sums (ggml-cuda's mmq, and cuBLAS with
    COMPUTE_16F), at twice and more the rate of fp32 sums on GeForce cards. bits: of the most packed weights.
    """
    wanted = COMPUTE.get(precision, "bf16")
    if engine == "llama.cpp" and wanted != "fp32":
        wanted = "int8" if bits < 12.0 else HALF_SUMS
    for choice in (wanted, "fp8" if wanted == "fp4" else "bf16", "bf16", "fp16", "fp32"):
        if choice in available:
            return choice
    return max(available, key=lambda name: available[name])
