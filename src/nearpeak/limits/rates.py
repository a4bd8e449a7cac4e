"""What a device sustains: from its machine profile, or from its spec and stated fractions."""

from __future__ import annotations

import math
from dataclasses import replace

from nearpeak.records.ceiling import Ceiling
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Rates
from nearpeak.records.machine_profile import DeviceProfile
from nearpeak.records.spec import Spec

# Where a device has no units for a precision, its products run in the next that it has. fp16 has not the range of bf16,
# yet it is what bf16 models are run in on cards without bf16 units.
INSTEAD = {
    "fp4": ("fp8", "bf16", "fp16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "int8": ("bf16", "fp16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
}
# Sums that models are run with: in fp32 (or the fp8 units' own), integers in int32. fp16 sums overflow.
SUMS = {"fp64": ("fp64",), "int8": ("int32",)}
USUAL_SUMS = ("fp32", "fast")


def rates_of_profile(profile: DeviceProfile, sustained: bool) -> Rates:
    """The fastest valid ceiling of each precision, and of reading memory and the last-level cache.

    Where nothing sustained was measured of a product (a run with --quick) its burst stands in, and the source says so;
    memory has one figure for both where its rate does not fall under load. Raises UserError where the profile has no
    ceiling for memory.
    """
    bursts = bursts_alone(profile)
    matmul: dict[str, float] = {}
    missing: dict[str, str] = {}
    single: dict[str, float] = {}
    for ceiling in profile.ceilings:
        precision = ceiling.precision or ""
        if ceiling.kind == "matmul" and not _usual_sums(ceiling):
            continue
        if ceiling.invalid or not ceiling.burst:
            if ceiling.kind == "matmul":
                missing.setdefault(precision, f"its ceiling is not valid: {ceiling.invalid}")
            continue
        if ceiling.kind == "matmul":
            value = ceiling.sustained if sustained and precision not in bursts else ceiling.burst
            matmul[precision] = max(value or 0.0, matmul.get(precision, 0.0))
        else:
            lasting = ceiling.sustained if sustained and not ceiling.kind.startswith("launch") else None
            single.setdefault(ceiling.kind, lasting or ceiling.burst)
    if "memory_read" not in single:
        raise UserError(f"the profile of {profile.name} has no memory-read ceiling; measure it: nearpeak measure")
    size = profile.device.cache.number
    return _filled(
        Rates(
            profile.name, matmul, single["memory_read"], _measured(matmul, bursts, sustained),
            single.get("launch_graph"), {name: why for name, why in missing.items() if name not in matmul},
            single.get("cache_read"), int(size) if size else None,
        )
    )  # fmt: skip


def bursts_alone(profile: DeviceProfile) -> frozenset[str]:
    """Precisions whose products were measured in bursts alone: no valid ceiling of them has a sustained figure."""
    valid = [c for c in profile.ceilings if c.kind == "matmul" and _usual_sums(c) and not c.invalid and c.burst]
    lasting = {c.precision for c in valid if c.sustained}
    return frozenset(c.precision or "" for c in valid if c.precision not in lasting)


def _usual_sums(ceiling: Ceiling) -> bool:
    return ceiling.accumulate in SUMS.get(ceiling.precision or "", USUAL_SUMS)


def _measured(matmul: dict[str, float], bursts: frozenset[str], sustained: bool) -> str:
    """What the rates are, in words."""
    if not sustained:
        return "measured here (burst)"
    if bursts.issuperset(matmul):
        return "measured here (burst: nothing sustained was measured)"
    return "measured here (sustained" + (
        f"; burst for {', '.join(p for p in matmul if p in bursts)})" if bursts else ")"
    )


def rates_of_spec(spec: Spec, fraction_matmul: float, fraction_memory: float) -> Rates:
    """A maker's dense figures times stated fractions; unverified ones are left out, and that is said.

    Raises UserError where no memory bandwidth is known, or a fraction is not in (0, 1].
    """
    for fraction in (fraction_matmul, fraction_memory):
        if not 0 < fraction <= 1:
            raise UserError(f"a device reaches more than 0 and at most 1 of its sheet, not {fraction:g} of it")
    bandwidth = spec.memory_bandwidth
    if bandwidth is None or bandwidth.provenance == "unverified":
        raise UserError(f"no memory bandwidth is known of {spec.name}; measure it: nearpeak measure")
    matmul: dict[str, float] = {}
    missing: dict[str, str] = {}
    for rate in spec.rates:
        if rate.accumulate not in SUMS.get(rate.precision, USUAL_SUMS):
            continue
        if rate.figure.provenance == "unverified":
            missing[rate.precision] = f"the figure of {spec.name} is unverified"
            continue
        matmul[rate.precision] = max(rate.figure.value * fraction_matmul, matmul.get(rate.precision, 0.0))
    source = f"spec × {fraction_matmul:.2f}"
    if fraction_memory != fraction_matmul:
        source += f" (products), × {fraction_memory:.2f} (memory)"
    missing = {name: why for name, why in missing.items() if name not in matmul}
    return _filled(Rates(spec.name, matmul, bandwidth.value * fraction_memory, source, None, missing))


def _filled(rates: Rates) -> Rates:
    """With the rate of the next precision where a device has no units of its own, the reason beside it; and of fp32,
    which can stand in for any narrower product, where that is faster (processors that emulate bf16)."""
    matmul, missing = dict(rates.matmul), dict(rates.missing)
    for precision, others in INSTEAD.items():
        other = next((o for o in others if o in rates.matmul), None)
        if precision not in matmul and other:
            matmul[precision] = rates.matmul[other]
            missing[precision] = f"{missing.get(precision, 'no such units are known')}: products run in {other}"
        if matmul.get("fp32", 0.0) > matmul.get(precision, math.inf):
            matmul[precision] = matmul["fp32"]
            missing[precision] = "slower than fp32 here: products run in fp32"
    return replace(rates, matmul=matmul, missing=missing)
