"""`nearpeak train`: a model learns from local data, and the run is held against what the device could have given."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nearpeak.records.outcome import Outcome
    from nearpeak.training.loop import Progress
    from nearpeak.training.recipe import Recipe

INTERRUPTED = 130


@click.command("train")
@click.argument("recipe", required=False, type=click.Path(path_type=Path))
@click.option("--model", help="A known shape (cnn-28x28), or file.py:factory, which gives an nn.Module.")
@click.option("--data", help="Images: a folder (IDX files, or a folder a class), an .npz file, an IDX file.")
@click.option("--epochs", type=int, help="Times that all data is seen. Without it, and without steps: 5.")
@click.option("--batch", type=int, help="Images in a step. [default: 64]")
@click.option("--lr", type=float, help="Learning rate.")
@click.option("--precision", help="auto, fp32, bf16 or fp64 (for checks).")
@click.option("--deterministic", is_flag=True, default=None, help="The same bits each time; no trial of settings.")
@click.option("--seed", type=int, help="Of weights and data order. [default: 0]")
@click.option("--device", help='"cpu", "gpu", or a device\'s id or its beginning.')
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the run. [default: runs/<name of recipe or model>]"
)
@click.option("--profile", type=click.Path(path_type=Path), help="A machine profile, in place of the kept one.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON document.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the outcome and its curves as one page.")
def train(
    recipe: Path | None,
    model: str | None,
    data: str | None,
    epochs: int | None,
    batch: int | None,
    lr: float | None,
    precision: str | None,
    deterministic: bool | None,
    seed: int | None,
    device: str | None,
    out: Path | None,
    profile: Path | None,
    as_json: bool,
    html: Path | None,
) -> int:
    """Train by the RECIPE in a YAML file, or by --model and --data with defaults. The fast settings are found and told
    with their reasons. The same command goes on where a run was interrupted.

    Example: nearpeak train examples/cnn.yaml
    """
    # Threads that wait for each other spin a while, then sleep; read when OpenMP is loaded, so set now. Images/s of the
    # CNN with two threads on two quiet cores, and with a busy process beside: sleeping at once 2,280 and 1,190,
    # spinning 10,000 times 3,030 and 910, 30,000 times 3,000 and 500.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from nearpeak.ceilings import profile_file
    from nearpeak.cli.run import _sustains
    from nearpeak.records.errors import UserError
    from nearpeak.records.files import check_writable
    from nearpeak.training.outcome import outcome_of
    from nearpeak.training.recipe import make_recipe, read_recipe
    from nearpeak.training.session import run_recipe

    given: dict[str, Any] = {
        "model": model, "data.path": data, "epochs": epochs, "batch": batch, "optimizer.lr": lr,
        "precision": precision, "deterministic": deterministic, "seed": seed,
    }  # fmt: skip
    overrides = {key: value for key, value in given.items() if value is not None}
    if recipe is None and (model is None or data is None):
        raise UserError("nothing to train by. Give a recipe, or --model and --data: nearpeak train examples/cnn.yaml")
    asked = read_recipe(recipe, overrides) if recipe else make_recipe({}, overrides, "the command line")
    if profile:
        profile_file.load(profile)  # what is wrong with it is told before anything is trained
    if html:
        check_writable(html)
    folder = out or Path("runs") / (recipe.stem if recipe else _name(asked))
    with _ends_gently() as stop:
        trained = run_recipe(asked, folder, device, _note, _line, stop)
    sustains = _sustains(trained.device, trained.ran.precision, profile)
    outcome = outcome_of(trained.ran, trained.spec, trained.not_known, sustains, trained.load)
    _show(outcome, as_json, html)
    if not trained.ran.complete:
        _note(f"interrupted after step {trained.ran.resumed_at + trained.ran.steps:,}; the same command goes on")
        return INTERRUPTED
    return 0


def _name(recipe: Recipe) -> str:
    """Of the model, as a folder's."""
    return Path(recipe.model).name.replace(".py:", "-").replace(":", "-")


def _show(outcome: Outcome, as_json: bool, html: Path | None) -> None:
    from rich.console import Console

    from nearpeak.records.files import write_text_atomically
    from nearpeak.report.train_page import page
    from nearpeak.report.train_table import render

    body = asdict(outcome)
    if html:
        write_text_atomically(html, page(body))
    if as_json:
        print(json.dumps(body, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        narrow = not sys.stdout.isatty()
        render(body, Console(width=110 if narrow else None, highlight=False))


@contextmanager
def _ends_gently() -> Iterator[Any]:
    """Ctrl-C and SIGTERM ask for a checkpoint and an end after the step; a second one ends at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        _note("saving after this step; once more ends at once")
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, before[one])

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        for one in before:
            signal.signal(one, ask)
    except ValueError:  # no main thread: whoever runs us there handles signals
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _line(progress: Progress) -> None:
    from nearpeak.report.train_table import progress_line

    _note(progress_line(asdict(progress)))
