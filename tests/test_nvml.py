"""The one door to NVML: every way a call can fail is a reason (defect reports 9, 11, 12, 27)."""

from __future__ import annotations

import builtins
from ctypes import c_uint
from pathlib import Path
from typing import Any

import pytest

from fake_nvml import MAX32, MAX64, FakeCard, FakeNvml, NVMLError, field_value
from nearpeak.hardware.nvml import REASONS, Nvml, kernel_driver_version


def power(says: Any) -> Any:
    nvml = Nvml(FakeNvml(FakeCard(says={"nvmlDeviceGetPowerUsage": says})))
    return nvml.number("W", 1e-3, "nvmlDeviceGetPowerUsage", nvml.ask("nvmlDeviceGetHandleByIndex", 0).value)


def test_a_number_is_scaled_to_si() -> None:
    assert power(318_000).value == pytest.approx(318.0)
    assert power(c_uint(318_000)).value == pytest.approx(318.0)
    assert power(318_000).reason is None


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 9, 10, 12, 13, 15, 16, 17, 18, 27, 999, 4242])
def test_every_error_code_is_a_reason(code: int) -> None:
    reading = power(NVMLError(code))
    assert reading.value is None
    assert reading.reason == REASONS.get(code, f"the driver gave error {code}")


@pytest.mark.parametrize("odd", [0, -5, MAX32, MAX64, b"12", "12", None, True, [], float("nan"), RuntimeError("x")])
def test_report_12_what_is_no_number_is_missing_not_zero(odd: Any) -> None:
    reading = power(odd)
    assert reading.value is None
    assert reading.reason


def test_zero_stays_where_it_means_something() -> None:
    nvml = Nvml(FakeNvml())
    assert nvml.number("", 1, "nvmlDeviceGetCount", zero=True).value == 0
    assert nvml.number("", 1, "nvmlDeviceGetCount").value is None


def test_report_27_a_call_that_an_older_pynvml_lacks() -> None:
    nvml = Nvml(FakeNvml(FakeCard(), without=("nvmlDeviceGetPowerUsage",)))
    answer = nvml.ask("nvmlDeviceGetPowerUsage", FakeCard())
    assert answer.code == 13
    assert "too old" in (answer.reason or "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("NVIDIA H200", "NVIDIA H200"), (b"NVIDIA H200\0", "NVIDIA H200"), (b"\xff ", "\N{REPLACEMENT CHARACTER}")],
)
def test_bytes_in_place_of_text(given: Any, expected: str) -> None:
    nvml = Nvml(FakeNvml(FakeCard(name=given)))
    assert nvml.text("nvmlDeviceGetName", nvml.ask("nvmlDeviceGetHandleByIndex", 0).value).value == expected


@pytest.mark.parametrize("odd", ["", b"", "  ", 0, NVMLError(3)])
def test_a_text_is_never_empty(odd: Any) -> None:
    nvml = Nvml(FakeNvml(says={"nvmlSystemGetDriverVersion": odd, "nvmlDeviceGetCount": 1}))
    assert nvml.failure is None
    assert nvml.text("nvmlSystemGetDriverVersion").value is None


def test_report_9_driver_and_library_mismatch_is_one_sentence_with_versions(tmp_path: Path) -> None:
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC version: 12\n")
    nvml = Nvml(FakeNvml(FakeCard(), says={"nvmlInit": NVMLError(18)}), root=tmp_path)
    assert nvml.failure is not None
    assert "13.580.95.05" in nvml.failure
    assert "570.86.15" in nvml.failure
    assert "reboot or reload the driver" in nvml.failure
    assert "\n" not in nvml.failure
    assert nvml.ask("nvmlDeviceGetCount").reason == nvml.failure


def test_report_9_without_versions_it_says_so(tmp_path: Path) -> None:
    says = {"nvmlInit": NVMLError(18), "nvmlSystemGetNVMLVersion": NVMLError(1)}
    assert "of unknown version" in (Nvml(FakeNvml(says=says), root=tmp_path).failure or "")


def test_the_open_kernel_module_writes_its_version_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n"
    )
    assert kernel_driver_version(tmp_path) == "580.95.05"
    assert kernel_driver_version(tmp_path / "nowhere") is None


@pytest.mark.parametrize("code", [9, 12])
def test_report_11_no_driver_or_no_library(code: int) -> None:
    assert Nvml(FakeNvml(says={"nvmlInit": NVMLError(code)})).failure == REASONS[code]


def test_report_11_a_stub_library_is_no_nvml() -> None:
    stub = FakeNvml(says={"nvmlSystemGetDriverVersion": "", "nvmlDeviceGetCount": 0})
    assert "stub" in (Nvml(stub).failure or "")
    # A driver without cards is no stub.
    assert Nvml(FakeNvml()).failure is None


def test_no_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "pynvml":
            raise ImportError("No module named 'pynvml'")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "nvidia-ml-py" in (Nvml().failure or "")


def test_the_real_pynvml_without_a_driver_gives_a_reason_or_works() -> None:
    nvml = Nvml()
    assert nvml.failure is None or len(nvml.failure) > 10


def test_a_field_has_a_return_code_of_its_own() -> None:
    says = {"nvmlDeviceGetFieldValues": lambda asked: [field_value(0, 3)]}
    nvml = Nvml(FakeNvml(FakeCard(says=says)))
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", 0).value
    answer = nvml.field(handle, 186, 0)
    assert answer.value is None
    assert (answer.reason, answer.code) == (REASONS[3], 3)


@pytest.mark.parametrize("odd", [[], [object()], [field_value(5, 0, kind=99)], 7, NVMLError(10)])
def test_an_odd_field_answer_is_a_reason(odd: Any) -> None:
    nvml = Nvml(FakeNvml(FakeCard(says={"nvmlDeviceGetFieldValues": lambda asked: odd})))
    answer = nvml.field(nvml.ask("nvmlDeviceGetHandleByIndex", 0).value, 186, 0)
    assert answer.value is None
    assert answer.reason
