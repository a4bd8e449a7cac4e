"""The cards of this machine without torch: what NVML lists, and the machine profile that is kept for them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nearpeak.ceilings import profile_file
from nearpeak.hardware.catalogue import find_spec
from nearpeak.hardware.cpu import cpu_device
from nearpeak.hardware.nvidia_facts import facts
from nearpeak.hardware.nvml import Nvml
from nearpeak.hardware.nvml_cards import nvml_cards
from nearpeak.hardware.visible import visible_devices
from nearpeak.records.device import Device
from nearpeak.records.errors import UserError
from nearpeak.records.machine_profile import DeviceProfile, MachineProfile


@dataclass(frozen=True)
class Here:
    """The cards of this machine that a plan is about: one kind, since a plan's cards are all alike.

    gpu    the catalogue's name; None where there is no card, or none that the catalogue has
    notes  what was taken, and what was left out and why
    """

    gpu: str | None
    count: int
    notes: tuple[str, ...]


def cards_here(devices: tuple[Device, ...]) -> Here:
    """The kind of card with most memory in all, of those that NVML lists here (see `devices_here`)."""
    found = Counter(spec.name for d in devices if (spec := find_spec(d)))
    strange = sorted({d.name for d in devices if find_spec(d) is None})
    notes = [f"{name} of this machine is in no catalogue entry, so it is left out" for name in strange]
    if not found:
        return Here(None, 0, (*notes, "all cards of the catalogue: no card that it knows was found on this machine"))
    memory = {spec.name: spec.memory.value if spec.memory else 0.0 for d in devices if (spec := find_spec(d))}
    gpu = max(found, key=lambda name: (found[name] * memory[name], name))
    notes += [f"left out: {n} × {name}, since a plan's cards are all alike" for name, n in found.items() if name != gpu]
    return Here(gpu, found[gpu], (f"the cards of this machine: {found[gpu]} × {gpu}", *notes))


def devices_here(nvml: Nvml | None = None, environment: Mapping[str, str] | None = None) -> tuple[Device, ...]:
    """The NVIDIA cards that a process may use here; empty where there is none or NVML does not work.

    CUDA_VISIBLE_DEVICES is followed. A MIG slice is a device of its own, its card none.
    """
    nvml = Nvml() if nvml is None else nvml
    environment = os.environ if environment is None else environment
    cards = nvml_cards(nvml)
    order = environment.get("CUDA_DEVICE_ORDER")
    visible = visible_devices(environment.get("CUDA_VISIBLE_DEVICES"), [c.listed for c in cards], order)
    cut = {id(c.parent) for c in cards if c.parent}
    usable = [c for c in cards if id(c) not in cut and not c.mig_without_slices and visible.may_see(c.listed)]
    return tuple(facts(nvml, card, None, None, Path("/")) for card in usable)


def kept_profile(devices: tuple[Device, ...], folder: Path | None = None) -> MachineProfile | None:
    """The newest machine profile in its usual place that is of these cards; without cards, of this CPU. None where
    there is none; a damaged file is passed over, and so are devices whose ceilings are too few to plan with."""
    folder = profile_file.default_path("x").parent if folder is None else folder
    ids = {d.id for d in devices}
    files = sorted(folder.glob("machine-*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        try:
            profile = profile_file.load(file)
        except UserError:
            continue
        profile = replace(profile, devices=tuple(d for d in profile.devices if complete(d)))
        gpus = {d.id for d in profile.devices if d.kind == "gpu"}
        if ids & gpus or (not ids and not gpus and cpu_device().name in {d.name for d in profile.devices}):
            return profile
    return None


def complete(device: DeviceProfile) -> bool:
    """Whether a plan can rest on what was measured of a device: memory read, and a product."""
    return device.ceiling("memory_read") is not None and device.ceiling("matmul") is not None
