"""From a prompt to an answer: prefill, then a token at a time until something ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from nearpeak.inference.runner import Runner
from nearpeak.inference.sampler import Sampler
from nearpeak.inference.sampling import Sampling
from nearpeak.inference.text_stream import TextStream
from nearpeak.models.tokenizer import Tokenizer
from nearpeak.records.errors import UserError

Reason = Literal["end of sequence", "stop string", "max tokens", "context full"]


@dataclass(frozen=True)
class Asked:
    """One request. stops: strings that end the answer and are no part of it; logprobs: how many of the likeliest tokens
    are told beside each chosen one, None for nothing at all."""

    ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass
class Answer:
    """What came of it.

    ids              generated, an end-of-sequence token among them
    reused           positions of the prompt that were in the cache already
    prefill_seconds  from the first token in to the first token out; token_seconds: of each later token
    logprobs         a (token, log-probability) pair of the chosen one, then of the likeliest, for each token
    """

    prompt_tokens: int
    reused: int = 0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: Reason = "max tokens"
    prefill_seconds: float = 0.0
    token_seconds: list[float] = field(default_factory=list)
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)


class Engine:
    """One runner and the tokenizer of its model. What was read and said stays in the cache, so that a conversation
    whose next prompt begins likewise reads only what is new."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer) -> None:
        self.runner, self.tokenizer = runner, tokenizer
        self._cached: list[int] = []

    def answer(self, asked: Asked, say: Callable[[str], None] = lambda text: None) -> Answer:
        """Generate; `say` gets the text as it comes. Raises UserError: a prompt that does not fit, numbers that are not
        finite."""
        self.check(asked)
        answer = Answer(len(asked.ids))
        stream = TextStream(self.tokenizer, asked.stops)
        sampler = Sampler(asked.sampling, self.runner.vocab, self.runner.device)
        start = time.perf_counter()
        logits = self._prefill(asked.ids, answer)
        while True:
            token = int(self._choose(sampler, logits, asked, answer))
            now = time.perf_counter()
            if answer.ids:
                answer.token_seconds.append(now - start)
            else:
                answer.prefill_seconds = now - start
            start = now
            answer.ids.append(token)
            if self._add(token, stream, asked, answer, say):
                break
            logits = self.runner.decode(torch.tensor([token], device=self.runner.device))
            self._cached.append(token)
        rest = stream.finish() if answer.reason != "stop string" else ""
        answer.text += rest
        say(rest)
        return answer

    def check(self, asked: Asked) -> None:
        """Raises UserError for a prompt without tokens, with unknown ones, or without room for an answer."""
        vocab, capacity = self.runner.vocab, self.runner.capacity
        if not asked.ids:
            raise UserError("the prompt has no tokens. Say something.")
        if wrong := next((i for i in asked.ids if not 0 <= i < vocab), None):
            raise UserError(f"the prompt has token {wrong}; the model's {vocab:,} tokens count from 0 to {vocab - 1:,}")
        if len(asked.ids) >= capacity:
            raise UserError(
                f"the prompt has {len(asked.ids):,} tokens, and the context holds {capacity:,}, the answer included. "
                "Shorten the prompt."
            )
        if asked.max_tokens < 1:
            raise UserError(f"--max-tokens is {asked.max_tokens}; 1 is the least")

    def _prefill(self, ids: Sequence[int], answer: Answer) -> torch.Tensor:
        """Read what is not in the cache yet, the last token at least: its logits are wanted."""
        common = 0
        for old, new in zip(self._cached, ids[:-1], strict=False):
            if old != new:
                break
            common += 1
        answer.reused = common
        self.runner.keep(common)
        self._cached = list(ids)
        return self.runner.prefill(torch.tensor(ids[common:], device=self.runner.device))

    def _choose(self, sampler: Sampler, logits: torch.Tensor, asked: Asked, answer: Answer) -> torch.Tensor:
        token = sampler.choose(logits)
        if not bool(sampler.finite):
            raise self._not_finite()
        if asked.logprobs is not None:
            answer.logprobs.append(sampler.log_probabilities(logits, int(token), asked.logprobs))
        return token

    def _add(self, token: int, stream: TextStream, asked: Asked, answer: Answer, say: Callable[[str], None]) -> bool:
        """The token's text; whether the answer ends here, and why."""
        if token in self.tokenizer.ends:
            answer.reason = "end of sequence"
            return True
        text = stream.push(token)
        answer.text += text
        say(text)
        if stream.stopped:
            answer.reason = "stop string"
        elif len(answer.ids) >= asked.max_tokens:
            answer.reason = "max tokens"
        elif self.runner.length >= self.runner.capacity:
            answer.reason = "context full"
        else:
            return False
        return True

    def _not_finite(self) -> UserError:
        where = self.runner.first_not_finite(torch.tensor(self._cached, device=self.runner.device))
        self._cached = []
        place = f"first in {where}" if where else "in a run that gives finite ones when repeated"
        return UserError(
            f"the model's numbers are not finite after {self.runner.length:,} tokens, {place}. "
            "Try --precision bf16 or fp32; if they stay, the weights are damaged."
        )
