"""A run that is interrupted anywhere goes on as if it had not been; what a kill or a full disk leaves is loadable."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from nearpeak.records.errors import UserError
from nearpeak.training import checkpoint as checkpoints
from nearpeak.training.checkpoint import Checkpoint, Damaged
from training_runs import files, go, losses, recipe, same_bits, weights

STEPS = 13  # 21 samples to train on in batches of 4: six steps an epoch, the last of one image


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    values = files(folder) | {"steps": STEPS, "schedule": {"name": "cosine", "warm_up": 3}}
    go(recipe(values), folder / "run")
    return values, folder / "run"


@pytest.mark.parametrize("step", [1, 2, 5, 6, 7, 11, 12])  # 6 and 12: ends of epochs
def test_exact_after_any_step(whole: tuple[dict[str, Any], Path], tmp_path: Path, step: int) -> None:
    values, run = whole
    trained = go(recipe(values), tmp_path, stop_at=step)
    assert not trained.ran.complete
    assert trained.ran.steps == step
    assert not (tmp_path / "model.safetensors").exists()
    torch.manual_seed(random.randrange(1 << 30))  # what the process did before does not matter
    again = go(recipe(values), tmp_path)
    assert again.ran.complete
    assert (again.ran.resumed_at, again.ran.steps) == (step, STEPS - step)
    assert same_bits(weights(tmp_path), weights(run))
    assert losses(tmp_path) == losses(run)


def test_exact_with_sgd_and_several_interruptions(tmp_path: Path) -> None:
    values = files(tmp_path / "data") | {"epochs": 2, "save_every": 2, "optimizer": {"name": "sgd", "lr": 0.05}}
    go(recipe(values), tmp_path / "whole")
    for stop in (3, 1, 4, None):
        go(recipe(values), tmp_path / "parts", stop_at=stop)
    assert same_bits(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


def test_without_the_random_state_it_would_differ(whole: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """The test above can fail: dropout's numbers are part of what is kept."""
    values, run = whole
    go(recipe(values), tmp_path, stop_at=5)
    newest = checkpoints.load_newest(tmp_path / "checkpoints", print)
    assert newest is not None
    other = dict(newest.state) | {"random.torch": torch.Generator().manual_seed(99).get_state()}
    checkpoints.save(tmp_path / "checkpoints", Checkpoint(5, newest.weights, other, newest.facts), 2)
    go(recipe(values), tmp_path)
    assert not same_bits(weights(tmp_path), weights(run))


def test_a_longer_run_goes_on_from_a_finished_one(tmp_path: Path) -> None:
    values = files(tmp_path / "data")
    go(recipe(values, epochs=1), tmp_path / "run")
    longer = go(recipe(values, epochs=2), tmp_path / "run")
    go(recipe(values, epochs=2), tmp_path / "whole")
    assert longer.ran.resumed_at == 6
    assert same_bits(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_nothing_left_to_do(tmp_path: Path) -> None:
    values = files(tmp_path / "data") | {"epochs": 1}
    go(recipe(values), tmp_path / "run")
    notes: list[str] = []
    assert go(recipe(values), tmp_path / "run", notes=notes).ran.images == 0
    assert any("all 6 steps are done" in note for note in notes)


def test_another_recipe_or_other_data_is_refused(tmp_path: Path) -> None:
    values = files(tmp_path / "data") | {"epochs": 1}
    go(recipe(values), tmp_path / "run")
    with pytest.raises(UserError, match=r"batch, optimizer\.lr differ\."):
        go(recipe(values, batch=5, optimizer__lr=0.5), tmp_path / "run")
    with pytest.raises(UserError, match="has done 6 steps already"):
        go(recipe(values, steps=4), tmp_path / "run")
    with np.load(tmp_path / "data" / "data.npz") as held:
        images, labels = held["images"], held["labels"]
    labels[3] = (labels[3] + 1) % 3
    np.savez(tmp_path / "data" / "data.npz", images=images, labels=labels)
    with pytest.raises(UserError, match="other data"):
        go(recipe(values), tmp_path / "run")
    scheduled = values | {"schedule": {"name": "cosine"}}
    go(recipe(scheduled), tmp_path / "cosine")
    with pytest.raises(UserError, match="epochs differs"):  # its learning rates would have been others
        go(recipe(scheduled, epochs=2), tmp_path / "cosine")


def test_a_schedule_counts_from_where_it_was(whole: tuple[dict[str, Any], Path]) -> None:
    rates = [line["lr"] for line in losses(whole[1]) if "lr" in line]
    assert rates[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)


# ---- files


def some(step: int, seed: int = 0) -> Checkpoint:
    generator = torch.Generator().manual_seed(seed)
    return Checkpoint(step, {"w": torch.randn(200, generator=generator)}, {"s": torch.arange(50)}, {"n": 1.5})


def test_round_trip_and_keep(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        checkpoints.save(tmp_path, some(step, step), keep=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["step-000000003", "step-000000010"]
    newest = checkpoints.load_newest(tmp_path, print)
    assert newest is not None
    assert newest.step == 10
    assert same_bits(newest.weights, some(10, 10).weights)
    assert newest.facts == {"n": 1.5}


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors", "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "flip", "gone", "empty", "longer"])
def test_damage_is_found_and_named(tmp_path: Path, name: str, how: str) -> None:
    checkpoints.save(tmp_path, some(1), keep=5)
    checkpoints.save(tmp_path, some(2), keep=5)
    file = tmp_path / "step-000000002" / name
    content = bytearray(file.read_bytes())
    if how == "gone":
        file.unlink()
    elif how == "flip":
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        file.write_bytes(content)
    else:
        cut = {"cut": content[: random.randrange(1, len(content))], "empty": b"", "longer": content + b"\0"}[how]
        file.write_bytes(cut)
    with pytest.raises(Damaged, match=name.replace(".", r"\.")):
        checkpoints.load(file.parent)
    notes: list[str] = []
    newest = checkpoints.load_newest(tmp_path, notes.append)
    assert newest is not None
    assert newest.step == 1
    assert len(notes) == 1
    assert "step-000000002" in notes[0]
    assert name in notes[0]


def test_all_damaged_is_an_error_and_none_is_none(tmp_path: Path) -> None:
    assert checkpoints.load_newest(tmp_path / "none", print) is None
    checkpoints.save(tmp_path, some(1), keep=2)
    (tmp_path / "step-000000001" / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match="all 1 checkpoints"):
        checkpoints.load_newest(tmp_path, lambda text: None)


def kill_a_saver(folder: Path, after: float) -> None:
    """SIGKILL some time into a loop of saves; then the newest checkpoint must be one that was reported, or later."""
    folder.mkdir()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        for step in range(1, 100_000):
            tensors = {"w": torch.full((20_000,), float(step))}
            made = Checkpoint(step, tensors, {"s": torch.full((3,), step)}, {"step": step})
            checkpoints.save(folder, made, keep=2)
            os.write(writing, b"%d\n" % step)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.readline() == b"1\n"
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reported = [1, *(int(line) for line in pipe.read().splitlines() if line)]
    notes: list[str] = []
    newest = checkpoints.load_newest(folder, notes.append)
    assert newest is not None
    assert notes == []
    assert newest.step >= reported[-1]
    assert torch.equal(newest.weights["w"], torch.full((20_000,), float(newest.step)))
    assert newest.facts == {"step": newest.step}
    assert not list(folder.glob(".*"))


def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    for number in range(8):
        kill_a_saver(tmp_path / str(number), random.uniform(0, 0.08))


@pytest.mark.long
def test_sigkill_at_fifty_random_moments(tmp_path: Path) -> None:
    for number in range(50):
        kill_a_saver(tmp_path / str(number), random.uniform(0, 0.15))


@pytest.mark.parametrize("call", range(1, 12))
def test_death_at_each_call_of_a_save(tmp_path: Path, call: int) -> None:
    """A child that dies, without any clean-up, right before the n-th call that touches the disk."""
    checkpoints.save(tmp_path, some(1), keep=2)
    child = os.fork()
    if not child:
        left = [call]

        def dying(real: Any) -> Any:
            def run(*arguments: Any, **named: Any) -> Any:
                left[0] -= 1
                if not left[0]:
                    os._exit(9)
                return real(*arguments, **named)

            return run

        for name in ("fsync", "rename", "replace", "open"):
            setattr(os, name, dying(getattr(os, name)))
        checkpoints._write = dying(checkpoints._write)
        checkpoints.save(tmp_path, some(2), keep=2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    newest = checkpoints.load_newest(tmp_path, pytest.fail)
    assert newest is not None
    assert newest.step in (1, 2)


def test_a_full_disk_stops_nothing_but_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = files(tmp_path / "data") | {"epochs": 1, "save_every": 2}
    real, full = checkpoints._write, [True]

    def write(path: Path, content: bytes) -> None:
        if full[0] and "step-" in str(path.parent) and path.name.startswith("state"):
            path.write_bytes(content[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(checkpoints, "_write", write)
    notes: list[str] = []
    trained = go(recipe(values), tmp_path / "run", notes=notes)
    assert trained.ran.complete
    assert next(n for n in notes if "NOT SAVED" in n) == (
        "NOT SAVED at step 2: No space left on device. Training goes on; make room."
    )
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert len(weights(tmp_path / "run")) == 9


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        checkpoints.save(small, some(1), keep=2)
        big = Checkpoint(2, {"w": torch.zeros(40000)}, {}, {})
        with pytest.raises(OSError, match="No space left"):
            checkpoints.save(small, big, keep=2)
        newest = checkpoints.load_newest(small, pytest.fail)
        assert newest is not None
        assert newest.step == 1
        assert [one.name for one in small.iterdir()] == ["step-000000001"]
    finally:
        subprocess.run(["umount", small], check=True)


def test_weights_out_have_plain_names_and_one_copy_of_what_is_tied(tmp_path: Path) -> None:
    values = files(tmp_path / "data")
    (tmp_path / "data" / "net.py").write_text(
        "from torch import nn\n\n\ndef net():\n    a = nn.Linear(64, 64)\n    b = nn.Linear(64, 64)\n"
        "    b.weight = a.weight\n    return nn.Sequential(nn.Flatten(), a, b, nn.Linear(64, 3))\n"
    )
    go(recipe(values, epochs=1), tmp_path / "run")
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["1.bias", "1.weight", "2.bias", "3.bias", "3.weight"]
    again = go(recipe(values, epochs=2), tmp_path / "run")
    assert again.ran.resumed_at == 6
