"""Rotary positions: which frequencies each kind turns pairs of numbers with, and the rotation itself.

Sources: RoFormer (Su et al. 2021); linear: Chen et al. 2023; dynamic: NTK-aware scaling as transformers has it; YaRN
(Peng et al. 2023, section 3); LongRoPE (Ding et al. 2024) as Phi-3 uses it; llama3: the Llama 3.1 release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3"]


@dataclass(frozen=True)
class Rope:
    """rotary: how many of a head's numbers are turned, the first ones, number i with number i + rotary/2.

    factor            by how much positions are stretched; original: positions of the training before that
    attention_factor  what cosines and sines are multiplied by
    beta_fast, beta_slow, truncate      of YaRN
    low_freq_factor, high_freq_factor   of llama3
    short_factors, long_factors         one a pair: of LongRoPE up to `original` positions, and beyond. Where both are
                                        the same they are what a GGUF's rope_freqs.weight divides frequencies by
    wide              queries and keys are turned in fp32 and rounded after (OLMo 2), not multiplied in their own dtype
    """

    rotary: int
    theta: float
    kind: Kind = "default"
    factor: float = 1.0
    original: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    wide: bool = False

    @property
    def changes_from(self) -> int | None:
        """Positions up to which frequencies stay the same; None: they never change."""
        if self.kind == "dynamic" or (self.kind == "longrope" and self.short_factors != self.long_factors):
            return self.original
        return None

    def inverse_frequencies(self, length: int = 0) -> torch.Tensor:
        """fp32 [rotary/2]: radians a position, for a sequence of `length` positions so far."""
        return _KINDS[self.kind](self, length)


def _powers(rope: Rope, theta: float | None = None) -> torch.Tensor:
    """theta^(2i ÷ rotary)."""
    exponents = torch.arange(0, rope.rotary, 2, dtype=torch.float32) / rope.rotary
    powers: torch.Tensor = (rope.theta if theta is None else theta) ** exponents
    return powers


def _default(rope: Rope, length: int) -> torch.Tensor:
    return 1.0 / _powers(rope)


def _linear(rope: Rope, length: int) -> torch.Tensor:
    return 1.0 / _powers(rope) / rope.factor


def _dynamic(rope: Rope, length: int) -> torch.Tensor:
    """theta grows with the length beyond the original one."""
    stretched = rope.factor * max(length, rope.original) / rope.original - (rope.factor - 1)
    return 1.0 / _powers(rope, rope.theta * stretched ** (rope.rotary / (rope.rotary - 2)))


def _yarn(rope: Rope, length: int) -> torch.Tensor:
    """Fast pairs keep their frequency, slow ones are stretched, a ramp lies between (YaRN, equation 23)."""
    low, high = (_turning_pair(rope, turns) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.rotary // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    powers = _powers(rope)
    return 1.0 / (rope.factor * powers) * ramp + 1.0 / powers * (1 - ramp)


def _turning_pair(rope: Rope, turns: float) -> float:
    """The number of the pair that turns so many times over the original length."""
    return rope.rotary * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _longrope(rope: Rope, length: int) -> torch.Tensor:
    factors = rope.long_factors if length > rope.original else rope.short_factors
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * _powers(rope))


def _llama3(rope: Rope, length: int) -> torch.Tensor:
    """Long waves are stretched, short ones kept, those between mixed."""
    frequencies = 1.0 / _powers(rope)
    waves = 2 * math.pi / frequencies
    longest, shortest = rope.original / rope.low_freq_factor, rope.original / rope.high_freq_factor
    mix = (rope.original / waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between = (1 - mix) * frequencies / rope.factor + mix * frequencies
    stretched = torch.where(waves > longest, frequencies / rope.factor, frequencies)
    return torch.where((waves <= longest) & (waves >= shortest), between, stretched)


_KINDS = {
    "default": _default, "linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "longrope": _longrope,
    "llama3": _llama3,
}  # fmt: skip


class Rotations:
    """Cosines and sines of positions. Frequencies that never change stay on a device once they are there: a step of
    decoding copies nothing to it then, which a CUDA graph could not hold."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Rope, torch.device], torch.Tensor] = {}

    def __call__(self, rope: Rope, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, 1, tokens, rotary] each, for positions [batch, tokens], made in fp32."""
        angles = positions.unsqueeze(-1).float() * self._frequencies(rope, positions)
        angles = torch.cat((angles, angles), -1).unsqueeze(1)
        dtype = torch.float32 if rope.wide else dtype
        return (angles.cos() * rope.attention_factor).to(dtype), (angles.sin() * rope.attention_factor).to(dtype)

    def _frequencies(self, rope: Rope, positions: torch.Tensor) -> torch.Tensor:
        if rope.changes_from is not None:
            return rope.inverse_frequencies(int(positions.max()) + 1).to(positions.device)
        place = rope, positions.device
        if place not in self._kept:
            self._kept[place] = rope.inverse_frequencies().to(positions.device)
        return self._kept[place]


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """x [batch, heads, tokens, head_dim] with its first `rotary` numbers turned."""
    rotary = cosines.shape[-1]
    turned, rest = x[..., :rotary], x[..., rotary:]
    first, second = turned.chunk(2, -1)
    turned = (turned * cosines + torch.cat((-second, first), -1) * sines).to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
