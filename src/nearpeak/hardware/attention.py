"""Which of torch's attention kernels work on a device, each tried on a small product."""

from __future__ import annotations

import warnings
from typing import Any

from nearpeak.records.device import Device
from nearpeak.records.library import Library

# torch's name, ours, what its absence costs. `math` is the plain path that always works.
KERNELS = (
    ("FLASH_ATTENTION", "flash attention", "long sequences run slower and need more memory"),
    ("EFFICIENT_ATTENTION", "memory-efficient attention", "attention with a mask of one's own needs more memory"),
    ("CUDNN_ATTENTION", "cuDNN attention", "one of the fast attention paths is missing"),
    ("MATH", "plain attention", "no attention works through torch"),
)
SHAPE = (1, 8, 128, 64)  # batch, heads, length, width of a head: every fused kernel takes it


def attention_libraries(torch: Any, device: Device | None) -> tuple[Library, ...]:
    """One entry a kernel: in use where torch's own choice for an unmasked product falls on it. Never raises."""
    if device is None or device.torch_name is None:
        return ()
    try:
        precision = _precision(torch, device)
        generator = torch.Generator(device=device.torch_name).manual_seed(0)
        query = torch.randn(SHAPE, device=device.torch_name, dtype=precision, generator=generator)
    except Exception as error:
        fault = _line(error)
        return tuple(Library(name, None, False, f"could not be tried: {fault}") for _, name, _ in KERNELS)
    chosen = _choice(torch, query)
    where = f"{device.torch_name}, {str(precision).removeprefix('torch.')}"
    return tuple(_tried(torch, query, kernel, name, cost, chosen, where) for kernel, name, cost in KERNELS)


def _tried(torch: Any, query: Any, kernel: str, name: str, cost: str, chosen: str | None, where: str) -> Library:
    try:
        backend = getattr(torch.nn.attention.SDPBackend, kernel)
        with warnings.catch_warnings(), torch.nn.attention.sdpa_kernel(backend):
            warnings.simplefilter("ignore")  # torch warns at length why a kernel does not fit; the error is enough
            torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
            if query.device.type == "cuda":
                torch.cuda.synchronize(query.device)
    except Exception as error:
        fault = _line(error)
        why = f"torch has none for {where}" if "No viable backend" in fault or "No available kernel" in fault else fault
        return Library(name, None, False, why, cost)
    first = kernel == chosen
    return Library(name, None, first, f"works on {where}" + ("; torch's first choice" if first else ""))


def _choice(torch: Any, query: Any) -> str | None:
    """The kernel that torch picks when all are allowed."""
    try:
        number = int(torch._fused_sdp_choice(query, query, query, is_causal=True))
        for kernel, _, _ in KERNELS:
            if int(getattr(torch.nn.attention.SDPBackend, kernel).value) == number:
                return kernel
    except Exception:
        return None
    return None


def _precision(torch: Any, device: Device) -> Any:
    """The fused kernels take 16 bits; bf16 units exist from sm_80 on (torch claims them on older cards, emulated)."""
    if device.kind == "cpu":
        return torch.float32
    digits = (device.architecture or "").removeprefix("sm_")
    return torch.float16 if digits.isdigit() and int(digits) < 80 else torch.bfloat16


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:160]
