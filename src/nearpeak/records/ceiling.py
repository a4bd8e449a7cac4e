"""A measured best, and the conditions it was measured under."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "matmul",
    "memory_read",
    "memory_write",
    "memory_copy",
    "cache_read",
    "host_to_device",
    "device_to_host",
    "host_bidirectional",
    "launch",
    "launch_graph",
]


@dataclass(frozen=True)
class Load:
    """What the sensors said while something ran. A None has its reason in `missing`, under the field's name.

    seconds        length of the window
    clock_hz       median clock of the multiprocessors (or cores); clock_max_hz the highest seen
    power_w        mean power, over windows of 0.5 s and more; energy_j over those of 2 s and more
    energy_scope   what the energy covers ("device", "module (CPU + GPU)"), and how it was had
    throttle       reasons the driver gave for holding the clock back, empty when none
    """

    seconds: float
    clock_hz: float | None = None
    clock_max_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None
    energy_j: float | None = None
    energy_scope: str | None = None
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Conditions:
    """How a ceiling was obtained.

    method           the method's name and version, such as "matmul/1"; raised whenever the method changes
    how              the routine that did the work ("torch.mm", "triton xor reduction", …)
    shape            of the best burst: (m, n, k) of a product, (bytes,) of a transfer, () where there is none
    sustained_shape  likewise for the sustained figure
    samples          how many timings the burst's median and spread come from
    burst, sustained what the sensors said meanwhile
    settle_s         seconds under load until the rate had come within 1 % (or its wander) of its final value
    wander           how far the quarter-seconds of the sustained window lie apart, (slowest ÷ fastest) − 1
    limited_by       what held the sustained figure down, as the driver names it
    emulated         why this precision is slow here (no such units), else None
    other_processes  other users of the device; None where it cannot be known
    notes            further facts of this ceiling ("host_memory": "pinned", …)
    missing          why a null field of the ceiling is null, under the field's name
    """

    method: str
    how: str
    shape: tuple[int, ...]
    samples: int
    sustained_shape: tuple[int, ...] = ()
    burst: Load | None = None
    sustained: Load | None = None
    settle_s: float | None = None
    wander: float | None = None
    limited_by: str | None = None
    emulated: str | None = None
    other_processes: tuple[str, ...] | None = None
    notes: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ceiling:
    """The most that one device gave for one kind of work; for a cost (`launch`) the least.

    burst            short, clock not yet limited; sustained: clock and power settled (null for a cost, or with --quick)
    unit             "FLOP/s" (integer operations count alike), "B/s" (a copy's bytes are read + written), "s"
    spread           (p90 − p10) ÷ median of the burst's timings
    error            ‖C − R‖F ÷ ‖R‖F of a product, R in fp64 by another path; null for exact integer products and others
    energy_per_unit  joules per FLOP or byte at the sustained rate
    invalid          the assumption that failed, else null; an invalid ceiling is never used for a share
    """

    kind: Kind
    precision: str | None
    accumulate: str | None
    burst: float | None
    sustained: float | None
    unit: Literal["FLOP/s", "B/s", "s"]
    spread: float | None
    error: float | None
    energy_per_unit: float | None
    conditions: Conditions
    invalid: str | None = None
