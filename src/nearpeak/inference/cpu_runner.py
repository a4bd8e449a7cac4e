"""The fast path on a CPU: the mathematics of networks.Decoder with fused maps, each token in five kernels a layer.

`refusal` names what a model has that it cannot do; the reference path runs then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from nearpeak.inference.attend import attention
from nearpeak.inference.cache import cache_bytes
from nearpeak.inference.cpu_map import NONE, Array, CpuMap, Int4Map, PlainMap, Work
from nearpeak.inference.quantize import packed_precision, quantize
from nearpeak.kernels import cpu_decode
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.decoder_shape import DecoderShape
from nearpeak.networks.feed_forward import ACTIVATIONS
from nearpeak.networks.rope import Rope, rotate

PREFILL_CHUNK = 512
FEW = 4
"""Tokens up to which a prompt is read one by one: torch's products over all weights take as long as these."""
TRIES = 4
KINDS = {"silu": cpu_decode.SILU, "gelu": cpu_decode.GELU, "gelu_tanh": cpu_decode.GELU_TANH}


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
    decoder cannot be used afterwards.

    precision  of the weights: fp32, bf16, fp16, int8 or int4
    """

    def __init__(self, decoder: Decoder, capacity: int, precision: str) -> None:
        shape = decoder.shape
        if reason := refusal(shape, capacity):
            raise ValueError(f"the fast path cannot run {reason}")
        self.shape, self.capacity, self.vocab, self.device = shape, capacity, shape.vocab, torch.device("cpu")
        self.compute = "fp32"
        self.length = 0
        self.embed = decoder.embed.weight.detach()
        self.embed_scale = float(torch.tensor(shape.embed_scale, dtype=self.embed.dtype))  # rounded as in the reference
        wide = _wide_is_faster(self.embed)
        make = partial(_map, precision=precision, wide=wide)
        self.head = make(decoder.head, is_head=True)
        self.norm = _norm(decoder.norm, shape)
        tables = {rope: _table(rope, capacity) for rope in {layer.rope for layer in shape.layers}}
        take = partial(_take_layer, decoder, make=make, tables=tables, capacity=capacity, precision=precision)
        with ThreadPoolExecutor(torch.get_num_threads()) as several:  # packing a layer takes one thread
            self.layers = list(several.map(take, range(len(shape.layers))))
        self.work = Work.of(max(layer.widest for layer in self.layers))
        self.hidden, self.logits = np.zeros(shape.width, np.float32), np.zeros(shape.vocab, np.float32)
        self.scores = np.zeros((shape.heads, capacity), np.float32)
        self.threads = min(torch.get_num_threads(), cpu_decode.most_threads())
        self.how = f"CPU kernels, {precision} weights, fp32 between, {self.threads} threads"
        start = time.perf_counter()
        self.decode(torch.zeros(1, dtype=torch.int64))  # kernels that are not in numba's cache are compiled now
        self.keep(0)
        self.compile_seconds = time.perf_counter() - start

    @property
    def weight_bytes(self) -> int:
        return int(self.head.bytes + sum(layer.weight_bytes for layer in self.layers))

    @property
    def memory_bytes(self) -> int:
        kept = self.embed.nbytes + sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)
        return self.weight_bytes + int(kept)

    def cache_bytes(self, length: int) -> int:
        return cache_bytes(self.shape, length, self.layers[0].keys.itemsize)

    def keep(self, length: int) -> None:
        self.length = length

    @torch.inference_mode()
    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        if len(ids) <= FEW:
            for token in ids:
                logits = self.decode(token[None])
            return logits
        for chunk in ids.split(PREFILL_CHUNK):
            hidden = self._rows(chunk)
        return self._logits(hidden[-1].numpy())

    @torch.inference_mode()
    def decode(self, token: torch.Tensor) -> torch.Tensor:
        cpu_decode.use_threads(self.threads)
        hidden, position, self.length = self.hidden, self.length, self.length + 1
        torch.from_numpy(hidden).copy_(self._embedded(token)[0])
        for layer in self.layers:
            layer.decode(hidden, position, self.work, self.scores)
        return self._logits(hidden)

    @torch.inference_mode()
    def first_not_finite(self, ids: torch.Tensor) -> str | None:
        hidden = self._embedded(ids)
        if not bool(torch.isfinite(hidden).all()):
            return "embed"
        for number, layer in enumerate(self.layers):
            hidden = layer.prefill(hidden, 0)
            if not bool(torch.isfinite(hidden).all()):
                return f"layers.{number}"
        return None if bool(torch.isfinite(self._logits(hidden[-1].numpy())).all()) else "head"

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = F.embedding(ids, self.embed).float()
        return hidden if self.embed_scale == 1.0 else hidden * self.embed_scale

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        start, self.length = self.length, self.length + len(ids)
        hidden = self._embedded(ids)
        for layer in self.layers:
            hidden = layer.prefill(hidden, start)
        return hidden

    def _logits(self, hidden: Array) -> torch.Tensor:
        cpu_decode.use_threads(self.threads)
        self.head.normed(hidden, self.norm, np.float32(self.shape.norm_eps), self.work, self.logits)
        logits, cap = torch.from_numpy(self.logits), self.shape.logit_cap
        return logits.clone() if cap is None else cap * torch.tanh(logits / cap)


@dataclass(frozen=True)
class _Layer:
    """One block: fused maps, its norms (empty where the model has none there), and its own cache.

    keys, values  [kv_heads, capacity, head_dim]; of 16-bit models bf16. key_array, value_array: the same memory
    turn          cosines and sines [capacity, rotary / 2]; of no columns where nothing is rotated
    """

    shape: DecoderShape
    window: int | None
    attention_norm: Array
    qkv: CpuMap
    q_norm: Array
    k_norm: Array
    turn: tuple[Array, Array]
    keys: torch.Tensor
    values: torch.Tensor
    key_array: Array
    value_array: Array
    o: CpuMap
    attention_post_norm: Array
    feed_forward_norm: Array
    gate_up: CpuMap
    down: CpuMap
    feed_forward_post_norm: Array

    @property
    def weight_bytes(self) -> int:
        """Of its maps; norms and biases are too few to count."""
        return sum(one.bytes for one in (self.qkv, self.o, self.gate_up, self.down))

    @property
    def widest(self) -> int:
        return max(max(one.inputs, one.outputs) for one in (self.qkv, self.o, self.gate_up, self.down))

    def decode(self, hidden: Array, position: int, work: Work, scores: Array) -> None:
        """One token's hidden state [width], changed in place."""
        shape, eps = self.shape, np.float32(self.shape.norm_eps)
        heads, head_dim, hidden_size = shape.heads, shape.head_dim, shape.hidden
        qkv, attended, gated = work.qkv[: self.qkv.outputs], work.mid[: heads * head_dim], work.mid[:hidden_size]
        self.qkv.normed(hidden, self.attention_norm, eps, work, qkv)
        cpu_decode.attend(
            qkv.reshape(-1, head_dim), self.q_norm, self.k_norm, eps, self.turn[0][position], self.turn[1][position],
            self.key_array, self.value_array, position, self.window or 0, np.float32(shape.score_scale),
            np.float32(shape.score_cap or 0.0), scores, attended.reshape(heads, head_dim),
        )  # fmt: skip
        self._add(self.o, attended, self.attention_post_norm, hidden, work)
        self.gate_up.gate_up(hidden, self.feed_forward_norm, eps, work, gated, KINDS[shape.activation])
        self._add(self.down, gated, self.feed_forward_post_norm, hidden, work)

    def _add(self, one: CpuMap, x: Array, norm: Array, hidden: Array, work: Work) -> None:
        """hidden += norm(W·x), or W·x."""
        if not norm.size:
            one.added(x, work, hidden)
            return
        y = work.out[: one.outputs]
        y[:] = 0
        one.added(x, work, y)
        cpu_decode.add_normed(y, norm, np.float32(self.shape.norm_eps), work.x[: one.outputs], hidden)

    def prefill(self, hidden: torch.Tensor, start: int) -> torch.Tensor:
        """Hidden states [tokens, width] of the positions from `start` on → those after this block."""
        x = self._attention(self._normed(hidden, self.attention_norm), start)
        hidden = hidden + self._normed(x, self.attention_post_norm)
        gate, up = self.gate_up.rows(self._normed(hidden, self.feed_forward_norm)).chunk(2, -1)
        x = self.down.rows(ACTIVATIONS[self.shape.activation](gate) * up)
        return hidden + self._normed(x, self.feed_forward_post_norm)

    def _normed(self, x: torch.Tensor, weight: Array) -> torch.Tensor:
        if not weight.size:
            return x
        return F.rms_norm(x, weight.shape, torch.from_numpy(weight), self.shape.norm_eps)

    def _attention(self, x: torch.Tensor, start: int) -> torch.Tensor:
        shape, end = self.shape, start + len(x)
        qkv = self.qkv.rows(x).unflatten(-1, (-1, shape.head_dim)).transpose(0, 1)  # [heads, tokens, head_dim]
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads))
        q, k = self._normed(q, self.q_norm), self._normed(k, self.k_norm)
        cosines, sines = (torch.from_numpy(np.tile(one[start:end], 2)) for one in self.turn)
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        self.keys[:, start:end], self.values[:, start:end] = k, v
        columns, rows = torch.arange(end), torch.arange(start, end).unsqueeze(1)
        mask = columns <= rows
        if self.window is not None:
            mask &= columns > rows - self.window
        keys, values = self.keys[None, :, :end].float(), self.values[None, :, :end].float()
        return self.o.rows(attention(shape, q[None], keys, values, mask)[0].transpose(0, 1).flatten(1))


def _take_layer(
    decoder: Decoder,
    number: int,
    make: Callable[..., CpuMap],
    tables: dict[Rope | None, tuple[Array, Array]],
    capacity: int,
    precision: str,
) -> _Layer:
    """One block with fused maps; the decoder's own weights of it are let go."""
    shape, block = decoder.shape, decoder.layers[number]
    attention, feed_forward = block.attention, block.feed_forward
    kind = torch.float32 if precision in ("fp32", "fp16") else torch.bfloat16
    keys, values = (torch.zeros(shape.kv_heads, capacity, shape.head_dim, dtype=kind) for _ in range(2))
    per_head = shape.qk_norm == "head"
    layer = _Layer(
        shape=shape,
        window=shape.layers[number].window,
        attention_norm=_norm(block.attention_norm, shape),
        qkv=make(attention.q, attention.k, attention.v),
        q_norm=_norm(attention.q_norm if per_head else None, shape),
        k_norm=_norm(attention.k_norm if per_head else None, shape),
        turn=tables[shape.layers[number].rope],
        keys=keys,
        values=values,
        key_array=_stored(keys),
        value_array=_stored(values),
        o=make(attention.o),
        attention_post_norm=_norm(block.attention_post_norm, shape),
        feed_forward_norm=_norm(block.feed_forward_norm, shape),
        gate_up=make(feed_forward.gate, feed_forward.up),
        down=make(feed_forward.down),
        feed_forward_post_norm=_norm(block.feed_forward_post_norm, shape),
    )
    decoder.layers[number] = torch.nn.Identity()
    return layer


def _map(*linears: torch.nn.Linear, precision: str, wide: bool, is_head: bool = False) -> CpuMap:
    """Several maps of one input as one."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    weight = linears[0].weight if len(linears) == 1 else torch.cat([linear.weight for linear in linears])
    if precision not in ("int8", "int4"):
        return PlainMap(weight, bias, wide)
    sizes = [(linear.out_features, linear.in_features) for linear in linears]
    packed = quantize(weight.detach(), packed_precision(precision, sizes, is_head))
    return PlainMap(packed, bias, wide) if packed.middle is None else Int4Map(packed, bias)


def _norm(norm: torch.nn.Module | None, shape: DecoderShape) -> Array:
    """fp32, with the 1 that Gemma's norms add already in it; empty where there is none."""
    if norm is None:
        return NONE
    weight: Array = norm.weight.detach().float().numpy()
    return weight + np.float32(1) if shape.norm_offset else weight


def _table(rope: Rope | None, capacity: int) -> tuple[Array, Array]:
    """Cosines and sines [capacity, rotary / 2] of every position, times the attention factor."""
    if rope is None:
        empty = np.zeros((capacity, 0), np.float32)
        return empty, empty
    angles = torch.arange(capacity).unsqueeze(1) * rope.inverse_frequencies(capacity)
    return (angles.cos() * rope.attention_factor).numpy(), (angles.sin() * rope.attention_factor).numpy()


def _stored(cache: torch.Tensor) -> Array:
    array: Array = (cache.view(torch.uint16) if cache.dtype == torch.bfloat16 else cache).numpy()
    return array


def _wide_is_faster(weight: torch.Tensor, rows: int = 64) -> bool:
    """Whether this processor multiplies many rows by such weights faster after turning them to fp32: it has no units
    for 16-bit numbers then."""
    if weight.dtype == torch.float32:
        return True
    sample, x = weight[:2048], torch.randn(rows, weight.shape[1])

    def narrow() -> None:
        F.linear(x.to(sample.dtype), sample).float()

    def wide() -> None:
        F.linear(x, sample.float())

    seconds = {narrow: math.inf, wide: math.inf}
    for _ in range(TRIES):
        for way in seconds:
            start = time.perf_counter()
            way()
            seconds[way] = min(seconds[way], time.perf_counter() - start)
    return seconds[wide] < seconds[narrow]
