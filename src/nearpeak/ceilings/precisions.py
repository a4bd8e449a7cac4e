"""Which precisions a device really has: decided by its architecture and features, never by its name or by trying."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearpeak.records.device import Device


@dataclass(frozen=True)
class Precision:
    """One kind of product. emulated: why it runs without units of its own; absent: why it is not measured at all.

    accumulate is what the sums are kept in: fp64, fp32, fp16, int32, or "fast" for fp8 sums that stay in the matrix
    unit's own accumulator, narrower than fp32 (torch's use_fast_accum).
    """

    name: str
    accumulate: str
    emulated: str | None = None
    absent: str | None = None


def precisions_of(device: Device) -> tuple[Precision, ...]:
    """Every precision that nearpeak knows, each with what this device makes of it."""
    if device.kind == "cpu":
        return _of_cpu(device.features)
    major_minor = compute_capability(device.architecture)
    if major_minor is None:
        why = f"{device.architecture or 'an unknown architecture'}: only fp64 and fp32 are known to exist"
        return (
            Precision("fp64", "fp64"),
            Precision("fp32", "fp32"),
            *(Precision(name, "fp32", absent=why) for name in ("tf32", "fp16", "bf16", "fp8")),
            Precision("int8", "int32", absent=why),
        )
    return _of_nvidia(major_minor)


def compute_capability(architecture: str | None) -> tuple[int, int] | None:
    """(9, 0) from "sm_90" or "sm_90a"; None for other makers."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", architecture or "")
    return (int(match[1]), int(match[2])) if match else None


def _of_nvidia(capability: tuple[int, int]) -> tuple[Precision, ...]:
    def since(name: str, accumulate: str, first: tuple[int, int]) -> Precision:
        if capability >= first:
            return Precision(name, accumulate)
        need, have = (f"sm_{major}{minor}" for major, minor in (first, capability))
        return Precision(name, accumulate, absent=f"{name} matrix units came with {need}; this card is {have}")

    bf16 = since("bf16", "fp32", (8, 0))
    if bf16.absent:  # torch computes it all the same, many times slower: worth showing to who believes it is supported
        bf16 = Precision("bf16", "fp32", emulated=bf16.absent)
    return (
        Precision("fp64", "fp64"),
        Precision("fp32", "fp32"),
        since("tf32", "fp32", (8, 0)),
        since("fp16", "fp32", (7, 0)),
        since("fp16", "fp16", (7, 0)),
        bf16,
        since("fp8", "fp32", (8, 9)),
        since("fp8", "fast", (8, 9)),
        since("int8", "int32", (7, 5)),
    )


# The first feature found is what multiplies; torch's CPU products go through oneDNN, which uses exactly these.
_CPU_UNITS = {
    "bf16": ("amx_bf16", "avx512_bf16", "bf16"),
    "fp16": ("amx_fp16", "avx512_fp16", "fphp"),
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm"),
}


def _of_cpu(features: tuple[str, ...]) -> tuple[Precision, ...]:
    def with_units(name: str, accumulate: str) -> Precision:
        units = _CPU_UNITS[name]
        if any(unit in features for unit in units):
            return Precision(name, accumulate)
        return Precision(name, accumulate, emulated=f"this CPU has none of {', '.join(units)}")

    return (
        Precision("fp64", "fp64"),
        Precision("fp32", "fp32"),
        with_units("bf16", "fp32"),
        with_units("fp16", "fp32"),
        with_units("int8", "int32"),
        Precision("tf32", "fp32", absent="a GPU format; CPUs have none"),
        Precision("fp8", "fp32", absent="torch has no fp8 product on the CPU"),
    )
