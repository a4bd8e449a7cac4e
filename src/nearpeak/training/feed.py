"""Batches on the device: gathered there where all data fits, else staged from the host, two steps ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from nearpeak.training.images import Images

Batch = tuple[torch.Tensor, torch.Tensor]


class Feed(Protocol):
    """Gives the batch of a step: pixels [batch, channels, height, width] and labels [batch], on the device."""

    def of_step(self, step: int) -> Batch: ...


class WholeFeed:
    """All data as one tensor on the device; a batch is gathered by its indices, which are there too."""

    def __init__(self, images: Images, indices: Callable[[int], torch.Tensor], device: torch.device) -> None:
        self._pixels = torch.from_numpy(images.pixels).to(device)
        self._labels = torch.from_numpy(images.labels).to(device)
        self._indices = indices

    def of_step(self, step: int) -> Batch:
        where = self._indices(step)
        return self._pixels[where], self._labels[where]


class Slot:
    """One staging buffer on the host and the copy made from it. Its memory is written again only once `event` says
    that the copy is done: a copy that is still under way would read the next batch."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.batch: Batch | None = None
        self.host: Batch | None = None
        self.event: Any = None


class StagedFeed:
    """Data stays on the host. Batches are gathered into pinned buffers and copied on a stream of their own, `slots` − 1
    steps ahead of the one in use.

    last    the step after the last one, so that nothing is staged beyond it
    copier  (host tensors) → (device tensors, event); a test puts a slow one in
    """

    def __init__(
        self, images: Images, indices: Callable[[int], torch.Tensor], last: int, copier: Copier, slots: int = 3
    ) -> None:
        self._pixels, self._labels = torch.from_numpy(images.pixels), torch.from_numpy(images.labels)
        self._indices, self._last, self._copier = indices, last, copier
        self._slots = [Slot() for _ in range(slots)]

    def of_step(self, step: int) -> Batch:
        for ahead in range(len(self._slots) - 1):
            if step + ahead < max(self._last, step + 1):
                self._stage(step + ahead)
        slot = self._slots[step % len(self._slots)]
        assert slot.batch is not None, step
        self._copier.ready(slot.event, slot.batch)
        return slot.batch

    def _stage(self, step: int) -> None:
        slot = self._slots[step % len(self._slots)]
        if slot.step == step:
            return
        if slot.event is not None:
            slot.event.synchronize()
        where = self._indices(step)
        if slot.host is None or len(slot.host[1]) != len(where):
            slot.host = self._copier.buffer(self._pixels, len(where)), self._copier.buffer(self._labels, len(where))
        torch.index_select(self._pixels, 0, where, out=slot.host[0])
        torch.index_select(self._labels, 0, where, out=slot.host[1])
        slot.batch, slot.event = self._copier.copy(slot.host)
        slot.step = step


class Copier(Protocol):
    """How a StagedFeed brings a batch to its device."""

    def buffer(self, like: torch.Tensor, samples: int) -> torch.Tensor: ...

    def copy(self, host: Batch) -> tuple[Batch, Any]: ...

    def ready(self, event: Any, batch: Batch) -> None: ...


class CudaCopier:
    """Pinned buffers, a stream for copies, an event for each."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def buffer(self, like: torch.Tensor, samples: int) -> torch.Tensor:
        return torch.empty((samples, *like.shape[1:]), dtype=like.dtype, pin_memory=True)

    def copy(self, host: Batch) -> tuple[Batch, Any]:
        with torch.cuda.stream(self._stream):
            pixels, labels = (tensor.to(self._device, non_blocking=True) for tensor in host)
            event = torch.cuda.Event()
            event.record(self._stream)
        return (pixels, labels), event

    def ready(self, event: Any, batch: Batch) -> None:
        """The step's stream waits for the copy, and the allocator keeps the memory until that stream is through."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in batch:
            tensor.record_stream(current)
