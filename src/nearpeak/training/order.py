"""Which sample comes when: a function of seed and epoch alone, so that a run can begin again at any sample."""

from __future__ import annotations

import hashlib

import torch


class Order:
    """The samples of each step. Each epoch has all of them once, in an order of its own; its last batch is what
    is left.

    Nothing is kept from step to step: a step's samples follow from its number.
    """

    def __init__(self, samples: int, batch: int, seed: int, device: torch.device | str = "cpu") -> None:
        self._device = device
        self.samples, self.batch, self.seed = samples, batch, seed
        self.steps_per_epoch = -(-samples // batch)
        self._held: tuple[int, torch.Tensor] | None = None

    def of_step(self, step: int) -> torch.Tensor:
        """Samples of step 0, 1, …: int64 [batch or fewer], on `device`, to which an epoch's go at once."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if self._held is None or self._held[0] != epoch:
            self._held = epoch, epoch_order(self.samples, self.seed, epoch).to(self._device)
        return self._held[1][number * self.batch : (number + 1) * self.batch]

    def epoch_of(self, step: int) -> int:
        """The epoch that step belongs to, from 0."""
        return step // self.steps_per_epoch


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """A permutation of 0 … samples − 1: int64 [samples]. Always drawn on the CPU, so that every device has the same."""
    digest = hashlib.sha256(f"nearpeak order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.randperm(samples, generator=generator)
