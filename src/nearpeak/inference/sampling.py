"""How the next token is drawn: what a user may ask, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nearpeak.records.errors import UserError

LEAST_TEMPERATURE = 1e-3
"""Below it the quotients leave fp32, and every draw is the likeliest token anyway."""
SEEDS = 1 << 63


@dataclass(frozen=True)
class Sampling:
    """Steps in this order, as transformers chains them:

    temperature  logits are divided by it; 0: always the likeliest token, of equals the first; nothing below counts
    top_k        only the k likeliest stay; 0: all
    top_p        only the fewest of the likeliest whose probabilities reach p together; 1: all
    min_p        only what has at least this share of the likeliest one's probability; 0: all
    seed         makes the draws repeatable on one kind of device; None: another one each time

    Raises UserError for anything else.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        temperature = _number("temperature", self.temperature)
        if temperature != 0 and not LEAST_TEMPERATURE <= temperature <= 1e6:
            raise UserError(
                f"temperature is {temperature:g}; 0 (always the likeliest token) or at least {LEAST_TEMPERATURE:g} is "
                "possible. Around 1 is usual."
            )
        _whole("top_k", self.top_k, SEEDS, "0 keeps all tokens")
        if not 0 < _number("top_p", self.top_p) <= 1:
            raise UserError(f"top_p is {self.top_p:g}; above 0 and up to 1 is possible. 1 keeps all tokens.")
        if not 0 <= _number("min_p", self.min_p) <= 1:
            raise UserError(f"min_p is {self.min_p:g}; 0 to 1 is possible. 0 keeps all tokens.")
        if self.seed is not None:
            _whole("seed", self.seed, SEEDS, "leave it out for another one each time")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{name} is {value!r}; a finite number is expected.")
    return float(value)


def _whole(name: str, value: object, end: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < end:
        raise UserError(f"{name} is {value!r}; a whole number from 0 to {end - 1:,} is expected; {hint}.")
