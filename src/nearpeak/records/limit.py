"""Pieces of work, and the least time that a machine needs for them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Op:
    """One piece of a workload, `count` times. All numbers are of one.

    flop         by the precision of the product: {"bf16": 2·m·n·k}
    read         compulsory bytes: weights, cache and optimizer state that no cleverness spares reading, read once
    written      compulsory bytes written
    passed       bytes of activations that it takes in and gives out, if each op runs by itself
    note         the arithmetic in words, for --explain: "2 · 4096 · 14336 · 3 · 512 tokens"
    """

    name: str
    count: int
    flop: dict[str, float]
    read: float
    written: float
    passed: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Rates:
    """What one device sustains, or is taken to.

    matmul        FLOP/s by precision; memory: bytes a second read; launch_s: seconds a launch inside a graph
    source        "measured here (burst)", "measured here (sustained)" or "spec × 0.80"
    missing       why a precision has no rate of its own, and what its products run in where that is known
    cache         bytes a second read from the last-level cache; cache_bytes: its size. None where not measured
    """

    device: str
    matmul: dict[str, float]
    memory: float
    source: str
    launch_s: float | None = None
    missing: dict[str, str] = field(default_factory=dict)
    cache: float | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True)
class Limit:
    """seconds = max(flop_seconds, byte_seconds); serial_seconds: Σ over ops of the larger of the two, activations that
    pass between ops counted: what no overlap could beat."""

    seconds: float
    serial_seconds: float
    flop_seconds: float
    byte_seconds: float
    flop: dict[str, float]
    bytes: float
    bound_by: str
    source: str
