"""A stand-in for pynvml and for torch.cuda's card properties: each call of each card gives a value or fails as told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

# Every number that NVML writes where it has none, or that can come out of a broken driver.
MAX32, MAX64 = 2**32 - 1, 2**64 - 1

NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 4, 10, 13, 15, 999


class NVMLError(Exception):
    """As pynvml's: the code is in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Absent:
    """As an answer: this pynvml has no such function."""


def field_value(number: int, code: int = 0, kind: int = 1) -> SimpleNamespace:
    """One entry of nvmlDeviceGetFieldValues; kind 1 is an unsigned int, 3 an unsigned long long."""
    values = {"dVal": float(number), "uiVal": number, "ullVal": number, "ulVal": number}
    return SimpleNamespace(nvmlReturn=code, valueType=kind, value=SimpleNamespace(**values))


H200_MEMORY = 150_754_820_096

# What a healthy H200 answers, by call.
HEALTHY: dict[str, Any] = {
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=H200_MEMORY, free=H200_MEMORY - 2**30, used=2**30),
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimit": 690_000,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetClockInfo": 1755,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkState": lambda link: 1 if link < 18 else NVMLError(2),
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetAttributes": SimpleNamespace(multiprocessorCount=132),
    "nvmlDeviceGetFieldValues": lambda asked: [field_value(321_000) if asked[0] == (186, 0) else field_value(0, 3)],
    "nvmlDeviceGetPowerUsage": 318_000,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
    "nvmlDeviceGetTemperatureV": 41,
    "nvmlDeviceGetTemperature": 40,
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlDeviceGetComputeRunningProcesses_v2": [],
    "nvmlDeviceGetGraphicsRunningProcesses_v2": [],
    "nvmlDeviceGetMaxMigDeviceCount": 7,
}


@dataclass
class FakeCard:
    """One card (or MIG slice). `says` overrides HEALTHY: a value, an exception to raise, Absent, or a function."""

    uuid: Any = "GPU-11111111-aaaa-bbbb-cccc-000000000001"
    pci: tuple[int, int, int] = (0, 1, 0)
    name: Any = "NVIDIA H200"
    says: dict[str, Any] = field(default_factory=dict)
    slices: list[FakeCard] = field(default_factory=list)
    parent: FakeCard | None = None

    def answer(self, call: str, arguments: tuple[Any, ...]) -> Any:
        own = {
            "nvmlDeviceGetUUID": self.uuid,
            "nvmlDeviceGetName": self.name,
            "nvmlDeviceGetPciInfo": SimpleNamespace(domain=self.pci[0], bus=self.pci[1], device=self.pci[2]),
        }
        if self.slices:
            own["nvmlDeviceGetMigMode"] = [1, 1]
            own["nvmlDeviceGetMigDeviceHandleByIndex"] = self._slice
        if self.parent:
            own["nvmlDeviceGetDeviceHandleFromMigDeviceHandle"] = self.parent
        known = HEALTHY | own | self.says
        value = known.get(call, NVMLError(NOT_SUPPORTED))
        return value(*arguments) if callable(value) and not isinstance(value, type) else value

    def _slice(self, slot: int) -> Any:
        return self.slices[slot] if slot < len(self.slices) else NVMLError(6)


class FakeNvml:
    """The module. `says` overrides the calls without a card; a call named in `without` does not exist."""

    def __init__(self, *cards: FakeCard, says: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> None:
        self.cards, self.says, self.without = cards, says or {}, without
        self.called: list[str] = []
        for card in cards:
            for part in card.slices:
                part.parent = card

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or name in self.without:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.called.append(name)
            value = self._answer(name, arguments)
            if isinstance(value, type) and value is Absent:
                raise AttributeError(name)
            if isinstance(value, Exception):
                raise value
            return value

        return call

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        system = {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": "580.95.05",
            "nvmlSystemGetNVMLVersion": "13.580.95.05",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "nvmlDeviceGetCount": len(self.cards),
        } | self.says
        if name in system:
            return system[name]
        everyone = [*self.cards, *(s for c in self.cards for s in c.slices)]
        if name == "nvmlDeviceGetHandleByIndex":
            return self.cards[arguments[0]]
        if name == "nvmlDeviceGetHandleByUUID":
            return next((c for c in everyone if c.uuid == arguments[0]), NVMLError(6))
        if name == "nvmlDeviceGetHandleByPciBusId":
            return next(
                (c for c in self.cards if "{:04x}:{:02x}:{:02x}.0".format(*c.pci) == arguments[0]), NVMLError(6)
            )
        if arguments and isinstance(arguments[0], FakeCard):
            return arguments[0].answer(name, arguments[1:])
        return NVMLError(NOT_SUPPORTED)


def properties(**changes: Any) -> SimpleNamespace:
    """torch's card properties as a build for CUDA 13 gives them: no clock_rate. A None removes an attribute."""
    known: dict[str, Any] = {
        "name": "NVIDIA H200",
        "uuid": "11111111-aaaa-bbbb-cccc-000000000001",
        "pci_domain_id": 0,
        "pci_bus_id": 1,
        "pci_device_id": 0,
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 150_110_011_392,
        "L2_cache_size": 62_914_560,
        "is_integrated": 0,
    }
    return SimpleNamespace(**{k: v for k, v in (known | changes).items() if v is not None})


def fake_torch(*cards: SimpleNamespace, cuda: str | None = "13.0", hip: str | None = None, **changes: Any) -> Any:
    """A torch with these cards. `changes` replaces attributes of torch.cuda."""
    attributes: dict[str, Any] = {
        "is_available": lambda: bool(cards),
        "device_count": lambda: len(cards),
        "get_device_properties": lambda index: cards[index],
        "get_arch_list": lambda: ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        "mem_get_info": lambda index: (2**30, 2**31),
        "init": lambda: None,
        "is_bf16_supported": _never_asked,
    }
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=SimpleNamespace(**(attributes | changes)),
        __version__="2.11.0",
    )


def _never_asked() -> bool:
    raise AssertionError("torch says yes for emulated bf16; the compute capability decides")
