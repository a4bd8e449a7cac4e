"""CUDA source as a kernel: compiled with NVRTC, launched by the driver on torch's stream."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from nearpeak.kernelcheck import cubin, launch
from nearpeak.kernelcheck.c_functions import Parameter, typedefs
from nearpeak.kernelcheck.cubin import Resources
from nearpeak.kernelcheck.cuda_compile import Compiled, compile_to_cubin
from nearpeak.kernelcheck.cuda_driver import ORDINARY_SHARED, Driver, DriverError
from nearpeak.kernelcheck.kernel import Declaration, Language, Sizes, Tensors
from nearpeak.kernelcheck.kernel_failed import KernelFailed
from nearpeak.kernelcheck.launch import Geometry, TensorMapRequest
from nearpeak.kernelcheck.source import Source
from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import torch

_LAUNCH_REFUSED = (1, 701, 912)  # invalid value, out of resources, invalid cluster size: nothing ran, nothing is lost
_CAUSES = {
    700: "it reads or writes outside of its tensors",
    702: "it ran longer than the display's watchdog allows",
    715: "it holds an instruction that this GPU has not; check --arch",
    716: "it reads or writes at an address that is no multiple of the access's size",
    718: "it jumps to a place that is no code",
}

# struct's letters. `long` is 64 bits wide where CUDA's host is Linux.
_SCALARS = {
    "int": "i", "signed": "i", "signed int": "i", "int32_t": "i", "unsigned": "I", "unsigned int": "I", "uint32_t": "I",
    "uint": "I", "short": "h", "unsigned short": "H", "int16_t": "h", "uint16_t": "H", "char": "b", "signed char": "b",
    "unsigned char": "B", "int8_t": "b", "uint8_t": "B", "bool": "?", "long": "q", "long int": "q", "long long": "q",
    "long long int": "q", "int64_t": "q", "ptrdiff_t": "q", "unsigned long": "Q", "unsigned long int": "Q",
    "unsigned long long": "Q", "unsigned long long int": "Q", "uint64_t": "Q", "size_t": "Q", "float": "f",
    "double": "d",
}  # fmt: skip
_BY_SIZE = {1: "b", 2: "h", 4: "i", 8: "q"}


class Launcher(Protocol):
    """What CudaKernel needs of `cuda_driver.Driver`; the tests have one without a GPU."""

    shared_limit: int

    def load(self, image: bytes, symbol: str) -> tuple[object, Resources]: ...

    def allow_shared(self, function: object, size: int) -> None: ...

    def prepared(self, function: object, shape: Geometry, packed: Sequence[bytes]) -> PreparedCall: ...

    def synchronize(self) -> None: ...

    def tensor_map(self, tensor: torch.Tensor, request: TensorMapRequest) -> bytes: ...


class PreparedCall(Protocol):
    def __call__(self, stream: int) -> None: ...


class CudaKernel:
    """Implements `Kernel`. On a CPU device it is compiled and can be analysed, and `bind` refuses.

    `resources` come from the driver where there is a GPU, else from the cubin. `source.line_offset` turns lines of the
    compiled text into the file's.
    """

    language: Language = "CUDA"

    def __init__(
        self,
        source: Source,
        declaration: Declaration,
        device: torch.device,
        arch: str | None = None,
        driver: Launcher | None = None,
    ) -> None:
        """Compile and load. Raises UserError: it does not compile, NVRTC or the driver is missing."""
        self.source, self.declaration, self.device = source, declaration, device
        self.function = source.function(declaration.kernel)
        self.compiled: Compiled = compile_to_cubin(source, declaration.kernel, arch, _arch_of(device))
        self.resources = cubin.resources(self.compiled.image, self.compiled.symbol)
        self._driver = driver if driver is not None else _driver(device)
        self._handle: object = None
        if self._driver is not None:
            try:
                self._handle, self.resources = self._driver.load(self.compiled.image, self.compiled.symbol)
            except DriverError as error:
                raise UserError(
                    f"{source.path}: compiled for {self.compiled.arch}, but the GPU does not load it: {error}"
                ) from None

    def bind(self, tensors: Tensors, sizes: Sizes) -> CudaCall:
        """Raises UserError where the launch is not possible: geometry, arguments, shared memory, no GPU."""
        if self._driver is None:
            raise UserError("to run a CUDA kernel takes an NVIDIA GPU; without one it is compiled and analysed only")
        known = {"sms": _multiprocessors(self.device), **sizes}
        shape = launch.geometry(self.declaration, known)
        self._check_shape(shape)
        given = launch.values(self.declaration, tensors, known)
        launch.check_arguments(self.function, self.declaration, given)
        packed = self._pack(given, tensors)
        if shape.shared + (self.resources.shared_bytes or 0) > ORDINARY_SHARED:
            try:
                self._driver.allow_shared(self._handle, shape.shared)
            except DriverError as error:
                raise UserError(f"{shape.shared} bytes of shared memory: {error}") from None
        return CudaCall(self, self._driver, self._driver.prepared(self._handle, shape, packed), tensors, shape)

    def _pack(self, given: Sequence[torch.Tensor | int | TensorMapRequest], tensors: Tensors) -> list[bytes]:
        """The bytes of each argument, as the kernel's parameters lie in memory. Raises UserError."""
        sizes = cubin.parameter_sizes(self.compiled.image, self.compiled.symbol)
        names = typedefs(self.source.text)
        packed = []
        for i, (parameter, value) in enumerate(zip(self.function.parameters, given, strict=True)):
            size = sizes[i] if sizes is not None and len(sizes) == len(given) else None
            text = self.declaration.args[i]
            if isinstance(value, TensorMapRequest):
                assert self._driver is not None
                data = self._driver.tensor_map(tensors[value.name], value)
            elif isinstance(value, int):
                data = pack_scalar(parameter, value, size, names)
            else:
                if value.device != self.device:
                    raise UserError(f"tensor '{text}' lies on {value.device}, the kernel runs on {self.device}")
                launch.check_type(parameter, value, text)
                data = struct.pack("P", value.data_ptr())
            if size is not None and len(data) != size:
                raise UserError(f"parameter '{parameter}' takes {size} bytes, argument '{text}' has {len(data)}")
            packed.append(data)
        return packed

    def _check_shape(self, shape: Geometry) -> None:
        threads = shape.block[0] * shape.block[1] * shape.block[2]
        most = self.resources.max_threads
        if most is not None and threads > most:
            raise UserError(
                f"a block of {threads} threads; kernel '{self.declaration.kernel}' takes at most {most} "
                f"({self.resources.registers} registers a thread; its __launch_bounds__, if any)"
            )
        limit = self._driver.shared_limit if self._driver is not None else 0
        static = self.resources.shared_bytes or 0
        if shape.shared + static > limit:
            raise UserError(
                f"{shape.shared} bytes of dynamic and {static} of static shared memory; a block of this GPU has {limit}"
            )


class CudaCall:
    """Implements `Call`: one prepared launch on torch's current stream."""

    def __init__(
        self, kernel: CudaKernel, driver: Launcher, launch_once: PreparedCall, tensors: Tensors, shape: Geometry
    ) -> None:
        self._kernel, self._driver, self._launch, self._tensors = kernel, driver, launch_once, dict(tensors)
        self.geometry = shape

    def run(self) -> None:
        """Launch. Raises UserError where the driver refuses the launch, KernelFailed where an earlier one broke."""
        try:
            self._launch(_stream(self._kernel.device))
        except DriverError as error:
            if error.number in _LAUNCH_REFUSED:
                raise UserError(f"kernel '{self._kernel.declaration.kernel}' cannot be launched: {error}") from None
            raise self._failed(error) from None

    def outputs(self) -> Tensors:
        """All bound tensors, the work done. Raises KernelFailed where the kernel broke."""
        try:
            self._driver.synchronize()
        except DriverError as error:
            raise self._failed(error) from None
        return self._tensors

    def seconds(self, samples: int) -> None:
        return None

    def _failed(self, error: DriverError) -> KernelFailed:
        cause = _CAUSES.get(error.number)
        return KernelFailed(
            f"kernel '{self._kernel.declaration.kernel}' broke: {error.text} ({error.number})"
            + (f": {cause}" if cause else "")
            + ". The GPU context of this process is lost",
            context_lost=True,
        )


def pack_scalar(parameter: Parameter, value: int, size: int | None, names: Mapping[str, str]) -> bytes:
    """A number as its parameter's type. size: bytes of the parameter by the compiled image, None where unknown.

    Raises UserError where the number does not fit, or the type is unknown.
    """
    plain = re.sub(r"\b(const|volatile|__grid_constant__|std::)\b|std::", " ", parameter.type)
    plain = " ".join(plain.split())
    letter = _SCALARS.get(names.get(plain, plain)) or _BY_SIZE.get(size or 0)
    if letter is None:
        raise UserError(f"parameter '{parameter}': nearpeak does not know the type '{plain}'; use int or long long")
    try:
        return struct.pack("=" + letter, value)
    except (struct.error, OverflowError):
        raise UserError(f"parameter '{parameter}' cannot hold {value}") from None


def _driver(device: torch.device) -> Launcher | None:
    return Driver(device) if device.type == "cuda" else None  # type: ignore[return-value]  # handles are ctypes' there


def _arch_of(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _stream(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)
