"""Two profiles of one machine side by side: what changed beyond the spread, and what the conditions say of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from nearpeak.records.ceiling import Ceiling, Load
from nearpeak.records.change import Change
from nearpeak.records.device import Device
from nearpeak.records.errors import UserError
from nearpeak.records.machine_profile import DeviceProfile, MachineProfile
from nearpeak.records.reading import Reading

Figure = Literal["burst", "sustained", "error", "energy"]
FIGURES: tuple[Figure, ...] = ("burst", "sustained", "error", "energy")

GPU_FLOOR = 0.03
"""A GPU's burst and sustained rates repeat within 1 to 2 % from run to run; 3 % leaves that and a little room."""
CPU_FLOOR = 0.15
"""A CPU shares caches, memory and boost clock with all else on the machine: its rates move by 10 % and more. So do a
GPU's figures that the host makes: eager launches, and pageable copies."""
SAME_CLOCK = 0.02
"""A clock within 2 % of the other run's explains nothing."""
PROPORTION = 0.05
"""A rate that follows the clock within 5 points fell in the same proportion."""

NO_CAUSE = "no recorded condition explains it"


def compare(old: MachineProfile, new: MachineProfile) -> tuple[Change, ...]:
    """Every figure that both profiles hold, and every ceiling that only one of them holds, of the devices in common.

    Raises UserError where they have no device in common.
    """
    check_same_machine(old, new.devices)
    before, now = {_identity(d): d for d in old.devices}, {_identity(d): d for d in new.devices}
    changes = [c for i, d in now.items() if i in before for c in _Pair(before[i], d, old, new).changes()]
    changes += [c for i, d in before.items() if i not in now for c in _alone(d, gone=True)]
    return tuple(changes + [c for i, d in now.items() if i not in before for c in _alone(d, gone=False)])


def check_same_machine(old: MachineProfile, devices: Iterable[Device | DeviceProfile]) -> None:
    """Before measuring: is any of `devices` in the old profile? Raises UserError naming both sides' where none is."""
    here = list(devices)
    if {_identity(d) for d in old.devices} & {_identity(d) for d in here}:
        return
    theirs, ours = (", ".join(f"{d.name} ({d.id})" for d in side) or "no device" for side in (old.devices, here))
    raise UserError(f"the profiles have no device in common: the old one is of {theirs}; the new one is of {ours}.")


def _identity(d: Device | DeviceProfile) -> tuple[str, str]:
    """A GPU's id is its own. Every machine's CPU is "cpu": there the name must agree too."""
    return d.id, d.name if d.kind == "cpu" else ""


def regressed(changes: Iterable[Change]) -> bool:
    """Is any change beyond the spread one for the worse?"""
    return any(c.beyond and c.worse for c in changes)


class _Pair:
    """One device, then and now."""

    def __init__(self, before: DeviceProfile, now: DeviceProfile, old: MachineProfile, new: MachineProfile) -> None:
        self.before, self.now, self.old, self.new = before, now, old, new

    def changes(self) -> Iterator[Change]:
        then, now = _by_key(self.before), _by_key(self.now)
        for key in dict.fromkeys([*then, *now]):
            a, b = then.get(key), now.get(key)
            valid_a, valid_b = a if a and a.invalid is None else None, b if b and b.invalid is None else None
            if valid_a and valid_b:
                yield from (c for figure in FIGURES if (c := self._figure(valid_a, valid_b, figure)))
            elif valid_a:
                failed = f"invalid now: {b.invalid}" if b else _skipped(self.now, valid_a)
                worse = failed is not None and not failed.startswith("--quick")  # else it was not asked for
                why = f"vanished: {failed or 'not in the new profile'}"
                yield self._change(valid_a, "burst", valid_a.burst, None, None, True, worse, why)
            elif valid_b:
                failed = f"invalid before: {a.invalid}" if a else _skipped(self.before, valid_b)
                why = f"appeared: {failed or 'not in the old profile'}"
                yield self._change(valid_b, "burst", None, valid_b.burst, None, True, False, why)

    def _figure(self, a: Ceiling, b: Ceiling, figure: Figure) -> Change | None:
        """One figure of a ceiling that both sides hold; None where neither has this figure."""
        old, new = _value(a, figure), _value(b, figure)
        if old is None and new is None:
            return None
        if old is None or new is None:
            field = "energy_per_unit" if figure == "energy" else figure
            side, c = ("new", b) if new is None else ("old", a)
            why = c.conditions.missing.get(field, "no reason recorded")
            return self._change(b, figure, old, new, None, False, False, f"not in the {side} profile: {why}")
        if old <= 0:  # nothing to divide by: equal, or any growth at all
            ratio, beyond = None, new != old
        else:
            ratio = new / old
            floor = CPU_FLOOR if self.now.kind == "cpu" or _by_the_host(b) else GPU_FLOOR
            beyond = abs(ratio - 1) > max(a.spread or 0.0, b.spread or 0.0, floor)
        lower_is_better = figure in ("error", "energy") or b.unit == "s"
        worse = new > old if lower_is_better else new < old
        because = self._because(a, b, figure, ratio) if beyond else ""
        return self._change(b, figure, old, new, ratio, beyond, worse, because)

    def _change(
        self, c: Ceiling, figure: Figure, old: float | None, new: float | None, ratio: float | None, beyond: bool,
        worse: bool, because: str,
    ) -> Change:  # fmt: skip
        return Change(
            self.now.id, c.kind, c.precision, c.accumulate, _notes(c), figure, old, new, ratio, beyond, worse, because
        )

    def _because(self, a: Ceiling, b: Ceiling, figure: Figure, ratio: float | None) -> str:
        """All that was recorded and differs, the likeliest cause first."""
        loads = _load(a, figure), _load(b, figure)
        rate = None if ratio is None else 1 / ratio if b.unit == "s" else ratio
        causes = [*_method(a, b), *_clock(*loads, rate if figure in ("burst", "sustained") else None)]
        if figure != "error":  # an error is of the arithmetic: clocks, power and neighbours do not touch it
            causes += [*_throttle(*loads), *_others(a, b), *self._cores()]
            causes += self._devices(("power_limit", "ecc", "link"))
        causes += self._devices(("driver",))
        for name in ("torch", "triton", "cuda"):
            then, now = self.old.machine.versions.get(name), self.new.machine.versions.get(name)
            causes += [f"{name} changed from {then or 'none'} to {now or 'none'}"] if then != now else []
        return "; ".join(causes) or NO_CAUSE

    def _devices(self, fields: tuple[str, ...]) -> list[str]:
        found = []
        for field in fields:
            then, now = getattr(self.before.device, field), getattr(self.now.device, field)
            if then.value != now.value and then.value is not None and now.value is not None:
                words = "ECC" if field == "ecc" else field.replace("_", " ")
                found.append(f"{words} changed from {_text(then)} to {_text(now)}")
        return found

    def _cores(self) -> list[str]:
        then, now = self.before.device.units, self.now.device.units
        return [f"cores changed from {then} to {now}"] if then and now and then != now else []


def _alone(d: DeviceProfile, gone: bool) -> Iterator[Change]:
    """The ceilings of a device that one profile lacks. Not for the worse: it may not have been asked for."""
    why = f"{'vanished' if gone else 'appeared'}: the device is not in the {'new' if gone else 'old'} profile"
    for c in _by_key(d).values():
        if c.invalid is None:
            old, new = (c.burst, None) if gone else (None, c.burst)
            yield Change(d.id, c.kind, c.precision, c.accumulate, _notes(c), "burst", old, new, None, True, False, why)


def _by_key(d: DeviceProfile) -> dict[tuple[str, str | None, str | None, str | None], Ceiling]:
    """The ceilings by what they are of; of two alike the first valid one."""
    found: dict[tuple[str, str | None, str | None, str | None], Ceiling] = {}
    for c in d.ceilings:
        key = (c.kind, c.precision, c.accumulate, c.conditions.notes.get("host_memory"))
        if key not in found or (found[key].invalid is not None and c.invalid is None):
            found[key] = c
    return found


def _by_the_host(c: Ceiling) -> bool:
    """Whether the host's own speed decides the figure, though it is a GPU's."""
    return c.kind == "launch" or c.conditions.notes.get("host_memory") == "pageable"


def _notes(c: Ceiling) -> dict[str, str]:
    return {k: v for k, v in c.conditions.notes.items() if k == "host_memory"}


def _value(c: Ceiling, figure: Figure) -> float | None:
    return {"burst": c.burst, "sustained": c.sustained, "error": c.error, "energy": c.energy_per_unit}[figure]


def _load(c: Ceiling, figure: Figure) -> Load | None:
    return c.conditions.burst if figure == "burst" else c.conditions.sustained or c.conditions.burst


def _skipped(d: DeviceProfile, c: Ceiling) -> str | None:
    """Why a device has no such ceiling, kept under its kind or under a name with its precision and accumulate type."""
    for what, why in d.skipped.items():
        words = re.split(r"[^\w.]+", what)
        product = c.precision in words and c.accumulate in words
        if what == c.kind or (c.kind == "matmul" and product):
            return why
    return None


def _method(a: Ceiling, b: Ceiling) -> list[str]:
    then, now = a.conditions, b.conditions
    if then.method != now.method:
        return [f"the method changed from {then.method} to {now.method}: the two are not alike"]
    return [f"the routine changed from {then.how} to {now.how}"] if then.how != now.how else []


def _clock(then: Load | None, now: Load | None, rate: float | None) -> list[str]:
    """The clock held, where it moved the same way as the rate."""
    if rate is None or not (then and now and then.clock_hz and now.clock_hz):
        return []
    ratio = now.clock_hz / then.clock_hz
    if abs(ratio - 1) <= SAME_CLOCK or (ratio < 1) != (rate < 1):
        return []
    percent, word = f"{100 * (ratio - 1):+.0f} %".replace("-", "−"), "fell" if ratio < 1 else "rose"
    part = "" if abs(ratio - rate) <= PROPORTION else ", a part of it" if abs(rate - 1) > abs(ratio - 1) else ""
    return [f"clock held {word} from {then.clock_hz / 1e6:.0f} to {now.clock_hz / 1e6:.0f} MHz, {percent}{part}"]


def _throttle(then: Load | None, now: Load | None) -> list[str]:
    """Reasons that the driver gives on one side only; silence on one side says nothing."""
    if then is None or now is None or then.throttle is None or now.throttle is None:
        return []
    came = [r for r in now.throttle if r not in then.throttle]
    went = [r for r in then.throttle if r not in now.throttle]
    found = [f"new throttle reason: {', '.join(came)}"] if came else []
    return found + ([f"throttle reason gone: {', '.join(went)}"] if went else [])


def _others(a: Ceiling, b: Ceiling) -> list[str]:
    then, now = a.conditions.other_processes or (), b.conditions.other_processes or ()
    found = [f"other processes on the device now: {', '.join(now[:3])}"] if now and now != then else []
    return found or ([f"other processes on the device before: {', '.join(then[:3])}"] if then and not now else [])


def _text(reading: Reading) -> str:
    if isinstance(reading.value, bool):
        return "on" if reading.value else "off"
    number = reading.number
    return str(reading.value) if number is None else f"{number:.6g} {reading.unit}".strip()
