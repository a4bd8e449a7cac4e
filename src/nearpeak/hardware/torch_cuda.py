"""What torch says of its CUDA build and of the cards it sees, as plain data. No judgement here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nearpeak.records.errors import first_line


@dataclass(frozen=True)
class TorchCard:
    """One card as torch numbers it in this process. A None is what torch could not say.

    uuid         without its "GPU-" or "MIG-" in front
    pci_address  "0000:01:00.0"
    memory       total bytes; cache: bytes of the level-2 cache
    clock        Hz; torch built for CUDA 13 no longer says it
    integrated   the card shares the host's memory
    """

    index: int
    name: str
    uuid: str | None
    pci_address: str | None
    capability: tuple[int, int] | None
    units: int | None
    memory: int | None
    cache: int | None
    clock: float | None
    integrated: bool


@dataclass(frozen=True)
class TorchCuda:
    """torch's CUDA: `reason` says why there are no cards. `architectures` is the build's list ("sm_90", …)."""

    cards: tuple[TorchCard, ...] = ()
    architectures: tuple[str, ...] = ()
    reason: str | None = None


def read_torch_cuda(module: Any = None) -> TorchCuda:
    """Ask torch (imported here unless a `module` is handed in). Never raises; makes no CUDA context."""
    try:
        torch = _torch() if module is None else module
        if getattr(torch.version, "hip", None):
            return TorchCuda(reason="the installed torch is a ROCm build and cannot use NVIDIA cards")
        if not getattr(torch.version, "cuda", None):
            return TorchCuda(reason="the installed torch has no CUDA build")
        if not torch.cuda.is_available():
            return TorchCuda(reason=_why_unavailable(torch))
        count = int(torch.cuda.device_count())
    except Exception as error:
        return TorchCuda(reason=f"torch cannot use CUDA ({first_line(error)[:200]})")
    cards = tuple(card for i in range(count) if (card := _card(torch, i)) is not None)
    reason = None if cards else "torch sees no CUDA device"
    return TorchCuda(cards, _architectures(torch), reason)


def free_memory(index: int, module: Any = None) -> int | None:
    """Free bytes by CUDA. Makes a context on the card (some hundred megabytes), so only where NVML cannot answer."""
    try:
        torch = _torch() if module is None else module
        return int(torch.cuda.mem_get_info(index)[0])
    except Exception:
        return None


def _torch() -> Any:
    import torch

    return torch


def _card(torch: Any, index: int) -> TorchCard | None:
    try:
        properties = torch.cuda.get_device_properties(index)
    except Exception:
        return None

    def whole(*names: str) -> int | None:
        for name in names:
            value = getattr(properties, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    clock = whole("clock_rate")
    return TorchCard(
        index=index,
        name=str(getattr(properties, "name", "") or "unknown GPU"),
        uuid=_uuid(getattr(properties, "uuid", None)),
        pci_address=_pci(properties),
        capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) and major > 0 else None,
        units=whole("multi_processor_count"),
        memory=whole("total_memory"),
        cache=whole("L2_cache_size", "l2_cache_size"),
        clock=clock * 1e3 if clock else None,
        integrated=bool(getattr(properties, "is_integrated", 0)),
    )


def _uuid(value: Any) -> str | None:
    text = str(value).lower() if value is not None else ""
    text = text.removeprefix("gpu-").removeprefix("mig-")
    return text if text.strip("0-") else None


def _pci(properties: Any) -> str | None:
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _architectures(torch: Any) -> tuple[str, ...]:
    ask: Callable[[], Any] = getattr(torch.cuda, "get_arch_list", list)
    try:
        return tuple(str(a) for a in ask())
    except Exception:
        return ()


def _why_unavailable(torch: Any) -> str:
    """is_available() swallows the cause; init() tells it."""
    try:
        torch.cuda.init()
    except Exception as error:
        return f"torch cannot use CUDA ({first_line(error)[:200]})"
    return "torch sees no CUDA device"
