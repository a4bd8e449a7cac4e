"""Does the loaded model give the logits of the reference path? The same weights, fp32, the plain network."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nearpeak.inference.reference_runner import ReferenceRunner
from nearpeak.inference.runner import Runner

PREFILL, DECODE = 32, 16
ROOM = 2.0
"""How many times the rounding noise of the reference path itself, in the run's own precision, an error may be."""
EXACT = 1e-5
"""Noise of fp32: sums in another order."""


@dataclass(frozen=True)
class Agreement:
    """error, noise: ‖logits − reference‖ ÷ ‖reference‖ over all positions compared, of the run and of the reference
    path in the run's precision; same_first: positions whose likeliest token is the same."""

    agree: bool
    error: float
    noise: float
    positions: int
    same_first: int


def logits_of(runner: Runner, ids: torch.Tensor) -> torch.Tensor:
    """fp32 [DECODE + 1, vocab] on the CPU: of the last position of a prefill, then of each decode step."""
    runner.keep(0)
    found = [runner.prefill(ids[:PREFILL]).float().cpu()]
    for token in ids[PREFILL : PREFILL + DECODE]:
        found.append(runner.decode(token[None]).float().cpu())
    return torch.stack(found)


def random_ids(vocab: int, device: torch.device, seed: int) -> torch.Tensor:
    """int64 [PREFILL + DECODE]: any tokens do, since the networks must agree on all."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (PREFILL + DECODE,), generator=draws).to(device)


def compare(got: torch.Tensor, reference: torch.Tensor, rounded: torch.Tensor) -> Agreement:
    """rounded: logits of the reference path in the run's own precision: what rounding alone does. NaN never agrees."""
    size = reference.norm()
    error, noise = float((got - reference).norm() / size), float((rounded - reference).norm() / size)
    same = int((got.argmax(-1) == reference.argmax(-1)).sum())
    return Agreement(error <= ROOM * noise + EXACT, error, noise, len(reference), same)


def reference_logits(runner: ReferenceRunner, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the same weights in fp32, and as the runner has them. The runner's decoder is fp32 afterwards."""
    rounded = logits_of(runner, ids)
    exact = ReferenceRunner(runner.decoder.float(), runner.capacity)
    return logits_of(exact, ids), rounded
