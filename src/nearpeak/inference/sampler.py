"""Draws tokens from logits on the device, without waiting for it."""

from __future__ import annotations

import torch

from nearpeak.inference.sampling import Sampling
from nearpeak.records.errors import UserError

LOOKS = (512, 8192)
"""For top-p on a CPU: so many of the likeliest are looked at before all of them are sorted, which takes 25 times as
long as the first look at 262,144 tokens."""


class Sampler:
    """Draws as `sampling` says, from logits of `vocab` tokens on `device`.

    finite   truth values on the device, one a row of the last logits: False where the largest of them is NaN or
             infinite, so that the chosen token means nothing. −∞ elsewhere is a token that may not be chosen.
    """

    def __init__(self, sampling: Sampling, vocab: int, device: torch.device | str) -> None:
        self.sampling, self.vocab, self.device = sampling, vocab, torch.device(device)
        self.finite = torch.ones((), dtype=torch.bool, device=self.device)
        self._random = torch.Generator(self.device)
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """A token for each row: logits [vocab] → int64 [], [batch, vocab] → int64 [batch]."""
        if self.sampling.temperature == 0:
            if logits.device.type == "cpu":
                logits = logits.float()  # a CPU finds the largest of bf16 numbers four times as slowly
            token = self._checked(logits).argmax(-1)  # the first of equals, as torch documents; NaN is the largest
            self.finite = logits.gather(-1, token[..., None])[..., 0].isfinite()
            return token
        weights, ids = self._weights(logits)
        place = self._draw(weights)
        return place if ids is None else ids.gather(-1, place[..., None])[..., 0]

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """With which probability `choose` takes each token: fp64, shaped like the logits; 0 for what is left out."""
        if self.sampling.temperature == 0:
            token = self._checked(logits).argmax(-1, keepdim=True)
            return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, token, 1.0)
        weights, ids = self._weights(logits)
        shares = weights.double() / weights.double().sum(-1, keepdim=True)
        return shares if ids is None else torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, ids, shares)

    def log_probabilities(self, logits: torch.Tensor, token: int, count: int) -> list[tuple[int, float]]:
        """(token, natural log of its probability): first of `token`, then of the `count` likeliest, in falling order.

        logits [vocab], as the model gave them: temperature and filters do not count. Waits for the device. Raises
        UserError: a token or a count that the vocabulary does not have.
        """
        if not 0 <= token < self.vocab:
            raise UserError(f"token {token} is none: the model's {self.vocab:,} count from 0 to {self.vocab - 1:,}.")
        if not 0 <= count <= self.vocab:
            raise UserError(f"{count:,} likeliest tokens are asked for; from 0 to {self.vocab:,} is possible.")
        logits = self._checked(logits)
        values, ids = logits.topk(count, -1)
        chosen = torch.cat((logits[token, None], values)).double() - logits.double().logsumexp(-1)
        return list(zip([token, *ids.tolist()], chosen.tolist(), strict=True))

    def _weights(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """exp((logit − largest) ÷ temperature) in fp32, 0 where top-k, top-p or min-p leave a token out; and whose
        they are: None for all tokens in order, else as many as could stay, the likeliest first."""
        asked = self.sampling
        k = min(asked.top_k, self.vocab) or self.vocab
        ids: torch.Tensor | None = None
        if k < self.vocab:
            logits, ids = self._checked(logits).topk(k, -1)  # exactly k, also where the next one equals the last
        logits = self._checked(logits, k).float()
        largest = logits.amax(-1, keepdim=True)
        self.finite = largest[..., 0].isfinite()
        weights = ((logits - largest) / asked.temperature).exp()
        if asked.top_p < 1:
            total = weights.sum(-1, keepdim=True, dtype=torch.float64)
            if ids is None:
                weights, ids = self._likeliest(weights, asked.top_p * total)
            before = weights.cumsum(-1, dtype=torch.float64) - weights
            weights = weights.where(before < asked.top_p * total, 0.0)
        if asked.min_p > 0:
            weights = weights.where(weights >= asked.min_p, 0.0)  # the likeliest one's is 1
        return weights, ids

    def _likeliest(self, weights: torch.Tensor, enough: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights in falling order, as many as reach `enough` together or more, and their tokens. A CPU is asked
        whether a few do; a GPU, which nobody should wait for, sorts them all."""
        if weights.device.type == "cpu":
            for look in LOOKS:
                if 4 * look < self.vocab:
                    found = weights.topk(look, -1)
                    if bool((found.values.sum(-1, keepdim=True, dtype=torch.float64) >= enough).all()):
                        return found.values, found.indices
        ordered = weights.sort(-1, descending=True)
        return ordered.values, ordered.indices

    def _draw(self, weights: torch.Tensor) -> torch.Tensor:
        """A column of each row, with probabilities as the weights: the first whose running sum is above a number drawn
        evenly from 0 to the sum. One number a row, in fp64: drawing one a column (Gumbel's trick) costs a CPU more
        than the rest together."""
        running = weights.cumsum(-1, dtype=torch.float64)
        total = running[..., -1:]
        even = torch.rand(total.shape, dtype=torch.float64, device=total.device, generator=self._random)
        # below the sum even where the product is rounded up to it, so that no column of weight 0 is ever taken
        mark = torch.minimum(even * total, torch.nextafter(total, torch.zeros_like(total)))
        place = torch.searchsorted(running, mark, right=True)[..., 0]
        return place.clamp_max(weights.shape[-1] - 1)  # NaN alone gets there, and `finite` tells of it

    def _checked(self, logits: torch.Tensor, columns: int | None = None) -> torch.Tensor:
        columns = columns or self.vocab
        if logits.dim() not in (1, 2) or logits.shape[-1] != columns:
            raise ValueError(f"logits {tuple(logits.shape)}; [vocab] or [batch, vocab] with vocab {columns} expected")
        return logits
