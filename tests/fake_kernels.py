"""Kernels in plain Python on CPU tensors, right ones and ones with every slip that a check must see."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from nearpeak.kernelcheck.kernel import Declaration

Tensors = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int]
Function = Callable[[dict[str, torch.Tensor], Sizes], object]
CPU = torch.device("cpu")


@dataclass
class FakeCall:
    function: Function
    tensors: dict[str, torch.Tensor]
    sizes: Sizes
    returned: dict[str, torch.Tensor] = field(default_factory=dict)

    def run(self) -> None:
        result = self.function(self.tensors, self.sizes)
        self.returned = result if isinstance(result, dict) else {}

    def outputs(self) -> Tensors:
        return {**self.tensors, **self.returned}

    def seconds(self, samples: int) -> None:
        return None


@dataclass
class FakeKernel:
    """function(tensors, sizes) writes into the output, or returns {name: tensor}."""

    function: Function
    declaration: Declaration = field(default_factory=lambda: Declaration("fake"))
    language: str = "Python"
    device: torch.device = CPU

    def bind(self, tensors: Tensors, sizes: Sizes) -> FakeCall:
        return FakeCall(self.function, dict(tensors), sizes)


def kernel(function: Function, precision: str = "fp32", require: str | None = None) -> FakeKernel:
    return FakeKernel(function, Declaration("fake", precision=precision, require=require))


class HookedWaits:
    """A device on which work can be put off until someone waits for all of it."""

    def __init__(self) -> None:
        self.put_off: list[Callable[[], object]] = []

    def stream(self) -> None:
        return

    def device(self) -> None:
        while self.put_off:
            self.put_off.pop(0)()


def matmul(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Right: products and sums in fp32."""
    t["c"].copy_(t["a"].float() @ t["b"].float())


def matmul_one_after_the_other(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Right: one accumulator, k steps."""
    sums = torch.zeros(t["c"].shape, dtype=torch.float32)
    a, b = t["a"].float(), t["b"].float()
    for i in range(sizes["k"]):
        sums += a[:, i : i + 1] * b[i : i + 1]
    t["c"].copy_(sums)


def matmul_split(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Right: seven parts of k, added up from the last."""
    a, b = t["a"].float(), t["b"].float()
    parts = [x @ y for x, y in zip(a.chunk(7, 1), b.chunk(7, 0), strict=True)]
    t["c"].copy_(torch.stack(parts[::-1]).sum(0))


def matmul_fp16_sums(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Sums kept in fp16, step by step."""
    sums = torch.zeros(t["c"].shape, dtype=torch.float16)
    for i in range(sizes["k"]):
        sums += t["a"][:, i : i + 1] * t["b"][i : i + 1]
    t["c"].copy_(sums)


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def cut_to_tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def matmul_tf32(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    t["c"].copy_(to_tf32(t["a"].contiguous()) @ to_tf32(t["b"].contiguous()))


def matmul_tf32_cut(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    t["c"].copy_(cut_to_tf32(t["a"].contiguous()) @ cut_to_tf32(t["b"].contiguous()))


def racing(chance: float, by: float) -> Function:
    dice = random.Random(7)

    def run(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
        matmul(t, sizes)
        if dice.random() < chance:
            at = dice.randrange(t["c"].numel())
            t["c"].view(-1)[at] += by

    return run


def unordered_sum(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Adds in another order each time, as atomics do."""
    total = torch.zeros(())
    for part in t["x"][torch.randperm(sizes["n"])].split(max(1, sizes["n"] // 30)):
        total += part.sum()
    t["y"][0] = total


class Lazy(torch.Tensor):
    """A tensor that could put off its work."""


def root_of(x: torch.Tensor) -> torch.Tensor:
    """All of the memory that a view lies in, and where it starts: what a pointer can reach."""
    return torch.tensor([], dtype=x.dtype, device=x.device).set_(x.untyped_storage())


def beyond(x: torch.Tensor, by: int) -> tuple[torch.Tensor, int]:
    """The memory and the index of the element `by` past the tensor's end (negative: before its start)."""
    start = x.storage_offset()
    return root_of(x), start + x.numel() - 1 + by if by > 0 else start + by


def softmax_in_one_go(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Forgets to take the maximum away."""
    e = t["x"].exp()
    t["y"].copy_(e / e.sum(1, keepdim=True))


def online_softmax(t: dict[str, torch.Tensor], sizes: Sizes) -> None:
    """Right: in blocks of 32, the maximum and the sum corrected as it goes."""
    x = t["x"].float()
    high, total = torch.full((x.shape[0], 1), -math.inf), torch.zeros(x.shape[0], 1)
    for block in x.split(32, 1):
        now = torch.maximum(high, block.amax(1, keepdim=True))
        total = total * (high - now).exp() + (block - now).exp().sum(1, keepdim=True)
        high = now
    t["y"].copy_((x - high).exp() / total)
