"""What attention remembers: keys and values of every position so far, in buffers that are made once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nearpeak.networks.decoder_shape import DecoderShape


@dataclass
class Cache:
    """keys, values: one [batch, kv_heads, capacity, head_dim] buffer a layer.

    A buffer of its own for each layer: one stacked buffer halves the speed of updates in place on a CPU.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    capacity: int

    @property
    def bytes(self) -> int:
        """Of all buffers."""
        return sum(buffer.nbytes for buffer in (*self.keys, *self.values))


def make_cache(shape: DecoderShape, capacity: int, dtype: torch.dtype, device: torch.device, batch: int = 1) -> Cache:
    """Zeros, as masked scores of an uninitialised NaN would still be NaN."""
    sizes = batch, shape.kv_heads, capacity, shape.head_dim
    keys = [torch.zeros(sizes, dtype=dtype, device=device) for _ in shape.layers]
    values = [torch.zeros(sizes, dtype=dtype, device=device) for _ in shape.layers]
    return Cache(keys, values, capacity)


def cache_bytes(shape: DecoderShape, length: int, itemsize: int) -> int:
    """That one token reads of the cache when it holds `length` positions: of a layer with a window, only that."""
    seen = sum(length if layer.window is None else min(length, layer.window) for layer in shape.layers)
    return 2 * seen * shape.kv_heads * shape.head_dim * itemsize
