"""What the tests of the catalogue share."""

from __future__ import annotations

import dataclasses

import pytest

from nearpeak.hardware.catalogue import RATES, find_spec, load_catalogue
from nearpeak.records.device import Device
from nearpeak.records.reading import Reading, missing
from nearpeak.records.spec import Spec

GIB = 2**30
MIB = 2**20


@pytest.fixture(autouse=True)
def _no_own_catalogue(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's real file must not change what the tests see."""
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path_factory.getbasetemp() / "none" / name)


def catalogue() -> dict[str, Spec]:
    return {spec.name: spec for spec in load_catalogue()}


def rates(spec: Spec) -> dict[str, float]:
    """Column name to TFLOPS."""
    names = {kind: column for column, kind in RATES.items()}
    return {names[r.precision, r.accumulate, r.unit]: r.figure.value / 1e12 for r in spec.rates}


def gpu(name: str, memory: float | None = None, architecture: str | None = None, **other: object) -> Device:
    no = missing("", "not asked")
    bytes_ = missing("B", "not supported") if memory is None else Reading(memory, "B", "fake")
    device = Device(
        id="GPU-1", name=name, kind="gpu", vendor="NVIDIA", torch_name=None, pci_address=None,
        architecture=architecture, features=(), units=None, memory=bytes_, memory_available=no, cache=no,
        power_limit=no, max_clock=no, driver=no, ecc=no, link=no,
    )  # fmt: skip
    return dataclasses.replace(device, **other)  # type: ignore[arg-type]


def found(name: str, memory: float | None = None, architecture: str | None = None, **other: object) -> str | None:
    spec = find_spec(gpu(name, memory, architecture, **other))
    return spec.name if spec else None
