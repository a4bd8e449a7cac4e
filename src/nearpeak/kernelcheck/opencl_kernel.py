"""An OpenCL kernel on any OpenCL device: a GPU of any maker, or the CPU."""

from __future__ import annotations

import ctypes
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearpeak.kernelcheck import launch
from nearpeak.kernelcheck.c_functions import Parameter, typedefs
from nearpeak.kernelcheck.kernel import Declaration, Language, Sizes, Tensors
from nearpeak.kernelcheck.kernel_failed import KernelFailed
from nearpeak.kernelcheck.launch import TensorMapRequest
from nearpeak.kernelcheck.opencl_devices import OpenClDevice, choose_device, import_pyopencl
from nearpeak.kernelcheck.source import Source
from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import torch

LOG_CHARACTERS = 4000
_SCALARS = {
    "int": "int32", "uint": "uint32", "unsigned": "uint32", "unsigned int": "uint32", "long": "int64",
    "ulong": "uint64", "unsigned long": "uint64", "short": "int16", "ushort": "uint16", "char": "int8",
    "uchar": "uint8", "float": "float32", "double": "float64",
}  # fmt: skip


class OpenClKernel:
    """Implements `Kernel`. Its tensors lie in the host's memory; on a GPU they are copied there and back."""

    language: Language = "OpenCL"

    def __init__(self, source: Source, declaration: Declaration, opencl: OpenClDevice | None = None) -> None:
        """Build for the device. Raises UserError: the compiler's log with the line, or what to install."""
        import torch

        self.source, self.declaration = source, declaration
        self.device = torch.device("cpu")
        self.opencl = opencl if opencl is not None else choose_device()
        self.function = source.function(declaration.kernel)
        pyopencl = import_pyopencl()
        self.context = pyopencl.Context([self.opencl.handle])
        self.queue = pyopencl.CommandQueue(self.context, properties=pyopencl.command_queue_properties.PROFILING_ENABLE)
        self.program = _build(pyopencl, self.context, source)

    def bind(self, tensors: Tensors, sizes: Sizes) -> OpenClCall:
        """Raises UserError where the launch is not possible: geometry, arguments, the device's work-group limit."""
        known = {"sms": self.opencl.units, **sizes}
        shape = launch.geometry(self.declaration, known)
        given = launch.values(self.declaration, tensors, known)
        launch.check_arguments(self.function, self.declaration, given)
        if shape.shared:
            raise UserError("'shared' is for CUDA; an OpenCL kernel declares its local memory itself (__local)")
        threads = shape.block[0] * shape.block[1] * shape.block[2]
        most = int(self.opencl.handle.max_work_group_size)
        if threads > most:
            raise UserError(f"a work-group of {threads} work-items; {self.opencl.name} takes at most {most}")
        return OpenClCall(self, shape, given, tensors)


class OpenClCall:
    """Implements `Call`: buffers over or beside the tensors, and one kernel object with its arguments set."""

    def __init__(self, kernel: OpenClKernel, shape: launch.Geometry, given: Any, tensors: Tensors) -> None:
        self._cl, self._kernel, self._tensors, self.geometry = import_pyopencl(), kernel, dict(tensors), shape
        self._on_host = kernel.opencl.kind == "cpu"
        self._buffers: list[tuple[Any, Any, bool]] = []  # buffer, the tensor's bytes, written; the kernel keeps none
        self._global = tuple(blocks * items for blocks, items in zip(shape.grid, shape.block, strict=True))
        self._object = self._cl.Kernel(kernel.program, kernel.function.name)
        names = typedefs(kernel.source.text)
        for i, (parameter, value, text) in enumerate(
            zip(kernel.function.parameters, given, kernel.declaration.args, strict=True)
        ):
            self._object.set_arg(i, self._argument(parameter, value, text, names))

    def run(self) -> None:
        """Bring the tensors' bytes to the device and launch once.

        Raises UserError where the device refuses the launch, KernelFailed where the kernel broke.
        """
        self._upload()
        self._launch()

    def outputs(self) -> Tensors:
        """All bound tensors, after the work is done and written ones are back in the host's memory."""
        try:
            for buffer, host, written in self._buffers:
                if self._on_host:
                    self._map(buffer, host, self._cl.map_flags.READ)
                elif written:
                    self._cl.enqueue_copy(self._kernel.queue, host, buffer)
            self._kernel.queue.finish()
        except self._cl.Error as error:
            raise self._failed(error) from None
        return self._tensors

    def seconds(self, samples: int) -> tuple[float, ...]:
        """Seconds of so many runs by the device's own clock, from a command's start to its end."""
        self._upload()
        events = [self._launch() for _ in range(samples)]
        try:
            self._kernel.queue.finish()
            return tuple((event.profile.end - event.profile.start) * 1e-9 for event in events)
        except self._cl.Error as error:
            raise self._failed(error) from None

    def _upload(self) -> None:
        """What the tensors hold now is what the kernel reads, whether the driver keeps a copy of its own or not."""
        try:
            for buffer, host, _ in self._buffers:
                if self._on_host:
                    self._map(buffer, host, self._cl.map_flags.WRITE_INVALIDATE_REGION)
                else:
                    self._cl.enqueue_copy(self._kernel.queue, buffer, host)
        except self._cl.Error as error:
            raise self._failed(error) from None

    def _map(self, buffer: Any, host: Any, flags: Any) -> None:
        mapped, _ = self._cl.enqueue_map_buffer(self._kernel.queue, buffer, flags, 0, host.shape, host.dtype)
        mapped.base.release(self._kernel.queue)

    def _launch(self) -> Any:
        try:
            event = self._cl.enqueue_nd_range_kernel(
                self._kernel.queue, self._object, self._global, self.geometry.block
            )
            self._kernel.queue.flush()
            return event
        except self._cl.LogicError as error:
            name, shape = self._kernel.declaration.kernel, self.geometry
            raise UserError(
                f"kernel '{name}' cannot be launched with {shape.grid} groups of {shape.block} work-items: {error}"
            ) from None
        except self._cl.Error as error:
            raise self._failed(error) from None

    def _argument(self, parameter: Parameter, value: Any, text: str, names: dict[str, str]) -> Any:
        import numpy

        if isinstance(value, TensorMapRequest):
            raise UserError(f"'{text}': tensor maps are for CUDA on Hopper and later")
        if isinstance(value, int):
            plain = " ".join(re.sub(r"\b(const|__private|private)\b", " ", parameter.type).split())
            kind = _SCALARS.get(names.get(plain, plain))
            if plain == "size_t" or kind is None:
                raise UserError(f"parameter '{parameter}': a number is passed as int, uint, long, float, …")
            try:
                return numpy.array(value, dtype=kind)[()]
            except OverflowError:
                raise UserError(f"parameter '{parameter}' cannot hold {value}") from None
        launch.check_type(parameter, value, text)
        return self._buffer(text, value, parameter.const)

    def _buffer(self, name: str, tensor: torch.Tensor, const: bool) -> Any:
        """A buffer over the tensor's own bytes on a CPU, a copy of them elsewhere."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise UserError(f"tensor '{name}' must lie whole in the host's memory for OpenCL; it is on {tensor.device}")
        host = _bytes_of(tensor)
        flags = self._cl.mem_flags
        how = flags.USE_HOST_PTR if self._on_host else flags.COPY_HOST_PTR
        buffer = self._cl.Buffer(self._kernel.context, flags.READ_WRITE | how, hostbuf=host)
        self._buffers.append((buffer, host, not const))
        return buffer

    def _failed(self, error: Exception) -> KernelFailed:
        return KernelFailed(f"kernel '{self._kernel.declaration.kernel}' broke: {error}", context_lost=True)


def _bytes_of(tensor: torch.Tensor) -> Any:
    """The tensor's memory as NumPy bytes, no copy; also for dtypes that NumPy has not."""
    import numpy

    size = tensor.numel() * tensor.element_size()
    if size == 0:
        raise UserError("an empty tensor has no memory that OpenCL could use")
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data_ptr()))


def _build(pyopencl: Any, context: Any, source: Source) -> Any:
    options = ["-cl-std=CL1.2", "-cl-kernel-arg-info"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pyopencl warns of any output of the compiler
            return pyopencl.Program(context, source.text).build(options=options, cache_dir=False)
    except pyopencl.Error as error:
        raise UserError(_message(_without_notes(str(error)), source)) from None


def _without_notes(log: str) -> str:
    """The log without what pyopencl adds; the copy of the source that it leaves in a temporary file is removed."""
    for saved in re.findall(r"^\(source saved as (.+)\)$", log, re.MULTILINE):
        Path(saved).unlink(missing_ok=True)
    return re.sub(r"^\((?:source saved as|options:) .*\)$\n?", "", log, flags=re.MULTILINE).rstrip()


def _message(log: str, source: Source) -> str:
    """The compiler's log with FILE:LINE in place of the name that the driver gave the text."""
    lines = source.text.count("\n") + 1

    def place(match: re.Match[str]) -> str:
        line, column = int(match[2]), match[3]
        if line > lines:
            return f"(the driver's own header):{line}:{column}: {match[1] or ''}"
        return f"{source.path}:{line + source.line_offset}:{column}: {match[1] or ''}"

    # clang's form, "input.cl:3:5: error: …" or "<kernel>:3:5: …"; POCL writes "error: input.cl:3:5: …".
    text = re.sub(r"^(error: |warning: )?(?:<\w*>|[^\s:<>]*|\S*\.cl):(\d+):(\d+): ", place, log, flags=re.MULTILINE)
    first = re.search(r"^\S+:\d+:\d+: (?:fatal )?error", text, re.MULTILINE)
    text = text[first.start() :] if first else f"{source.path}: {text}"
    return text if len(text) <= LOG_CHARACTERS else text[:LOG_CHARACTERS] + "\n…"
