"""Live sensors of NVIDIA cards: scopes, throttle reasons, processes, and every way a call can fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import (
    HEALTHY,
    MAX32,
    MAX64,
    NOT_SUPPORTED,
    FakeCard,
    FakeNvml,
    NVMLError,
    fake_torch,
    field_value,
    properties,
)
from nearpeak.hardware.nvidia import nvidia_devices
from nearpeak.hardware.nvidia_sensors import NvidiaSensors, decode_throttle, usable_pids
from nearpeak.hardware.nvml import Nvml
from nearpeak.hardware.torch_cuda import read_torch_cuda
from nearpeak.records.device import Device
from nearpeak.records.reading import Reading
from test_nvidia import WAYS

METHODS = ("power", "energy", "clock", "temperature", "throttle_reasons", "processes")


def device(**changes: Any) -> Device:
    nvml = Nvml(FakeNvml(FakeCard(**changes)))
    (found,) = nvidia_devices(nvml, read_torch_cuda(fake_torch(properties())), {})
    return found


DEVICE = device()


def sensors(says: dict[str, Any] | None = None, **changes: Any) -> NvidiaSensors:
    return NvidiaSensors(DEVICE, Nvml(FakeNvml(FakeCard(says=says or {}, **changes))))


def fields(by_scope: dict[int, Any]) -> Callable[[list[tuple[int, int]]], list[SimpleNamespace]]:
    def answer(asked: list[tuple[int, int]]) -> list[SimpleNamespace]:
        assert asked[0][0] == 186
        return [by_scope[asked[0][1]]]

    return answer


def test_a_healthy_card() -> None:
    all_of_it = sensors()
    assert all_of_it.power().value == pytest.approx(321.0)  # the instantaneous field, not the mean of 318 W
    assert all_of_it.power().scope == "device"
    assert all_of_it.energy().value == pytest.approx(5000.0)
    assert all_of_it.energy().scope == "device"
    assert all_of_it.clock().value == pytest.approx(1.755e9)
    assert all_of_it.temperature().value == 41
    assert all_of_it.throttle_reasons().value == ()
    assert all_of_it.processes().value == ()


def test_without_the_instantaneous_field_the_mean_is_read() -> None:
    reading = sensors({"nvmlDeviceGetFieldValues": NVMLError(13)}).power()
    assert reading.value == pytest.approx(318.0)
    assert "nvmlDeviceGetPowerUsage" in reading.how


def test_report_14_only_the_module_answers() -> None:
    says = {"nvmlDeviceGetFieldValues": fields({0: field_value(0, NOT_SUPPORTED), 1: field_value(900_000)})}
    grace = sensors(says)
    assert grace.power().value == pytest.approx(900.0)
    assert grace.power().scope == "module (CPU + GPU)"
    assert grace.energy().scope == "module (CPU + GPU)"


def test_report_14_where_both_answer_the_gpu_is_read() -> None:
    says = {"nvmlDeviceGetFieldValues": fields({0: field_value(600_000), 1: field_value(900_000)})}
    assert (sensors(says).power().value, sensors(says).power().scope) == (pytest.approx(600.0), "device")
    assert sensors(says).energy().scope == "device"


@pytest.mark.parametrize("code", [10, 999])
def test_report_14_a_passing_fault_does_not_turn_the_gpu_into_the_module(code: int) -> None:
    says = {"nvmlDeviceGetFieldValues": fields({0: field_value(0, code), 1: field_value(900_000)})}
    reading = sensors(says).power()
    assert (reading.value, reading.scope) == (pytest.approx(318.0), "device")


def test_report_4_power_missing_on_one_card_is_none_not_zero() -> None:
    none = {"nvmlDeviceGetFieldValues": NVMLError(3), "nvmlDeviceGetPowerUsage": NVMLError(3)}
    assert sensors(none).power().value is None
    assert sensors(none).power().reason == "not supported by this device"
    assert sensors(none).clock().value == pytest.approx(1.755e9)


def test_an_older_pynvml_without_the_newer_names() -> None:
    gone = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues")
    old = NvidiaSensors(DEVICE, Nvml(FakeNvml(FakeCard(), without=gone)))
    assert old.temperature().value == 40
    assert old.throttle_reasons().value == ()
    assert old.power().value == pytest.approx(318.0)


@pytest.mark.parametrize(
    ("bits", "held", "other"),
    [
        (0, (), ()),
        (0x1, (), ("idle",)),
        (0x2, (), ("application clock setting",)),
        (0x100, (), ("display clock setting",)),
        (0x4, ("power cap",), ()),
        (0x8, ("hardware slowdown",), ()),
        (0x48, ("thermal slowdown (hardware)",), ()),
        (0x88, ("power brake (hardware)",), ()),
        (0x20 | 0x4 | 0x1, ("power cap", "thermal slowdown (software)"), ("idle",)),
        (0x8000, ("unknown reason 0x8000",), ()),
    ],
)
def test_throttle_words(bits: int, held: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert decode_throttle(bits) == (held, other)
    reading = sensors({"nvmlDeviceGetCurrentClocksEventReasons": bits}).throttle_reasons()
    assert reading.value == held
    assert all(word in reading.how for word in other)


def pids(*numbers: Any) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=n, usedGpuMemory=None) for n in numbers]


def test_processes_without_this_one() -> None:
    parent = os.getppid()
    says = {
        "nvmlDeviceGetComputeRunningProcesses": pids(os.getpid(), parent),
        "nvmlDeviceGetGraphicsRunningProcesses": pids(parent, 2**30),
    }
    found = sensors(says).processes().value
    assert isinstance(found, tuple)
    assert len(found) == 2
    assert found[0].startswith(f"pid {parent} (")
    assert found[1] == f"pid {2**30} (not visible from here)"


def test_report_11_process_numbers_that_cannot_be() -> None:
    assert usable_pids(pids(0, -1, MAX32, MAX64, None, "7", 2**31, True, 42)) == {42}
    assert usable_pids([object()]) == set()
    mixed = sensors({"nvmlDeviceGetComputeRunningProcesses": pids(0, MAX32, 2**30)}).processes()
    assert mixed.value == (f"pid {2**30} (not visible from here)",)


def test_report_27_a_driver_without_the_third_version_of_the_process_list() -> None:
    says = {
        "nvmlDeviceGetComputeRunningProcesses": NVMLError(13),
        "nvmlDeviceGetComputeRunningProcesses_v2": pids(2**30),
    }
    assert sensors(says).processes().value == (f"pid {2**30} (not visible from here)",)


def test_processes_unknown_is_not_nobody() -> None:
    gone = NVMLError(NOT_SUPPORTED)
    says = {"nvmlDeviceGetComputeRunningProcesses": gone, "nvmlDeviceGetGraphicsRunningProcesses": gone}
    assert sensors(says).processes().value is None
    # One of the two lists is an answer.
    assert sensors({"nvmlDeviceGetGraphicsRunningProcesses": gone}).processes().value == ()


def test_a_mig_slice_has_the_cards_clock_and_no_power() -> None:
    part = FakeCard(uuid="MIG-aaaa", says={"nvmlDeviceGetClockInfo": NVMLError(3), "nvmlDeviceGetPowerUsage": 55_000})
    nvml = Nvml(FakeNvml(FakeCard(slices=[part])))
    found = nvidia_devices(
        nvml, read_torch_cuda(fake_torch(properties(uuid="aaaa"))), {"CUDA_VISIBLE_DEVICES": "MIG-aaaa"}
    )
    assert found[0].id == "MIG-aaaa"
    live = NvidiaSensors(found[0], nvml)
    assert live.power().value is None
    assert live.energy().value is None
    assert live.clock().value == pytest.approx(1.755e9)
    assert "MIG slice" in live.clock().scope


def test_the_handle_is_opened_by_uuid_among_several_cards() -> None:
    other = FakeCard(uuid="GPU-00000000-5", pci=(0, 9, 0), says={"nvmlDeviceGetClockInfo": 300})
    assert NvidiaSensors(DEVICE, Nvml(FakeNvml(other, FakeCard()))).clock().value == pytest.approx(1.755e9)


def test_the_handle_is_opened_by_pci_address_where_the_uuid_is_unknown() -> None:
    nvml = FakeNvml(
        FakeCard(uuid="GPU-00000000-5", pci=(0, 9, 0)), FakeCard(uuid="", says={"nvmlDeviceGetClockInfo": 300})
    )
    assert NvidiaSensors(DEVICE, Nvml(nvml)).clock().value == pytest.approx(3e8)


@pytest.mark.parametrize("method", METHODS)
def test_report_9_without_nvml_each_sensor_says_why(method: str) -> None:
    reading = getattr(NvidiaSensors(DEVICE, Nvml(FakeNvml(says={"nvmlInit": NVMLError(18)}))), method)()
    assert reading.value is None
    assert "reboot or reload the driver" in reading.reason


@pytest.mark.parametrize("method", METHODS)
def test_a_card_that_is_gone_gives_reasons(method: str) -> None:
    reading = getattr(NvidiaSensors(DEVICE, Nvml(FakeNvml())), method)()
    assert reading.value is None
    assert reading.reason


def test_report_11_a_driver_that_answers_zero_everywhere() -> None:
    zeros = dict.fromkeys(HEALTHY, 0) | {"nvmlDeviceGetComputeRunningProcesses": pids(0, MAX32)}
    jetson = sensors(zeros)
    for method in ("power", "energy", "clock", "temperature"):
        assert getattr(jetson, method)().value is None, method
    assert jetson.processes().value is None
    assert "cannot be real" in (jetson.processes().reason or "")


# The fuzz: every call of every sensor × every way it can fail.

CALLS = {
    "nvmlDeviceGetFieldValues": "power",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetTotalEnergyConsumption": "energy",
    "nvmlDeviceGetClockInfo": "clock",
    "nvmlDeviceGetTemperatureV": "temperature",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle_reasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttle_reasons",
    "nvmlDeviceGetComputeRunningProcesses": "processes",
    "nvmlDeviceGetGraphicsRunningProcesses": "processes",
}


def sound(method: str, reading: Reading) -> bool:
    if reading.value is None:
        return bool(reading.reason)
    if method in ("throttle_reasons", "processes"):
        return isinstance(reading.value, tuple)
    return reading.number is not None and 1 < reading.number < 1e10 and reading.number != MAX32 * 1e-3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_fuzz_one_sensor_that_fails_leaves_the_others(call: str, way: str) -> None:
    whole, broken = sensors(), sensors({call: WAYS[way]})
    for method in METHODS:
        reading = getattr(broken, method)()
        assert sound(method, reading), (method, reading)
        if method != CALLS[call]:
            assert reading == getattr(whole, method)(), method


@pytest.mark.parametrize("call", CALLS)
def test_fuzz_report_27_one_call_that_pynvml_lacks(call: str) -> None:
    whole, old = sensors(), NvidiaSensors(DEVICE, Nvml(FakeNvml(FakeCard(), without=(call,))))
    for method in METHODS:
        reading = getattr(old, method)()
        assert sound(method, reading), (method, reading)
        if method != CALLS[call]:
            assert reading == getattr(whole, method)(), method


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scope", [0, 1])
def test_fuzz_field_values(scope: int, way: str) -> None:
    odd = WAYS[way] if way != "absent" else field_value(0, 13)
    for entry in (odd, SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=odd))):
        none = {0: field_value(0, NOT_SUPPORTED), 1: field_value(0, NOT_SUPPORTED)}
        reading = sensors({"nvmlDeviceGetFieldValues": fields(none | {scope: entry})}).power()
        assert reading.value == pytest.approx(318.0)
        assert reading.scope == "device"


@pytest.mark.parametrize("way", WAYS)
def test_fuzz_everything_fails_at_once(way: str) -> None:
    broken = sensors(dict.fromkeys(CALLS, WAYS[way]))
    for method in METHODS:
        assert sound(method, getattr(broken, method)()), method
    for method in ("power", "energy", "clock", "temperature"):
        assert getattr(broken, method)().value is None, method
    if way != "zero":
        assert broken.throttle_reasons().value is None
    if way not in ("empty", "error 13"):  # nobody; and the older call, which answers here
        assert broken.processes().value is None
