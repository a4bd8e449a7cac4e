"""How many bits a number takes in each precision, its scales counted."""

from __future__ import annotations

from nearpeak.records.errors import UserError

# Bits a weight. int8: one 16-bit scale a row counts for nothing; int4: a 16-bit scale and zero for 128 weights; nf4: a
# scale of 8 bits for 64 weights, itself scaled in blocks of 256 (Dettmers et al. 2023, section 3). mxfp4: 8 bits for 32
# numbers; nvfp4: 8 bits for 16. GGUF blocks: bytes a block × 8 ÷ weights a block, as ggml lays them out; the mixes are
# means over published Llama-3 files.
WEIGHT_BITS = {
    "fp64": 64.0, "fp32": 32.0, "tf32": 32.0, "bf16": 16.0, "fp16": 16.0, "f16": 16.0, "fp8": 8.0, "int8": 8.0,
    "int4": 4.25, "nf4": 4.127, "fp4": 4.5, "nvfp4": 4.5, "mxfp4": 4.25,
    "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "q5_0": 5.5, "q5_1": 6.0, "q2_k": 2.625, "q3_k": 3.4375, "q4_k": 4.5,
    "q5_k": 5.5, "q6_k": 6.5625, "q3_k_m": 4.0, "q4_k_s": 4.67, "q4_k_m": 4.85, "q5_k_m": 5.7,
}  # fmt: skip
# Schemes that leave embeddings and the output head at 16 bits.
HEAD_STAYS = ("fp8", "int8", "int4", "nf4", "fp4", "nvfp4", "mxfp4")


def weight_bits(precision: str) -> float:
    """Bits a weight. Raises UserError naming the known precisions."""
    try:
        return WEIGHT_BITS[precision]
    except KeyError:
        raise UserError(f"no precision {precision!r}. Known: stored, {', '.join(WEIGHT_BITS)}.") from None


def head_bits(precision: str) -> float:
    """Bits of a weight of the embeddings and the head."""
    return 16.0 if precision in HEAD_STAYS else weight_bits(precision)


def vector_bits(precision: str) -> float:
    """Bits of a norm's or a bias's number: never below 16; GGUF files keep them in 32."""
    if precision.startswith("q"):
        return 32.0
    return max(16.0, weight_bits(precision))


def number_bytes(precision: str) -> float:
    """Bytes of one number of a cache or an activation."""
    return weight_bits(precision) / 8
