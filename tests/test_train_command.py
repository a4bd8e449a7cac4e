"""`nearpeak train` as a whole: recipes and options, the outcome, the page, refusals, an end that saves."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from nearpeak.cli import run as run_module
from nearpeak.cli.main import cli
from nearpeak.records.errors import UserError
from nearpeak.training.recipe import read_recipe
from profiles import cpu_only
from training_runs import files, losses, weights

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second of measuring for each test: one profile for all."""
    monkeypatch.setattr(run_module, "_sustains", lambda device, compute, profile: cpu_only().devices[0])


def train(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["train", *map(str, arguments), "--device", "cpu"], standalone_mode=False)


def refused(*arguments: object) -> str:
    done = train(*arguments)
    assert isinstance(done.exception, UserError), done.output
    return str(done.exception)


def save(folder: Path, **more: Any) -> Path:
    values = files(folder) | more
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_a_recipe(tmp_path: Path) -> None:
    file = save(tmp_path, epochs=1)
    done = train(file, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    for word in ("images/s", "FLOP/s", "limit", "share", "held-out", "net.py:net, fp32, batch 4: 6 of 6 steps"):
        assert word in done.stdout
    for name in ("precision", "threads", "channels-last", "data", "optimizer", "compile"):
        assert re.search(rf"^  {name}: .+ \(.+\)$", done.stderr, re.MULTILINE), name
    assert len(weights(tmp_path / "run")) == 9
    assert losses(tmp_path / "run")[-1]["step"] == 6


def test_the_document_and_the_page(tmp_path: Path) -> None:
    file = save(tmp_path, epochs=2)
    page = tmp_path / "page.html"
    done = train(file, "--out", tmp_path / "run", "--json", "--html", page)
    body = json.loads(done.stdout)
    assert (body["schema"], body["command"]) == ("nearpeak.outcome/1", "train")
    assert set(body["got"]) == set(body["limit"]) == set(body["share"]) == {"images_per_s", "flop_per_s"}
    result = body["result"]
    assert result["steps"] == result["steps_done_here"] == 12
    assert [line["step"] for line in result["curve"] if "test_loss" in line] == [6, 12]
    assert body["energy"] is None
    assert "energy needs 2 s" in body["reason"]["energy"] or body["reason"]["energy"]
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "The settings, and why" in text


def test_model_and_data_alone(tmp_path: Path) -> None:
    values = files(tmp_path)
    done = train(
        "--model", values["model"], "--data", values["data"]["path"], "--epochs", 1, "--batch", 8, "--lr", 0.01,
        "--seed", 3, "--deterministic", "--precision", "fp32", "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    kept = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (kept["batch"], kept["optimizer"]["lr"], kept["seed"], kept["epochs"]) == (8, 0.01, 3, 1)
    assert json.loads(done.stdout)["result"]["steps"] == 4


def test_options_go_before_the_file(tmp_path: Path) -> None:
    file = save(tmp_path, epochs=3)
    body = json.loads(train(file, "--epochs", 1, "--out", tmp_path / "run", "--json").stdout)
    assert body["result"]["steps"] == 6


def test_refusals(tmp_path: Path) -> None:
    assert "nothing to train by" in refused()
    assert "nothing to train by" in refused("--model", "cnn-28x28")
    assert "cannot read the recipe" in refused(tmp_path / "none.yaml")
    file = save(tmp_path, epoch=3)
    assert "unknown key epoch; did you mean epochs?" in refused(file)
    good = save(tmp_path)
    assert "precision: " in refused(good, "--precision", "int8")
    assert "page.html" in refused(good, "--html", tmp_path / "nowhere" / "page.html", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_examples_are_recipes() -> None:
    plain, fast = (read_recipe(ROOT / "examples" / name, {}) for name in ("cnn.yaml", "cnn_fast.yaml"))
    assert (plain.batch, plain.epochs) == (64, 5)
    assert (plain.optimizer.name, plain.optimizer.lr, plain.optimizer.momentum) == ("sgd", 0.001, 0.9)
    assert fast.evaluation.part is None


def test_sigterm_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Stopped in a process of its own; the weights are those of a run that nobody stopped, bit for bit."""
    file, cut = save(tmp_path, steps=800), tmp_path / "cut"
    command = [sys.executable, "-m", "nearpeak", "train", file, "--device", "cpu", "--out", cut]
    process = subprocess.Popen(
        [*map(str, command), "--profile", str(saved_profile(tmp_path))],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step "):
            break
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 130, said
    assert "the same command goes on" in said
    again = train(file, "--out", cut)
    assert again.exit_code == 0, again.output
    assert "going on after step" in again.stderr
    assert train(file, "--out", tmp_path / "whole").exit_code == 0
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()
    assert losses(tmp_path / "whole") == losses(cut)


def saved_profile(folder: Path) -> Path:
    """A machine profile with ceilings of this CPU, so that the process measures nothing."""
    from dataclasses import replace

    from nearpeak.ceilings import profile_file
    from nearpeak.hardware.cpu import cpu_device

    made, here = cpu_only(), cpu_device()
    one = replace(made.devices[0], id=here.id, name=here.name, device=here)
    file = folder / "profile.json"
    profile_file.save(replace(made, devices=(one,)), file)
    return file
