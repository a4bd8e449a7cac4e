"""The reference path: the network as it is, attention over a cache, nothing packed, nothing fused."""

from __future__ import annotations

import torch

from nearpeak.inference.attend import cached_attend
from nearpeak.inference.cache import cache_bytes, make_cache
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.first_not_finite import first_not_finite

PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
PREFILL_CHUNK = 2048
"""Tokens that pass through the model at once: bounds activations and masks however long a prompt is."""


class ReferenceRunner:
    """A Runner over a Decoder.

    With `graphed` (CUDA only) a decode step is captured once as a graph and replayed: one launch a token.
    """

    def __init__(self, decoder: Decoder, capacity: int, graphed: bool = False) -> None:
        weight = next(decoder.parameters())
        self.decoder, self.shape = decoder, decoder.shape
        self.capacity, self.vocab, self.device = capacity, decoder.shape.vocab, weight.device
        self.cache = make_cache(decoder.shape, capacity, weight.dtype, weight.device)
        self.compute = PRECISIONS[weight.dtype]
        self.length = 0
        self.how = "reference path, one CUDA graph a token" if graphed else "reference path"
        self._graph = _DecodeGraph(self) if graphed else None

    @property
    def weight_bytes(self) -> int:
        looked_up = 0 if self.shape.tied else self.decoder.embed.weight.nbytes
        return self._all_weights() - looked_up

    @property
    def memory_bytes(self) -> int:
        return self._all_weights() + self.cache.bytes

    def cache_bytes(self, length: int) -> int:
        return cache_bytes(self.shape, length, self.cache.keys[0].itemsize)

    def _all_weights(self) -> int:
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self.decoder.state_dict().values()}.values())

    @torch.inference_mode()
    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        for chunk in ids.to(self.device).split(PREFILL_CHUNK):
            logits = self._step(chunk)
        return logits

    @torch.inference_mode()
    def decode(self, token: torch.Tensor) -> torch.Tensor:
        return self._step(token) if self._graph is None else self._graph.replay(token)

    def keep(self, length: int) -> None:
        self.length = length

    @torch.inference_mode()
    def first_not_finite(self, ids: torch.Tensor) -> str | None:
        positions = torch.arange(len(ids), device=self.device)
        attend = cached_attend(self.shape, self.cache, positions, len(ids))
        return first_not_finite(self.decoder, ids[None], positions[None], attend)

    def _step(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(self.length, self.length + len(ids), device=self.device)
        self.length += len(ids)
        attend = cached_attend(self.shape, self.cache, positions, self.length)
        return self.decoder(ids[None], positions[None], attend, last_only=True)[0, -1]


class _DecodeGraph:
    """One decode step as a CUDA graph: token and position in, logits out, all in buffers that stay where they are."""

    def __init__(self, runner: ReferenceRunner) -> None:
        self.runner = runner
        self.token = torch.zeros(1, dtype=torch.int64, device=runner.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=runner.device)
        with torch.inference_mode():
            aside = torch.cuda.Stream(runner.device)
            aside.wait_stream(torch.cuda.current_stream(runner.device))
            with torch.cuda.stream(aside):  # libraries set themselves up before anything is captured
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream(runner.device).wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self._step()

    def replay(self, token: torch.Tensor) -> torch.Tensor:
        self.token.copy_(token)
        self.position.fill_(self.runner.length)
        self.runner.length += 1
        self.graph.replay()
        return self.logits

    def _step(self) -> torch.Tensor:
        runner = self.runner
        attend = cached_attend(runner.shape, runner.cache, self.position)
        logits: torch.Tensor = runner.decoder(self.token[None], self.position[None], attend, last_only=True)[0, -1]
        return logits
