"""A model spec put to work: phase, batch, lengths, precisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode", "encode", "train"]
Method = Literal["full", "lora", "qlora"]


@dataclass(frozen=True)
class Training:
    """What a train step is beside a forward pass.

    method         full; lora: frozen weights of the workload's precision, trained adapters; qlora: the frozen ones nf4
    rank           of the adapters; targets: the linear maps that get one, by name ("q", "k", "v", "o", "gate", …)
    recompute      "none"; "full": each block runs forward twice; "attention": scores alone (flash attention does)
    master         fp32 copies of the weights are kept beside those of the workload's precision ("mixed precision")
    optimizer      "adamw" (two fp32 numbers a parameter), "adamw_bf16" (two bf16), "adamw_8bit", "sgd_momentum", "sgd"
    gradient       precision that gradients are kept in
    loss           "plain" (logits kept whole, in fp32 copies) or "chunked"
    """

    method: Method = "full"
    rank: int = 16
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    recompute: Literal["none", "attention", "full"] = "attention"
    master: bool = True
    optimizer: str = "adamw"
    gradient: str = "fp32"
    loss: Literal["plain", "chunked"] = "plain"


@dataclass(frozen=True)
class Workload:
    """One step of work on one model, by all devices together.

    phase      prefill: `tokens` new positions a sequence, after `context` ones; decode: one new position after
               `context`; encode: a forward pass over whole items; train: forward, backward and update
    batch      sequences (or images, or clips) in the step
    weights    precision that the weights are kept in: "fp32", "bf16", "fp16", "fp8", "int8", "int4", "nf4", "fp4" or a
               GGUF mix ("q4_k_m", "q8_0"); "stored": as the spec's files have them
    compute    precision of the products
    cache      precision of the KV cache
    training   set for phase "train" alone
    """

    phase: Phase
    batch: int
    tokens: int
    context: int = 0
    weights: str = "bf16"
    compute: str = "bf16"
    cache: str = "bf16"
    training: Training | None = None
