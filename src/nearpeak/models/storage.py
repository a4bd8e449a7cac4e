"""Bytes that parts take at a dtype, where there is no file to read them from."""

from __future__ import annotations

from collections.abc import Iterable

from nearpeak.records.model_spec import Attention, Experts, FeedForward, Part, Recurrent, Stored

BITS = {"fp64": 64, "fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}
MXFP4 = 17 / 32  # bytes: blocks of 32 numbers of 4 bits with one scale of 8
FP8_SCALE = 4 / 128**2  # bytes a weight: one fp32 for each square of 128 × 128


def stored_parts(parts: Iterable[Part], dtype: str) -> dict[str, Stored]:
    """`dtype` is a plain one ("bf16"), or says which parts are packed in a bf16 checkpoint:

    "mxfp4 experts"   the experts' matrices (gpt-oss)
    "fp8 layers"      all matrices of attention, feed-forwards and experts, with a scale each 128 × 128 (DeepSeek-V3)
    """
    total = packed = 0
    for part in parts:
        total += part.count * part.parameters
        packed += part.count * _packed(part, dtype)
    if dtype in BITS:
        return {dtype: Stored(total, total * BITS[dtype] // 8)}
    name, each = ("mxfp4", MXFP4) if dtype == "mxfp4 experts" else ("fp8", 1 + FP8_SCALE)
    return {"bf16": Stored(total - packed, 2 * (total - packed)), name: Stored(packed, round(packed * each))}


def _packed(part: Part, dtype: str) -> int:
    """Parameters of one piece that are packed."""
    if dtype == "mxfp4 experts":
        return part.experts * part.one_expert if isinstance(part, Experts) else 0
    if dtype == "fp8 layers":
        if isinstance(part, Experts):
            return part.experts * part.one_expert + part.shared - part.shared_gate
        return part.active if isinstance(part, (Attention, FeedForward, Recurrent)) else 0
    if dtype not in BITS:
        raise ValueError(f"no dtype of a known model: {dtype}")
    return 0
