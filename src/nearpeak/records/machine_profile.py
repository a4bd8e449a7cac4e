"""All ceilings of one machine."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.records.ceiling import Ceiling, Kind
from nearpeak.records.device import Device
from nearpeak.records.spec import Spec

SCHEMA = "nearpeak.machine-profile/1"


@dataclass(frozen=True)
class Machine:
    """Where and how a profile was made. `id` is a digest of all devices' ids and names: no host name is kept."""

    id: str
    system: str
    cpu: str
    versions: dict[str, str]
    command: str
    commit: str | None
    date: str
    seconds: float


@dataclass(frozen=True)
class DeviceProfile:
    """One device with its ceilings. settle_s: median over its products of the seconds under load until settled."""

    id: str
    name: str
    kind: str
    device: Device
    spec: Spec | None
    settle_s: float | None
    ceilings: tuple[Ceiling, ...]
    skipped: dict[str, str]

    def ceiling(self, kind: Kind, precision: str | None = None, accumulate: str | None = None) -> Ceiling | None:
        """The first valid ceiling of a kind, or None."""
        for c in self.ceilings:
            same_product = precision in (None, c.precision) and accumulate in (None, c.accumulate)
            if c.kind == kind and c.invalid is None and same_product:
                return c
        return None


@dataclass(frozen=True)
class MachineProfile:
    """What `nearpeak measure` writes; a JSON file that can be kept, shared and compared."""

    schema: str
    machine: Machine
    devices: tuple[DeviceProfile, ...]
