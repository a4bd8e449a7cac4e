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
    recompute      "none": all is kept, scores too; "attention": scores are computed again (flash attention does so);
                   "selective": scores and half of a block's products as well; "full": each block runs forward twice
    master         fp32 copies of trained weights are kept beside those of the workload's precision; where that is fp32
                   already there are none
    optimizer      "adamw" (two fp32 numbers a parameter), "adamw_bf16" (two bf16), "adamw_8bit", "adamw_8bit_paged" (on
                   the host once the device is full), "sgd_momentum", "sgd"
    gradient       precision that gradients are kept in
    loss           "plain": logits kept whole, with fp32 copies; "upcast_in_chunks": whole in 16 bits, turned to fp32 a
                   chunk at a time; "chunked": head and loss together, a chunk of positions at a time
    keep_gradients "always": their memory is held from step to step (accumulation, or zeroed in place); "backward":
                   freed after the update; "never": each is used and freed as it comes (update inside the backward pass)
    fused          norms and gates keep their inputs alone (torch.compile, Liger, our engine); False: plain PyTorch
                   modules, which keep what lies between as well, norms in fp32, keys and values for every head
    sequence_parallel  beside tensor parallelism: norms and hidden states are split over its devices too
    """

    method: Method = "full"
    rank: int = 16
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    recompute: Literal["none", "attention", "selective", "full"] = "attention"
    master: bool = True
    optimizer: str = "adamw"
    gradient: str = "fp32"
    loss: Literal["plain", "upcast_in_chunks", "chunked"] = "plain"
    keep_gradients: Literal["always", "backward", "never"] = "always"
    fused: bool = False
    sequence_parallel: bool = False


@dataclass(frozen=True)
class Workload:
    """One step of work on one model, by all devices together.

    phase      prefill: `tokens` new positions a sequence, after `context` ones; decode: one new position after
               `context`; encode: a forward pass over whole items; train: forward, backward and update
    batch      sequences (or images, or clips) in the step
    weights    precision that the weights are kept in: "fp32", "bf16", "fp16", "fp8", "int8", "int4", "nf4", "fp4" or a
               GGUF mix ("q4_k_m", "q8_0"); "stored": as the spec's files have them
    compute    precision of the products; weights "fp32" with compute "bf16" is torch.autocast ("mixed precision")
    cache      precision of the KV cache
    training   set for phase "train" alone
    logits     which positions' logits a prefill gives: the last one's, or all (to score a text)
    """

    phase: Phase
    batch: int
    tokens: int
    context: int = 0
    weights: str = "bf16"
    compute: str = "bf16"
    cache: str = "bf16"
    training: Training | None = None
    logits: Literal["last", "all"] = "last"
