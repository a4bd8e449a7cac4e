"""Decoding one token on a CPU, compiled by numba: five functions a layer, each all cores, nothing allocated.

A decode step reads every weight once, so what counts is that loads come in long rows and that nothing else takes time:
norms, rotations, activations and sums run inside the same functions as the products. Activations, sums and results are
fp32. The plain torch form of each stands in tests/test_cpu_decode.py.

How numbers lie in memory: fp32 as they are; bf16 as uint16, fp16 as int16 (numba has no type for their bits); int8 with
a scale a row; int4 in blocks of 64 rows, see `blocked_int4`. An empty array stands for what a model does not have.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import config, njit, prange, set_num_threads, types
from numba.extending import intrinsic, overload

FAST = {"reassoc", "nsz", "contract", "arcp"}
"""Sums in any order, so that they run in vectors; NaN and infinity stay what they are."""
SILU, GELU, GELU_TANH = 0, 1, 2
BLOCK = 64
"""Rows that one block of int4 weights holds side by side."""


def most_threads() -> int:
    """As many as numba has started, or would."""
    return int(config.NUMBA_NUM_THREADS)


def use_threads(count: int) -> None:
    """For the calls that follow in this thread."""
    set_num_threads(count)


@intrinsic
def _bf16(typing, bits):  # uint32 → float32
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _fp16(typing, bits):  # int16 → float32
    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), generate


@intrinsic
def _bits(typing, number):  # float32 → uint32
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def value(x):
    """A stored number as fp32."""


@overload(value, inline="always")
def _value(x):
    if x == types.uint16:
        return lambda x: _bf16(np.uint32(x) << np.uint32(16))
    if x == types.int16:
        return lambda x: _fp16(x)
    return lambda x: np.float32(x)


def store(array, i, j, x):
    """array[i, j] = x, rounded to what the array holds."""


@overload(store, inline="always")
def _store(array, i, j, x):
    if array.dtype == types.uint16:  # to the nearest bf16, ties to even

        def rounded(array, i, j, x):
            bits = _bits(x)
            half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            array[i, j] = np.uint16((bits + half) >> np.uint32(16))

        return rounded
    if array.dtype == types.int16:
        raise TypeError("a cache of fp16 is kept as bf16 or fp32")

    def plain(array, i, j, x):
        array[i, j] = x

    return plain


@njit(fastmath=FAST, inline="always")
def _dot(row, x):
    total = np.float32(0)
    for k in range(x.shape[0]):
        total += value(row[k]) * x[k]
    return total


@njit(fastmath=FAST, inline="always")
def _norm(h, weight, eps, x):
    """x = h·weight ÷ √(mean h² + eps); a copy where weight is empty."""
    if weight.shape[0] == 0:
        x[:] = h
        return
    squares = np.float32(0)
    for i in range(h.shape[0]):
        squares += h[i] * h[i]
    scale = np.float32(1) / np.sqrt(squares / np.float32(h.shape[0]) + eps)
    for i in range(h.shape[0]):
        x[i] = h[i] * scale * weight[i]


@njit(fastmath=FAST, inline="always")
def _activated(x, kind):
    if kind == SILU:
        return x / (np.float32(1) + np.exp(-x))
    if kind == GELU:
        return np.float32(0.5) * x * (np.float32(1) + np.float32(math.erf(x * np.float32(0.7071067811865476))))
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))


@njit(parallel=True, fastmath=FAST, cache=True)
def normed_product(h, norm, eps, weight, scale, bias, x, y):
    """y = W·norm(h) + bias. h, x [inputs] (x is written: the normed h); weight [outputs, inputs]; y [outputs]."""
    _norm(h, norm, eps, x)
    for row in prange(y.shape[0]):
        total = _dot(weight[row], x)
        if scale.shape[0]:
            total *= scale[row]
        if bias.shape[0]:
            total += bias[row]
        y[row] = total


@njit(parallel=True, fastmath=FAST, cache=True)
def added_product(x, weight, scale, bias, h):
    """h += W·x + bias."""
    for row in prange(h.shape[0]):
        total = _dot(weight[row], x)
        if scale.shape[0]:
            total *= scale[row]
        if bias.shape[0]:
            total += bias[row]
        h[row] += total


@njit(parallel=True, fastmath=FAST, cache=True)
def normed_gate_up(h, norm, eps, weight, scale, bias, x, y, activation):
    """y = act(G·norm(h)) · (U·norm(h)); the rows of G are the first half of weight, those of U the second."""
    _norm(h, norm, eps, x)
    hidden = y.shape[0]
    for row in prange(hidden):
        gate, up = _dot(weight[row], x), _dot(weight[hidden + row], x)
        if scale.shape[0]:
            gate *= scale[row]
            up *= scale[hidden + row]
        if bias.shape[0]:
            gate += bias[row]
            up += bias[hidden + row]
        y[row] = _activated(gate, activation) * up


@njit(fastmath=FAST, cache=True)
def add_normed(x, norm, eps, spare, h):
    """h += norm(x); spare [inputs] is written."""
    _norm(x, norm, eps, spare)
    for i in range(h.shape[0]):
        h[i] += spare[i]


@njit(parallel=True, fastmath=FAST, cache=True)
def attend(qkv, q_norm, k_norm, eps, cosines, sines, keys, values, position, window, scale, cap, scores, y):
    """Rotate, write the cache at `position`, and attend over what is seen.

    qkv             [heads + 2·kv_heads, head_dim], changed in place; cosines, sines [rotary / 2] of this position
    keys, values    [kv_heads, capacity, head_dim]; window: positions seen, itself among them; 0: all
    scale, cap      of scores; cap 0: none; scores [heads, capacity] and y [heads, head_dim] are written
    """
    kv_heads, head_dim = keys.shape[0], keys.shape[2]
    heads, half = qkv.shape[0] - 2 * kv_heads, cosines.shape[0]
    for head in range(heads + kv_heads):
        row = qkv[head]
        norm = q_norm if head < heads else k_norm
        if norm.shape[0]:
            squares = np.float32(0)
            for i in range(head_dim):
                squares += row[i] * row[i]
            root = np.float32(1) / np.sqrt(squares / np.float32(head_dim) + eps)
            for i in range(head_dim):
                row[i] = row[i] * root * norm[i]
        for i in range(half):
            first, second = row[i], row[half + i]
            row[i] = first * cosines[i] - second * sines[i]
            row[half + i] = second * cosines[i] + first * sines[i]
    for head in range(kv_heads):
        for i in range(head_dim):
            store(keys[head], position, i, qkv[heads + head, i])
            store(values[head], position, i, qkv[heads + kv_heads + head, i])
    begin = 0 if window == 0 else max(0, position + 1 - window)
    for head in prange(heads):
        key, val = keys[head // (heads // kv_heads)], values[head // (heads // kv_heads)]
        query, score, out = qkv[head], scores[head], y[head]
        largest = np.float32(-np.inf)
        for p in range(begin, position + 1):
            total = np.float32(0)
            for i in range(head_dim):
                total += query[i] * value(key[p, i])
            total *= scale
            if cap > 0:
                total = cap * np.tanh(total / cap)
            score[p] = total
            largest = max(largest, total)
        everything = np.float32(0)
        for p in range(begin, position + 1):
            score[p] = np.exp(score[p] - largest)
            everything += score[p]
        for i in range(head_dim):
            out[i] = 0
        for p in range(begin, position + 1):
            share = score[p] / everything
            for i in range(head_dim):
                out[i] += share * value(val[p, i])


# int4: rows in blocks, so that 64 of them are summed side by side in vectors, and no row's sum is folded up in between


def blocked_int4(values, scale, middle, group):
    """Weights as quantize.to_int4 makes them → as the products below read them.

    values uint8 [outputs, inputs], 0 to 15 → uint8 [outputs / 64, groups, group / 4, 2, 64]: of four neighbouring
    inputs of row r in a block, the first two in one byte (the first in its lower half), the last two in another. scale,
    middle uint16 (bf16) [outputs, groups] → [outputs / 64, groups, 64].
    """
    blocks, groups = values.shape[0] // BLOCK, values.shape[1] // group
    turned = values.reshape(blocks, BLOCK, groups, group // 4, 2, 2).transpose(0, 2, 3, 4, 5, 1)
    packed = np.ascontiguousarray(turned[:, :, :, :, 0] | (turned[:, :, :, :, 1] << 4))

    def block(x):
        return np.ascontiguousarray(x.reshape(blocks, BLOCK, groups).transpose(0, 2, 1))

    return packed, block(scale), block(middle)


@njit(fastmath=FAST, inline="always")
def _block(weight, scale, middle, x, sums, part, y):
    """y[64] = one block of rows times x [groups, group / 4, 4]; sums [groups]: of x; part [64] is written."""
    for j in range(BLOCK):
        y[j] = 0
    for group in range(weight.shape[0]):
        for j in range(BLOCK):
            part[j] = 0
        for four in range(weight.shape[1]):
            # the upper half of a byte is not shifted down: what it is multiplied by is
            a, b = x[group, four, 0], x[group, four, 1] * np.float32(0.0625)
            c, d = x[group, four, 2], x[group, four, 3] * np.float32(0.0625)
            for j in range(BLOCK):
                one, two = np.int32(weight[group, four, 0, j]), np.int32(weight[group, four, 1, j])
                part[j] += (
                    np.float32(one & 15) * a + np.float32(one & 240) * b
                    + np.float32(two & 15) * c + np.float32(two & 240) * d
                )  # fmt: skip
        total = sums[group]
        for j in range(BLOCK):
            y[j] += value(scale[group, j]) * (part[j] - np.float32(8) * total) + value(middle[group, j]) * total


@njit(fastmath=FAST, inline="always")
def _in_groups(x, weight, sums):
    """x as the blocks of weight read it, and the sum of each group."""
    fours = x.reshape(weight.shape[1], weight.shape[2], 4)
    for group in range(weight.shape[1]):
        total = np.float32(0)
        for four in range(weight.shape[2]):
            for i in range(4):
                total += fours[group, four, i]
        sums[group] = total
    return fours


@njit(parallel=True, fastmath=FAST, cache=True)
def normed_product_int4(h, norm, eps, weight, scale, middle, bias, x, sums, part, y):
    """As normed_product. sums [groups] and part [outputs] are written."""
    _norm(h, norm, eps, x)
    fours = _in_groups(x, weight, sums)
    for block in prange(weight.shape[0]):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        _block(weight[block], scale[block], middle[block], fours, sums, part[rows], y[rows])
    if bias.shape[0]:
        for row in range(y.shape[0]):
            y[row] += bias[row]


@njit(parallel=True, fastmath=FAST, cache=True)
def added_product_int4(x, weight, scale, middle, bias, sums, part, spare, h):
    """As added_product. spare [outputs] is written too."""
    fours = _in_groups(x, weight, sums)
    for block in prange(weight.shape[0]):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        _block(weight[block], scale[block], middle[block], fours, sums, part[rows], spare[rows])
        for row in range(block * BLOCK, (block + 1) * BLOCK):
            h[row] += spare[row]
    if bias.shape[0]:
        for row in range(h.shape[0]):
            h[row] += bias[row]


@njit(parallel=True, fastmath=FAST, cache=True)
def normed_gate_up_int4(h, norm, eps, weight, scale, middle, bias, x, sums, part, spare, y, activation):
    """As normed_gate_up; spare [2·hidden] is written. hidden is a multiple of 64."""
    _norm(h, norm, eps, x)
    fours = _in_groups(x, weight, sums)
    hidden = y.shape[0]
    half = hidden // BLOCK
    for block in prange(half):
        for turn in range(2):
            other = block + turn * half
            rows = slice(other * BLOCK, (other + 1) * BLOCK)
            _block(weight[other], scale[other], middle[other], fours, sums, part[rows], spare[rows])
        for row in range(block * BLOCK, (block + 1) * BLOCK):
            gate, up = spare[row], spare[hidden + row]
            if bias.shape[0]:
                gate += bias[row]
                up += bias[hidden + row]
            y[row] = _activated(gate, activation) * up


@njit(parallel=True, fastmath=FAST, cache=True)
def unblocked_int4(weight, scale, middle, out):
    """The weights themselves, fp32 [outputs, inputs], for products of many rows."""
    for block in prange(weight.shape[0]):
        for group in range(weight.shape[1]):
            for four in range(weight.shape[2]):
                column = (group * weight.shape[2] + four) * 4
                for j in range(BLOCK):
                    factor, offset = value(scale[block, group, j]), value(middle[block, group, j])
                    for pair in range(2):
                        both = np.int32(weight[block, group, four, pair, j])
                        out[block * BLOCK + j, column + 2 * pair] = np.float32((both & 15) - 8) * factor + offset
                        out[block * BLOCK + j, column + 2 * pair + 1] = np.float32((both >> 4) - 8) * factor + offset
