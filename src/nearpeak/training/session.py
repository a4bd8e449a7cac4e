"""A run from recipe to weights: what can be refused is refused before anything is trained."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from nearpeak.ceilings.precisions import precisions_of
from nearpeak.hardware.devices import find_devices, select_devices, sensors_of
from nearpeak.records.ceiling import Load
from nearpeak.records.device import Device
from nearpeak.records.errors import UserError
from nearpeak.records.files import make_folder, write_text_atomically
from nearpeak.records.model_spec import ModelSpec
from nearpeak.timing.sensor_window import SensorWindow
from nearpeak.training import checkpoint as checkpoints
from nearpeak.training.checkpoint import Checkpoint
from nearpeak.training.data import Parts, read_data
from nearpeak.training.feed import CudaCopier, Feed, StagedFeed, WholeFeed
from nearpeak.training.graph_step import GraphStep, cuda_graph
from nearpeak.training.log import Log
from nearpeak.training.loop import Progress, Run, synchronize, train
from nearpeak.training.model import Built, build_model
from nearpeak.training.order import Order
from nearpeak.training.outcome import Ran
from nearpeak.training.recipe import Recipe
from nearpeak.training.settings import Facts, Settings, candidates, choose, kept
from nearpeak.training.state import load_weights, restore, weights_of
from nearpeak.training.step import DTYPES, Forward, Step, make_optimizer
from nearpeak.training.trial import Candidate, Tried, threads, try_all

WEIGHTS, LOG, RECIPE = "model.safetensors", "log.jsonl", "recipe.json"
MAY_GROW = ("epochs", "steps", "save_every", "keep", "evaluation.every")
"""Keys that may be others when a run goes on; a schedule that depends on the length allows none of the first two."""


@dataclass(frozen=True)
class Trained:
    """What came of a run, ready for an outcome."""

    ran: Ran
    device: Device
    spec: ModelSpec | None
    not_known: str | None
    load: Load


def run_recipe(
    recipe: Recipe,
    out: Path,
    device_name: str | None,
    note: Callable[[str], None],
    line: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train, or go on where `out` has a checkpoint of the same recipe. Generators, threads and flags of the process are
    afterwards as they were.

    note   is told what a user should know; line: of progress; stop: asked after each step whether to save and end
    """
    device = select_devices(find_devices(), [device_name] if device_name else [])[0]
    place = torch.device(device.torch_name or "cpu")
    with _own_process_state(recipe, place):
        start = time.perf_counter()
        parts = read_data(recipe)
        reading = time.perf_counter() - start
        note(f"{len(parts.train):,} images of {parts.train.classes} classes to train on; {parts.how}")
        torch.manual_seed(recipe.seed)
        built = build_model(recipe.model, parts.train.shape, parts.train.classes, recipe.batch)
        total = recipe.total_steps(len(parts.train))
        found = _earlier(recipe, out, parts, total, note)
        start = time.perf_counter()
        settings = _settings(recipe, device, place, parts, built, total, found)
        trying = time.perf_counter() - start
        for choice in settings.choices:
            note(f"  {choice.name}: {choice.value} ({choice.reason})")
        with threads(settings.threads):
            run = _prepare(recipe, out, place, parts, built, total, settings, found, note, line, stop)
            first = run.step
            if place.type == "cuda":
                torch.cuda.reset_peak_memory_stats(place)
            with SensorWindow(sensors_of(device)) as window:
                complete = train(run)
        load = window.load()
        if complete:
            checkpoints.write_weights(out / WEIGHTS, weights_of(built.module))
    spent = run.spent
    adamw, momentum = recipe.optimizer.name == "adamw", recipe.optimizer.momentum
    ran = Ran(
        model=built.name, device=device.name, precision=settings.precision, batch=recipe.batch,
        optimizer="adamw" if adamw else "sgd_momentum" if momentum else "sgd",
        images=spent.images, steps=spent.steps, total_steps=total, training=spent.training,
        memory_bytes=_memory(place), complete=complete, sampled=spent.sampled,
        seconds={"evaluating": spent.evaluating, "saving": spent.saving, "trial": trying, "reading data": reading},
        curve=tuple(run.log.lines), settings=tuple((c.name, c.value, c.reason) for c in settings.choices),
        files=_files(out, complete), resumed_at=first, notes=(parts.how,),
    )  # fmt: skip
    return Trained(ran, device, built.spec, built.not_known, load)


def _files(out: Path, complete: bool) -> dict[str, str]:
    files = {"log": str(out / LOG), "checkpoints": str(out / "checkpoints")}
    return files | ({"weights": str(out / WEIGHTS)} if complete else {})


def _earlier(recipe: Recipe, out: Path, parts: Parts, total: int, note: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint to go on from. Raises UserError where `out` is of another recipe or other data."""
    make_folder(out)
    found = checkpoints.load_newest(out / "checkpoints", note)
    if found is None:
        return None
    allowed = {key for key in MAY_GROW if not (key in ("epochs", "steps") and recipe.schedule.name != "constant")}
    other = [key for key in recipe.difference(found.facts["recipe"]) if key not in allowed]
    if other:
        raise UserError(
            f"{out} holds a run of another recipe: {', '.join(other)} differ{'s' if len(other) == 1 else ''}. Name "
            "another folder by --out, or give the recipe that it began with."
        )
    if found.facts["data"] != _digest(parts):
        raise UserError(f"{out} holds a run on other data than {parts.train.source} has now. Name another --out.")
    if found.step > total:
        raise UserError(f"{out} has done {found.step:,} steps already; the recipe asks for {total:,}.")
    note(f"going on after step {found.step:,} of {total:,}" if found.step < total else f"all {total:,} steps are done")
    return found


def _digest(parts: Parts) -> dict[str, Any]:
    """What tells data apart: all labels, and the pixels of up to 1,000 samples."""
    train = parts.train
    some = train.pixels[:: max(1, len(train) // 1000)]
    digest = hashlib.sha256(train.labels.tobytes() + np.ascontiguousarray(some).tobytes()).hexdigest()
    return {"samples": len(train), "shape": list(train.shape), "sha256": digest}


def _settings(
    recipe: Recipe,
    device: Device,
    place: torch.device,
    parts: Parts,
    built: Built,
    total: int,
    found: Checkpoint | None,
) -> Settings:
    bf16 = next(p for p in precisions_of(device) if p.name == "bf16")
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else psutil.virtual_memory().available
    train = parts.train
    facts = Facts(
        kind=device.kind, bf16=bf16.emulated or bf16.absent, free_bytes=int(free), data_bytes=train.pixels.nbytes,
        cores=_cores(), convolutions=any(isinstance(m, nn.Conv2d) for m in built.module.modules()), steps=total,
    )  # fmt: skip
    if place.type == "cpu":  # the arrays are there already, and the tensors share their memory
        facts = Facts(**{**facts.__dict__, "free_bytes": max(facts.free_bytes, 4 * facts.data_bytes)})
    if found:
        held = found.facts["settings"]
        one = Candidate(held["precision"], held["threads"], held["channels_last"])
        return kept(choose(recipe, facts, (Tried(one, None),)), one.precision, one.threads, one.channels_last)
    every = candidates(recipe, facts)

    def prepare(one: Candidate) -> Callable[[], int]:
        step = _step(copy.deepcopy(built.module), recipe, place, one, compiled=False, graph=False)
        pixels = torch.from_numpy(train.pixels[: recipe.batch]).to(place)
        labels = torch.from_numpy(train.labels[: recipe.batch]).to(place)

        def run() -> int:
            step(pixels, labels, 0.0)
            return len(labels)

        return run

    return choose(recipe, facts, try_all(every, prepare, lambda: synchronize(place)))


def _cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else psutil.cpu_count()
    return max(1, min(allowed or 1, psutil.cpu_count(logical=False) or 1))


def _step(module: nn.Module, recipe: Recipe, place: torch.device, one: Candidate, compiled: bool, graph: bool) -> Step:
    module.to(place, DTYPES[one.precision])
    if one.channels_last:
        module.to(memory_format=torch.channels_last)
    module.train()
    optimizer = make_optimizer(module, recipe.optimizer, graph)
    return Step(module, optimizer, recipe, one.precision, one.channels_last, compiled)


def _prepare(
    recipe: Recipe, out: Path, place: torch.device, parts: Parts, built: Built, total: int, settings: Settings,
    found: Checkpoint | None, note: Callable[[str], None], line: Callable[[Progress], None], stop: Callable[[], bool],
) -> Run:  # fmt: skip
    order = Order(len(parts.train), recipe.batch, recipe.seed, place if settings.whole else "cpu")
    feed: Feed
    if settings.whole:
        feed = WholeFeed(parts.train, order.of_step, place)
    else:
        feed = StagedFeed(parts.train, order.of_step, total, CudaCopier(place))
    one = Candidate(settings.precision, settings.threads, settings.channels_last)
    step = _step(built.module, recipe, place, one, settings.compile, settings.graph)
    do = GraphStep(step, recipe.batch, cuda_graph) if settings.graph else step
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "data": _digest(parts),
        "settings": {"precision": one.precision, "threads": one.threads, "channels_last": one.channels_last},
    }
    write_text_atomically(out / RECIPE, json.dumps(facts["recipe"], indent=1) + "\n")
    run = Run(
        recipe, total, place, feed, order, do, parts.test,
        Forward(built.module, recipe, one.precision, one.channels_last), Log(out / LOG, found.step if found else 0),
        out, facts, note, line, stop, loss_sum=torch.zeros((), dtype=torch.float64, device=place),
    )  # fmt: skip
    if found:
        run.loss_sum.copy_(restore(found, built.module, do.optimizer))
        run.step = found.step
    return run


def load_trained(module: nn.Module, path: Path) -> None:
    """Put a run's model.safetensors into a module of the same kind, every tensor accounted for. Raises UserError."""
    from safetensors.torch import load_file

    load_weights(module, load_file(path))


def _memory(place: torch.device) -> int | None:
    """Peak on a GPU; of the process on a CPU, where the system says it."""
    if place.type == "cuda":
        return int(torch.cuda.max_memory_allocated(place))
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _own_process_state(recipe: Recipe, place: torch.device) -> Iterator[None]:
    """Generators seeded for the run, deterministic algorithms where asked; all put back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    deterministic = torch.are_deterministic_algorithms_enabled()
    gpus = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        try:
            random.seed(recipe.seed)
            np.random.seed(recipe.seed % 2**32)
            if recipe.deterministic:
                torch.use_deterministic_algorithms(True)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.use_deterministic_algorithms(deterministic)
