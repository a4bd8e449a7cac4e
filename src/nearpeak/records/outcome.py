"""What every command that runs work ends in: got, limit, share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = "nearpeak.outcome/1"


@dataclass(frozen=True)
class Energy:
    """joules of the run, and per unit of its work (item, token, FLOP); scope says what the sensor covers."""

    joules: float
    per_unit: float
    scope: str


@dataclass(frozen=True)
class Gap:
    """One part of the time between the limit and what was got."""

    cause: str
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """got, limit and share have the same names ("flop_per_s", "decode_tokens_per_s", …); a null share has its reason.

    result is the command's own: text, loss, verdict, …
    """

    schema: str
    command: str
    device: str
    got: dict[str, float | None]
    limit: dict[str, float | None]
    share: dict[str, float | None]
    reason: dict[str, str]
    energy: Energy | None
    memory_bytes: int | None
    gap: tuple[Gap, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)
