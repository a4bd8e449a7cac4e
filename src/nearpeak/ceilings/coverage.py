"""Does one profile hold all that another holds?"""

from __future__ import annotations

from nearpeak.records.machine_profile import MachineProfile


def covers(new: MachineProfile, old: MachineProfile) -> bool:
    """True where every figure of `old` is in `new` too: --quick and --only make narrower profiles."""
    return figures(old) <= figures(new)


def figures(profile: MachineProfile) -> set[tuple[str | None, ...]]:
    """What a profile has a number for: device, kind, precision, accumulate, host memory, burst or sustained."""
    return {
        (device.id, c.kind, c.precision, c.accumulate, c.conditions.notes.get("host_memory"), figure)
        for device in profile.devices
        for c in device.ceilings
        for figure in ("burst", "sustained")
        if getattr(c, figure) is not None
    }
