"""CUDA_VISIBLE_DEVICES in all its forms, as a pure function: which cards a process may see, and in which order.

CUDA's rules, as its programming guide states them and as torch's own parser reads them where the guide is silent:

* unset: every card. Empty, or starting with an entry that names nothing ("-1", "x"): none.
* The list ends at the first entry that names nothing: a number out of range, an unknown or ambiguous UUID, an empty
  entry (so a trailing comma does no harm), or an entry of another kind than the first. "1,GPU-x" is card 1 alone.
* A number may have blanks before it and letters after it ("1gpu" is 1), as C's strtoul reads it.
* A UUID may be shortened as long as it fits one card.
* The same card twice: CUDA sees none at all.
* A process can use one MIG slice: the first that is named, or the first of the card where a number names the card.

Numbers count cards in CUDA's order: PCI order with CUDA_DEVICE_ORDER=PCI_BUS_ID, otherwise fastest first, which NVML
cannot know. Where that leaves open which card a number means, the place is kept as None and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ORDER_UNKNOWN = (
    "numbers in CUDA_VISIBLE_DEVICES count cards fastest first, which only CUDA can tell; "
    "set CUDA_DEVICE_ORDER=PCI_BUS_ID or name cards by UUID"
)


@dataclass(frozen=True)
class Listed:
    """A card or a MIG slice as NVML lists it.

    uuid      "GPU-…", or "MIG-…" for a slice
    parent    a slice's card ("GPU-…"), else None
    instance  a slice's (GPU instance, compute instance), else None
    """

    uuid: str
    pci_address: str | None = None
    parent: str | None = None
    instance: tuple[int, int] | None = None

    @property
    def mig(self) -> bool:
        return self.parent is not None


@dataclass(frozen=True)
class Visible:
    """Visible cards in CUDA's order (a None is one that NVML cannot tell), and why the list is not as long as asked."""

    order: tuple[Listed | None, ...]
    reason: str | None = None

    def may_see(self, listed: Listed) -> bool:
        """Whether this card is, or could be, among the visible ones."""
        return listed in self.order or (None in self.order and not listed.mig)


def visible_devices(variable: str | None, listed: Sequence[Listed], device_order: str | None = None) -> Visible:
    """Apply CUDA_VISIBLE_DEVICES (`variable`, None when unset) and CUDA_DEVICE_ORDER to what NVML lists."""
    cards = [d for d in listed if not d.mig]
    slices = [d for d in listed if d.mig]
    if variable is None:
        return _one_slice([_first_slice(card, slices) for card in cards], None)
    entries = variable.split(",")
    kind = _kind(entries[0])
    if kind is None:
        return Visible((), "it names no card" if variable.strip() else "it is empty")
    seen: list[int | str] = []
    order: list[Listed | None] = []
    reason = None
    for entry in entries:
        found, reason = _find(entry, kind, cards, slices, device_order)
        if reason is not None:
            break
        key, device = found
        if key in seen:
            return Visible((), f"it names a card twice ({entry.strip()}), and CUDA then sees none")
        seen.append(key)
        order.append(device)
    if reason and entries[len(order) :] == [""]:
        reason = None  # a trailing comma
    if None in order and len(order) == len(cards) and not slices:
        # All of them are visible; only the order among them is open.
        reason = reason or ORDER_UNKNOWN
    return _one_slice(order, reason)


def _kind(entry: str) -> str | None:
    if entry.startswith(("GPU-", "MIG-")):
        return entry[:4]
    number = _number(entry)
    return "number" if number is not None and number >= 0 else None


def _find(
    entry: str, kind: str, cards: Sequence[Listed], slices: Sequence[Listed], device_order: str | None
) -> tuple[tuple[int | str, Listed | None], str | None]:
    """The device an entry names, under a key that is the same for the same device; or the reason why it names none."""
    nothing = (-1, None)
    if kind == "number":
        number = _number(entry)
        if number is None or not 0 <= number < len(cards):
            return nothing, f"the entry {entry.strip()!r} names no card, and CUDA stops there"
        if len(cards) == 1 or device_order == "PCI_BUS_ID":
            in_order = sorted(cards, key=lambda c: c.pci_address or "")
            return (number, _first_slice(in_order[number], slices)), None
        return (number, None), None
    if not entry.startswith(kind):
        return nothing, f"the entry {entry.strip()!r} is of another kind than the first, and CUDA stops there"
    old = re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry.strip())
    if old:
        instance = (int(old[2]), int(old[3]))
        fitting = [s for s in slices if (s.parent or "").startswith(old[1]) and s.instance == instance]
    else:
        fitting = [d for d in (slices if kind == "MIG-" else cards) if d.uuid.startswith(entry.strip())]
    if len(fitting) != 1:
        fault = "names no card" if not fitting else f"fits {len(fitting)} cards"
        return nothing, f"the entry {entry.strip()!r} {fault}, and CUDA stops there"
    return (fitting[0].uuid, _first_slice(fitting[0], slices)), None


def _number(entry: str) -> int | None:
    found = re.match(r"\s*([+-]?\d+)", entry)
    return int(found[1]) if found else None


def _first_slice(device: Listed, slices: Sequence[Listed]) -> Listed:
    return next((s for s in slices if s.parent == device.uuid), device)


def _one_slice(order: Sequence[Listed | None], reason: str | None) -> Visible:
    """CUDA uses one MIG slice in a process: what follows the first one is not seen."""
    for place, device in enumerate(order):
        if device is not None and device.mig:
            rest = len(order) > 1
            kept = (device,) if place == 0 else tuple(order[:place])
            return Visible(kept, reason or ("a process can use one MIG slice" if rest else None))
    return Visible(tuple(order), reason)
