"""The decode kernels of the CPU against plain forms in fp64: odd sizes, poisoned outputs, every kind of weight."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearpeak.inference.cpu_map import NONE, CpuMap, Int4Map, PlainMap, Work
from nearpeak.inference.quantize import to_int4, to_int8
from nearpeak.kernels import cpu_decode
from nearpeak.networks.feed_forward import ACTIVATIONS

KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EPS = np.float32(1e-6)
SAME = 2e-6  # sums of fp32 in another order


def made(kind: str, outputs: int, inputs: int, bias: bool) -> tuple[CpuMap, torch.Tensor, torch.Tensor]:
    """A map, and in fp64 the weights that it multiplies by, and its bias."""
    weight, added = torch.randn(outputs, inputs) * 0.1, torch.randn(outputs) if bias else None
    truth = torch.zeros(outputs).double() if added is None else added.double()
    if kind in KINDS:
        stored = weight.to(KINDS[kind])
        return PlainMap(stored, added, wide=True), stored.double(), truth
    packed = to_int8(weight) if kind == "int8" else to_int4(weight, 64)
    way: CpuMap = PlainMap(packed, added, wide=True) if kind == "int8" else Int4Map(packed, added)
    return way, packed.dequantized().double(), truth


def poisoned(size: int) -> np.ndarray:
    return np.full(size, np.nan, np.float32)


def work(size: int) -> Work:
    space = Work.of(size)
    for name in ("x", "y", "part", "sums", "qkv", "mid", "out"):
        getattr(space, name)[:] = np.nan
    return space


def error(got: np.ndarray, truth: torch.Tensor) -> float:
    return float((torch.from_numpy(np.array(got)).double() - truth).norm() / truth.norm())


def normed(h: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
    wide = h.double()
    return wide if norm is None else wide * norm.double() / (wide.square().mean() + 1e-6).sqrt()


SIZES = {"int4": [(64, 64), (192, 128), (320, 576)]}
CASES = [
    (kind, outputs, inputs)
    for kind in (*KINDS, "int8", "int4")
    for outputs, inputs in SIZES.get(kind, [(1, 1), (3, 7), (64, 96), (65, 129), (200, 576)])
]


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize(("kind", "outputs", "inputs"), CASES)
def test_products(kind: str, outputs: int, inputs: int, extra: bool) -> None:
    """extra: with a norm and a bias."""
    way, weight, bias = made(kind, outputs, inputs, extra)
    h = torch.randn(inputs)
    norm = torch.randn(inputs) if extra else None
    given = NONE if norm is None else norm.numpy()
    truth = weight @ normed(h, norm) + bias
    y = poisoned(outputs)
    way.normed(h.numpy(), given, EPS, work(max(outputs, inputs)), y)
    assert error(y, truth) <= SAME
    before = torch.randn(outputs)
    y = before.numpy().copy()
    way.added(h.numpy(), work(max(outputs, inputs)), y)
    assert error(y, before.double() + weight @ h.double() + bias) <= SAME
    x = torch.randn(5, inputs)
    assert error(way.rows(x).numpy(), x.double() @ weight.T + bias) <= SAME
    assert (way.outputs, way.inputs) == (outputs, inputs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", [*KINDS, "int8", "int4"])
def test_gated_products(kind: str, activation: str) -> None:
    way, weight, bias = made(kind, 2 * 128, 192, bias=True)
    h, norm = torch.randn(192), torch.randn(192)
    gate, up = (weight @ normed(h, norm) + bias).chunk(2)
    y = poisoned(128)
    kinds = {"silu": cpu_decode.SILU, "gelu": cpu_decode.GELU, "gelu_tanh": cpu_decode.GELU_TANH}
    way.gate_up(h.numpy(), norm.numpy(), EPS, work(256), y, kinds[activation])
    assert error(y, ACTIVATIONS[activation](gate) * up) <= 2 * SAME


def test_int4_bytes_are_four_and_a_half_bits_a_weight() -> None:
    way, *_ = made("int4", 128, 256, bias=False)
    assert way.bytes == 128 * 256 * 4.5 / 8


def test_what_is_not_finite_stays_so() -> None:
    """Sums may be reordered; NaN and infinity may not be assumed away."""
    for poison in (torch.nan, torch.inf):
        h = torch.randn(64)
        h[5] = poison
        for kind in ("bf16", "int8", "int4"):
            way, *_ = made(kind, 64, 64, bias=False)
            y = np.zeros(64, np.float32)
            way.normed(h.numpy(), NONE, EPS, work(64), y)
            assert not np.isfinite(y).any(), kind
            way.normed(h.numpy(), np.ones(64, np.float32), EPS, work(64), y)
            assert np.isnan(y).any(), kind


def plain_attention(qkv, q_norm, k_norm, turn, keys, values, position, window, scale, cap):  # type: ignore[no-untyped-def]
    """fp64; keys and values [kv_heads, capacity, head_dim] as they were before."""
    kv_heads = keys.shape[0]
    heads = len(qkv) - 2 * kv_heads
    rows = qkv.double().clone()
    for head in range(heads + kv_heads):
        norm = q_norm if head < heads else k_norm
        if norm is not None:
            rows[head] = rows[head] * norm.double() / (rows[head].square().mean() + 1e-6).sqrt()
        half = len(turn[0])
        first, second = rows[head, :half].clone(), rows[head, half : 2 * half].clone()
        rows[head, :half] = first * turn[0] - second * turn[1]
        rows[head, half : 2 * half] = second * turn[0] + first * turn[1]
    keys, values = keys.double().clone(), values.double().clone()
    keys[:, position], values[:, position] = rows[heads : heads + kv_heads], rows[heads + kv_heads :]
    begin = max(0, position + 1 - window) if window else 0
    out = []
    for head in range(heads):
        group = head // (heads // kv_heads)
        scores = keys[group, begin : position + 1] @ rows[head] * scale
        if cap:
            scores = cap * torch.tanh(scores / cap)
        out.append(scores.softmax(0) @ values[group, begin : position + 1])
    return torch.stack(out)


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary", "position", "window", "cap", "norms"),
    [
        (1, 1, 2, 2, 0, 0, 0.0, False),
        (4, 2, 16, 16, 9, 0, 0.0, False),
        (9, 3, 64, 64, 30, 0, 0.0, True),
        (3, 1, 80, 20, 31, 0, 5.0, False),
        (6, 2, 96, 0, 17, 0, 0.0, True),
        (4, 4, 32, 32, 20, 6, 2.0, False),
        (4, 1, 128, 128, 5, 6, 0.0, False),
        (8, 2, 256, 256, 6, 6, 0.0, True),
        (2, 1, 16, 8, 31, 1, 0.0, False),
    ],
)
def test_attention(
    heads: int, kv_heads: int, head_dim: int, rotary: int, position: int, window: int, cap: float, norms: bool,
    cache: torch.dtype,
) -> None:  # fmt: skip
    qkv = torch.randn(heads + 2 * kv_heads, head_dim)
    norm = [torch.randn(head_dim) if norms else None for _ in range(2)]
    turn = [torch.randn(rotary // 2) for _ in range(2)]
    keys, values = (torch.randn(kv_heads, 32, head_dim).to(cache) for _ in range(2))
    truth = plain_attention(qkv, *norm, turn, keys, values, position, window, head_dim**-0.5, cap)
    for buffer in (keys, values):  # what lies behind is not seen, nor what the window has left
        buffer[:, position:] = torch.nan
        if window:
            buffer[:, : max(0, position + 1 - window)] = torch.nan
    arrays = [(one.view(torch.uint16) if cache == torch.bfloat16 else one).numpy() for one in (keys, values)]
    y = np.full((heads, head_dim), np.nan, np.float32)
    cpu_decode.attend(
        qkv.numpy().copy(), *(NONE if one is None else one.numpy() for one in norm), EPS, *(t.numpy() for t in turn),
        *arrays, position, window, np.float32(head_dim**-0.5), np.float32(cap),
        np.full((heads, 32), np.nan, np.float32), y,
    )  # fmt: skip
    assert error(y, truth) <= (5e-6 if cache == torch.float32 else 2**-8)
    assert bool(torch.isfinite(keys[:, position].float()).all())


def test_bf16_is_rounded_to_the_nearest_and_ties_to_even() -> None:
    ties = torch.tensor([1.00390625, 1.01171875, 0.0, -1.00390625])
    numbers = torch.cat((torch.randn(1000) * 10.0 ** torch.randint(-30, 30, (1000,)), ties))
    keys = torch.zeros(1, 1, len(numbers), dtype=torch.bfloat16)
    values = keys.clone()
    qkv = torch.stack((torch.zeros_like(numbers), numbers, numbers))
    empty = np.zeros(0, np.float32)
    cpu_decode.attend(
        qkv.numpy(), NONE, NONE, EPS, empty, empty, keys.view(torch.uint16).numpy(), values.view(torch.uint16).numpy(),
        0, 0, np.float32(1), np.float32(0), np.zeros((1, 1), np.float32), np.zeros((1, len(numbers)), np.float32),
    )  # fmt: skip
    assert torch.equal(keys[0, 0], numbers.to(torch.bfloat16))


def test_normed_sums() -> None:
    x, norm, h = torch.randn(70), torch.randn(70), torch.randn(70)
    got = h.numpy().copy()
    cpu_decode.add_normed(x.numpy(), norm.numpy(), EPS, poisoned(70), got)
    assert error(got, h.double() + normed(x, norm)) <= SAME
    assert math.isfinite(float(got.sum()))
