"""The training loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nearpeak.records.errors import UserError
from nearpeak.training import checkpoint as checkpoints
from nearpeak.training.evaluate import Evaluated, evaluate
from nearpeak.training.feed import Feed
from nearpeak.training.graph_step import GraphStep
from nearpeak.training.images import Images
from nearpeak.training.log import Log
from nearpeak.training.order import Order
from nearpeak.training.recipe import Recipe
from nearpeak.training.schedule import rate_at
from nearpeak.training.state import capture
from nearpeak.training.step import Forward, Lap, Step

LINE_S = 2.0
"""Seconds between two lines on the terminal."""


@dataclass
class Run:
    """What the loop works on, and where it stands. step: how many were done; loss_sum: of losses since the last log
    line, on the device."""

    recipe: Recipe
    total: int
    device: torch.device
    feed: Feed
    order: Order
    do: Step | GraphStep
    test: Images | None
    test_forward: Forward
    log: Log
    folder: Path
    facts: dict[str, Any]
    note: Callable[[str], None]
    line: Callable[[Progress], None]
    stop: Callable[[], bool]
    step: int = 0
    loss_sum: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    spent: Spent = field(default_factory=lambda: Spent())


@dataclass
class Spent:
    """Seconds of this process: training (steps alone), by part where it was sampled, evaluating, saving."""

    images: int = 0
    steps: int = 0
    training: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    sampled: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """One line on the terminal."""

    step: int
    total: int
    epoch: int
    loss: float
    images_per_s: float
    seconds_left: float


def train(run: Run) -> bool:
    """Runs until the last step; False where `run.stop` asked to end earlier (a checkpoint is there then).

    Raises UserError where the loss is no number any more; nothing is saved from then on.
    """
    every = log_every(run.total)
    with held_garbage():
        clock = Clock(run)
        while run.step < run.total:
            lap = clock.sample() if run.step % every == every // 2 else _no_lap
            pixels, labels = run.feed.of_step(run.step)
            lap("data")
            rate = rate_at(run.recipe.schedule, run.recipe.optimizer.lr, run.step, run.total)
            run.loss_sum += run.do(pixels, labels, rate, lap)
            run.step += 1
            clock.images += len(labels)
            at_end, stopped = run.step == run.total, run.stop()
            if run.step % every == 0 or at_end:
                clock.log(rate, every)
            if _evaluation_due(run, at_end):
                clock.pause("evaluating", lambda: _evaluate(run))
            if at_end or stopped or (run.recipe.save_every and run.step % run.recipe.save_every == 0):
                clock.pause("saving", lambda: _save(run))
            if stopped and not at_end:
                clock.end()
                return False
        clock.end()
    return True


def log_every(total: int) -> int:
    """Steps between two lines of the log: about 200 lines a run. It follows from the recipe, never from time, so that a
    resumed run reads losses at the same steps."""
    return max(1, total // 200)


class Clock:
    """Time of steps without that of evaluations and saves; reads the device only where a line is due."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.images = 0
        self._start = self._last = time.perf_counter()
        self._line = 0.0
        self._mark = 0.0
        self._first = run.step
        self._logged_images, self._logged_training = 0, 0.0

    def sample(self) -> Lap:
        """For one step in each log interval, which waits for the device after each part."""
        synchronize(self.run.device)
        self._mark = time.perf_counter()
        return self._lap

    def _lap(self, part: str) -> None:
        synchronize(self.run.device)
        now = time.perf_counter()
        sampled = self.run.spent.sampled
        sampled[part] = sampled.get(part, 0.0) + now - self._mark
        self._mark = now

    def log(self, rate: float, every: int) -> None:
        """One line of the log; it has to wait for the device, as the loss is read."""
        run = self.run
        since = run.step % every or every
        loss = float(run.loss_sum) / since
        run.loss_sum.zero_()
        self._add_training()
        if not loss < float("inf"):
            raise UserError(
                f"the loss is {loss} after step {run.step}: it has left what numbers can hold. Lower optimizer.lr "
                f"(now {rate:g}) or warm up longer; checkpoints in {run.folder / 'checkpoints'} are from before."
            )
        images, seconds = self.images - self._logged_images, run.spent.training - self._logged_training
        self._logged_images, self._logged_training = self.images, run.spent.training
        speed = images / seconds if seconds > 0 else 0.0
        epoch = run.step * run.order.batch / run.order.samples
        run.log.add(step=run.step, epoch=round(epoch, 6), loss=loss, lr=rate, images_per_s=speed)
        now = time.perf_counter()
        if now - self._line >= LINE_S:
            self._line = now
            left = run.spent.training / run.spent.steps * (run.total - run.step)
            run.line(Progress(run.step, run.total, run.order.epoch_of(run.step - 1) + 1, loss, speed, left))

    def pause(self, what: str, work: Callable[[], None]) -> None:
        """Do something that is no step; its time counts by itself."""
        self._add_training()
        start = self._last
        work()
        synchronize(self.run.device)
        self._last = time.perf_counter()
        setattr(self.run.spent, what, getattr(self.run.spent, what) + self._last - start)

    def end(self) -> None:
        self._add_training()

    def _add_training(self) -> None:
        synchronize(self.run.device)
        now = time.perf_counter()
        spent = self.run.spent
        spent.training += now - self._last
        spent.steps, spent.images = self.run.step - self._first, self.images
        self._last = now


def _no_lap(part: str) -> None:
    pass


def _evaluation_due(run: Run, at_end: bool) -> bool:
    if run.test is None:
        return False
    epochs, rest = divmod(run.step, run.order.steps_per_epoch)
    return at_end or (rest == 0 and epochs % run.recipe.evaluation.every == 0)


def _evaluate(run: Run) -> None:
    assert run.test is not None
    found: Evaluated = evaluate(run.test_forward, run.test, run.device, run.step)
    epoch = round(run.step * run.order.batch / run.order.samples, 6)
    run.log.add(step=run.step, epoch=epoch, test_loss=found.loss, test_accuracy=found.accuracy)
    run.note(f"after step {run.step:,}: test loss {found.loss:.4f}, accuracy {100 * found.accuracy:.2f} %")


def _save(run: Run) -> None:
    """A disk that is full stops nothing but saving."""
    run.log.sync()
    if not bool(torch.isfinite(run.loss_sum)):
        run.note(f"NOT SAVED at step {run.step:,}: the loss is no number any more")
        return
    made = capture(run.step, run.do.module, run.do.optimizer, run.loss_sum, run.facts)
    try:
        checkpoints.save(run.folder / "checkpoints", made, run.recipe.keep)
    except OSError as error:
        run.note(f"NOT SAVED at step {run.step:,}: {error.strerror or error}. Training goes on; make room.")


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def held_garbage() -> Iterator[None]:
    """No collection within a step; afterwards as it was."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
