"""The CPU as a device, and its sensors, on made-up /proc and /sys trees."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from nearpeak.hardware.cpu import cpu_device, last_level_cache, max_clock, parse_cpuinfo
from nearpeak.hardware.cpu_sensors import CpuSensors
from nearpeak.hardware.host_memory import group_limit, host_memory

X86 = """processor : 0
vendor_id : GenuineIntel
model name : Intel(R) Xeon(R) Platinum 8480+
cpu MHz : 2000.000
flags : fpu avx2 fma f16c avx512f avx512_bf16 avx512_fp16 avx512_vnni avx_vnni amx_bf16 amx_tile amx_int8

processor : 1
model name : Intel(R) Xeon(R) Platinum 8480+
cpu MHz : 3000.000
flags : fpu avx2 fma f16c avx512f avx512_bf16 avx512_fp16 avx512_vnni avx_vnni amx_bf16 amx_tile amx_int8
"""
ARM = """processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd asimdhp asimddp bf16 i8mm sve
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


def write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_features_of_x86_and_arm() -> None:
    name, vendor, flags = parse_cpuinfo(X86)
    assert (name, vendor) == ("Intel(R) Xeon(R) Platinum 8480+", "Intel")
    assert {"avx512_bf16", "amx_int8"} <= flags
    name, vendor, flags = parse_cpuinfo(ARM)
    assert (name, vendor) == (None, "ARM")
    assert {"asimd", "bf16", "i8mm", "sve"} <= flags
    assert parse_cpuinfo("") == (None, None, frozenset())


def test_a_feature_counts_only_where_every_core_has_it() -> None:
    _, _, flags = parse_cpuinfo("Features : asimd sve\n\nFeatures : asimd\n")
    assert flags == {"asimd"}


def test_the_device_on_an_empty_machine_has_reasons(tmp_path: Path) -> None:
    cpu = cpu_device(tmp_path)
    assert (cpu.id, cpu.torch_name, cpu.unusable) == ("cpu", "cpu", None)
    assert cpu.features == ()
    assert cpu.name
    for name in ("memory", "memory_available", "cache", "power_limit", "max_clock", "driver", "ecc", "link"):
        assert getattr(cpu, name).value is None, name
        assert getattr(cpu, name).reason, name


def test_the_device_of_this_machine() -> None:
    cpu = cpu_device()
    assert cpu.units
    assert cpu.architecture
    assert cpu.memory.number
    assert cpu.memory_available.number
    assert cpu.memory.number > cpu.memory_available.number > 0


def test_features_reach_the_device(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", X86)
    expected = {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni"}
    assert set(cpu_device(tmp_path).features) == expected | {"amx_bf16", "amx_int8"}


def test_an_arm_cpu_without_a_name_is_called_after_its_board(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", ARM)
    write(tmp_path, "sys/firmware/devicetree/base/model", "NVIDIA Jetson AGX Orin\0")
    assert cpu_device(tmp_path).name == "NVIDIA Jetson AGX Orin"


def cache(root: Path, core: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> None:
    folder = f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
    for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared), ("type", kind)):
        write(root, f"{folder}/{name}", text + "\n")


def test_cache_counts_each_piece_of_the_last_level_once(tmp_path: Path) -> None:
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        cache(tmp_path, core, 0, 1, "32K", str(core), "Data")
        cache(tmp_path, core, 3, 3, "32768K", shared)
    assert last_level_cache((0, 1, 2, 3), tmp_path).value == 2 * 32 * 2**20
    assert last_level_cache((0, 1), tmp_path).value == 32 * 2**20
    assert last_level_cache((7,), tmp_path).value is None


def test_cache_without_a_third_level(tmp_path: Path) -> None:
    cache(tmp_path, 0, 0, 1, "64K", "0", "Instruction")
    cache(tmp_path, 0, 1, 2, "1M", "0")
    assert last_level_cache((0,), tmp_path).value == 2**20


def test_max_clock_is_the_fastest_cores(tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "2100000\n")
    write(tmp_path, "sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq", "3800000\n")
    assert max_clock((0, 1), tmp_path).value == pytest.approx(3.8e9)
    assert max_clock((2,), tmp_path).value is None


MEMINFO = "MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 800000 kB\n"


def test_memory_of_the_host(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", MEMINFO)
    total, available = host_memory(tmp_path)
    assert (total.value, available.value) == (1_024_000_000, 819_200_000)


@pytest.mark.parametrize("version", [1, 2])
def test_a_smaller_control_group_limit_counts(tmp_path: Path, version: int) -> None:
    write(tmp_path, "proc/meminfo", MEMINFO)
    if version == 2:
        write(tmp_path, "proc/self/cgroup", "0::/box/inner\n")
        base, names, stat = "sys/fs/cgroup", ("memory.max", "memory.current"), "inactive_file"
        write(tmp_path, f"{base}/box/inner/memory.max", "max\n")
    else:
        write(tmp_path, "proc/self/cgroup", "5:cpu:/x\n4:memory:/box/inner\n")
        base, names, stat = (
            "sys/fs/cgroup/memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_inactive_file",
        )
        write(tmp_path, f"{base}/box/inner/{names[0]}", "9223372036854771712\n")
    write(tmp_path, f"{base}/box/{names[0]}", "500000000\n")
    write(tmp_path, f"{base}/box/{names[1]}", "300000000\n")
    write(tmp_path, f"{base}/box/memory.stat", f"anon 1\n{stat} 100000000\n")
    total, available = host_memory(tmp_path)
    assert total.value == 500_000_000
    assert available.value == 300_000_000  # cached file pages are given back
    assert "control group" in total.how


def test_version_1_writes_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert group_limit(tmp_path) is None


def test_a_limit_above_the_host_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "9000000000\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "1\n")
    total, available = host_memory(tmp_path)
    assert (total.value, available.value) == (1_024_000_000, 819_200_000)


class Clock:
    """Time that moves only when someone waits; each wait also moves the counter by `watts`."""

    def __init__(self, counters: list[Path], watts: int, whole: int) -> None:
        self.time, self.counters, self.watts, self.whole = 0.0, counters, watts, whole

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds
        for counter in self.counters:
            raw = int(counter.read_text()) + round(seconds * self.watts * 1e6)
            counter.write_text(f"{raw % self.whole}\n")


def rapl(root: Path, *starts: int, whole: int = 262_143_328_850) -> list[Path]:
    counters = []
    for number, start in enumerate(starts):
        zone = f"sys/class/powercap/intel-rapl:{number}"
        write(root, f"{zone}/name", f"package-{number}\n")
        write(root, f"{zone}/max_energy_range_uj", f"{whole}\n")
        write(root, f"{zone}/constraint_0_power_limit_uw", "150000000\n")
        counters.append(write(root, f"{zone}/energy_uj", f"{start}\n"))
    write(root, "sys/class/powercap/intel-rapl:0:0/name", "core\n")
    write(root, "sys/class/powercap/intel-rapl:0:0/energy_uj", "999\n")
    write(root, "sys/class/powercap/intel-rapl:9/name", "psys\n")
    write(root, "sys/class/powercap/intel-rapl:9/energy_uj", "999\n")
    return counters


def test_power_and_energy_add_the_packages_and_only_them(tmp_path: Path) -> None:
    clock = Clock(rapl(tmp_path, 10**9, 2 * 10**9), watts=100, whole=262_143_328_850)
    live = CpuSensors((0, 1), tmp_path, clock.now, clock.wait)
    before = live.energy().number
    assert before == pytest.approx(3000.0)
    assert live.power().value == pytest.approx(200.0)
    assert live.power().scope == "CPU packages"
    clock.wait(2.0)
    after = live.energy().number
    assert after is not None
    assert after - before == pytest.approx(200.0 * clock.time)
    assert cpu_device(tmp_path).power_limit.value == pytest.approx(300.0)


def test_energy_goes_on_growing_when_the_counter_wraps(tmp_path: Path) -> None:
    clock = Clock(rapl(tmp_path, 900_000, whole=1_000_000), watts=1, whole=1_000_000)
    live = CpuSensors((0, 1), tmp_path, clock.now, clock.wait)
    before = live.energy().number
    clock.wait(0.5)
    after = live.energy().number
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0.5)


def test_no_permission_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rapl(tmp_path, 10**9)
    real = Path.read_text

    def locked(self: Path, *rest: Any, **named: Any) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return real(self, *rest, **named)

    monkeypatch.setattr(Path, "read_text", locked)
    live = CpuSensors((0, 1), tmp_path)
    assert live.energy().value is None
    assert "no permission" in (live.energy().reason or "")
    assert live.power().value is None
    assert "no permission" in (live.power().reason or "")


def test_a_counter_that_stands_still_is_not_zero_watts(tmp_path: Path) -> None:
    clock = Clock(rapl(tmp_path, 10**9), watts=0, whole=10**12)
    reading = CpuSensors((0, 1), tmp_path, clock.now, clock.wait).power()
    assert reading.value is None
    assert "did not move" in (reading.reason or "")


@pytest.mark.parametrize("text", ["", "garbage", "-"])
def test_an_odd_counter_is_a_reason(tmp_path: Path, text: str) -> None:
    rapl(tmp_path, 1)[0].write_text(text)
    assert CpuSensors((0, 1), tmp_path).energy().value is None
    assert CpuSensors((0, 1), tmp_path).power().value is None


def test_clock_from_cpufreq_else_from_cpuinfo(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", X86)
    assert CpuSensors((0, 1), tmp_path).clock().value == pytest.approx(2.5e9)
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3100000\n")
    assert CpuSensors((0, 1), tmp_path).clock().value == pytest.approx(3.1e9)


def test_the_clock_is_that_of_the_cores_that_may_be_used(tmp_path: Path) -> None:
    """Two of many cores work: the idle ones' clock says nothing of them."""
    write(tmp_path, "proc/cpuinfo", X86)
    assert CpuSensors((1,), tmp_path).clock().value == pytest.approx(3e9)
    for core in range(8):
        write(tmp_path, f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{3_900 - core}000\n")
    assert CpuSensors((0,), tmp_path).clock().value == pytest.approx(3.9e9)


def test_temperature_is_the_hottest_sensors(tmp_path: Path) -> None:
    write(tmp_path, "sys/class/hwmon/hwmon0/name", "nvme\n")
    write(tmp_path, "sys/class/hwmon/hwmon0/temp1_input", "99000\n")
    assert CpuSensors((0, 1), tmp_path).temperature().value is None
    write(tmp_path, "sys/class/hwmon/hwmon1/name", "coretemp\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp1_input", "51000\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp2_input", "54000\n")
    assert CpuSensors((0, 1), tmp_path).temperature().value == pytest.approx(54.0)


@pytest.mark.parametrize("method", ["power", "energy", "clock", "temperature", "throttle_reasons", "processes"])
def test_on_an_empty_machine_every_sensor_has_a_reason(tmp_path: Path, method: str) -> None:
    reading = getattr(CpuSensors((0, 1), tmp_path), method)()
    assert reading.value is None
    assert reading.reason
    assert getattr(CpuSensors((0,)), method)() is not None


def test_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        assert name.split(".")[0] not in ("torch", "pynvml")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    assert cpu_device().id == "cpu"
