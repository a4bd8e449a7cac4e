"""A whole step as one CUDA graph: forward, backward and update are launched together, so that a small model does not
wait for launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from nearpeak.records.errors import UserError, first_line
from nearpeak.training.step import Lap, Step
from nearpeak.training.trial import unchanged_generators

WARM_UP = 3


class Capturer(Protocol):
    """Runs `work` some times, then records it; gives what runs it again. A test puts one in that needs no GPU."""

    def __call__(self, work: Callable[[], None], restore: Callable[[], None]) -> Callable[[], None]: ...


class GraphStep:
    """A Step whose whole batches are replayed from fixed memory; what is left of an epoch goes past the graph.

    The learning rate is a tensor that is written before each replay. Weights, buffers and optimizer state are those of
    the Step, at the same addresses; the graph is recorded at the first whole batch, and recording changes none of them.
    """

    def __init__(self, step: Step, batch: int, capture: Capturer) -> None:
        self.module, self.optimizer = step.module, step.optimizer
        self._step, self._batch, self._capture = step, batch, capture
        self._replay: Callable[[], None] | None = None
        self._pixels = self._labels = self._loss = torch.empty(0)

    def __call__(
        self, pixels: torch.Tensor, labels: torch.Tensor, rate: float, lap: Lap = lambda part: None
    ) -> torch.Tensor:
        """As Step's. Its parts cannot be told apart: all of it is "step"."""
        if len(labels) != self._batch:
            return self._step(pixels, labels, rate, lap)
        if self._replay is None:
            self._record(pixels, labels)
        assert self._replay is not None
        self._pixels.copy_(pixels)
        self._labels.copy_(labels)
        for group in self.optimizer.param_groups:
            group["lr"].fill_(rate)
        self._replay()
        lap("step")
        return self._loss

    def _record(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        self._pixels, self._labels = pixels.clone(), labels.clone()
        for group in self.optimizer.param_groups:  # after a resume they are copies: made tensors here, once
            group["lr"] = torch.zeros((), device=pixels.device)
        tensors = [*self.module.parameters(), *self.module.buffers()]
        before = [tensor.detach().clone() for tensor in tensors]
        fresh = not self.optimizer.state
        states = {id(p): {k: _copy(v) for k, v in held.items()} for p, held in self.optimizer.state.items()}

        def work() -> None:
            self._loss = self._step.passes(self._pixels, self._labels, _nothing)

        def restore() -> None:
            with torch.no_grad():
                for tensor, was in zip(tensors, before, strict=True):
                    tensor.copy_(was)
                for parameter, held in self.optimizer.state.items():
                    for key, value in held.items():
                        if isinstance(value, torch.Tensor):
                            value.zero_() if fresh else value.copy_(states[id(parameter)][key])

        try:
            with unchanged_generators():
                self._replay = self._capture(work, restore)
        except RuntimeError as error:
            raise UserError(
                f"the step cannot be recorded as a CUDA graph: {first_line(error)}. A recipe with graph: false runs it "
                "kernel by kernel."
            ) from error


def cuda_graph(work: Callable[[], None], restore: Callable[[], None]) -> Callable[[], None]:
    """Warm up on a stream of its own, record, put back what that changed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    restore()
    return lambda: graph.replay()


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _nothing(part: str) -> None:
    pass
