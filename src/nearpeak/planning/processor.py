"""The CPU of this machine as a candidate: only what was measured of it counts."""

from __future__ import annotations

from nearpeak.limits.rates import rates_of_profile
from nearpeak.planning.cards import Card
from nearpeak.records.errors import UserError
from nearpeak.records.machine_profile import MachineProfile

HOST_SHARE = 0.85  # of the machine's memory that a process can take


def processor_card(profile: MachineProfile | None) -> list[Card]:
    """The CPU of a machine profile, or nothing: no sheet says what a processor sustains."""
    found = []
    for device in profile.devices if profile else ():
        if device.kind != "cpu":
            continue
        memory = device.device.memory.number
        try:
            rates = rates_of_profile(device, sustained=True)
        except UserError:
            continue
        if memory is None:
            continue
        found.append(
            Card(
                name=device.name, group="cpu", matmul=dict(rates.matmul), memory=rates.memory,
                capacity=HOST_SHARE * memory, unit_clock=None, clock=1.8, link=1e9, link_kind="none", network=1e9,
                node=1, power=None, source=rates.source, measured=True,
            )
        )  # fmt: skip
    return found
