"""CUDA C++ to a cubin or PTX with NVRTC: no GPU, driver or nvcc needed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nearpeak.kernelcheck.c_functions import blank
from nearpeak.kernelcheck.source import Source
from nearpeak.records.errors import UserError, first_line

DEFAULT_ARCH = "sm_90"
INSTALL = "pip install cuda-bindings nvidia-cuda-nvrtc"
LOG_CHARACTERS = 4000
_OWN_FEATURES = {"sm_90": r"wgmma|setmaxnreg", "sm_100": r"tcgen05|setmaxnreg", "sm_103": r"tcgen05|setmaxnreg"}

# Headers that files for nvcc include from habit; NVRTC knows by itself what they declare for device code.
_NO_HEADER_NEEDED = ("cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "stdio.h", "stdlib.h")
_INTEGERS = """#pragma once
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
"""
_STAND_INS = {**dict.fromkeys(_NO_HEADER_NEEDED, "\n"), "stdint.h": _INTEGERS, "cstdint": _INTEGERS}


@dataclass(frozen=True)
class Compiled:
    """image: the cubin; symbol: the kernel's name in it (mangled unless extern "C"); arch: such as "sm_90a"."""

    image: bytes
    symbol: str
    arch: str


def compile_to_cubin(source: Source, kernel: str, arch: str | None = None, device_arch: str | None = None) -> Compiled:
    """Raises UserError with the compiler's message and the line in the user's own file, or what to install."""
    chosen = choose_arch(source.text, arch, device_arch)
    image, symbol = _compile(source, kernel, f"--gpu-architecture={chosen}", "CUBIN")
    return Compiled(image, symbol, chosen)


def compile_to_ptx(source: Source, kernel: str, arch: str | None = None, device_arch: str | None = None) -> str:
    """PTX with line information (`.loc`; add `source.line_offset` to its lines). Raises UserError as above."""
    chosen = choose_arch(source.text, arch, device_arch).replace("sm_", "compute_")
    image, _ = _compile(source, kernel, f"--gpu-architecture={chosen}", "PTX")
    return image.rstrip(b"\0").decode()


def choose_arch(text: str, arch: str | None, device_arch: str | None) -> str:
    """What to compile for: as asked, else the device's, else sm_90; with an "a" where the text needs that."""
    if arch is not None:
        if not re.fullmatch(r"sm_\d+[af]?", arch):
            raise UserError(f"'{arch}' is no architecture; write sm_80, sm_90, sm_90a, …")
        return arch
    chosen = device_arch or DEFAULT_ARCH
    own = _OWN_FEATURES.get(chosen)
    return chosen + "a" if own is not None and re.search(own, text) else chosen


def _compile(source: Source, kernel: str, architecture: str, kind: str) -> tuple[bytes, str]:
    nvrtc = _nvrtc()
    function = source.function(kernel)
    if function.template and "<" not in kernel:
        raise UserError(f"{source.path}: '{kernel}' is a template; name an instance, such as '{kernel}<float>'")
    expression = function.name + kernel[len(kernel.split("<", 1)[0]) :]
    folders = include_folders()
    headers = _stand_ins(source.text, [source.path.parent, *folders])
    options = [architecture, "-lineinfo", "--std=c++17", f"--include-path={source.path.parent.resolve()}"]
    options += [f"--include-path={folder}" for folder in folders]
    call = partial(_call, nvrtc)
    program = call(
        "nvrtcCreateProgram",
        source.text.encode(),
        source.path.name.encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [name.encode() for name in headers],
    )
    try:
        call("nvrtcAddNameExpression", program, expression.encode())
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _buffer(nvrtc, "nvrtcGetProgramLog", program).rstrip(b"\0 \n").decode(errors="replace")
            raise UserError(_message(log or status.name, source))
        symbol = call("nvrtcGetLoweredName", program, expression.encode()).decode()
        return _buffer(nvrtc, f"nvrtcGet{kind}", program), symbol
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    """The module; its place has changed between versions of the package."""
    for name in ("cuda.bindings.nvrtc", "cuda.nvrtc"):
        try:
            nvrtc = importlib.import_module(name)
            break
        except ImportError:
            continue
    else:
        raise UserError(f"CUDA source is compiled with NVRTC, which is not installed: {INSTALL}")
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # each version of the package has an exception of its own for a missing library
        raise UserError(f"NVRTC cannot be loaded ({first_line(error)}): {INSTALL}") from None
    return nvrtc


def _call(nvrtc: Any, name: str, *arguments: object) -> Any:
    status, *results = getattr(nvrtc, name)(*arguments)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise UserError(f"{name}: {status.name}")
    return results[0] if results else None


def _buffer(nvrtc: Any, name: str, program: Any) -> bytes:
    data: bytes = b" " * _call(nvrtc, f"{name}Size", program)
    _call(nvrtc, name, program, data)
    return data


def _message(log: str, source: Source) -> str:
    """The compiler's log, its places as FILE:LINE of the user's own file."""
    place = re.compile(rf"^{re.escape(source.path.name)}\((\d+)\)", re.MULTILINE)
    text = place.sub(lambda match: f"{source.path}:{int(match[1]) + source.line_offset}", log)
    first = re.search(r"^\S+:\d+: (?:catastrophic )?error", text, re.MULTILINE)
    text = text[first.start() :] if first else f"{source.path}: {text}"
    if len(text) > LOG_CHARACTERS:
        text = text[:LOG_CHARACTERS] + "\n…"
    if re.search("(could not|cannot) open source file", text):
        text += "\nCUDA's headers are looked for in CUDA_HOME, /usr/local/cuda, nvidia-cuda-runtime and triton."
    elif re.search(r'identifier "(cuda[A-Z]\w*|malloc|std)" is undefined|<<<', text):
        text += (
            "\nOnly device code is compiled: put host code (main, cudaMalloc, <<<…>>>) between "
            "#ifndef __CUDACC_RTC__ and #endif."
        )
    return text


def include_folders() -> list[Path]:
    """Folders that hold CUDA's headers, the user's own choice first."""
    places = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places.append(Path("/usr/local/cuda/include"))
    for package, inside in (("nvidia", "*/include"), ("triton", "backends/nvidia/include")):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            places += sorted(Path(root).glob(inside))
    return [place for place in places if (place / "cuda_fp16.h").is_file()][:1]


def _stand_ins(text: str, folders: list[Path]) -> dict[str, str]:
    """Headers that the text includes, that no folder holds, and that NVRTC can do without."""
    plain = blank(text)
    named = {
        match[1]
        for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", text, re.MULTILINE)
        if plain[match.start() : match.end()].lstrip().startswith("#")
    }
    return {
        name: content
        for name, content in _STAND_INS.items()
        if name in named and not any((folder / name).is_file() for folder in folders)
    }
