"""The few calls of CUDA's driver that a launch needs, in torch's own context."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nearpeak.kernelcheck.cubin import Resources
from nearpeak.kernelcheck.launch import Geometry, TensorMapRequest
from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import torch

# Numbers of cuda.h.
_FUNCTION = {"max_threads": 0, "shared_bytes": 1, "local_bytes": 3, "registers": 4}
_SET_DYNAMIC_SHARED = 8
_DEVICE_SHARED_OPT_IN = 97
_MAP_TYPES = {
    "torch.uint8": 0, "torch.int32": 3, "torch.int64": 5, "torch.float16": 6, "torch.float32": 7, "torch.float64": 8,
    "torch.bfloat16": 9,
}  # fmt: skip
_SWIZZLES = {"none": 0, "swizzle32": 1, "swizzle64": 2, "swizzle128": 3}
_SWIZZLE_BYTES = {"swizzle32": 32, "swizzle64": 64, "swizzle128": 128}
MAP_BYTES, MAP_ALIGNMENT = 128, 64
ORDINARY_SHARED = 48 * 1024


class DriverError(Exception):
    """A call of the driver that failed. number: of CUresult, such as 700 for an illegal address."""

    def __init__(self, call: str, number: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({number})")
        self.number = number
        self.text = text


class Driver:
    """libcuda, and torch's primary context of one device made current. Raises UserError where there is none."""

    def __init__(self, device: torch.device) -> None:
        import torch

        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise UserError(
                "CUDA's driver (libcuda.so.1) is not installed; without it a .cu file is only analysed"
            ) from None
        torch.cuda.init()
        self._context = ctypes.c_void_p()
        number = ctypes.c_int()
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()
            torch.empty(1, device=device)  # makes the primary context
            self._call("cuCtxGetCurrent", ctypes.byref(self._context))
            self._call("cuCtxGetDevice", ctypes.byref(number))
        self.shared_limit = self._attribute("cuDeviceGetAttribute", _DEVICE_SHARED_OPT_IN, number)

    def make_current(self) -> None:
        self._call("cuCtxSetCurrent", self._context)

    def load(self, image: bytes, symbol: str) -> tuple[ctypes.c_void_p, Resources]:
        """The function, and what it takes. The module stays loaded for the life of the process."""
        self.make_current()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, symbol.encode())
        facts = {name: self._attribute("cuFuncGetAttribute", number, function) for name, number in _FUNCTION.items()}
        return function, Resources(
            facts["registers"], facts["shared_bytes"], facts["local_bytes"], facts["max_threads"], "driver"
        )

    def allow_shared(self, function: ctypes.c_void_p, size: int) -> None:
        """Let the function have so many bytes of dynamic shared memory, which may be more than 48 KiB."""
        self._call("cuFuncSetAttribute", function, _SET_DYNAMIC_SHARED, size)

    def prepared(self, function: ctypes.c_void_p, shape: Geometry, packed: Sequence[bytes]) -> PreparedLaunch:
        """A launch with these argument bytes, one entry a parameter."""
        return PreparedLaunch(self, function, shape, packed)

    def synchronize(self) -> None:
        """Wait for all work of the context. Raises DriverError for what a kernel did wrong."""
        self.make_current()
        self._call("cuCtxSynchronize")

    def tensor_map(self, tensor: torch.Tensor, request: TensorMapRequest) -> bytes:
        """The 128 bytes that describe a row-major matrix to the tensor memory accelerator.

        Raises UserError where the hardware takes no such map: no matrix, rows that are no multiple of 16 bytes, a box
        over 256 or wider than its swizzle.
        """
        check_tensor_map(tensor, request)
        rows, columns = tensor.shape
        storage = (ctypes.c_char * (MAP_BYTES + MAP_ALIGNMENT))()
        start = -ctypes.addressof(storage) % MAP_ALIGNMENT
        place = ctypes.c_void_p(ctypes.addressof(storage) + start)
        self._call(
            "cuTensorMapEncodeTiled",
            place,
            _MAP_TYPES[str(tensor.dtype)],
            2,
            ctypes.c_void_p(tensor.data_ptr()),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(columns * tensor.element_size()),
            (ctypes.c_uint32 * 2)(request.box_columns, request.box_rows),
            (ctypes.c_uint32 * 2)(1, 1),
            0,  # no interleaving
            _SWIZZLES[request.swizzle],
            2,  # the second-level cache fetches 128 bytes at a time
            0,  # elements outside read as zero
        )
        return storage.raw[start : start + MAP_BYTES]

    def _attribute(self, call: str, attribute: int, owner: object) -> int:
        value = ctypes.c_int()
        self._call(call, ctypes.byref(value), attribute, owner)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(status, ctypes.byref(text))
            raise DriverError(name, status, (text.value or b"unknown error").decode())


class PreparedLaunch:
    """One launch with its arguments in memory; call it with a stream's handle, any number of times."""

    def __init__(self, driver: Driver, function: ctypes.c_void_p, shape: Geometry, packed: Sequence[bytes]) -> None:
        self._driver = driver
        self._buffers = [ctypes.create_string_buffer(data, len(data)) for data in packed]
        self._pointers = (ctypes.c_void_p * max(1, len(packed)))(*(ctypes.addressof(b) for b in self._buffers))
        self._fixed = (function, *shape.grid, *shape.block, shape.shared)

    def __call__(self, stream: int) -> None:
        self._driver.make_current()
        self._driver._call("cuLaunchKernel", *self._fixed, ctypes.c_void_p(stream), self._pointers, None)


def check_tensor_map(tensor: torch.Tensor, request: TensorMapRequest) -> None:
    """Raises UserError, with the numbers, where the tensor memory accelerator takes no such map."""
    what = f"tensormap({request.name}, …)"
    if tensor.dim() != 2 or not tensor.is_contiguous():
        raise UserError(f"{what}: '{request.name}' is no row-major matrix but {tuple(tensor.shape)}")
    if str(tensor.dtype) not in _MAP_TYPES:
        raise UserError(f"{what}: no tensor map holds {tensor.dtype}")
    row_bytes = tensor.shape[1] * tensor.element_size()
    if row_bytes % 16:
        raise UserError(
            f"{what}: its rows are {row_bytes} bytes, and a tensor map needs a multiple of 16; "
            "say which sizes the kernel takes: require k % 8 == 0"
        )
    if not (1 <= request.box_columns <= 256 and 1 <= request.box_rows <= 256):
        raise UserError(f"{what}: the box is {request.box_columns} × {request.box_rows}; each side is 1 to 256")
    box_bytes = request.box_columns * tensor.element_size()
    widest = _SWIZZLE_BYTES.get(request.swizzle)
    if widest is not None and box_bytes > widest:
        raise UserError(f"{what}: a box row of {box_bytes} bytes is wider than {request.swizzle} takes ({widest})")
    if box_bytes % 16:
        raise UserError(f"{what}: a box row is {box_bytes} bytes; it must be a multiple of 16")
