"""Keeping one profile a machine: a new measurement never takes away what an older, fuller one knows."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.records.machine_profile import DeviceProfile, MachineProfile


def merged(old: MachineProfile, new: MachineProfile) -> tuple[MachineProfile, tuple[str, ...]]:
    """The new profile with the old one's devices that it lacks, or holds less of (--quick, --only); and those devices.

    A device is taken whole from one profile: figures of two runs are never mixed.
    """
    measured = {device.id: device for device in new.devices}
    kept = tuple(d for d in old.devices if d.id not in measured or not figures(d) <= figures(measured[d.id]))
    kept_ids = tuple(d.id for d in kept)
    fresh = tuple(d for d in new.devices if d.id not in kept_ids)
    return replace(new, devices=fresh + kept), kept_ids


def figures(device: DeviceProfile) -> set[tuple[str | None, ...]]:
    """What a device has a number for: kind, precision, accumulate, host memory, burst or sustained."""
    return {
        (c.kind, c.precision, c.accumulate, c.conditions.notes.get("host_memory"), figure)
        for c in device.ceilings
        for figure in ("burst", "sustained")
        if getattr(c, figure) is not None
    }
