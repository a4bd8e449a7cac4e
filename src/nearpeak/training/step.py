"""One training step: forward, backward, update. It never asks the device for a number."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from nearpeak.records.errors import UserError, first_line
from nearpeak.training.recipe import Optimizer, Recipe

DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
"""Of weights and inputs; bf16 is torch.autocast over fp32 weights, so that small updates are not rounded away."""

Lap = Callable[[str], None]


class Step:
    """Runs one batch. The loss is Σ losses ÷ samples of the whole batch, however many passes it takes."""

    def __init__(
        self, module: nn.Module, optimizer: Any, recipe: Recipe, precision: str, channels_last: bool, compiled: bool
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self._forward = Forward(module, recipe, precision, channels_last)
        self._micro = recipe.micro_batch or recipe.batch
        self._whole = self._compile() if compiled else self._forward

    def __call__(
        self, pixels: torch.Tensor, labels: torch.Tensor, rate: float, lap: Lap = lambda part: None
    ) -> torch.Tensor:
        """The mean loss of the batch, before the update: fp32 (fp64), on the device. rate: of learning, for this step.

        lap: told the name of each part when its calls have been made.
        """
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):  # a recorded step reads it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        return self.passes(pixels, labels, lap)

    def passes(self, pixels: torch.Tensor, labels: torch.Tensor, lap: Lap) -> torch.Tensor:
        """Forward, backward and update, at the rate that stands in the optimizer."""
        total = None
        for some, told in zip(pixels.split(self._micro), labels.split(self._micro), strict=True):
            # What is left of an epoch has another shape: it goes past the compiled pass, which has fixed ones.
            forward = self._whole if len(told) == self._micro else self._forward
            loss = forward(some, told) / len(labels)
            lap("forward")
            loss.backward()
            lap("backward")
            total = loss.detach() if total is None else total + loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        lap("update")
        assert total is not None
        return total

    def _compile(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Fixed shapes, one graph; what cannot be compiled is an error, never a slow way round it."""
        compiled = torch.compile(self._forward, fullgraph=True, dynamic=False)

        def run(pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            try:
                with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, suppress_errors=False):
                    loss: torch.Tensor = compiled(pixels, labels)
                    return loss
            except Exception as error:
                if "torch._dynamo" in type(error).__module__ or "torch._inductor" in type(error).__module__:
                    raise UserError(f"the model cannot be compiled: {first_line(error)}. Leave compile out.") from error
                raise

        return run


class Forward:
    """Pixels and labels to the sum of the losses."""

    def __init__(self, module: nn.Module, recipe: Recipe, precision: str, channels_last: bool) -> None:
        self.module = module
        self._dtype = DTYPES[precision]
        self._bf16 = precision == "bf16"
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._mean, self._std = recipe.data.mean, recipe.data.std
        self._smoothing = recipe.label_smoothing

    def __call__(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.logits(pixels), labels, reduction="sum", label_smoothing=self._smoothing)

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """[batch, classes], in the dtype of the weights."""
        unit = 255.0 if pixels.dtype == torch.uint8 else 1.0
        x = pixels.to(self._dtype, memory_format=self._format)
        x = x.mul(1 / (unit * self._std)).sub(self._mean / self._std)
        with self._autocast(pixels.device.type):
            logits: torch.Tensor = self.module(x)
        return logits.to(self._dtype)

    def _autocast(self, device: str) -> AbstractContextManager[Any]:
        """Each weight is used once in a pass, so there is nothing for autocast to keep; a CUDA graph could not."""
        return torch.autocast(device, torch.bfloat16, cache_enabled=False) if self._bf16 else nullcontext()


def groups_of(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Every trained parameter in exactly one group: those of two dimensions and more decay, biases and norms do not."""
    trained = [p for p in module.parameters() if p.requires_grad]
    wide, narrow = [p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]
    every = [{"params": wide, "weight_decay": weight_decay}, {"params": narrow, "weight_decay": 0.0}]
    return [group for group in every if group["params"]]


def make_optimizer(module: nn.Module, asked: Optimizer, graph: bool = False) -> Any:
    """torch's own, fused. Its state is fp32 as the weights are (fp64 with fp64). graph: it will be recorded."""
    groups = groups_of(module, asked.weight_decay)
    if asked.name == "sgd":
        return torch.optim.SGD(groups, lr=asked.lr, momentum=asked.momentum, fused=True)
    return torch.optim.AdamW(groups, lr=asked.lr, betas=asked.betas, eps=asked.eps, fused=True, capturable=graph)
