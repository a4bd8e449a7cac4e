"""NVIDIA cards as devices: what NVML and torch say of each, joined by UUID or PCI address, never by index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nearpeak.hardware.nvidia_facts import facts
from nearpeak.hardware.nvml import Nvml
from nearpeak.hardware.nvml_cards import NvmlCard, nvml_cards
from nearpeak.hardware.torch_cuda import TorchCard, TorchCuda, read_torch_cuda
from nearpeak.hardware.visible import Visible, visible_devices
from nearpeak.records.device import Device

NOT_JOINED = "several cards, and neither UUID nor PCI address says which of NVML's is which of torch's: not guessed"


def nvidia_devices(
    nvml: Nvml | None = None,
    cuda: TorchCuda | None = None,
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> tuple[Device, ...]:
    """All NVIDIA cards and MIG slices: torch's in torch's order, then those it cannot use, each with the reason."""
    nvml = Nvml(root=root) if nvml is None else nvml
    cuda = read_torch_cuda() if cuda is None else cuda
    environment = os.environ if environment is None else environment
    cards = nvml_cards(nvml)
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    visible = visible_devices(variable, [c.listed for c in cards], environment.get("CUDA_DEVICE_ORDER"))
    pairs, rest = join(cards, cuda.cards, visible)
    devices = []
    for card, seen in pairs:
        unusable = not_runnable(seen.capability, cuda.architectures)
        no_nvml = nvml.failure or (None if card else NOT_JOINED if len(cards) > 1 else "NVML does not list this card")
        device = facts(nvml, card, seen, no_nvml, root)
        devices.append(replace(device, torch_name=None, unusable=unusable) if unusable else device)
    for card in rest:
        why = why_not_seen(card, cards, cuda, variable, visible)
        devices.append(replace(facts(nvml, card, None, None, root), unusable=why))
    return tuple(devices)


def join(
    cards: Sequence[NvmlCard], seen: Sequence[TorchCard], visible: Visible
) -> tuple[list[tuple[NvmlCard | None, TorchCard]], list[NvmlCard]]:
    """Pair torch's cards with NVML's, and list NVML's that torch does not see.

    A torch card that cannot be paired for certain stays alone; NVML's cards that could be it are then not listed a
    second time. A card cut into MIG slices is stood for by its slices.
    """
    cut = {id(c.parent) for c in cards if c.parent}
    whole = [c for c in cards if id(c) not in cut]
    pairs: list[tuple[NvmlCard | None, TorchCard]] = []
    for one in seen:
        taken = [id(c) for c, _ in pairs if c]
        pairs.append((_match(one, [c for c in whole if id(c) not in taken], visible), one))
    rest = [c for c in whole if not any(c is p for p, _ in pairs)]
    alone = [place for place, (card, _) in enumerate(pairs) if card is None]
    lone = [seen[place] for place in alone]
    if len(lone) == len(rest) == 1 and rest[0].name == lone[0].name and not _differ(rest[0], lone[0]):
        pairs[alone[0]] = (rest[0], lone[0])  # one card on each side leaves nothing to guess
        return pairs, []
    return pairs, [c for c in rest if all(_differ(c, one) for one in lone)]


def _match(one: TorchCard, cards: Sequence[NvmlCard], visible: Visible) -> NvmlCard | None:
    for fits in (_same_uuid, _same_pci):
        fitting = [c for c in cards if fits(c, one)]
        if len(fitting) > 1:
            # Several slices of one card: torch gave the card's identity; the environment may tell the slice.
            fitting = [c for c in fitting if c.listed in visible.order]
        if len(fitting) == 1:
            return fitting[0]
    return None


def _same_uuid(card: NvmlCard, one: TorchCard) -> bool:
    """torch gives the UUID without "GPU-"; for a slice its own or, in older CUDA, its card's."""
    if one.uuid is None:
        return False
    own = [c.uuid[4:].lower() for c in (card, card.parent) if c is not None and c.uuid]
    return one.uuid in own


def _same_pci(card: NvmlCard, one: TorchCard) -> bool:
    if card.uuid and one.uuid and not card.parent:
        return False  # both have a UUID, and it differs
    return card.pci_address is not None and card.pci_address == one.pci_address


def _differ(card: NvmlCard, one: TorchCard) -> bool:
    """Whether these two are certainly different cards."""
    if card.uuid and one.uuid:
        return not _same_uuid(card, one)
    if card.pci_address and one.pci_address:
        return card.pci_address != one.pci_address
    return False


def why_not_seen(
    card: NvmlCard, cards: Sequence[NvmlCard], cuda: TorchCuda, variable: str | None, visible: Visible
) -> str:
    """Why torch does not see a card that NVML lists."""
    if cuda.reason and cuda.reason.startswith("the installed torch"):
        return cuda.reason
    if card.mig_without_slices:
        return "MIG mode is on and the card has no slices; make one, or switch MIG mode off"
    hidden = variable is not None and not visible.may_see(card.listed)
    if card.parent and (hidden or card.listed not in visible.order):
        return f"not chosen: a process uses one MIG slice; choose it with CUDA_VISIBLE_DEVICES={card.uuid}"
    if hidden:
        return f"hidden by CUDA_VISIBLE_DEVICES={variable!r}" + (f" ({visible.reason})" if visible.reason else "")
    if variable is not None and cuda.cards:
        return f"hidden by CUDA_VISIBLE_DEVICES={variable!r}"
    return cuda.reason or "torch does not see it"


def not_runnable(capability: tuple[int, int] | None, architectures: Sequence[str]) -> str | None:
    """Why the installed torch has no code that this compute capability runs; None where it has, or cannot be known.

    Machine code of sm_XY runs on X.Z with Z ≥ Y; sm_XYa on X.Y alone; compute_XY is compiled for anything newer.
    """
    if capability is None or not architectures:
        return None
    for name in architectures:
        family, _, digits = name.partition("_")
        exact = not digits.isdigit()
        digits = digits.rstrip("abcdefghijklmnopqrstuvwxyz")
        if not digits.isdigit() or len(digits) < 2:
            continue
        built = (int(digits[:-1]), int(digits[-1]))
        if built == capability or (not exact and family == "compute" and built <= capability):
            return None
        if not exact and family == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            return None
    had = ", ".join(architectures)
    return f"the installed torch has no code for sm_{capability[0]}{capability[1]} (it was built for {had})"
