"""Kernels that only Python can launch: a Triton function, or any callable on tensors, of the user's own file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from nearpeak.kernelcheck import launch, triton_interpreter
from nearpeak.kernelcheck.kernel import Declaration, Language, Sizes, Tensors
from nearpeak.kernelcheck.kernel_failed import KernelFailed, OutputRefused
from nearpeak.kernelcheck.launch import TensorMapRequest
from nearpeak.kernelcheck.source import Source
from nearpeak.kernelcheck.user_file import find, import_file, place_in
from nearpeak.records.errors import UserError, first_line

if TYPE_CHECKING:
    import torch


class TritonKernel:
    """Implements `Kernel` for a function decorated with triton.jit (or autotuned). On the CPU it is interpreted."""

    language: Language = "Triton"

    def __init__(self, source: Source, declaration: Declaration, device: torch.device) -> None:
        """Import the file. Raises UserError: it cannot be imported, Triton is missing or was imported otherwise."""
        self.source, self.declaration, self.device = source, declaration, device
        self.interpreted = device.type == "cpu"
        triton_interpreter.prepare(self.interpreted)
        self.module = import_file(source.path)
        self.function = find(self.module, declaration.kernel, source.path)
        self.tuned: dict[str, int] = {}
        self._unwrap()

    def bind(self, tensors: Tensors, sizes: Sizes) -> PythonCall:
        """Raises UserError where the launch is not possible: grid, arguments, constants without a value."""
        known = {"sms": _multiprocessors(self.device), **self.declaration.constants, **sizes}
        launch.check_required(self.declaration, known)
        if not self.declaration.grid:
            raise UserError(
                f"kernel '{self.declaration.kernel}' declares no grid; add the line "
                "'# nearpeak: grid ceil(m / 64)' or give --grid"
            )
        grid = launch.check_grid(self.declaration, known)
        given = self.named(launch.values(self.declaration, tensors, known))
        constants = {**self.tuned, **self.declaration.constants}
        options = {} if self.interpreted else dict(self.declaration.launch)
        for name, value in given.items():
            if hasattr(value, "device") and value.device != self.device:
                raise UserError(f"tensor for '{name}' lies on {value.device}, the kernel runs on {self.device}")
        launcher = self.function[grid]

        def run() -> None:
            with triton_interpreter.right_products() if self.interpreted else nullcontext():
                launcher(**given, **constants, **options)

        if not self.interpreted:
            _give_workspace(self.device)
        return PythonCall(run, lambda: dict(tensors), self)

    def _unwrap(self) -> None:
        """Interpreting, take the first configuration of an autotuned function: there is no device to tune on."""
        while self.interpreted and hasattr(self.function, "configs") and hasattr(self.function, "fn"):
            config = self.function.configs[0]
            self.tuned.update(config.kwargs)
            self.function = self.function.fn
        if not hasattr(self.function, "__getitem__"):
            raise UserError(f"{self.source.path}: '{self.declaration.kernel}' is no Triton kernel")

    def chosen(self) -> dict[str, int] | None:
        """Constants and launch options that an autotuned kernel has chosen in its last run; {} for one that is not
        autotuned, None for one that has not run."""
        if not hasattr(self.function, "configs"):
            return {}
        best = getattr(self.function, "best_config", None)
        return None if best is None else best.all_kwargs()

    def named(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Values by parameter: constants are given by name, the others take the args in order. Raises UserError."""
        function, tuned = self.function, set(self.tuned)
        while not hasattr(function, "arg_names") or hasattr(function, "configs"):
            tuned |= {name for config in getattr(function, "configs", ()) for name in config.kwargs}
            tuned |= set(getattr(function, "values", ()))  # of triton.heuristics
            if not hasattr(function, "fn"):
                break
            function = function.fn
        plain = function.fn if hasattr(function, "fn") else function
        parameters = inspect.signature(plain).parameters
        constants, shown = self.declaration.constants, f"{self.declaration.kernel}({', '.join(parameters)})"
        for name in constants:
            if name not in parameters:
                raise UserError(f"{shown} has no constant '{name}'")
        free = [
            name
            for name, parameter in parameters.items()
            if name not in constants and name not in tuned and "constexpr" not in str(parameter.annotation)
        ]
        for name, parameter in parameters.items():
            missing = name not in constants and name not in tuned and name not in free
            if missing and parameter.default is inspect.Parameter.empty:
                raise UserError(f"{shown}: constant '{name}' has no value; add '# nearpeak: constants {name}=…'")
        needed = [name for name in free if parameters[name].default is inspect.Parameter.empty]
        if not len(needed) <= len(values) <= len(free):
            raise UserError(
                f"{shown} takes {len(needed)} arguments beside its constants ({', '.join(needed)}), "
                f"the declaration names {len(values)}: {', '.join(self.declaration.args) or 'none'}"
            )
        if any(isinstance(value, TensorMapRequest) for value in values):
            raise UserError("tensormap(…) is for CUDA; a Triton kernel makes its own tensor descriptors")
        return dict(zip(free, values, strict=False))


class CallableKernel:
    """Implements `Kernel` for a Python function on tensors.

    Tensors that the declaration's args name are passed; those left out are what the function returns, in the op's
    order. Without args the function's own parameters say how many tensors it takes.
    """

    language: Language = "Python"

    def __init__(self, source: Source, declaration: Declaration, device: torch.device) -> None:
        self.source, self.declaration, self.device = source, declaration, device
        self.module = import_file(source.path)
        self.function: Callable[..., Any] = find(self.module, declaration.kernel, source.path)
        if not callable(self.function):
            raise UserError(f"{source.path}: '{declaration.kernel}' cannot be called")

    def bind(self, tensors: Tensors, sizes: Sizes) -> PythonCall:
        """Raises UserError where an argument names nothing, or where it is unclear how many tensors are taken."""
        known = {"sms": _multiprocessors(self.device), **sizes}
        launch.check_required(self.declaration, known)
        if self.declaration.args:
            given = launch.values(self.declaration, tensors, known)
            passed = {text for text in self.declaration.args if text in tensors}
        else:
            names = list(tensors)[: self._count(len(tensors))]
            given, passed = tuple(tensors[name] for name in names), set(names)
        returned = [name for name in tensors if name not in passed]
        last: list[Any] = [None]

        def run() -> None:
            last[0] = None  # so that memory of the result before is free again
            last[0] = self.function(*given)

        def outputs() -> Tensors:
            return {**tensors, **self._results(last[0], returned)}

        return PythonCall(run, outputs, self)

    def _count(self, most: int) -> int:
        name = self.declaration.kernel
        advice = "say what it takes: '# nearpeak: args a, b' (what is left out is what it returns)"
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):
            raise UserError(f"the parameters of '{name}' cannot be read; {advice}") from None
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
        if not 1 <= len(needed) <= most:
            raise UserError(f"{name}({', '.join(needed)}) does not fit the op's {most} tensors; {advice}")
        return len(needed)

    def _results(self, result: Any, names: list[str]) -> dict[str, torch.Tensor]:
        """What was returned, by the op's names. Raises OutputRefused for what is no plain tensor on the device."""
        import torch

        if not names:
            return {}
        kernel = self.declaration.kernel
        if result is None:
            raise OutputRefused(
                "nothing",
                f"'{kernel}' returned nothing; where it writes into {', '.join(names)}, name it among the args",
            )
        results = result if isinstance(result, tuple | list) else (result,)
        if len(results) != len(names):
            raise OutputRefused("count", f"'{kernel}' returned {len(results)} results, the op has {len(names)}")
        for name, value in zip(names, results, strict=True):
            if not isinstance(value, torch.Tensor):
                raise OutputRefused("not a tensor", f"'{kernel}' returned a {type(value).__name__} for '{name}'")
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise OutputRefused(
                    "subclass",
                    f"'{kernel}' returned a {type(value).__name__} for '{name}', a subclass of torch.Tensor: "
                    "it may put off the work until someone looks",
                )
            if value.device != self.device:
                raise OutputRefused(
                    "device", f"'{kernel}' returned '{name}' on {value.device}, its inputs lie on {self.device}"
                )
        return {name: value.detach() for name, value in zip(names, results, strict=True)}


class PythonCall:
    """Implements `Call` for work that Python starts."""

    def __init__(
        self, work: Callable[[], None], outputs: Callable[[], Tensors], kernel: TritonKernel | CallableKernel
    ) -> None:
        self._work, self._outputs, self._kernel = work, outputs, kernel

    def run(self) -> None:
        """Raises KernelFailed, with the line of the user's file, where the work raises anything."""
        try:
            self._work()
        except Exception as error:
            raise self._failed(error) from error

    def outputs(self) -> Tensors:
        """Raises KernelFailed where the work broke on the device, OutputRefused where the result is no plain tensor."""
        if self._kernel.device.type == "cuda":
            import torch

            try:
                torch.cuda.synchronize(self._kernel.device)
            except RuntimeError as error:
                raise KernelFailed(
                    f"kernel '{self._kernel.declaration.kernel}' broke: {first_line(error)}. The GPU "
                    "context of this process is lost",
                    context_lost=True,
                ) from None
        return self._outputs()

    def seconds(self, samples: int) -> None:
        return None

    def _failed(self, error: Exception) -> KernelFailed:
        where = place_in(error, self._kernel.source.path) or str(self._kernel.source.path)
        lost = self._kernel.device.type == "cuda" and "CUDA error" in str(error)
        text = (str(error).strip().splitlines() or [""])[0]
        return KernelFailed(f"{where}: {type(error).__name__}: {text}", context_lost=lost)


def _give_workspace(device: torch.device) -> None:
    """Tensor descriptors made in a kernel need memory, which Triton asks its caller for."""
    import torch
    import triton

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    if hasattr(triton, "set_allocator"):
        triton.set_allocator(allocate)


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)
