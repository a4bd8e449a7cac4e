"""Finding devices, choosing among them, their sensors, and how they are shown."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from fake_nvml import FakeCard, FakeNvml, NVMLError, fake_torch, properties
from nearpeak.cli.devices import devices as command
from nearpeak.hardware.cpu import cpu_device
from nearpeak.hardware.cpu_sensors import CpuSensors
from nearpeak.hardware.devices import VENDORS, Vendor, find_devices, select_devices, sensors_of
from nearpeak.hardware.nvidia import nvidia_devices
from nearpeak.hardware.nvidia_sensors import NvidiaSensors
from nearpeak.hardware.nvml import Nvml
from nearpeak.hardware.torch_cuda import read_torch_cuda
from nearpeak.records.device import Device
from nearpeak.records.errors import UserError
from nearpeak.records.library import Library
from nearpeak.report.devices_table import device_notes, missing_reasons, render, short_id

CPU = cpu_device()


def gpus() -> tuple[Device, ...]:
    """Two usable cards and a hidden one."""
    cards = [FakeCard(uuid=f"GPU-{name}-0000", pci=(0, n, 0), name=f"Card {name}") for n, name in enumerate(NAMES, 1)]
    torch = fake_torch(
        properties(name="Card aabbcc22", uuid="aabbcc22-0000", pci_bus_id=2),
        properties(name="Card aabbcc11", uuid="aabbcc11-0000", pci_bus_id=1),
    )
    variable = "GPU-aabbcc22,GPU-aabbcc11"
    return nvidia_devices(Nvml(FakeNvml(*cards)), read_torch_cuda(torch), {"CUDA_VISIBLE_DEVICES": variable})


NAMES = ("aabbcc11", "aabbcc22", "ddeeff33")
GPUS = gpus()
ALL = (*GPUS, CPU)


def vendor(name: str, *found: Device, fault: Exception | None = None) -> Vendor:
    def find() -> tuple[Device, ...]:
        if fault:
            raise fault
        return found

    return Vendor(name, find, lambda d: d.vendor == name, lambda d: CpuSensors((0,)))


def test_gpus_in_torchs_order_then_the_unusable_then_the_cpu() -> None:
    # The vendors' own order must not matter.
    found = find_devices((vendor("c", CPU), vendor("g", GPUS[2], GPUS[1], GPUS[0])))
    assert [d.torch_name for d in found] == ["cuda:0", "cuda:1", None, "cpu"]
    assert [d.name for d in found[:3]] == ["Card aabbcc22", "Card aabbcc11", "Card ddeeff33"]


def test_ten_cards_are_ordered_by_number_not_by_text() -> None:
    many = [replace(GPUS[0], id=f"GPU-{n}", torch_name=f"cuda:{n}") for n in (10, 2, 1)]
    assert [d.torch_name for d in find_devices((vendor("g", *many),))] == ["cuda:1", "cuda:2", "cuda:10"]


def test_one_vendors_failure_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    found = find_devices((vendor("broken", fault=RuntimeError("no luck")), vendor("c", CPU)))
    assert found == (CPU,)
    assert "no luck" in caplog.text


def test_the_cpu_is_always_here() -> None:
    assert find_devices()[-1].id == "cpu"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], GPUS[:2]),
        (["gpu"], GPUS[:2]),
        (["cpu"], (CPU,)),
        (["cuda:1"], GPUS[1:2]),
        (["GPU-aabbcc11-0000"], GPUS[1:2]),
        (["gpu-aabbcc2"], GPUS[:1]),
        (["cpu", "cuda:0"], (CPU, GPUS[0])),
        (["cuda:0", "GPU-aabbcc22", "gpu"], GPUS[:2]),
    ],
)
def test_select(wanted: list[str], expected: tuple[Device, ...]) -> None:
    assert select_devices(ALL, wanted) == expected


def test_nothing_named_and_no_usable_gpu_gives_the_cpu() -> None:
    assert select_devices((CPU,), []) == (CPU,)
    assert select_devices((GPUS[2], CPU), []) == (CPU,)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("cuda:7", "no device is called 'cuda:7'"),
        ("1", "no device is called '1'"),
        ("", "no device is called ''"),
        ("GPU-aabbcc", "'GPU-aabbcc' fits 2 devices"),
        ("GPU-ddeeff", "cannot be used: hidden by CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_wrong_name_lists_what_there_is_and_why(wanted: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        select_devices(ALL, ["cuda:0", wanted])
    text = str(error.value)
    assert words in text
    assert "\n" not in text
    assert "GPU-aabbcc11-0000 = cuda:1" in text
    assert "not usable: hidden by CUDA_VISIBLE_DEVICES" in text


def test_gpu_where_none_is_usable() -> None:
    with pytest.raises(UserError, match="there is no usable GPU"):
        select_devices((GPUS[2], CPU), ["gpu"])


def test_an_id_that_begins_another_is_itself() -> None:
    longer = replace(GPUS[0], id=GPUS[1].id + "9")
    assert select_devices((longer, GPUS[1]), [GPUS[1].id]) == (GPUS[1],)


def test_sensors_come_from_the_devices_vendor() -> None:
    assert isinstance(sensors_of(CPU), CpuSensors)
    assert isinstance(sensors_of(GPUS[0]), NvidiaSensors)
    with pytest.raises(ValueError, match="no vendor"):
        sensors_of(replace(GPUS[0], vendor="Nobody"))
    assert {v.name for v in VENDORS} == {"NVIDIA", "CPU"}


def test_importing_devices_imports_neither_torch_nor_pynvml() -> None:
    names = "'torch' in sys.modules, 'pynvml' in sys.modules"
    code = f"import sys, nearpeak.hardware.devices, nearpeak.cli.devices; print({names})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


LIBRARIES = (
    Library("Triton", None, False, "not installed", "kernels are slower"),
    Library("cuDNN", "9.10.2", True, "[bold]odd[/bold] text"),
)


def shown(width: int) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"), color_system=None)  # noqa: SIM115
    render(ALL, {}, LIBRARIES, console)
    return console.export_text()


@pytest.mark.parametrize("width", [80, 240])
def test_nothing_is_cut_and_the_header_has_the_units(width: int) -> None:
    text = shown(width)
    for word in ("Memory (GiB)", "Power limit (W)", "cuda:1", "sm_90", "GPU-aabbcc11", "700", "1980", "132", "140"):
        assert word in text, word
    assert "…" not in text
    assert "[bold]odd[/bold]" in text
    assert "kernels are slower" in text


def test_a_missing_value_is_a_dash_with_its_reason_once() -> None:
    poor = replace(CPU, id="cpu")
    reasons = missing_reasons((poor,))
    assert reasons["a CPU has no driver"] == ["cpu driver"]
    lines = device_notes(ALL, {})
    assert sum("a CPU has no driver" in line for line in lines) == 1
    assert any(line.startswith("GPU-ddeeff33 cannot be used: hidden by") for line in lines)
    assert any("link: PCIe generation 5" in line for line in lines)


def test_one_reason_for_several_fields_is_printed_once() -> None:
    nvml = Nvml(FakeNvml(says={"nvmlInit": NVMLError(12)}))
    found = nvidia_devices(nvml, read_torch_cuda(fake_torch(properties())), {})
    reasons = missing_reasons(found)
    assert len(reasons["NVIDIA's management library (NVML) is not installed"]) >= 4


def test_short_ids_can_be_typed_back() -> None:
    near = [replace(GPUS[0], id=f"GPU-aabbccdd-0000-111{n}") for n in (1, 2)]
    for device in (*ALL, *near):
        known = (CPU, *near) if device in near else ALL
        if device.unusable is None:
            assert select_devices(known, [short_id(device, known)]) == (device,)
    assert short_id(CPU, ALL) == "cpu"
    assert len(short_id(GPUS[0], ALL)) == 12


def test_json_is_one_document() -> None:
    done = CliRunner().invoke(command, ["--json"])
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["schema"] == "nearpeak.devices/1"
    cpu = body["devices"][-1]
    assert cpu["id"] == "cpu"
    assert "spec" in cpu
    assert cpu["driver"]["value"] is None
    assert cpu["driver"]["reason"]
    assert {"name", "version", "in_use", "detail", "missing_costs"} == set(body["libraries"][0])


def test_the_table_and_the_help() -> None:
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 0, done.output
    assert "PyTorch" in done.output
    assert "Example" in CliRunner().invoke(command, ["--help"]).output
