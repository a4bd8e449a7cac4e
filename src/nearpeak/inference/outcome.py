"""One answer held against what the device could have given: the Outcome of `nearpeak run`."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.inference.engine import Answer
from nearpeak.limits.limit import burst_or_sustained, limit_of
from nearpeak.limits.ops import ops_of
from nearpeak.limits.rates import rates_of_profile
from nearpeak.records.ceiling import Load
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Limit, Op
from nearpeak.records.machine_profile import DeviceProfile
from nearpeak.records.model_spec import ModelSpec
from nearpeak.records.outcome import SCHEMA, Energy, Gap, Outcome
from nearpeak.records.workload import Workload

PREFILL, DECODE = "prefill_tokens_per_s", "decode_tokens_per_s"


@dataclass(frozen=True)
class Ran:
    """What is known of a run beside its answer.

    precision     of the weights; compute: of the products
    weight_bytes  that each token reads; cache_bytes: that decoding reads of the cache, all its tokens together
    memory_bytes  peak on the device
    load_seconds  from disk to ready to run; of them read_seconds for reading and unpacking the load_bytes of the files
    disk          bytes a second that the disk gives past the page cache; None, and why in `no_disk`
    """

    model: str
    how: str
    device: str
    precision: str
    compute: str
    weight_bytes: int
    cache_bytes: int
    memory_bytes: int
    load_seconds: float
    read_seconds: float
    load_bytes: int
    disk: float | None = None
    no_disk: str | None = None


@dataclass(frozen=True)
class _Phase:
    """tokens in `seconds`; `steps` passes through the model, each of `step` at the least."""

    tokens: int
    seconds: float
    steps: int
    step: Op


def outcome_of(answer: Answer, ran: Ran, spec: ModelSpec | None, profile: DeviceProfile | None, load: Load) -> Outcome:
    """spec or profile None: no limit is known, and the reason says why; load: what the sensors said during the run."""
    phases, reason = _phases(answer, ran, spec)
    got: dict[str, float | None] = {PREFILL: None, DECODE: None}
    best, share = dict(got), dict(got)
    limits: dict[str, Limit] = {}
    gap: list[Gap] = []
    for name, phase in phases.items():
        got[name] = phase.tokens / phase.seconds
        try:
            limits[name] = limit = _limit(phase, spec, profile)
        except UserError as error:
            reason[name] = str(error)
            continue
        least = phase.steps * limit.seconds
        best[name] = phase.tokens / least
        if least <= phase.seconds:
            share[name] = least / phase.seconds
        else:
            reason[name] = (
                f"{phase.tokens:,} tokens in {phase.seconds:.3g} s are less than the limit of {least:.3g} s: the "
                "ceiling was measured while the device was slower, or what is read lay in a cache"
            )
        gap += _gaps(name.partition("_")[0], phase, limit)
    energy = None
    if load.energy_j is None:
        reason["energy"] = load.missing.get("energy_j", "no sensor gave it")
    else:
        energy = Energy(load.energy_j, load.energy_j / len(answer.ids), load.energy_scope or "device")
    return Outcome(
        SCHEMA, "run", ran.device, got, best, share, reason, energy, ran.memory_bytes, tuple(gap),
        _result(answer, ran, limits),
    )  # fmt: skip


def _phases(answer: Answer, ran: Ran, spec: ModelSpec | None) -> tuple[dict[str, _Phase], dict[str, str]]:
    """FLOPs by the model's spec, bytes by what the runner holds and must read: every weight once a pass, and the cache.

    A step of decoding is the mean one.
    """
    found: dict[str, _Phase] = {}
    reason: dict[str, str] = {}
    read, later = answer.prompt_tokens - answer.reused, len(answer.token_seconds)
    if answer.prefill_seconds:
        flop = _flop(spec, Workload("prefill", 1, read, answer.reused, compute=ran.compute))
        found[PREFILL] = _Phase(read, answer.prefill_seconds, 1, Op("prefill", 1, flop, ran.weight_bytes, 0.0))
    if later:
        flop = _flop(spec, Workload("decode", 1, 1, answer.prompt_tokens + later // 2, compute=ran.compute))
        step = Op("decode", 1, flop, ran.weight_bytes + ran.cache_bytes / later, 0.0)
        found[DECODE] = _Phase(later, sum(answer.token_seconds), later, step)
    else:
        reason[DECODE] = "the answer has one token, which prefill gave"
    return found, reason


def _flop(spec: ModelSpec | None, work: Workload) -> dict[str, float]:
    """All counted in the precision that products run in."""
    total = sum(op.count * sum(op.flop.values()) for op in ops_of(spec, work)) if spec else 0.0
    return {work.compute: total}


def _limit(phase: _Phase, spec: ModelSpec | None, profile: DeviceProfile | None) -> Limit:
    """Of one step."""
    if spec is None:
        raise UserError("nearpeak does not know the parts of this family, and so not its FLOPs")
    if profile is None:
        raise UserError("this device has not been measured: nearpeak measure")
    sustained = burst_or_sustained(profile, phase.seconds) == "sustained"
    return limit_of([phase.step], rates_of_profile(profile, sustained))


def _gaps(name: str, phase: _Phase, limit: Limit) -> list[Gap]:
    """The time above the limit."""
    over = phase.seconds - phase.steps * limit.seconds
    cause = f"{name}: products below their ceiling, and whatever runs between them"
    return [Gap(cause, over)] if over > 0 else []


def _result(answer: Answer, ran: Ran, limits: dict[str, Limit]) -> dict[str, object]:
    later = len(answer.token_seconds)
    return {
        "model": ran.model,
        "text": answer.text,
        "stopped_by": answer.reason,
        "prompt_tokens": answer.prompt_tokens,
        "reused_tokens": answer.reused,
        "generated_tokens": len(answer.ids),
        "precision": ran.precision,
        "how": ran.how,
        "ttft_s": answer.prefill_seconds,
        "tpot_s": sum(answer.token_seconds) / later if later else None,
        "bytes_per_token": ran.weight_bytes + (ran.cache_bytes / later if later else 0.0),
        "bound_by": {name: limit.bound_by for name, limit in limits.items()},
        "limit_source": next((limit.source for limit in limits.values()), None),
        "load": _load(ran),
        "logprobs": answer.logprobs or None,
    }


def _load(ran: Ran) -> dict[str, object]:
    """Reading the files, beside what their disk gives."""
    rate = ran.load_bytes / ran.read_seconds if ran.read_seconds else None
    share, reason = None, ran.no_disk
    if rate and ran.disk:
        share = rate / ran.disk if rate <= ran.disk else None
        reason = None if share else "they came faster than the disk gives: they lay in memory already"
    return {
        "seconds": ran.load_seconds, "read_seconds": ran.read_seconds, "bytes": ran.load_bytes, "bytes_per_s": rate,
        "disk_bytes_per_s": ran.disk, "share": share, "reason": reason,
    }  # fmt: skip
