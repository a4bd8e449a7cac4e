"""Labelled images as arrays, from whichever format, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearpeak.records.errors import UserError


@dataclass(frozen=True)
class Images:
    """pixels: uint8 or float32 [samples, channels, height, width]; labels: int64 [samples], from 0.

    source: for messages; names: of the classes where the data has them
    """

    pixels: npt.NDArray[np.generic]
    labels: npt.NDArray[np.int64]
    source: str
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return max(len(self.names), int(self.labels.max()) + 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """channels, height, width"""
        return tuple(self.pixels.shape[1:])

    def take(self, where: npt.NDArray[np.generic]) -> Images:
        """Those samples: indices, or a mask."""
        return Images(self.pixels[where], self.labels[where], self.source, self.names)


def checked(pixels: npt.NDArray[np.generic], labels: npt.NDArray[np.generic], source: str) -> Images:
    """Images of what a file held: pixels [n, h, w], [n, h, w, c] or [n, c, h, w] (c of 1, 3 or 4); labels [n].

    Raises UserError, with the shapes and numbers, for what does not belong together.
    """
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.ndim == 4 and pixels.shape[1] not in (1, 3, 4) and pixels.shape[-1] in (1, 3, 4):
        pixels = pixels.transpose(0, 3, 1, 2)
    if pixels.ndim != 4:
        raise UserError(
            f"{source}: images of shape {pixels.shape}; [samples, height, width] with or without channels is expected."
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) != len(pixels):
        raise UserError(
            f"{source}: {len(pixels):,} images, and labels of shape {labels.shape}: one for each is expected."
        )
    if not len(labels) or not pixels.size:
        raise UserError(f"{source} has no image.")
    if labels.dtype.kind not in "iu":
        raise UserError(f"{source}: labels of type {labels.dtype}; whole numbers from 0 are expected.")
    if int(labels.min()) < 0:
        raise UserError(f"{source}: the label {int(labels.min())} of sample {int(labels.argmin())}; they count from 0.")
    if int(labels.max()) >= 1 << 20:
        raise UserError(f"{source}: the label {int(labels.max()):,} of sample {int(labels.argmax())} is no class's.")
    if pixels.dtype != np.uint8:
        if pixels.dtype.kind not in "fiu":
            raise UserError(f"{source}: pixels of type {pixels.dtype}; bytes or numbers are expected.")
        pixels = pixels.astype(np.float32)
        bad = ~np.isfinite(pixels).all(axis=(1, 2, 3))
        if bad.any():
            raise UserError(
                f"{source}: image {int(bad.argmax())} has a pixel that is not finite; {int(bad.sum())} in all."
            )
    return Images(np.ascontiguousarray(pixels), labels.astype(np.int64), source)
