"""What an engine asks of any way to run a model: read a prompt, then one token at a time."""

from __future__ import annotations

from typing import Protocol

import torch


class Runner(Protocol):
    """One sequence on one device.

    how           in words: "reference path, one CUDA graph a token", "CPU, bf16 packed by oneDNN, 2 threads"
    length        positions in the cache; capacity: the most that fit
    vocab         of the logits; device: where they lie
    compute       precision that products are done in, whatever the weights are kept in
    weight_bytes  that one token reads, as this runner holds them; memory_bytes: all weights and the cache
    """

    how: str
    length: int
    capacity: int
    vocab: int
    device: torch.device
    compute: str

    @property
    def weight_bytes(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    def cache_bytes(self, length: int) -> int:
        """That one token reads of the cache when it holds `length` positions."""
        ...

    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 [tokens], which follow what is in the cache → logits [vocab] of the last one."""
        ...

    def decode(self, token: torch.Tensor) -> torch.Tensor:
        """int64 [1] on the device → logits [vocab]. No synchronisation with the device."""
        ...

    def keep(self, length: int) -> None:
        """Forget all positions but the first `length`."""
        ...

    def first_not_finite(self, ids: torch.Tensor) -> str | None:
        """The first place in the model whose numbers are not finite when it reads `ids`; None where all are."""
        ...
