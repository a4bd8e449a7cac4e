"""The cards and MIG slices that NVML lists, with a handle and an identity each."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from nearpeak.hardware.nvml import NO_NUMBER, Answer, Nvml, as_text
from nearpeak.hardware.visible import Listed

log = logging.getLogger(__name__)

# NVML has no call for the number of slots on old drivers; seven slices is the most a card can be cut into.
MOST_SLICES = 7


@dataclass(frozen=True)
class NvmlCard:
    """A card, or a MIG slice of one (`parent` is then its card). Identities are None where NVML gave none."""

    handle: Any
    name: str
    uuid: str | None
    pci_address: str | None
    parent: NvmlCard | None = None
    instance: tuple[int, int] | None = None
    mig_without_slices: bool = False

    @property
    def listed(self) -> Listed:
        """The identity alone, for CUDA_VISIBLE_DEVICES."""
        parent = self.parent.uuid if self.parent else None
        return Listed(self.uuid or "", self.pci_address, parent, self.instance)


def nvml_cards(nvml: Nvml) -> tuple[NvmlCard, ...]:
    """All cards in NVML's order; a card cut into MIG slices is followed by them. Empty where NVML does not work."""
    count = nvml.number("", 1, "nvmlDeviceGetCount", zero=True).number
    cards: list[NvmlCard] = []
    for index in range(int(count or 0)):
        # The index only walks the list; nothing is ever joined by it.
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if handle.reason is not None:
            log.warning("one NVIDIA card cannot be opened: %s", handle.reason)
            continue
        cards += _card_and_slices(nvml, handle.value)
    return tuple(cards)


def open_handle(nvml: Nvml, identity: str, pci_address: str | None) -> Answer:
    """A handle by UUID, else by PCI address; never by index."""
    if identity.startswith(("GPU-", "MIG-")):
        answer = nvml.ask("nvmlDeviceGetHandleByUUID", identity)
        if answer.reason is None or pci_address is None or identity.startswith("MIG-"):
            return answer
    if pci_address is None:
        return Answer(reason="the device has neither a UUID nor a PCI address, so NVML cannot be asked about it")
    return nvml.ask("nvmlDeviceGetHandleByPciBusId", pci_address)


def pci_of(nvml: Nvml, handle: Any) -> str | None:
    """ "0000:01:00.0", or None."""
    answer = nvml.ask("nvmlDeviceGetPciInfo", handle)
    numbers = [getattr(answer.value, part, None) for part in ("domain", "bus", "device")]
    if not all(isinstance(n, int) and n >= 0 and n not in NO_NUMBER for n in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _card_and_slices(nvml: Nvml, handle: Any) -> list[NvmlCard]:
    card = NvmlCard(handle, _name(nvml, handle), _uuid(nvml, handle), pci_of(nvml, handle))
    mode = nvml.ask("nvmlDeviceGetMigMode", handle).value
    if not isinstance(mode, list | tuple) or not mode or mode[0] != 1:
        return [card]
    most = nvml.number("", 1, "nvmlDeviceGetMaxMigDeviceCount", handle).number
    slices = []
    for slot in range(min(int(most or MOST_SLICES), 64)):
        answer = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        if answer.reason is None:  # an empty slot answers "not found"
            slices.append(_slice(nvml, answer.value, card))
    if not slices:
        return [NvmlCard(handle, card.name, card.uuid, card.pci_address, mig_without_slices=True)]
    return [card, *slices]


def _slice(nvml: Nvml, handle: Any, card: NvmlCard) -> NvmlCard:
    instance = [nvml.ask(f"nvmlDeviceGet{part}InstanceId", handle).value for part in ("Gpu", "Compute")]
    pair = (instance[0], instance[1]) if all(isinstance(n, int) for n in instance) else None
    uuid = _uuid(nvml, handle)
    name = _name(nvml, handle)
    if "MIG" not in name:
        name = f"{card.name} MIG slice"
    return NvmlCard(handle, name, uuid, card.pci_address, card, pair)


def _name(nvml: Nvml, handle: Any) -> str:
    return str(nvml.text("nvmlDeviceGetName", handle).value or "unknown NVIDIA GPU")


def _uuid(nvml: Nvml, handle: Any) -> str | None:
    text = as_text(nvml.ask("nvmlDeviceGetUUID", handle).value)
    return text if text and text.startswith(("GPU-", "MIG-")) and text[4:].strip("0-") else None
