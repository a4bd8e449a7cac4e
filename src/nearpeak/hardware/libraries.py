"""The libraries that work on this machine can use: which are present, which torch uses, what a missing one costs."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nearpeak.hardware.attention import attention_libraries
from nearpeak.hardware.nvml import Nvml
from nearpeak.records.device import Device
from nearpeak.records.errors import first_line
from nearpeak.records.library import Library


def find_libraries(
    devices: Sequence[Device] = (), module: Any = None, nvml: Nvml | None = None, root: Path = Path("/")
) -> tuple[Library, ...]:
    """Ask torch (imported here unless a `module` is handed in), NVML, the installed packages and OpenCL's registry.

    Attention kernels are tried on the first usable device. Nothing here raises; each library is asked alone.
    """
    try:
        torch = _torch() if module is None else module
    except Exception as error:
        return (Library("torch", None, False, f"cannot be imported ({error})", "nothing can be measured or run"),)
    asks: list[tuple[str, Callable[[], Library]]] = [("PyTorch", lambda: _pytorch(torch))]
    if getattr(torch.version, "hip", None):
        asks += [("ROCm", lambda: _rocm(torch)), ("MIOpen", lambda: _miopen(torch))]
        asks += [("RCCL", lambda: _nccl(torch, "RCCL"))]
    else:
        asks += [
            ("CUDA runtime", lambda: _cuda_runtime(torch)),
            ("CUDA of the driver", lambda: _cuda_driver(Nvml(root=root) if nvml is None else nvml)),
            ("cuBLAS", lambda: _part_of_cuda(torch, "cuBLAS", "nvidia-cublas", "matrix products on NVIDIA cards")),
            ("cuDNN", lambda: _cudnn(torch)),
            ("NCCL", lambda: _nccl(torch, "NCCL")),
            ("NVRTC", _nvrtc),
        ]
    asks += [
        ("Triton", lambda: _triton(torch)),
        ("oneDNN", lambda: _onednn(torch)),
        ("MKL", lambda: _mkl(torch)),
        ("OpenMP", lambda: _openmp(torch)),
        ("OpenCL", lambda: opencl(root)),
    ]
    usable = next((d for d in devices if d.unusable is None and d.torch_name), None)
    return (*(_alone(name, ask) for name, ask in asks), *attention_libraries(torch, usable))


def _alone(name: str, ask: Callable[[], Library]) -> Library:
    try:
        return ask()
    except Exception as error:
        return Library(name, None, False, f"could not be asked ({type(error).__name__}: {first_line(error)[:120]})")


def _pytorch(torch: Any) -> Library:
    return Library("PyTorch", str(torch.__version__), True, "runs the products, copies and networks")


def _cuda_runtime(torch: Any) -> Library:
    version = torch.version.cuda
    if not version:
        return Library("CUDA runtime", None, False, "torch has no CUDA build", "no NVIDIA card can be used")
    in_use = bool(torch.cuda.is_available())
    built = ", ".join(torch.cuda.get_arch_list()) if in_use else ""
    detail = f"torch was built for it, with code for {built}" if built else "torch was built for it"
    return Library("CUDA runtime", str(version), in_use, detail + ("" if in_use else "; it sees no card"))


def _cuda_driver(nvml: Nvml) -> Library:
    name = "CUDA of the driver"
    reading = nvml.number("", 1, "nvmlSystemGetCudaDriverVersion_v2")
    if reading.number is None:
        return Library(name, None, False, f"unknown: {reading.reason}")
    number = int(reading.number)
    return Library(name, f"{number // 1000}.{number % 1000 // 10}", True, "the newest CUDA that the driver runs")


def _part_of_cuda(torch: Any, name: str, package: str, work: str) -> Library:
    """A library that comes with CUDA: as a package of its own beside torch, or within the system's CUDA."""
    if not torch.version.cuda:
        return Library(name, None, False, "torch has no CUDA build", f"no {work}")
    version = _package(package, f"{package}-cu{str(torch.version.cuda).split('.')[0]}")
    in_use = bool(torch.cuda.is_available())
    if version:
        return Library(name, version, in_use, "installed beside torch")
    found = ctypes.util.find_library(name.lower())
    return Library(name, None, in_use, f"the system's {found}" if found else "built into torch; it does not say which")


def _nvrtc() -> Library:
    """The compiler of CUDA kernels; it needs neither a GPU nor torch's CUDA build."""
    version = _package("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")
    if version:
        return Library("NVRTC", version, True, "compiles CUDA kernels for `kernel check`")
    return Library("NVRTC", None, False, "not installed", "CUDA kernels can be neither compiled nor checked")


def _cudnn(torch: Any) -> Library:
    version = torch.backends.cudnn.version()
    if not torch.version.cuda or version is None:
        cost = "convolutions run on slower kernels, and one fused attention kernel is missing"
        return Library("cuDNN", None, False, "torch has none", cost)
    number = int(version)
    # 9.10.2 is written 91002; before version 9 it was 8.9.7 as 8907.
    parts = (number // 10000, number % 10000 // 100) if number >= 90000 else (number // 1000, number % 1000 // 100)
    in_use = bool(torch.cuda.is_available() and torch.backends.cudnn.enabled)
    return Library("cuDNN", f"{parts[0]}.{parts[1]}.{number % 100}", in_use, "convolutions and fused attention")


def _nccl(torch: Any, name: str) -> Library:
    if not torch.cuda.is_available():
        return Library(name, None, False, "torch sees no card", "several cards cannot work on one model together")
    version = torch.cuda.nccl.version()
    text = ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)
    return Library(name, text, int(torch.cuda.device_count()) > 1, "transfers between cards")


def _rocm(torch: Any) -> Library:
    return Library("ROCm", str(torch.version.hip), bool(torch.cuda.is_available()), "torch was built for it")


def _miopen(torch: Any) -> Library:
    version = torch.backends.cudnn.version()  # a ROCm build of torch answers for MIOpen under cuDNN's name
    if version is None:
        return Library("MIOpen", None, False, "torch has none", "convolutions run on slower kernels")
    return Library("MIOpen", str(version), bool(torch.cuda.is_available()), "convolutions")


def _triton(torch: Any) -> Library:
    version = _package("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows")
    if version is None:
        cost = "plain torch kernels, usually slower, do the work of nearpeak's own and of torch.compile's"
        return Library("Triton", None, False, "not installed", cost)
    in_use = bool(torch.cuda.is_available())
    return Library("Triton", version, in_use, "GPU kernels in Python" + ("" if in_use else "; no card to run on"))


def _onednn(torch: Any) -> Library:
    if not torch.backends.mkldnn.is_available():
        return Library("oneDNN", None, False, "torch has none", "bf16 and int8 products on the CPU run much slower")
    found = _configured(torch, r"MKL-DNN v([\d.]+)")
    return Library("oneDNN", found, True, "convolutions and bf16 products on the CPU")


def _mkl(torch: Any) -> Library:
    if not torch.backends.mkl.is_available():
        return Library("MKL", None, False, "torch uses another library for fp32 products", None)
    found = _configured(torch, r"Math Kernel Library Version ([\d.]+)")
    return Library("MKL", found, True, "fp32 and fp64 products on the CPU")


def _openmp(torch: Any) -> Library:
    if not torch.backends.openmp.is_available():
        return Library("OpenMP", None, False, "torch has none", "the CPU's work runs on one core")
    return Library("OpenMP", _configured(torch, r"OpenMP (\d\.\d)"), True, f"{torch.get_num_threads()} threads")


def opencl(root: Path = Path("/")) -> Library:
    """OpenCL's drivers, each of which leaves a file in the registry folder, and its loader."""
    drivers = sorted(path.stem for path in (root / "etc/OpenCL/vendors").glob("*.icd"))
    loader = ctypes.util.find_library("OpenCL")
    cost = "OpenCL kernels cannot be run"
    if not drivers:
        return Library("OpenCL", None, False, "no driver is registered", cost)
    listed = f"drivers: {', '.join(drivers)}"
    if loader is None:
        return Library("OpenCL", None, False, f"{listed}; but the loader (libOpenCL) is not installed", cost)
    return Library("OpenCL", None, False, f"{listed}; torch does not use it")


def _configured(torch: Any, pattern: str) -> str | None:
    found = re.search(pattern, torch.__config__.show())
    return found[1].rstrip(".") if found else None


def _package(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _torch() -> Any:
    import torch

    return torch
