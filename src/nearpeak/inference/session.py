"""A model on disk, opened: device, tokenizer, weights, runner and engine, in the order in which each can be refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from nearpeak.hardware.devices import find_devices, select_devices, sensors_of
from nearpeak.inference.check import Agreement, compare, logits_of, random_ids, reference_logits
from nearpeak.inference.choose_runner import fast_runner, reference_runner, weights_dtype
from nearpeak.inference.disk_rate import disk_rate
from nearpeak.inference.engine import Answer, Asked, Engine
from nearpeak.inference.load import Loaded, load_decoder
from nearpeak.inference.other_runner import open_other
from nearpeak.inference.outcome import Ran
from nearpeak.inference.runner import Runner
from nearpeak.models.read import read_model
from nearpeak.models.tokenizer import Tokenizer, read_tokenizer
from nearpeak.networks.shape_of_config import SUPPORTED
from nearpeak.records.ceiling import Load
from nearpeak.records.device import Device
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec
from nearpeak.timing.sensor_window import SensorWindow

Note = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What a user says of the model and where it shall run. context: positions to make room for; None: as needed."""

    model: str
    precision: str = "bf16"
    device: str | None = None
    context: int | None = None
    lora: Path | None = None


@dataclass(frozen=True)
class Session:
    """An open model. `not_fast`: why the reference path runs, None where the fast one does."""

    wanted: Wanted
    device: Device
    spec: ModelSpec | None
    tokenizer: Tokenizer
    runner: Runner
    engine: Engine
    not_fast: str | None
    path: Path
    load_seconds: float
    read_seconds: float
    load_bytes: int

    @cached_property
    def disk(self) -> tuple[float | None, str | None]:
        """What the disk gives where the weights lie, measured the first time it is asked: half a second."""
        files = [self.path] if self.path.is_file() else sorted(self.path.glob("*.safetensors"), key=_size)
        return disk_rate(files[-1]) if files else (None, "no file of weights is there")

    def answer(self, asked: Asked, say: Callable[[str], None]) -> tuple[Answer, Ran, Load]:
        """Generate, the sensors watched meanwhile."""
        if self.runner.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.runner.device)
        with SensorWindow(sensors_of(self.device)) as window:
            answer = self.engine.answer(asked, say)
        return answer, self._ran(answer), window.load()

    def _ran(self, answer: Answer) -> Ran:
        runner, first = self.runner, answer.prompt_tokens
        peak = runner.memory_bytes
        if runner.device.type == "cuda":
            peak = int(torch.cuda.max_memory_allocated(runner.device))
        return Ran(
            model=self.wanted.model,
            how=runner.how,
            device=self.device.name,
            precision=self.wanted.precision,
            compute=runner.compute,
            weight_bytes=runner.weight_bytes,
            cache_bytes=sum(runner.cache_bytes(first + later + 1) for later in range(len(answer.token_seconds))),
            memory_bytes=peak,
            load_seconds=self.load_seconds,
            read_seconds=self.read_seconds,
            load_bytes=self.load_bytes,
            disk=self.disk[0],
            no_disk=self.disk[1],
        )


def open_session(
    wanted: Wanted, ids_of: Callable[[Tokenizer], Sequence[int]], max_tokens: int, note: Note, roomy: int = 0
) -> tuple[Session, tuple[int, ...]]:
    """Open a model for a first prompt, and the prompt's tokens.

    ids_of   makes them once the tokenizer is there: a prompt that does not fit is refused before any weight is read
    note     is told what goes on, and what a user should know
    roomy    positions to make room for where the model has so many, and the user named no number
    """
    device, place = _device(wanted.device)
    path, spec, why_not = _what(wanted.model)
    tokenizer = read_tokenizer(path)
    ids = tuple(ids_of(tokenizer))
    for line in tokenizer.warnings:
        note(line)
    capacity = capacity_of(spec, wanted.context, len(ids), max_tokens, roomy)
    note(f"loading {path} as {wanted.precision} on {device.name}")
    start = time.perf_counter()
    if why_not is None:
        loaded = _load(wanted, path, place)
        for line in loaded.notes:
            note(line)
        runner, not_fast = fast_runner(loaded.decoder, wanted.precision, capacity)
        size, reading = loaded.bytes, loaded.seconds
    else:
        if wanted.lora or wanted.precision not in ("bf16", "fp16", "fp32"):
            what = "--lora" if wanted.lora else f"--precision {wanted.precision}"
            raise UserError(f"{why_not} Through transformers it runs in bf16, fp16 or fp32, not with {what}.")
        runner = open_other(path, weights_dtype(wanted.precision), place, capacity, why_not)
        not_fast, size, reading = str(why_not), runner.memory_bytes, time.perf_counter() - start
    if why_not is not None:
        note(f"run by {runner.how}")
    elif not_fast:
        note(f"reference path: {not_fast}")
    compiling = getattr(runner, "compile_seconds", 0.0)
    if compiling > 1:
        note(f"kernels were compiled for this processor in {compiling:.1f} s; the next run finds them")
    seconds = time.perf_counter() - start
    engine = Engine(runner, tokenizer)
    return Session(wanted, device, spec, tokenizer, runner, engine, not_fast, path, seconds, reading, size), ids


def check(wanted: Wanted, note: Note, seed: int = 0) -> Agreement:
    """Load twice: once for the reference path, once as a run would; the logits of both on the same tokens."""
    _, place = _device(wanted.device)
    path, _, why_not = _what(wanted.model)
    if why_not is not None:
        raise UserError(f"{why_not} So there is no reference path to compare with.")
    capacity = 64
    note("reading the weights for the reference path")
    plain = reference_runner(_load(wanted, path, place).decoder, wanted.precision, capacity)
    ids = random_ids(plain.vocab, place, seed)
    reference, rounded = reference_logits(plain, ids)
    del plain
    note("reading them again, for the path that a run takes")
    runner, not_fast = fast_runner(_load(wanted, path, place).decoder, wanted.precision, capacity)
    note(f"compared: {runner.how}" + (f" ({not_fast})" if not_fast else ""))
    return compare(logits_of(runner, ids), reference, rounded)


def capacity_of(spec: ModelSpec | None, context: int | None, prompt: int, max_tokens: int, roomy: int = 0) -> int:
    """Positions to make room for. Raises UserError, with both numbers, where the prompt does not fit."""
    if max_tokens < 1:
        raise UserError(f"--max-tokens is {max_tokens}; 1 is the least")
    most = spec.context if spec else None
    if context is not None and (context < 2 or (most and context > most)):
        raise UserError(f"--context is {context:,}; this model takes from 2 to {most or 0:,} positions")
    needed = max(prompt + max_tokens, roomy)
    room = context or min(needed, most or needed)
    if prompt >= room:
        raise UserError(
            f"the prompt has {prompt:,} tokens, and the context holds {room:,}, the answer included. "
            "Shorten the prompt" + (", or raise --context." if context else ".")
        )
    return room


def _size(file: Path) -> int:
    return file.stat().st_size


def _device(name: str | None) -> tuple[Device, torch.device]:
    device = select_devices(find_devices(), [name] if name else [])[0]
    return device, torch.device(device.torch_name or "cpu")


def _what(model: str) -> tuple[Path, ModelSpec | None, UserError | None]:
    """Where the files are, their spec, and why nearpeak's own networks cannot run them (None where they can)."""
    path = Path(model).expanduser()
    try:
        spec = read_model(model)
    except UserError as error:
        if not path.is_dir() or "model_type" not in str(error):
            raise
        return path, None, error
    if not path.exists():
        raise UserError(f"{model} is known, but its weights are not here. Give the folder or .gguf file that has them.")
    if spec.task != "generate":
        raise UserError(f"{model} is a model of family {spec.family}, which generates no text")
    kind = str(spec.config.get("model_type", spec.family))
    if kind not in SUPPORTED:
        return path, spec, UserError(f"nearpeak has no network for model_type {kind!r}.")
    return path, spec, None


def _load(wanted: Wanted, path: Path, place: torch.device) -> Loaded:
    return load_decoder(path, weights_dtype(wanted.precision), place, wanted.lora)
