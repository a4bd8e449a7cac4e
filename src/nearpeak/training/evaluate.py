"""Loss and accuracy on what was held out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from nearpeak.training.images import Images
from nearpeak.training.step import Forward

BATCH = 1000


@dataclass(frozen=True)
class Evaluated:
    """loss: mean cross-entropy, without smoothing; accuracy from 0 to 1."""

    step: int
    loss: float
    accuracy: float


def evaluate(forward: Forward, images: Images, device: torch.device, step: int) -> Evaluated:
    """No random number is drawn, no gradient kept."""
    loss = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    with evaluating(forward.module), torch.no_grad():
        for first in range(0, len(images), BATCH):
            pixels = torch.from_numpy(images.pixels[first : first + BATCH]).to(device)
            labels = torch.from_numpy(images.labels[first : first + BATCH]).to(device)
            logits = forward.logits(pixels)
            loss += functional.cross_entropy(logits.double(), labels, reduction="sum")
            right += (logits.argmax(1) == labels).sum()
    return Evaluated(step, float(loss) / len(images), int(right) / len(images))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The mode of evaluation; each inner module gets its own mode back, a frozen norm among them."""
    modes = [(inner, inner.training) for inner in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for inner, mode in modes:
            inner.training = mode
