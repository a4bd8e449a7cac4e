"""Recipes: every key known or refused by name; learning rates; which samples come when; the settings' reasons."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from nearpeak.records.errors import UserError
from nearpeak.training.order import Order, epoch_order
from nearpeak.training.recipe import Schedule, make_recipe, read_recipe
from nearpeak.training.schedule import rate_at
from nearpeak.training.settings import Facts, candidates, choose
from nearpeak.training.trial import Candidate, Tried, try_all

LEAST: dict[str, Any] = {"model": "cnn-28x28", "data": {"path": "x"}}


def refused(values: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        make_recipe(values, {}, "here")
    return str(caught.value)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"epoch": 3}, "unknown key epoch; did you mean epochs?"),
        ({"optimiser": {}}, "unknown key optimiser; did you mean optimizer?"),
        ({"optimizer": {"learning_rate": 1}}, "unknown key optimizer.learning_rate; "),
        ({"optimizer": {"momentun": 0.5, "name": "sgd"}}, "unknown key optimizer.momentun; did you mean momentum?"),
        ({"optimizer": {"name": "sgd", "betas": [0.9, 0.99]}}, "optimizer: sgd has no betas"),
        ({"optimizer": {"momentum": 0.5}}, "optimizer: adamw has no momentum"),
        ({"schedule": {"end": 0.1}}, "a constant schedule has no end"),
        ({"epochs": 2, "steps": 5}, "epochs and steps exclude each other"),
        ({"evaluation": {"part": 0.2, "path": "y"}}, "part and path exclude each other"),
        ({"evaluation": {"labels": "y"}}, "labels go with a path"),
        ({"batch": 0}, "batch: Input should be greater than or equal to 1 (found '0')"),
        ({"batch": 2.5}, "batch: "),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr: "),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr: "),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "betas lie from 0 to below 1"),
        ({"precision": "fp8"}, "precision: Input should be 'auto', 'fp32', 'bf16' or 'fp64' (found 'fp8')"),
        ({"task": "causal-lm"}, "task: "),
        ({"data": {}}, "data.path is missing"),
    ],
)
def test_refused_by_name(extra: dict[str, Any], said: str) -> None:
    assert said in refused(LEAST | extra)


def test_each_wrong_key_is_told() -> None:
    text = refused({"modle": "x", "data": {"path": "y", "labelz": "z"}})
    assert "model is missing" in text
    assert "unknown key modle; did you mean model?" in text
    assert "unknown key data.labelz; did you mean labels?" in text


def test_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("model: net.py:make\ndata: images\noptimizer: {name: sgd, lr: 1e-2}\nsteps: 7\n")
    read = read_recipe(file, {"epochs": 3, "optimizer.momentum": 0.5})
    assert read.model == str(tmp_path / "net.py:make")
    assert read.data.path == str(tmp_path / "images")
    assert (read.optimizer.lr, read.optimizer.momentum) == (0.01, 0.5)
    assert (read.epochs, read.steps) == (3, None)  # the command line's length replaces the file's
    assert read.difference(read.model_dump(mode="json")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch: 64\nbatch: 32\n", "the key batch stands twice"),
        ("- a\n- b\n", "a recipe is a map of keys"),
        ("model: !!python/object/apply:os.system ['echo broken']\n", "no YAML"),
        ("a: [1\n", "no YAML"),
        ("\x00", "no YAML"),
        ("[" * 5000, "no YAML"),
        ("? [a, b]\n: 1\n", "no YAML"),
        ("", "a recipe is a map"),
        ("#" * (1 << 20) + "#", "a recipe has at most 1,048,576"),
    ],
)
def test_hostile_yaml(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        read_recipe(file, {})


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the recipe"):
        read_recipe(tmp_path / "none.yaml", {})


def test_rates() -> None:
    warm = Schedule(name="linear", warm_up=4, end=0.1)
    rates = [rate_at(warm, 2.0, step, 14) for step in range(14)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[4] == 2.0
    assert rates[-1] == pytest.approx(0.2)
    assert all(a > b for a, b in pairwise(rates[4:]))
    assert [rate_at(Schedule(), 0.3, step, 9) for step in range(9)] == [0.3] * 9
    cosine = [rate_at(Schedule(name="cosine"), 1.0, step, 11) for step in range(11)]
    assert (cosine[0], cosine[5], cosine[10]) == (1.0, pytest.approx(0.5), pytest.approx(0.0, abs=1e-15))
    assert rate_at(Schedule(name="cosine"), 1.0, 0, 1) == 1.0


def test_order_has_each_sample_once_and_differs_by_epoch_and_seed() -> None:
    samples, batch, seed = random.randint(20, 60), random.randint(2, 9), random.randrange(1 << 62)
    order = Order(samples, batch, seed)
    per = order.steps_per_epoch
    epochs = [torch.cat([order.of_step(e * per + n) for n in range(per)]) for e in range(3)]
    for one in epochs:
        assert sorted(one.tolist()) == list(range(samples))
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    assert not torch.equal(epochs[0], epoch_order(samples, seed + 1, 0))
    assert len(order.of_step(per - 1)) == (samples - 1) % batch + 1


def test_order_from_any_step_is_the_same() -> None:
    """What a resume relies on: nothing but seed and step number decides, and no generator is touched."""
    before = torch.get_rng_state()
    through = [Order(23, 5, 7).of_step(step).tolist() for step in range(12)]
    torch.rand(3)
    order = Order(23, 5, 7)
    backwards = [order.of_step(step).tolist() for step in reversed(range(12))]
    assert through == backwards[::-1]
    torch.set_rng_state(before)
    Order(23, 5, 7).of_step(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_order_is_what_it_was() -> None:
    """A change of this breaks every checkpoint that is out there."""
    assert epoch_order(10, 0, 0).tolist() == GOLDEN


GOLDEN = [0, 4, 3, 9, 7, 1, 5, 8, 2, 6]


def facts(**other: Any) -> Facts:
    return Facts(**({
        "kind": "cpu", "bf16": "no units", "free_bytes": 10**9, "data_bytes": 10**6, "cores": 4, "convolutions": True,
        "steps": 1000,
    } | other))  # fmt: skip


def test_candidates() -> None:
    r = make_recipe(LEAST, {}, "here")
    assert len(candidates(r, facts())) == 2
    assert len(candidates(r, facts(bf16=None))) == 4
    assert candidates(r, facts(kind="gpu", bf16=None)) == (Candidate("bf16", 4, True),)
    assert not candidates(r, facts(convolutions=False))[0].channels_last
    assert candidates(r, facts(steps=20)) == (Candidate("fp32", 4, True),)
    fixed = make_recipe(LEAST | {"threads": 3, "channels_last": False, "precision": "bf16"}, {}, "here")
    assert candidates(fixed, facts()) == (Candidate("bf16", 3, False),)
    steady = make_recipe(LEAST | {"deterministic": True}, {}, "here")
    assert len(candidates(steady, facts())) == 1


def test_the_fastest_is_taken_and_each_setting_has_its_reason() -> None:
    r = make_recipe(LEAST, {}, "here")
    tried = tuple(Tried(c, rate) for c, rate in zip(candidates(r, facts()), (20.0, 90.0), strict=True))
    chosen = choose(r, facts(), tried)
    assert (chosen.threads, chosen.channels_last, chosen.precision) == (1, True, "fp32")
    assert all(choice.reason for choice in chosen.choices)
    said = {choice.name: choice.reason for choice in chosen.choices}
    assert said["threads"] == "a trial just now, images/s: 20 with 4, 90 with 1"
    assert "no units" in said["precision"]
    assert choose(r, facts(), tried).whole
    assert not choose(r, facts(data_bytes=6 * 10**8), tried).whole
    slow = make_recipe(LEAST | {"precision": "bf16"}, {}, "here")
    reasons = {c.name: c.reason for c in choose(slow, facts(), (Tried(Candidate("bf16", 1, False), None),)).choices}
    assert reasons["precision"] == "the recipe's, though slow here: no units"
    with pytest.raises(UserError, match="fp64 is for checks on the CPU"):
        choose(make_recipe(LEAST | {"precision": "fp64"}, {}, "here"), facts(kind="gpu"), tried)


def test_a_trial_leaves_generators_and_threads_as_they_were() -> None:
    import time

    before, threads = torch.get_rng_state(), torch.get_num_threads()

    def prepare(one: Candidate) -> Any:
        def step() -> int:
            torch.rand(3)
            assert torch.get_num_threads() == one.threads
            time.sleep(0.001 if one.channels_last else 0.004)
            return 8

        return step

    tried = try_all([Candidate("fp32", 1, False), Candidate("fp32", 1, True)], prepare, lambda: None)
    assert tried[0].rate is not None
    assert tried[1].rate is not None
    assert tried[1].rate > tried[0].rate
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
