"""NVIDIA cards as devices: the join of NVML and torch, and each fact alone. Tests bear the defect reports' numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    H200_MEMORY,
    HEALTHY,
    MAX32,
    MAX64,
    NO_PERMISSION,
    NOT_SUPPORTED,
    TIMEOUT,
    UNKNOWN,
    Absent,
    FakeCard,
    FakeNvml,
    NVMLError,
    fake_torch,
    properties,
)
from nearpeak.hardware.nvidia import NOT_JOINED, not_runnable, nvidia_devices
from nearpeak.hardware.nvml import Nvml
from nearpeak.hardware.torch_cuda import read_torch_cuda
from nearpeak.records.device import Device
from nearpeak.records.reading import Reading

READINGS = ("memory", "memory_available", "cache", "power_limit", "max_clock", "driver", "ecc", "link")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with the memory of report 1, most of it used by others (report 2)."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  127600748 kB\nMemFree:  1000 kB\nMemAvailable:  67600748 kB\n")
    return tmp_path


def devices(nvml: FakeNvml, torch: Any, root: Path = Path("/nowhere"), **environment: str) -> tuple[Device, ...]:
    return nvidia_devices(Nvml(nvml, root), read_torch_cuda(torch), environment, root)


def test_a_healthy_card_has_every_fact() -> None:
    (card,) = devices(FakeNvml(FakeCard()), fake_torch(properties()))
    assert card.id == "GPU-11111111-aaaa-bbbb-cccc-000000000001"
    assert (card.torch_name, card.pci_address, card.architecture, card.units) == (
        "cuda:0",
        "0000:01:00.0",
        "sm_90",
        132,
    )
    assert (card.memory.value, card.memory.scope) == (H200_MEMORY, "device")
    assert card.memory_available.value == H200_MEMORY - 2**30
    assert card.cache.value == 62_914_560
    assert card.power_limit.value == pytest.approx(700.0)
    assert card.max_clock.value == pytest.approx(1.98e9)
    assert card.driver.value == "580.95.05"
    assert card.ecc.value == "on"
    assert card.link.value == "PCIe generation 5 (at most 5), PCIe width x16 (at most 16), NVLink 18 links"
    assert card.unusable is None


def test_report_1_gb10_memory_is_not_supported(root: Path) -> None:
    says = {"nvmlDeviceGetMemoryInfo": NVMLError(NOT_SUPPORTED)}
    torch = fake_torch(properties(name="NVIDIA GB10", major=12, minor=1, total_memory=130_662_436_864, is_integrated=1))
    (card,) = devices(FakeNvml(FakeCard(name="NVIDIA GB10", says=says)), torch, root)
    assert (card.memory.value, card.memory.scope) == (130_662_436_864, "shared with the host")


@pytest.mark.parametrize("total", [0, 5 * 2**30, MAX64])
def test_report_1_gb10_odd_success(root: Path, total: int) -> None:
    says = {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=total, free=0, used=0)}
    torch = fake_torch(properties(total_memory=130_662_436_864, is_integrated=1))
    (card,) = devices(FakeNvml(FakeCard(says=says)), torch, root)
    assert card.memory.value == 130_662_436_864
    assert card.memory.scope == "shared with the host"


@pytest.mark.parametrize("answer", [NVMLError(NOT_SUPPORTED), SimpleNamespace(total=0, free=0, used=0)])
def test_report_1_without_torch_the_host_gives_the_total(root: Path, answer: Any) -> None:
    nvml = FakeNvml(FakeCard(says={"nvmlDeviceGetMemoryInfo": answer}))
    (card,) = devices(nvml, fake_torch(cuda=None), root)
    assert card.memory.value == 127_600_748 * 1024
    assert card.memory_available.value == 67_600_748 * 1024
    assert card.memory.scope == card.memory_available.scope == "shared with the host"


def test_report_2_what_others_use_of_unified_memory_is_not_available(root: Path) -> None:
    torch = fake_torch(properties(total_memory=130_662_436_864, is_integrated=1))
    (card,) = devices(FakeNvml(FakeCard(says={"nvmlDeviceGetMemoryInfo": NVMLError(NOT_SUPPORTED)})), torch, root)
    assert card.memory_available.value == 67_600_748 * 1024
    assert card.memory_available.scope == "shared with the host"


def test_report_1_a_card_with_memory_of_its_own_is_never_called_shared(root: Path) -> None:
    nvml = FakeNvml(FakeCard(says={"nvmlDeviceGetMemoryInfo": NVMLError(UNKNOWN)}))
    (card,) = devices(nvml, fake_torch(properties()), root)
    assert (card.memory.value, card.memory.scope) == (150_110_011_392, "device")


def test_report_4_one_card_without_power_leaves_the_other() -> None:
    lost = NVMLError(NOT_SUPPORTED)
    poor = FakeCard(
        uuid="GPU-22222222-0",
        pci=(0, 2, 0),
        says={"nvmlDeviceGetEnforcedPowerLimit": lost, "nvmlDeviceGetPowerManagementLimit": lost},
    )
    torch = fake_torch(properties(), properties(uuid="22222222-0", pci_bus_id=2))
    first, second = devices(FakeNvml(FakeCard(), poor), torch)
    assert first.power_limit.value == pytest.approx(700.0)
    assert second.power_limit.value is None
    assert second.power_limit.reason == "not supported by this device"
    assert second.memory.value == H200_MEMORY


def test_report_5_a_laptop_knows_only_the_enforced_limit() -> None:
    says = {"nvmlDeviceGetPowerManagementLimit": NVMLError(NOT_SUPPORTED), "nvmlDeviceGetEnforcedPowerLimit": 90_000}
    (card,) = devices(FakeNvml(FakeCard(says=says)), fake_torch(properties()))
    assert card.power_limit.value == pytest.approx(90.0)


def test_report_5_the_set_limit_stands_in_for_the_enforced_one() -> None:
    (card,) = devices(
        FakeNvml(FakeCard(says={"nvmlDeviceGetEnforcedPowerLimit": NVMLError(FUNCTION_NOT_FOUND)})),
        fake_torch(properties()),
    )
    assert card.power_limit.value == pytest.approx(690.0)


def two_cards() -> tuple[FakeNvml, Any]:
    """Report 8: NVML lists a 3060 and then a 4090; torch the other way round."""
    slow = FakeCard(uuid="GPU-30603060-0", pci=(0, 1, 0), name="RTX 3060", says={"nvmlDeviceGetMaxClockInfo": 1777})
    fast = FakeCard(uuid="GPU-40904090-0", pci=(0, 2, 0), name="RTX 4090", says={"nvmlDeviceGetMaxClockInfo": 2520})
    torch = fake_torch(
        properties(name="RTX 4090", uuid="40904090-0", pci_bus_id=2, major=8, minor=9),
        properties(name="RTX 3060", uuid="30603060-0", pci_bus_id=1, major=8, minor=6),
    )
    return FakeNvml(slow, fast), torch


def test_report_8_cards_are_joined_by_uuid_not_by_index() -> None:
    first, second = devices(*two_cards())
    assert (first.name, first.torch_name, first.max_clock.value) == ("RTX 4090", "cuda:0", 2.52e9)
    assert (second.name, second.torch_name, second.max_clock.value) == ("RTX 3060", "cuda:1", 1.777e9)


def test_report_8_without_uuids_the_pci_address_joins() -> None:
    nvml, _ = two_cards()
    torch = fake_torch(
        properties(name="RTX 4090", uuid=None, pci_bus_id=2), properties(name="RTX 3060", uuid=None, pci_bus_id=1)
    )
    first, second = devices(nvml, torch)
    assert [d.max_clock.value for d in (first, second)] == [2.52e9, 1.777e9]


def test_report_8_several_that_nothing_joins_are_not_guessed() -> None:
    nvml, _ = two_cards()
    nothing = {"uuid": None, "pci_bus_id": None}
    found = devices(nvml, fake_torch(properties(name="RTX 4090", **nothing), properties(name="RTX 3060", **nothing)))
    assert len(found) == 2  # NVML's two are not listed a second time
    assert {d.power_limit.reason for d in found} == {NOT_JOINED}
    assert {d.power_limit.value for d in found} == {None}


def test_report_8_one_card_on_each_side_needs_no_guess() -> None:
    (card,) = devices(FakeNvml(FakeCard()), fake_torch(properties(uuid=None, pci_bus_id=None)))
    assert card.id.startswith("GPU-1111")
    assert card.power_limit.value == pytest.approx(700.0)


def test_a_uuid_of_zeros_is_none() -> None:
    (card,) = devices(FakeNvml(), fake_torch(properties(uuid="00000000-0000-0000-0000-000000000000")))
    assert card.id == "pci:0000:01:00.0"


@pytest.mark.parametrize(("code", "words"), [(NOT_SUPPORTED, "no NVLink"), (2, "no NVLink"), (NO_PERMISSION, "")])
def test_no_nvlink_is_not_an_unknown_nvlink(code: int, words: str) -> None:
    says = {"nvmlDeviceGetNvLinkState": NVMLError(code)}
    (card,) = devices(FakeNvml(FakeCard(says=says)), fake_torch(properties()))
    assert (
        str(card.link.value).removeprefix("PCIe generation 5 (at most 5), PCIe width x16 (at most 16)").strip(", ")
        == words
    )


def test_report_6_a_hidden_card_is_listed_with_the_reason() -> None:
    nvml, _ = two_cards()
    torch = fake_torch(properties(name="RTX 4090", uuid="40904090-0", pci_bus_id=2))
    first, second = devices(nvml, torch, CUDA_VISIBLE_DEVICES="GPU-4090")
    assert first.unusable is None
    assert second.unusable == "hidden by CUDA_VISIBLE_DEVICES='GPU-4090'"
    assert second.torch_name is None


@pytest.mark.parametrize("variable", ["", "-1", "GPU-zz"])
def test_report_6_all_hidden(variable: str) -> None:
    nvml, _ = two_cards()
    found = devices(nvml, fake_torch(), CUDA_VISIBLE_DEVICES=variable)
    assert len(found) == 2
    assert all((d.unusable or "").startswith(f"hidden by CUDA_VISIBLE_DEVICES={variable!r}") for d in found)


def sliced() -> FakeNvml:
    small = {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=10 * 2**30, free=9 * 2**30, used=2**30)}
    parts = [
        FakeCard(uuid="MIG-aaaa", name="NVIDIA H100 MIG 1g.10gb", says=small),
        FakeCard(uuid="MIG-bbbb", name="NVIDIA H100 MIG 1g.10gb", says=small),
    ]
    return FakeNvml(FakeCard(name="NVIDIA H100", slices=parts))


@pytest.mark.parametrize("torch_uuid", ["aaaa", "11111111-aaaa-bbbb-cccc-000000000001"])
def test_report_6_a_mig_slice_is_found_by_its_own_uuid_or_its_cards(torch_uuid: str) -> None:
    torch = fake_torch(properties(name="NVIDIA H100 MIG 1g.10gb", uuid=torch_uuid, total_memory=10 * 2**30))
    first, second = devices(sliced(), torch, CUDA_VISIBLE_DEVICES="MIG-aaaa")
    assert (first.id, first.torch_name, first.unusable) == ("MIG-aaaa", "cuda:0", None)
    assert first.memory.value == 10 * 2**30
    assert second.id == "MIG-bbbb"
    assert "CUDA_VISIBLE_DEVICES=MIG-bbbb" in (second.unusable or "")


def test_mig_mode_without_slices_says_what_to_do() -> None:
    (card,) = devices(FakeNvml(FakeCard(says={"nvmlDeviceGetMigMode": [1, 1]})), fake_torch())
    assert "no slices" in (card.unusable or "")


def test_report_9_after_a_mismatch_the_cuda_parts_go_on() -> None:
    nvml = FakeNvml(FakeCard(), says={"nvmlInit": NVMLError(18)})
    (card,) = devices(nvml, fake_torch(properties()))
    assert card.unusable is None
    assert (card.torch_name, card.units, card.memory.value) == ("cuda:0", 132, 150_110_011_392)
    assert "reboot or reload the driver" in (card.power_limit.reason or "")
    assert card.id == "GPU-11111111-aaaa-bbbb-cccc-000000000001"


def test_report_11_jetson_without_nvml(root: Path) -> None:
    torch = fake_torch(
        properties(name="Orin", major=8, minor=7, uuid=None, is_integrated=1, total_memory=64_349_405_184)
    )
    (card,) = devices(FakeNvml(says={"nvmlInit": NVMLError(12)}), torch, root)
    assert card.id == "pci:0000:01:00.0"
    assert (card.memory.value, card.memory.scope) == (64_349_405_184, "shared with the host")
    assert card.memory_available.value == 67_600_748 * 1024
    assert card.power_limit.reason == "NVIDIA's management library (NVML) is not installed"


def test_report_11_jetson_with_zero_everywhere(root: Path) -> None:
    zeros: dict[str, Any] = dict.fromkeys(HEALTHY, 0) | {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=0, free=0)}
    nvml = FakeNvml(FakeCard(uuid="", name="Orin", says=zeros))
    torch = fake_torch(properties(name="Orin", uuid=None, is_integrated=1, total_memory=64_349_405_184))
    (card,) = devices(nvml, torch, root)
    assert card.memory.value == 64_349_405_184
    for name in ("power_limit", "max_clock", "ecc", "link"):
        assert getattr(card, name).value is None, name


def test_report_17_and_18_the_capability_decides_not_the_name() -> None:
    # fake_torch fails the test if is_bf16_supported is asked.
    (card,) = devices(FakeNvml(), fake_torch(properties(name="Quadro RTX 6000", major=7, minor=5)))
    assert card.architecture == "sm_75"
    (card,) = devices(FakeNvml(), fake_torch(properties(name="NVIDIA RTX 6000 Ada Generation", major=8, minor=9)))
    assert card.architecture == "sm_89"


def test_report_28_cuda_13_has_no_clock_field() -> None:
    (card,) = devices(FakeNvml(), fake_torch(properties()))
    assert card.max_clock.value is None
    (card,) = devices(FakeNvml(), fake_torch(properties(clock_rate=1_980_000)))
    assert card.max_clock.value == pytest.approx(1.98e9)


@pytest.mark.parametrize(
    "name", ["uuid", "pci_bus_id", "L2_cache_size", "is_integrated", "multi_processor_count", "major"]
)
def test_report_28_any_property_may_be_gone(name: str) -> None:
    (card,) = devices(FakeNvml(FakeCard()), fake_torch(properties(**{name: None})))
    assert card.torch_name == "cuda:0"
    assert card.power_limit.value == pytest.approx(700.0)


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((9, 1), ["sm_90a"], False),
        ((6, 1), ["sm_75", "sm_80"], False),
        ((12, 1), ["sm_90", "sm_120"], True),
        ((12, 1), ["sm_90", "sm_100"], False),
        ((12, 1), ["sm_90", "compute_90"], True),
        ((7, 0), ["compute_75"], False),
        ((10, 0), ["compute_90a"], False),
        ((7, 0), [], True),
    ],
)
def test_a_card_too_old_or_too_new_for_the_installed_torch(
    capability: tuple[int, int], built: list[str], runs: bool
) -> None:
    reason = not_runnable(capability, built)
    assert (reason is None) == runs
    if reason:
        assert f"sm_{capability[0]}{capability[1]}" in reason


def test_a_card_too_old_is_listed_and_not_usable() -> None:
    (card,) = devices(FakeNvml(), fake_torch(properties(name="GTX 1080", major=6, minor=1)))
    assert "no code for sm_61" in (card.unusable or "")
    assert card.torch_name is None


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (fake_torch(cuda=None), "no CUDA build"),
        (fake_torch(cuda=None, hip="6.4"), "ROCm build"),
        (fake_torch(), "sees no CUDA device"),
    ],
)
def test_why_torch_uses_no_card(torch: Any, words: str) -> None:
    (card,) = devices(FakeNvml(FakeCard()), torch)
    assert words in (card.unusable or "")
    assert card.architecture == "sm_90"
    assert card.units == 132


def test_torch_says_why_cuda_is_not_available() -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nmore")

    (card,) = devices(FakeNvml(FakeCard()), fake_torch(init=init))
    assert card.unusable == "torch cannot use CUDA (The NVIDIA driver on your system is too old (found version 11040).)"


def test_a_lost_card_leaves_the_others() -> None:
    class OneLost(FakeNvml):
        def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
            if name == "nvmlDeviceGetHandleByIndex" and arguments[0] == 0:
                return NVMLError(GPU_IS_LOST)
            return super()._answer(name, arguments)

    nvml = OneLost(FakeCard(uuid="GPU-99999999-0"), FakeCard())
    (card,) = devices(nvml, fake_torch(properties()))
    assert card.id.startswith("GPU-1111")


@pytest.mark.parametrize(
    ("answer", "expected"), [([1, 1], "on"), ([0, 0], "off"), ([1, 0], "on (off after a restart)")]
)
def test_ecc(answer: list[int], expected: str) -> None:
    (card,) = devices(FakeNvml(FakeCard(says={"nvmlDeviceGetEccMode": answer})), fake_torch(properties()))
    assert card.ecc.value == expected


# The fuzz: every call that makes a fact × every way it can fail.

WAYS: dict[str, Any] = {
    **{
        f"error {c}": NVMLError(c)
        for c in (NOT_SUPPORTED, NO_PERMISSION, UNKNOWN, GPU_IS_LOST, FUNCTION_NOT_FOUND, TIMEOUT)
    },
    **{"bytes": b"\xff\x00", "zero": 0, "max uint": MAX32, "max ulong": MAX64, "negative": -1},
    **{"text": "N/A", "none": None, "empty": [], "pair": [None, None], "object": object(), "absent": Absent},
    **{"other error": OSError("broken pipe")},
}
CALLS = {
    "nvmlDeviceGetUUID": (),
    "nvmlDeviceGetName": (),
    "nvmlDeviceGetPciInfo": (),
    "nvmlDeviceGetMigMode": (),
    "nvmlDeviceGetMemoryInfo": ("memory", "memory_available"),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit",),
    "nvmlDeviceGetPowerManagementLimit": (),
    "nvmlDeviceGetMaxClockInfo": ("max_clock",),
    "nvmlDeviceGetEccMode": ("ecc",),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("link",),
    "nvmlDeviceGetMaxPcieLinkGeneration": ("link",),
    "nvmlDeviceGetCurrPcieLinkWidth": ("link",),
    "nvmlDeviceGetMaxPcieLinkWidth": ("link",),
    "nvmlDeviceGetNvLinkState": ("link",),
    "nvmlDeviceGetCudaComputeCapability": (),
    "nvmlDeviceGetAttributes": (),
}


def sound(reading: Reading) -> bool:
    """A value that is neither 0 nor one of NVML's signs for none, or a reason."""
    if reading.value is None:
        return bool(reading.reason)
    return reading.value not in (0, -1, MAX32, MAX64, MAX32 * 1e-3, MAX64 * 1e-3, MAX32 * 1e6, MAX64 * 1e6, "", b"")


@pytest.mark.parametrize("torch_sees", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_fuzz_one_fact_that_fails_leaves_the_others(call: str, way: str, torch_sees: bool) -> None:
    torch = fake_torch(properties()) if torch_sees else fake_torch(cuda=None)
    (whole,) = devices(FakeNvml(FakeCard()), torch)
    (card,) = devices(FakeNvml(FakeCard(says={call: WAYS[way]})), torch)
    for name in READINGS:
        assert sound(getattr(card, name)), name
        if name not in CALLS[call]:
            assert getattr(card, name) == getattr(whole, name), name
    assert card.torch_name == whole.torch_name
    for number in (card.units,):
        assert number is None or number == 132
    if call == "nvmlDeviceGetEnforcedPowerLimit":
        assert card.power_limit.value == pytest.approx(690.0)


@pytest.mark.parametrize("call", CALLS)
def test_fuzz_report_27_one_call_that_pynvml_lacks(call: str) -> None:
    torch = fake_torch(properties())
    (whole,) = devices(FakeNvml(FakeCard()), torch)
    (card,) = devices(FakeNvml(FakeCard(), without=(call,)), torch)
    for name in READINGS:
        assert sound(getattr(card, name)), name
        if name not in CALLS[call]:
            assert getattr(card, name) == getattr(whole, name), name


@pytest.mark.parametrize("way", WAYS)
def test_fuzz_everything_fails_at_once(way: str) -> None:
    nvml = FakeNvml(FakeCard(says=dict.fromkeys(CALLS, WAYS[way])))
    (card,) = devices(nvml, fake_torch(properties()))
    assert card.id.startswith("GPU-1111")
    assert (card.torch_name, card.units) == ("cuda:0", 132)
    for name in READINGS:
        assert sound(getattr(card, name)), name
    assert card.power_limit.value is None
    assert card.ecc.value is None


@pytest.mark.parametrize("call", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlInit"])
@pytest.mark.parametrize("way", [w for w in WAYS if w != "none"])
def test_fuzz_calls_without_a_card(call: str, way: str) -> None:
    # A count of four billion must not become a loop.
    (card,) = devices(FakeNvml(FakeCard(), says={call: WAYS[way]}), fake_torch(properties()))
    assert (card.torch_name, card.units) == ("cuda:0", 132)
    for name in READINGS:
        assert sound(getattr(card, name)), name
