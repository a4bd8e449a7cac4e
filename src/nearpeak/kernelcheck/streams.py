"""Waiting for a stream or for the whole device, and seeing whether work went elsewhere than to the current stream."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

import torch

from nearpeak.kernelcheck.guarded import bits_of
from nearpeak.kernelcheck.kernel import Call

ASLEEP_CYCLES = 100_000_000  # about 50 ms at 2 GHz
LOOK_AFTER_S = 0.01


class Waits(Protocol):
    """How the check waits. Tests put their own in."""

    def stream(self) -> None:
        """Wait for the current stream only."""
        ...

    def device(self) -> None:
        """Wait for all that the device was asked to do."""
        ...


class CpuWaits:
    """Nothing to wait for: calls return when they are done."""

    def stream(self) -> None:
        return

    def device(self) -> None:
        return


class CudaWaits:
    """Waits of torch's CUDA (and ROCm) devices."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()

    def device(self) -> None:
        torch.cuda.synchronize(self._device)


def waits_of(device: torch.device) -> Waits:
    return CpuWaits() if device.type == "cpu" else CudaWaits(device)


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """A stream of our own as the current one: work on the default stream is then work on another stream."""
    stack = ExitStack()
    if device.type != "cpu":
        stack.enter_context(torch.cuda.device(device))
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.default_stream(device))
        stack.enter_context(torch.cuda.stream(stream))
    return stack


def written_while_asleep(call: Call, output: torch.Tensor, poison: int, device: torch.device) -> bool | None:
    """Whether the output was written while the current stream was still asleep: then the work was not on it.

    `output` holds the poison. None where the stream woke too early to tell (the call waits for the device itself).
    """
    torch.cuda.synchronize(device)
    torch.cuda._sleep(ASLEEP_CYCLES)
    call.run()
    other = torch.cuda.Stream(device)
    with torch.cuda.stream(other):
        time.sleep(LOOK_AFTER_S)
        written = (bits_of(output) != poison).any().to("cpu", non_blocking=False)
    asleep = not torch.cuda.current_stream(device).query()
    torch.cuda.synchronize(device)
    return bool(written) if asleep else None
