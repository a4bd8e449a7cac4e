"""The facts of a check as one Outcome. Nothing is measured here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nearpeak.kernelcheck.kernel import Declaration, Sizes
from nearpeak.kernelcheck.ladder import ladder_beside
from nearpeak.kernelcheck.limit import Limit, share_of
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.source import Source
from nearpeak.kernelcheck.verdict import Verdict
from nearpeak.records.outcome import SCHEMA, Energy, Gap, Outcome

if TYPE_CHECKING:
    from nearpeak.kernelcheck.explain import Explanation
    from nearpeak.kernelcheck.fast import Speed


def outcome_of(
    source: Source,
    declaration: Declaration,
    op: Op,
    sizes: Sizes,
    device: str,
    verdict: Verdict | None,
    speed: Speed | None,
    limit: Limit | None,
    why: Explanation | None,
) -> Outcome:
    """verdict None: not run; speed None: not timed; why None: not analysed."""
    got: dict[str, float | None] = {}
    best: dict[str, float | None] = {}
    share: dict[str, float | None] = {}
    reason: dict[str, str] = {}
    seconds = speed.kernel.warm if speed and not speed.refused else None
    work = {"flop_per_s": op.flop(sizes), "bytes_per_s": op.bytes(sizes, declaration.precision)}
    for name, amount in work.items():
        if not amount:
            continue
        got[name] = amount / seconds if seconds else None
        best[name] = amount / limit.seconds if limit and limit.seconds else None
        share[name], fault = share_of(limit, seconds) if limit and seconds else (None, _why_no_time(verdict, speed))
        if fault:
            reason[name] = fault
    energy = None
    if speed and speed.energy_j is not None:
        energy = Energy(
            speed.energy_j, speed.energy_j / (op.flop(sizes) or work["bytes_per_s"]), speed.energy_scope or ""
        )
    causes = why.advice.causes if why else ()
    now = seconds or (max(why.advice.bounds.most, 0.0) if why and why.advice.bounds else None)
    gap = tuple(Gap(c.name, now - c.seconds[1]) for c in causes if now and now > c.seconds[1])
    return Outcome(
        schema=SCHEMA,
        command="kernel check",
        device=device,
        got=got,
        limit=best,
        share=share,
        reason=reason,
        energy=energy,
        memory_bytes=op.footprint(sizes, declaration.precision),
        gap=gap,
        result={
            "file": str(source.path),
            "kernel": declaration.kernel,
            "language": source.language,
            "op": op.name,
            "precision": declaration.precision,
            "sizes": dict(sizes),
            "right": verdict.right and not (speed and speed.refused) if verdict else None,
            "verdict": dataclasses.asdict(verdict) if verdict else None,
            "speed": dataclasses.asdict(speed) if speed else None,
            "share_of_library": speed.library.warm / seconds if speed and speed.library and seconds else None,
            "limit": dataclasses.asdict(limit) if limit else None,
            "ladder": ladder_beside(op, declaration.precision, sizes, device),
            "why": _why_facts(why),
        },
    )


def _why_no_time(verdict: Verdict | None, speed: Speed | None) -> str:
    if speed and speed.refused:
        return speed.refused
    if verdict is None:
        return "not run"
    return "not timed" if verdict.right else "not timed: it is not right"


def _why_facts(why: Explanation | None) -> dict[str, Any] | None:
    """The analysis as plain data, its lines by weight."""
    if why is None:
        return None
    lines = sorted(why.lines, key=lambda line: -line.sectors)
    return {
        "how": why.how,
        "stopped": why.stopped,
        "causes": [dataclasses.asdict(c) | {"where": c.where} for c in why.advice.causes],
        "note": why.advice.note,
        "explained": why.advice.explained,
        "bounds": dataclasses.asdict(why.advice.bounds) if why.advice.bounds else None,
        "lines": [dataclasses.asdict(line) for line in lines],
        "traffic": [dataclasses.asdict(t) for t in why.traffic],
        "occupancy": dataclasses.asdict(why.occupancy) if why.occupancy else None,
        "resources": dataclasses.asdict(why.resources),
        "geometry": dataclasses.asdict(why.geometry),
        "counters": _counters(why),
    }


def _counters(why: Explanation) -> dict[str, Any]:
    if why.counters is None:
        return {"missing": why.uncounted}
    return dataclasses.asdict(why.counters) | {"compared": [dataclasses.asdict(c) for c in why.compared]}
