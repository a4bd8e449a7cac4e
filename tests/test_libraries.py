"""The libraries table: what is present, what torch uses, what a missing one costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import FakeNvml, NVMLError, fake_torch, properties
from nearpeak.hardware.attention import _precision, attention_libraries
from nearpeak.hardware.cpu import cpu_device
from nearpeak.hardware.libraries import find_libraries, opencl
from nearpeak.hardware.nvidia import nvidia_devices
from nearpeak.hardware.nvml import Nvml
from nearpeak.hardware.torch_cuda import read_torch_cuda
from nearpeak.records.library import Library


def gpu_torch(cudnn: int | None = 91_002, cards: int = 1, **changes: Any) -> Any:
    torch = fake_torch(
        *[properties() for _ in range(cards)], nccl=SimpleNamespace(version=lambda: (2, 28, 9)), **changes
    )
    available = SimpleNamespace(is_available=lambda: True)
    torch.backends = SimpleNamespace(
        cudnn=SimpleNamespace(version=lambda: cudnn, enabled=True), mkldnn=available, mkl=available, openmp=available
    )
    torch.__config__ = SimpleNamespace(show=lambda: "MKL-DNN v3.7.1 (Git)\nOpenMP 201511 (a.k.a. OpenMP 4.5)")
    torch.get_num_threads = lambda: 16
    return torch


def named(libraries: tuple[Library, ...]) -> dict[str, Library]:
    assert len({library.name for library in libraries}) == len(libraries)
    return {library.name: library for library in libraries}


def test_a_gpu_machine(tmp_path: Path) -> None:
    found = named(find_libraries((), gpu_torch(cards=2), Nvml(FakeNvml()), tmp_path))
    assert (found["CUDA runtime"].version, found["CUDA runtime"].in_use) == ("13.0", True)
    assert found["CUDA of the driver"].version == "13.0"
    assert (found["cuDNN"].version, found["cuDNN"].in_use) == ("9.10.2", True)
    assert (found["NCCL"].version, found["NCCL"].in_use) == ("2.28.9", True)
    assert found["oneDNN"].version == "3.7.1"
    assert found["OpenMP"].version == "4.5"
    assert "16 threads" in found["OpenMP"].detail
    assert found["cuBLAS"].missing_costs is None


def test_nccl_is_not_in_use_with_one_card(tmp_path: Path) -> None:
    assert not named(find_libraries((), gpu_torch(), Nvml(FakeNvml()), tmp_path))["NCCL"].in_use


@pytest.mark.parametrize(("number", "text"), [(91_002, "9.10.2"), (90_100, "9.1.0"), (8_907, "8.9.7")])
def test_both_ways_of_writing_cudnns_version(number: int, text: str, tmp_path: Path) -> None:
    assert named(find_libraries((), gpu_torch(number), Nvml(FakeNvml()), tmp_path))["cuDNN"].version == text


@pytest.mark.parametrize(("number", "text"), [(13_000, "13.0"), (12_080, "12.8"), (12_040, "12.4")])
def test_the_drivers_cuda(number: int, text: str, tmp_path: Path) -> None:
    nvml = Nvml(FakeNvml(says={"nvmlSystemGetCudaDriverVersion_v2": number}))
    assert named(find_libraries((), gpu_torch(), nvml, tmp_path))["CUDA of the driver"].version == text


def test_report_9_the_drivers_cuda_is_unknown_after_a_mismatch(tmp_path: Path) -> None:
    nvml = Nvml(FakeNvml(says={"nvmlInit": NVMLError(18)}))
    found = named(find_libraries((), gpu_torch(), nvml, tmp_path))["CUDA of the driver"]
    assert found.version is None
    assert "reboot or reload" in found.detail


def test_a_torch_without_cuda_says_what_it_costs(tmp_path: Path) -> None:
    torch = gpu_torch(None)
    torch.version.cuda = None
    torch.cuda.is_available = lambda: False
    found = named(find_libraries((), torch, Nvml(FakeNvml()), tmp_path))
    for name in ("CUDA runtime", "cuBLAS", "cuDNN", "NCCL", "OpenCL"):
        assert found[name].missing_costs, name
        assert not found[name].in_use, name
        assert found[name].version is None, name


def test_a_rocm_build(tmp_path: Path) -> None:
    torch = gpu_torch(3_004_000)
    torch.version.hip, torch.version.cuda = "6.4.43482", None
    found = named(find_libraries((), torch, Nvml(FakeNvml()), tmp_path))
    assert found["ROCm"].version == "6.4.43482"
    assert found["MIOpen"].version == "3004000"
    assert "RCCL" in found
    assert "cuDNN" not in found


def test_a_library_that_cannot_be_asked_leaves_the_others(tmp_path: Path) -> None:
    torch = gpu_torch()
    torch.backends.cudnn.version = lambda: 1 / 0
    torch.__config__ = None
    found = named(find_libraries((), torch, Nvml(FakeNvml()), tmp_path))
    assert "ZeroDivisionError" in found["cuDNN"].detail
    assert "AttributeError" in found["oneDNN"].detail
    assert found["NCCL"].version == "2.28.9"


@pytest.mark.parametrize("loader", ["libOpenCL.so.1", None])
def test_opencl_drivers(tmp_path: Path, loader: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: loader)
    assert opencl(tmp_path).missing_costs
    folder = tmp_path / "etc/OpenCL/vendors"
    folder.mkdir(parents=True)
    (folder / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    (folder / "pocl.icd").write_text("libpocl.so\n")
    assert "nvidia, pocl" in opencl(tmp_path).detail
    assert (opencl(tmp_path).missing_costs is None) == (loader is not None)


def test_this_machine() -> None:
    found = named(find_libraries((cpu_device(),)))
    assert found["PyTorch"].in_use
    assert found["plain attention"].missing_costs is None
    assert sum(found[n].in_use for n in found if "attention" in n) == 1
    assert "cpu" in found["plain attention"].detail


def test_attention_that_cannot_be_tried_says_so() -> None:
    assert attention_libraries(None, None) == ()
    for library in attention_libraries(SimpleNamespace(float32=1), cpu_device()):
        assert not library.in_use
        assert "could not be tried" in library.detail


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), "half"), ((8, 0), "brain"), ((9, 0), "brain")])
def test_report_17_attention_is_tried_in_a_precision_that_the_card_has(
    capability: tuple[int, int], expected: str
) -> None:
    card = properties(major=capability[0], minor=capability[1])
    (device,) = nvidia_devices(Nvml(FakeNvml()), read_torch_cuda(fake_torch(card)), {})
    assert _precision(SimpleNamespace(float16="half", bfloat16="brain", float32="single"), device) == expected


def test_nvrtc_needs_no_cuda_build_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from nearpeak.hardware import libraries

    monkeypatch.setattr(libraries, "_package", lambda *names: "13.0.88")
    assert libraries._nvrtc().in_use
    monkeypatch.setattr(libraries, "_package", lambda *names: None)
    assert libraries._nvrtc().missing_costs
