"""How many bits a weight takes in each precision, its scales counted, and which products it runs in."""

from __future__ import annotations

from nearpeak.records.errors import UserError

# Bits a weight in memory, scales and offsets counted.
# int8, fp8   one scale a row (or a tile of 128 × 128): less than 0.1 %, not counted
# int4        one 16-bit scale for 128 weights, symmetric: 4 + 16/128; a zero point beside it (GPTQ, AWQ) adds 4/128
# nf4         an 8-bit scale for 64 weights, itself scaled by 32 bits in blocks of 256: 4 + 8/64 + 32/(64·256)
#             (Dettmers et al. 2023, QLoRA, section 3: double quantisation)
# mxfp4, fp4  an 8-bit scale for 32 numbers (OCP Microscaling 1.0); nvfp4: an 8-bit scale for 16; mxfp8: for 32
# GGUF types  bytes a block × 8 ÷ weights a block, as ggml lays blocks out
# GGUF mixes  means over whole files: llama.cpp's own table for Llama 2 13B (tools/quantize/README); q4_k_m between the
#             4.82 of Llama-3.1-70B's file and the 4.90 of 8B's. q2_k names a mix as well, and stands for that
WEIGHT_BITS = {
    "fp64": 64.0, "fp32": 32.0, "tf32": 32.0, "bf16": 16.0, "fp16": 16.0, "f16": 16.0, "f32": 32.0,
    "fp8": 8.0, "mxfp8": 8.25, "int8": 8.0, "int4": 4.125, "nf4": 4.127, "fp4": 4.25, "mxfp4": 4.25, "nvfp4": 4.5,
    "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "q5_0": 5.5, "q5_1": 6.0, "q8_k": 9.125,
    "q3_k": 3.4375, "q4_k": 4.5, "q5_k": 5.5, "q6_k": 6.5625, "iq4_nl": 4.5, "iq4_xs": 4.25,
    "q2_k": 3.35, "q3_k_s": 3.48, "q3_k_m": 3.89, "q3_k_l": 4.26, "q4_k_s": 4.56, "q4_k_m": 4.85,
    "q5_k_s": 5.51, "q5_k_m": 5.67,
}  # fmt: skip
# Schemes that leave the embeddings and the output head at 16 bits, as their usual tools do: bitsandbytes (int8, nf4),
# GPTQ and AWQ (int4), compressed-tensors and TensorRT Model Optimizer (fp8, fp4). GGUF packs them like the rest.
HEAD_STAYS = ("fp8", "mxfp8", "int8", "int4", "nf4", "fp4", "nvfp4", "mxfp4")
# What products of such weights run in where the weights are not multiplied as they are: 4-bit integers, nf4 and GGUF
# blocks are unpacked to 16 bits first. fp8 and fp4 (with scales) and int8 have matrix units of their own.
PRODUCTS = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4", "f16": "fp16", "f32": "fp32"}
PLAIN = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")


def bits(precision: str) -> float:
    """Bits a weight, its scales counted. Raises UserError naming the known precisions."""
    try:
        return WEIGHT_BITS[precision]
    except KeyError:
        raise UserError(f"no precision {precision!r}. Known: stored, {', '.join(WEIGHT_BITS)}.") from None


weight_bits = bits


def head_bits(precision: str) -> float:
    """Bits of a weight of the embeddings and the head: 16 in the usual int8, int4, nf4, fp8 and fp4 schemes."""
    return 16.0 if precision in HEAD_STAYS else bits(precision)


def vector_bits(precision: str) -> float:
    """Bits of a norm's or a bias's number: never below 16; GGUF files keep them in 32."""
    return 32.0 if precision.startswith(("q", "iq")) else max(16.0, bits(precision))


def number_bytes(precision: str) -> float:
    """Bytes of one number of a cache, a gradient or an activation."""
    return bits(precision) / 8


def product_precision(storage: str) -> str:
    """What products run in for weights kept so: int4, nf4 and GGUF blocks are unpacked to bf16.

    fp8, int8 and fp4 are multiplied as they are where a device has such units; where it has none, its rates say what
    runs in their place (`limits.rates`). Raises UserError for an unknown precision.
    """
    bits(storage)
    return PRODUCTS.get(storage, storage if storage in PLAIN else "bf16")


def wide(compute: str) -> str:
    """What runs beside narrow products: attention scores, the router and the head stay at 16 bits where the maps of the
    blocks are multiplied in 8 or 4 (torchao's, Transformer Engine's and vLLM's recipes do so)."""
    return compute if number_bytes(compute) >= 2 else "bf16"
