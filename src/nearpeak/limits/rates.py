"""What a device sustains: from its machine profile, or from its spec and a stated fraction."""

from __future__ import annotations

from nearpeak.records.errors import UserError
from nearpeak.records.limit import Rates
from nearpeak.records.machine_profile import DeviceProfile
from nearpeak.records.spec import Spec

# Where a card has no units for a precision, its products run in the next.
INSTEAD = {"fp8": "bf16", "fp4": "fp8", "int8": "bf16", "bf16": "fp16", "fp16": "fp32", "tf32": "fp32"}


def rates_of_profile(profile: DeviceProfile, sustained: bool) -> Rates:
    """The fastest valid ceiling of each precision, and of reading memory. Sustained figures fall back to bursts where
    there are none (a cost, or --quick). Raises UserError where the profile has no figure for memory."""
    matmul: dict[str, float] = {}
    memory, launch = None, None
    for ceiling in profile.ceilings:
        value = (ceiling.sustained if sustained else None) or ceiling.burst
        if ceiling.invalid or not value:
            continue
        if ceiling.kind == "matmul" and ceiling.precision:
            matmul[ceiling.precision] = max(value, matmul.get(ceiling.precision, 0.0))
        elif ceiling.kind == "memory_read":
            memory = value
        elif ceiling.kind == "launch_graph":
            launch = ceiling.burst
    if memory is None:
        raise UserError(f"the profile of {profile.name} has no memory-read ceiling; measure it: nearpeak measure")
    which = "sustained" if sustained else "burst"
    return _filled(Rates(profile.name, matmul, memory, f"measured here ({which})", launch))


def rates_of_spec(spec: Spec, matmul_fraction: float, memory_fraction: float) -> Rates:
    """A maker's figures times stated fractions; unverified ones are left out and said so.

    Raises UserError where the sheet has no memory bandwidth.
    """
    bandwidth = spec.memory_bandwidth
    if bandwidth is None:
        raise UserError(f"no memory bandwidth is known of {spec.name}; measure it: nearpeak measure")
    matmul: dict[str, float] = {}
    missing: dict[str, str] = {}
    for rate in spec.rates:
        if rate.accumulate == "fp16" and rate.precision == "fp16":
            continue  # sums in fp16 are not what models are run with
        if rate.figure.provenance == "unverified":
            missing.setdefault(rate.precision, f"the figure of {spec.name} is unverified")
            continue
        matmul[rate.precision] = max(rate.figure.value * matmul_fraction, matmul.get(rate.precision, 0.0))
    source = f"spec × {matmul_fraction:.2f} (matmul), × {memory_fraction:.2f} (memory)"
    return _filled(Rates(spec.name, matmul, bandwidth.value * memory_fraction, source, None, missing))


def _filled(rates: Rates) -> Rates:
    """With the rate of the next precision where a card has no units of its own, the reason beside it."""
    matmul, missing = dict(rates.matmul), dict(rates.missing)
    for precision in INSTEAD:
        other: str | None = precision
        while other and other not in rates.matmul:
            other = INSTEAD.get(other)
        if other and other != precision:
            matmul[precision] = rates.matmul[other]
            missing[precision] = f"no figure of its own: products run in {other}"
    return Rates(rates.device, matmul, rates.memory, rates.source, rates.launch_s, missing)
