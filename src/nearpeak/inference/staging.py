"""From a tensor on the CPU, which may be a file's pages, to its place on the device."""

from __future__ import annotations

import threading

import torch

PIECE = 32 << 20  # bytes: large enough that a copy's start-up does not show, small enough to keep two for each thread


class Staging:
    """Copies to one device from several threads at once.

    A GPU reads pinned memory faster than pages that may move, and only from it without waiting: each thread has two
    pinned pieces, and fills one while the other is on its way. Numbers travel in the dtype that they have on the CPU
    and are converted on the device. On the CPU it is a plain copy.
    """

    def __init__(self, device: torch.device, pinned: bool | None = None) -> None:
        self.device = device
        self.pinned = device.type == "cuda" if pinned is None else pinned
        self.staged = device.type == "cuda" or pinned is not None
        self._own = threading.local()

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """source on the CPU → target, of the same shape on the device, maybe of another dtype or not contiguous."""
        if not self.staged or not source.numel():
            target.copy_(source)
            return
        source = source.contiguous()
        row = max(1, source[0].nbytes)
        rows = max(1, PIECE // row)
        for start in range(0, len(source), rows):
            self._one(source[start : start + rows], target[start : start + rows])

    def wait(self) -> None:
        """Until everything that was sent is there."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _one(self, source: torch.Tensor, target: torch.Tensor) -> None:
        piece = self._piece(source.nbytes)
        pinned = piece.bytes[: source.nbytes].view(source.dtype).view(source.shape)
        pinned.copy_(source)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                target.copy_(pinned.to(self.device, non_blocking=True))
                piece.sent = torch.cuda.Event()
                piece.sent.record()
        else:
            target.copy_(pinned)

    def _piece(self, size: int) -> _Piece:
        """The piece of this thread that was sent longer ago, free again, of at least `size` bytes."""
        pieces: list[_Piece] = getattr(self._own, "pieces", [])
        if not pieces:
            pieces = self._own.pieces = [_Piece(self.pinned), _Piece(self.pinned)]
        pieces.reverse()
        piece = pieces[0]
        if piece.sent is not None:
            piece.sent.synchronize()
        piece.at_least(size)
        return piece


class _Piece:
    """bytes: uint8; sent: after the copy from it that was begun last, None where there was none."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.sent: torch.cuda.Event | None = None

    def at_least(self, size: int) -> None:
        if self.bytes.numel() < size:
            self.bytes = torch.empty(max(size, PIECE), dtype=torch.uint8, pin_memory=self.pinned)
