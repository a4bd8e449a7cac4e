"""What is free on a device, and a load that does not fit refused with the numbers."""

from __future__ import annotations

from pathlib import Path

import torch

from nearpeak.hardware.host_memory import host_memory
from nearpeak.records.errors import UserError


def free_bytes(device: torch.device) -> int | None:
    """Free on this GPU by its driver, with what torch holds unused; available on the host, which pages of files that
    can be dropped are part of. None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    value = host_memory()[1].value
    return int(value) if isinstance(value, (int, float)) else None


def refuse_what_does_not_fit(path: Path, needed: int, device: torch.device, what: str) -> None:
    """Raise UserError where `needed` bytes are more than are free. what: the bytes in words."""
    free = free_bytes(device)
    if free is not None and needed > free:
        where = f"on {device}" if device.type == "cuda" else "of the host's memory"
        raise UserError(
            f"{path}: {what} take {needed:,} bytes {where}, of which {free:,} are free ({needed / 1e9:.1f} of "
            f"{free / 1e9:.1f} GB). Free some, or choose a smaller model, or a file of it with fewer bits."
        )
