"""The fast path on a CPU: the mathematics of networks.Decoder with maps fused, weights packed once, and fp32 between.

What it spares at batch 1, where a layer's products take some hundred microseconds: eager norms of six operations each,
products with unpacked weights, key heads repeated for attention. `refusal` names what a model has that it cannot do;
the reference path then runs instead.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from nearpeak.inference.attend import attention
from nearpeak.inference.cache import cache_bytes
from nearpeak.inference.cpu_linear import CpuLinear
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.decoder_shape import DecoderShape
from nearpeak.networks.rope import Rope

PREFILL_CHUNK = 512
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": partial(F.silu, inplace=True),
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}
Pack = Callable[[torch.Tensor, str], CpuLinear]
"""(weight [outputs, inputs], the map's name) → the map, ready to run."""


def refusal(shape: DecoderShape, capacity: int) -> str | None:
    """What of this model the fast path cannot do, by name; None where it can run it."""
    if shape.experts is not None:
        return "a mixture of experts"
    if shape.norm != "rms" or shape.learned_positions or not shape.gated:
        return "layer norms, learned positions or a feed-forward without a gate"
    if shape.qk_norm == "width":
        return "query norms over all heads at once"
    changes = [layer.rope.changes_from for layer in shape.layers if layer.rope is not None]
    if any(most is not None and capacity > most for most in changes):
        return "rotary positions whose frequencies change with the length"
    return None


class CpuRunner:
    """A Runner (see runner.py). It takes the decoder's weights layer by layer, so that they lie in memory once: the
    decoder cannot be used afterwards."""

    def __init__(self, decoder: Decoder, capacity: int, pack: Pack, cache_dtype: torch.dtype) -> None:
        shape = decoder.shape
        reason = refusal(shape, capacity)
        if reason:
            raise ValueError(f"the fast path cannot run {reason}")
        self.shape, self.capacity, self.vocab, self.device = shape, capacity, shape.vocab, torch.device("cpu")
        self.length = 0
        self.embed = decoder.embed.weight
        self.head = pack(decoder.head.weight, "head")
        self.norm = _norm_weight(decoder.norm, shape)
        tables = {rope: _table(rope, capacity) for rope in {layer.rope for layer in shape.layers}}
        with ThreadPoolExecutor(torch.get_num_threads()) as several:  # packing a layer takes one thread
            take = partial(_take_layer, decoder, pack=pack, tables=tables, cache_dtype=cache_dtype, capacity=capacity)
            self.layers = list(several.map(take, range(len(shape.layers))))
        self.compute = self.layers[0].qkv.compute
        self.how = f"CPU, {self.layers[0].qkv.how}, {torch.get_num_threads()} threads"

    @property
    def weight_bytes(self) -> int:
        return int(self.head.bytes + sum(layer.weight_bytes for layer in self.layers))

    @property
    def memory_bytes(self) -> int:
        kept = self.embed.nbytes + sum(layer.cache.nbytes for layer in self.layers)
        return self.weight_bytes + int(kept)

    def cache_bytes(self, length: int) -> int:
        return cache_bytes(self.shape, length, self.layers[0].cache.itemsize)

    @torch.inference_mode()
    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        for chunk in ids.split(PREFILL_CHUNK):
            hidden = self._layers(chunk)
        return self._logits(hidden[-1:])

    @torch.inference_mode()
    def decode(self, token: torch.Tensor) -> torch.Tensor:
        return self._logits(self._layers(token))

    def keep(self, length: int) -> None:
        self.length = length

    @torch.inference_mode()
    def first_not_finite(self, ids: torch.Tensor) -> str | None:
        hidden = F.embedding(ids, self.embed).float() * self.shape.embed_scale
        if not bool(torch.isfinite(hidden).all()):
            return "embed"
        for number, layer in enumerate(self.layers):
            if not bool(torch.isfinite(layer(hidden, 0, {})).all()):
                return f"layers.{number}"
        return None if bool(torch.isfinite(self._logits(hidden)).all()) else "head"

    def _layers(self, ids: torch.Tensor) -> torch.Tensor:
        start, self.length = self.length, self.length + len(ids)
        hidden = F.embedding(ids, self.embed).float()
        if self.shape.embed_scale != 1.0:
            hidden *= self.shape.embed_scale
        masks: dict[int | None, torch.Tensor] = {}
        for layer in self.layers:
            hidden = layer(hidden, start, masks)
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(rms_norm(hidden, self.norm, self.shape.norm_eps))[0]
        cap = self.shape.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)


@dataclass
class _Layer:
    """One block: norms (None where the model has none there), fused maps, and the layer's own cache.

    cache     [2, kv_heads, capacity, head_dim]: keys, then values
    rotation  complex64 [capacity, rotary // 2]; None: this layer rotates nothing. Query and key rows were put in an
              order in which the two numbers of a pair are neighbours
    """

    shape: DecoderShape
    window: int | None
    attention_norm: torch.Tensor | None
    qkv: CpuLinear
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    rotation: torch.Tensor | None
    cache: torch.Tensor
    o: CpuLinear
    o_bias: torch.Tensor | None
    attention_post_norm: torch.Tensor | None
    feed_forward_norm: torch.Tensor | None
    gate_up: CpuLinear
    gate_up_bias: torch.Tensor | None
    down: CpuLinear
    down_bias: torch.Tensor | None
    feed_forward_post_norm: torch.Tensor | None

    @property
    def weight_bytes(self) -> int:
        """Of its maps; norms and biases are too few to count."""
        return sum(linear.bytes for linear in (self.qkv, self.o, self.gate_up, self.down))

    def __call__(self, hidden: torch.Tensor, start: int, masks: dict[int | None, torch.Tensor]) -> torch.Tensor:
        """hidden fp32 [tokens, width], changed in place; `start` positions are in the cache."""
        x = self._attention(self._normed(hidden, self.attention_norm), start, masks)
        hidden += self._normed(x, self.attention_post_norm)
        x = self._feed_forward(self._normed(hidden, self.feed_forward_norm))
        hidden += self._normed(x, self.feed_forward_post_norm)
        return hidden

    def _normed(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else rms_norm(x, weight, self.shape.norm_eps)

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = _biased(self.gate_up(x), self.gate_up_bias).chunk(2, -1)
        return _biased(self.down(ACTIVATIONS[self.shape.activation](gate).mul_(up)), self.down_bias)

    def _attention(self, x: torch.Tensor, start: int, masks: dict[int | None, torch.Tensor]) -> torch.Tensor:
        shape, rows = self.shape, len(x)
        rotated = shape.heads + shape.kv_heads
        qkv = _biased(self.qkv(x), self.qkv_bias).view(rows, -1, shape.head_dim)  # q, k and v heads
        if self.q_norm is not None and self.k_norm is not None:
            qkv[:, : shape.heads] = rms_norm(qkv[:, : shape.heads], self.q_norm, shape.norm_eps)
            qkv[:, shape.heads : rotated] = rms_norm(qkv[:, shape.heads : rotated], self.k_norm, shape.norm_eps)
        if self.rotation is not None:
            pairs = qkv[:, :rotated, : 2 * self.rotation.shape[1]].unflatten(-1, (-1, 2))
            torch.view_as_complex(pairs).mul_(self.rotation[start : start + rows].unsqueeze(1))
        new = qkv[:, shape.heads :].unflatten(1, (2, shape.kv_heads)).permute(1, 2, 0, 3)
        self.cache[:, :, start : start + rows] = new
        first = 0 if self.window is None else max(0, start + 1 - self.window)
        k, v = self.cache[:, None, :, first : start + rows]
        q = qkv[:, : shape.heads].to(k.dtype)
        y = self._one(q, k, v) if rows == 1 else self._several(q, k, v, start, first, masks)
        return _biased(self.o(y.float()), self.o_bias)

    def _one(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """A single position: the query heads that share a key head are rows of one product, and nothing is masked."""
        shape = self.shape
        if shape.score_cap is not None:
            every = torch.ones(1, k.shape[2], dtype=torch.bool)
            return attention(shape, q.view(1, shape.heads, 1, -1), k, v, every).reshape(1, -1)
        grouped = q.view(1, shape.kv_heads, -1, shape.head_dim)
        return F.scaled_dot_product_attention(grouped, k, v, scale=shape.score_scale).reshape(1, -1)

    def _several(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, first: int,
        masks: dict[int | None, torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        mask = masks.get(self.window)
        if mask is None:
            columns = torch.arange(first, start + len(q))
            rows = torch.arange(start, start + len(q)).unsqueeze(1)
            mask = columns <= rows
            if self.window is not None:
                mask &= columns > rows - self.window
            masks[self.window] = mask
        return attention(self.shape, q.transpose(0, 1)[None], k, v, mask)[0].transpose(0, 1).flatten(1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x·w ÷ √(mean x² + eps) over the last dimension, fp32. One row: one dot product and two products, with the scale
    in Python, a third of the time of the eager operation."""
    if x.dim() == 2 and len(x) == 1:
        row = x.view(-1)
        scale = (float(torch.dot(row, row)) / len(row) + eps) ** -0.5
        return (x * weight).mul_(scale)
    return F.rms_norm(x, weight.shape, weight, eps)


def _biased(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x.add_(bias)


def _table(rope: Rope | None, capacity: int) -> torch.Tensor | None:
    """complex64 [capacity, rotary // 2]: e^(i·position·frequency), times the attention factor."""
    if rope is None:
        return None
    angles = torch.arange(capacity).unsqueeze(1) * rope.inverse_frequencies(capacity)
    return torch.polar(torch.full_like(angles, rope.attention_factor), angles)


def _take_layer(
    decoder: Decoder,
    number: int,
    pack: Pack,
    tables: dict[Rope | None, torch.Tensor | None],
    cache_dtype: torch.dtype,
    capacity: int,
) -> _Layer:
    """One block with fused maps; the decoder's own weights of it are let go."""
    shape, block = decoder.shape, decoder.layers[number]
    attention, feed_forward = block.attention, block.feed_forward
    rotation = tables[shape.layers[number].rope]
    order = _neighbours(shape.head_dim, 0 if rotation is None else 2 * rotation.shape[1])

    def heads(tensor: torch.Tensor) -> torch.Tensor:  # rows of whole heads, the pairs of each made neighbours
        return tensor.unflatten(0, (-1, shape.head_dim))[:, order].flatten(0, 1)

    def qkv(name: str) -> torch.Tensor | None:
        parts = [getattr(linear, name) for linear in (attention.q, attention.k, attention.v)]
        if any(part is None for part in parts):
            return None
        return torch.cat((heads(parts[0]), heads(parts[1]), parts[2]))

    def gate_up(name: str) -> torch.Tensor | None:
        parts = [getattr(linear, name) for linear in (feed_forward.gate, feed_forward.up)]
        return None if any(part is None for part in parts) else torch.cat(parts)

    per_head = shape.qk_norm == "head"
    layer = _Layer(
        shape=shape,
        window=shape.layers[number].window,
        attention_norm=_norm_weight(block.attention_norm, shape),
        qkv=pack(_there(qkv("weight")), "qkv"),
        qkv_bias=_fp32(qkv("bias")),
        q_norm=_ordered(_norm_weight(attention.q_norm, shape), order) if per_head else None,
        k_norm=_ordered(_norm_weight(attention.k_norm, shape), order) if per_head else None,
        rotation=rotation,
        cache=torch.zeros(2, shape.kv_heads, capacity, shape.head_dim, dtype=cache_dtype),
        o=pack(attention.o.weight, "o"),
        o_bias=_fp32(attention.o.bias),
        attention_post_norm=_norm_weight(block.attention_post_norm, shape),
        feed_forward_norm=_norm_weight(block.feed_forward_norm, shape),
        gate_up=pack(_there(gate_up("weight")), "gate_up"),
        gate_up_bias=_fp32(gate_up("bias")),
        down=pack(feed_forward.down.weight, "down"),
        down_bias=_fp32(feed_forward.down.bias),
        feed_forward_post_norm=_norm_weight(block.feed_forward_post_norm, shape),
    )
    decoder.layers[number] = torch.nn.Identity()
    return layer


def _neighbours(head_dim: int, rotary: int) -> torch.Tensor:
    """The order that puts number i next to number i + rotary/2, its partner in a rotation; the rest stay."""
    half = rotary // 2
    pairs = torch.arange(rotary).view(2, half).t().flatten()
    return torch.cat((pairs, torch.arange(rotary, head_dim)))


def _norm_weight(norm: torch.nn.Module | None, shape: DecoderShape) -> torch.Tensor | None:
    """fp32, with the 1 that Gemma's norms add already in it."""
    if norm is None:
        return None
    weight: torch.Tensor = norm.weight.detach().float()
    return weight + 1.0 if shape.norm_offset else weight


def _ordered(weight: torch.Tensor | None, order: torch.Tensor) -> torch.Tensor | None:
    return None if weight is None else weight[order]


def _fp32(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.detach().float()


def _there(weight: torch.Tensor | None) -> torch.Tensor:
    assert weight is not None, "every map has a weight"
    return weight
