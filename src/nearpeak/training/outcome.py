"""A training run held against what the device could have given: the Outcome of `nearpeak train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearpeak.limits.limit import burst_or_sustained, limit_of
from nearpeak.limits.ops import ops_of
from nearpeak.limits.rates import rates_of_profile
from nearpeak.records.ceiling import Load
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Limit, Op
from nearpeak.records.machine_profile import DeviceProfile
from nearpeak.records.model_spec import ModelSpec
from nearpeak.records.outcome import SCHEMA, Energy, Gap, Outcome
from nearpeak.records.workload import Training, Workload

IMAGES, FLOP = "images_per_s", "flop_per_s"
CONVENTION = (
    "FLOPs of products alone: forward, gradients of weights, gradients of inputs where a trained layer lies below "
    "(none of the first layer's); 2 a multiply-add"
)


@dataclass(frozen=True)
class Ran:
    """What is known of a run. Seconds are of this process alone, `images` and `steps` those that it did.

    training   seconds in steps; sampled: seconds by part of the few steps that were watched part by part
    seconds    of other things: "evaluating", "saving", "trial", "reading data"
    curve      the log's lines, of all processes that took part
    settings   (name, value, reason)
    """

    model: str
    device: str
    precision: str
    batch: int
    optimizer: str
    images: int
    steps: int
    total_steps: int
    training: float
    memory_bytes: int | None
    complete: bool = True
    sampled: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[Mapping[str, Any], ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    resumed_at: int = 0
    notes: tuple[str, ...] = ()


def outcome_of(
    ran: Ran, spec: ModelSpec | None, not_known: str | None, profile: DeviceProfile | None, load: Load
) -> Outcome:
    """spec None: no FLOPs are known, for the reason `not_known`; load: what the sensors said during the steps, with
    evaluations and saves between them."""
    got: dict[str, float | None] = {IMAGES: None, FLOP: None}
    best, share, reason = dict(got), dict(got), {}
    gap: tuple[Gap, ...] = ()
    limit = None
    if not ran.images:
        reason = dict.fromkeys(got, "no step was left to do")
    else:
        got[IMAGES] = ran.images / ran.training
        try:
            ops = step_ops(spec, not_known, ran)
            flop = sum(op.count * sum(op.flop.values()) for op in ops) / ran.batch
            got[FLOP] = flop * ran.images / ran.training
            limit = _limit(ops, profile, ran.training)
            least = ran.images / ran.batch * limit.seconds
            best = {IMAGES: ran.images / least, FLOP: flop * ran.images / least}
            gap = _gaps(ran, least)
            if least <= ran.training:
                share = dict.fromkeys(got, least / ran.training)
            else:
                text = (
                    f"{ran.images:,} images in {ran.training:.3g} s are less than the limit of {least:.3g} s: the "
                    "ceiling was measured while the device was slower"
                )
                reason = dict.fromkeys(got, text)
        except UserError as error:
            reason = dict.fromkeys(got, str(error))
    energy = None
    if load.energy_j is None or not ran.images:
        reason["energy"] = load.missing.get("energy_j", "no sensor gave it") if ran.images else "no step was left to do"
    else:
        energy = Energy(load.energy_j, load.energy_j / ran.images, load.energy_scope or "device")
    return Outcome(
        SCHEMA, "train", ran.device, got, best, share, reason, energy, ran.memory_bytes, gap, _result(ran, limit, load)
    )


def step_ops(spec: ModelSpec | None, not_known: str | None, ran: Ran) -> tuple[Op, ...]:
    """One step on a whole batch. Raises UserError where the model's parts are not known."""
    if spec is None:
        raise UserError(f"the model's FLOPs are not known: {not_known}")
    training = Training("full", recompute="none", master=False, optimizer=ran.optimizer, gradient="fp32", fused=True)
    compute = "fp32" if ran.precision == "fp64" else ran.precision
    ops = ops_of(spec, Workload("train", ran.batch, 1, weights="fp32", compute=compute, training=training))
    if ran.precision == "fp64":
        raise UserError("fp64 is for checks; its limit is not asked for")
    return ops


def _limit(ops: tuple[Op, ...], profile: DeviceProfile | None, seconds: float) -> Limit:
    if profile is None:
        raise UserError("this device has not been measured: nearpeak measure")
    sustained = burst_or_sustained(profile, seconds) == "sustained"
    return limit_of(ops, rates_of_profile(profile, sustained))


def _gaps(ran: Ran, least: float) -> tuple[Gap, ...]:
    """The time above the limit by part, as the watched steps had it."""
    watched = sum(ran.sampled.values())
    if not watched:
        return (Gap("steps: all that is above the limit", max(0.0, ran.training - least)),)
    spent = {part: ran.training * seconds / watched for part, seconds in ran.sampled.items()}
    whole = spent.pop("step", 0.0)  # a recorded one has no parts; the last batch of an epoch has
    passes = whole + spent.pop("forward", 0.0) + spent.pop("backward", 0.0)
    names = {"data": "data: gathering batches", "update": "update: the optimizer"}
    what = "forward, backward and update" if whole else "forward and backward"
    gaps = [Gap(f"{what}: products below their ceiling, and what runs between", passes - least)]
    gaps += [Gap(names.get(part, part), seconds) for part, seconds in spent.items()]
    return tuple(gap for gap in gaps if gap.seconds > 0)


def _result(ran: Ran, limit: Limit | None, load: Load) -> dict[str, object]:
    tests = [line for line in ran.curve if "test_accuracy" in line]
    losses = [line for line in ran.curve if "loss" in line]
    return {
        "model": ran.model,
        "precision": ran.precision,
        "batch": ran.batch,
        "steps": ran.total_steps,
        "steps_done_here": ran.steps,
        "images_done_here": ran.images,
        "resumed_at": ran.resumed_at,
        "complete": ran.complete,
        "loss": losses[-1]["loss"] if losses else None,
        "test_loss": tests[-1]["test_loss"] if tests else None,
        "test_accuracy": tests[-1]["test_accuracy"] if tests else None,
        "flop_convention": CONVENTION,
        "bound_by": limit.bound_by if limit else None,
        "limit_source": limit.source if limit else None,
        "power_w": load.power_w,
        "seconds": {"training": ran.training, **ran.seconds},
        "settings": [{"name": n, "value": v, "reason": r} for n, v, r in ran.settings],
        "files": dict(ran.files),
        "notes": list(ran.notes),
        "curve": [dict(line) for line in ran.curve],
    }
