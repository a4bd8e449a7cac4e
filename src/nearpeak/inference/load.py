"""A model folder or GGUF file → a Decoder on a device. All is checked before memory is taken; then the files are read
as fast as they come, a few tensors at a time, so that the model lies in memory about once."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from nearpeak.inference.free_memory import refuse_what_does_not_fit
from nearpeak.inference.load_plan import Piece, Plan, plan_of
from nearpeak.inference.lora import Adapter, read_adapter, transposed
from nearpeak.inference.staging import Staging
from nearpeak.models.checkpoint import Checkpoint, open_checkpoint
from nearpeak.models.fresh_tensor import as_dtype, fresh_tensor
from nearpeak.models.safetensors_tensors import READ
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.decoder_shape import DecoderShape
from nearpeak.networks.names import sources_of
from nearpeak.networks.shape_of_config import shape_of_config
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec

THREADS = 8  # one cannot keep a disk of several GB/s busy; more wait for each other


@dataclass(frozen=True)
class Loaded:
    """kind: of the files; config: what config.json says, corrected by what the files hold; bytes: read from the files,
    an adapter's too, in `seconds`; notes: what a person should know."""

    decoder: Decoder
    shape: DecoderShape
    spec: ModelSpec
    config: dict[str, object]
    kind: str
    bytes: int
    seconds: float
    notes: tuple[str, ...]


def load_decoder(path: Path, dtype: torch.dtype, device: torch.device, lora: Path | None = None) -> Loaded:
    """The model in `path` with its weights as `dtype` on `device`; on the CPU they are the file's own pages where the
    file has that dtype. lora: an adapter of peft, merged.

    Raises UserError: anything missing, left over, of another shape or dtype, a key that is not understood, or not
    enough memory, with the numbers. No weight has been read by then, but a head that might be the embedding.
    """
    start = time.perf_counter()
    checkpoint = open_checkpoint(path)
    adapter = read_adapter(lora, checkpoint) if lora else None
    shape = shape_of_config(checkpoint.config, _where(checkpoint))
    decoder = _without_numbers(shape, dtype)
    plan = plan_of(decoder, sources_of(shape), checkpoint)
    _refuse_what_does_not_fit(decoder, plan, checkpoint, dtype, device)
    read = _Filling(decoder, checkpoint, adapter, dtype, device).fill(plan)
    if shape.tied:
        decoder.head.weight = decoder.embed.weight
    decoder.eval().requires_grad_(False)
    _nothing_left(decoder)
    notes = checkpoint.notes if adapter is None else (*checkpoint.notes, adapter.note)
    size = read + (adapter.bytes if adapter else 0)
    seconds = time.perf_counter() - start
    return Loaded(decoder, shape, checkpoint.spec, checkpoint.config, checkpoint.kind, size, seconds, notes)


def _without_numbers(shape: DecoderShape, dtype: torch.dtype) -> Decoder:
    """The modules alone, their parameters on the meta device. Drawing first numbers there would cost two seconds: torch
    loads its compiler for it."""
    with torch.device("meta"), _NoFirstNumbers():
        decoder: Decoder = Decoder(shape).to(dtype)
        return decoder


class _NoFirstNumbers(TorchFunctionMode):
    """While this is entered, torch.nn.init does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


class _Filling:
    """One load: what its threads share."""

    def __init__(
        self,
        decoder: Decoder,
        checkpoint: Checkpoint,
        adapter: Adapter | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.decoder, self.checkpoint, self.adapter = decoder, checkpoint, adapter
        self.dtype, self.device = dtype, device
        self.staging = Staging(device)
        self.stacks: dict[str, torch.Tensor] = {}

    def fill(self, plan: Plan) -> int:
        """Bytes that were read. The order is that of the layers; what fails first ends it."""
        for pieces in plan.values():
            for piece in pieces:
                if piece.index is not None and piece.parameter not in self.stacks:
                    self.stacks[piece.parameter] = self._empty(piece.parameter)
        read = 0
        with ThreadPoolExecutor(min(THREADS, max(4, os.cpu_count() or 4))) as pool:
            waiting = [pool.submit(self._source, name, pieces) for name, pieces in plan.items()]
            try:
                for one in waiting:
                    read += one.result()
            except torch.OutOfMemoryError as error:
                pool.shutdown(cancel_futures=True)
                raise UserError(
                    f"{self.checkpoint.path}: memory on {self.device} ran out while loading. Free some."
                ) from error
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        self.staging.wait()
        for name, stack in self.stacks.items():
            self._set(name, stack)
        return read

    def _source(self, name: str, pieces: list[Piece]) -> int:
        """Read one tensor of the files and put it where it belongs."""
        size = self.checkpoint.read_ahead(name)
        tensor = self._read(name)
        for piece in pieces:
            part = piece.taken_from(tensor)
            if piece.index is not None:
                self.staging.copy(part, self.stacks[piece.parameter][piece.index])
            elif self.device.type == "cpu":
                self._set(piece.parameter, as_dtype(part, self.dtype).contiguous())
            else:
                target = self._empty(piece.parameter)
                self.staging.copy(part, target)
                self._set(piece.parameter, target)
        return size

    def _read(self, name: str) -> torch.Tensor:
        if self.adapter is not None and self.adapter.touches(name):
            return self.adapter.merged(name, self.checkpoint.read(name), transposed(self.checkpoint, name))
        stored = self.checkpoint.weight(name).dtype in READ
        # a GPU converts what is stored plainly faster than the CPU; what is packed is unpacked here, in its last dtype
        return self.checkpoint.read(name, None if stored and self.device.type != "cpu" else self.dtype)

    def _empty(self, parameter: str) -> torch.Tensor:
        shape = self.decoder.get_parameter(parameter).shape
        if self.device.type == "cpu":
            return fresh_tensor(shape, self.dtype)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _set(self, parameter: str, tensor: torch.Tensor) -> None:
        module, _, leaf = parameter.rpartition(".")
        setattr(self.decoder.get_submodule(module), leaf, nn.Parameter(tensor, requires_grad=False))


def _where(checkpoint: Checkpoint) -> str:
    return str(checkpoint.path / "config.json" if checkpoint.kind == "safetensors" else checkpoint.path)


def _refuse_what_does_not_fit(
    decoder: Decoder, plan: Plan, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> None:
    """Weights on the device; beside a GPU's, on the host, a tensor for each thread."""
    needed = sum(parameter.numel() for parameter in decoder.parameters()) * dtype.itemsize
    name = str(dtype).removeprefix("torch.")
    refuse_what_does_not_fit(checkpoint.path, needed, device, f"its weights as {name}")
    if device.type != "cpu":
        largest = sorted(checkpoint.weight(source).parameters for source in plan)[-THREADS:]
        host = torch.device("cpu")
        refuse_what_does_not_fit(checkpoint.path, 2 * dtype.itemsize * sum(largest), host, "tensors on their way")


def _nothing_left(decoder: Decoder) -> None:
    """For programmers: a plan that passed its checks leaves nothing without numbers."""
    for name, tensor in (*decoder.named_parameters(), *decoder.named_buffers()):
        assert not tensor.is_meta, f"{name} was never loaded"
