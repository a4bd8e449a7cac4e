"""One GPU, or the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearpeak.records.reading import Reading


@dataclass(frozen=True)
class Device:
    """What is known of a device before any measurement. Each field stands alone: one that fails leaves the others.

    id            "GPU-…" or "MIG-…" (UUID), "pci:0000:01:00.0" where there is no UUID, or "cpu". Never a bare index
    name          as the driver reports it
    torch_name    how torch names it in this process ("cuda:0", "cpu"); None where torch cannot use it
    architecture  "sm_90", "gfx942", "x86_64", …; None where unknown
    features      instruction sets that decide which precisions a CPU has ("avx512_bf16", "amx_int8", …); empty for GPUs
    units         multiprocessors, compute units, or CPU cores that this process may use
    memory        total bytes; scope "shared with the host" for unified memory
    cache         last-level cache in bytes
    unusable      why it is listed but cannot be used (hidden by CUDA_VISIBLE_DEVICES, torch without CUDA, …)
    """

    id: str
    name: str
    kind: Literal["gpu", "cpu"]
    vendor: str
    torch_name: str | None
    pci_address: str | None
    architecture: str | None
    features: tuple[str, ...]
    units: int | None
    memory: Reading
    memory_available: Reading
    cache: Reading
    power_limit: Reading
    max_clock: Reading
    driver: Reading
    ecc: Reading
    link: Reading
    unusable: str | None = None
