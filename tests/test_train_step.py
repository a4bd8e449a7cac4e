"""One step: the same mathematics as the plain script, whatever settings it runs under; what is counted, and refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nearpeak.limits.ops import ops_of
from nearpeak.models.known import read_known
from nearpeak.records.ceiling import Load
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec
from nearpeak.records.workload import Training, Workload
from nearpeak.training.data import read_data
from nearpeak.training.feed import StagedFeed, WholeFeed
from nearpeak.training.graph_step import GraphStep
from nearpeak.training.images import Images
from nearpeak.training.model import DATA_PARALLEL, build_model, canonical
from nearpeak.training.order import Order
from nearpeak.training.outcome import Ran, outcome_of, step_ops
from nearpeak.training.recipe import Recipe, read_recipe
from nearpeak.training.settings import Facts, candidates, choose
from nearpeak.training.state import load_weights, weights_of
from nearpeak.training.step import Forward, Step, groups_of, make_optimizer
from nearpeak.training.trial import Tried
from profiles import cpu_only
from training_runs import MODEL, arrays, files, go, losses, recipe, same_bits, weights

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LEAST: dict[str, Any] = {"model": "cnn-28x28", "data": {"path": "x"}}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch(samples: int, size: int = 28) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.randint(0, 256, (samples, 1, size, size), dtype=torch.uint8)
    return pixels, torch.randint(0, 3, (samples,))


def built(name: str = "cnn-28x28") -> nn.Module:
    return build_model(name, (1, 28, 28), 10, 8).module


# ---- the same as the plain script


def test_losses_are_those_of_the_plain_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/plain_cnn.py's model, transform, loss and optimizer, on the recipe's samples in its order."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import plain_cnn

    asked = read_recipe(EXAMPLES / "cnn.yaml", {})
    parts = read_data(asked)
    plain_data, plain_test = (plain_cnn.FashionMNIST(EXAMPLES / "data", part) for part in (True, False))
    assert parts.test is not None
    assert (len(plain_data), len(plain_test)) == (len(parts.train), len(parts.test)) == (8000, 2000)
    np.testing.assert_array_equal(plain_test.images, parts.test.pixels[:, 0])
    seed = int(torch.randint(0, 1 << 30, ()))
    torch.manual_seed(seed)
    net = plain_cnn.Net()
    theirs = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    torch.manual_seed(seed)
    module = built().to(memory_format=torch.channels_last)
    ours = Step(module, make_optimizer(module, asked.optimizer), asked, "fp32", True, False)
    order = Order(len(parts.train), asked.batch, seed)
    feed = WholeFeed(parts.train, order.of_step, torch.device("cpu"))
    for step in range(12):
        images, labels = zip(*(plain_data[int(i)] for i in order.of_step(step)), strict=True)
        loss = nn.functional.cross_entropy(net(torch.stack(images)), torch.tensor(labels))
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        found = ours(*feed.of_step(step), 0.001)
        assert not abs(float(found) - loss.item()) > 2e-5
    sys.modules.pop("plain_cnn")


@pytest.mark.parametrize("micro", [1, 3, 4, 7])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_batch_in_parts_is_the_batch(tmp_path: Path, micro: int, name: str) -> None:
    """Also where the parts do not divide it, in fp64: 1e-12."""
    (tmp_path / "net.py").write_text(MODEL)
    results = []
    pixels, labels = batch(11, 8)
    seed = int(torch.randint(0, 1 << 30, ()))
    for size in (None, micro):
        torch.manual_seed(seed)
        module = build_model(f"{tmp_path / 'net.py'}:Plain", (1, 8, 8), 3, 11).module.double()
        asked = recipe(LEAST, batch=11, micro_batch=size, precision="fp64", optimizer__name=name)
        step = Step(module, make_optimizer(module, asked.optimizer), asked, "fp64", False, False)
        seen = [step(pixels, labels, 0.1) for _ in range(3)]
        results.append((torch.stack(seen), torch.cat([p.detach().flatten() for p in module.parameters()])))
    for one, other in zip(*results, strict=True):
        assert not (one - other).abs().max() > 1e-12


def test_bf16_is_near_fp32_and_keeps_fp32_weights() -> None:
    """Small updates are not rounded away: w moves as in fp32 (case 27)."""
    torch.manual_seed(3)
    found = {}
    pixels, labels = batch(16)
    for precision in ("fp32", "bf16"):
        torch.manual_seed(4)
        module = built()
        step = Step(module, make_optimizer(module, recipe(LEAST).optimizer), recipe(LEAST), precision, False, False)
        first = float(step(pixels, labels, 1e-6))
        before = {key: tensor.clone() for key, tensor in weights_of(module).items()}
        step(pixels, labels, 1e-6)
        moved = torch.cat([(tensor - before[key]).flatten() for key, tensor in weights_of(module).items()])
        found[precision] = first, float(moved.abs().mean())
        assert all(p.dtype == torch.float32 for p in module.parameters())
    assert found["bf16"][0] == pytest.approx(found["fp32"][0], rel=0.02)
    assert found["bf16"][1] == pytest.approx(found["fp32"][1], rel=0.1)
    assert found["fp32"][1] > 0


def test_decay_acts_on_matrices_alone(tmp_path: Path) -> None:
    """Case 16: zero gradients, ten steps: vectors equal bit for bit, matrices shrink by (1 − lr · wd)^10."""
    (tmp_path / "net.py").write_text(MODEL)
    module = build_model(f"{tmp_path / 'net.py'}:net", (1, 8, 8), 3, 4).module
    groups = groups_of(module, 0.1)
    every = [id(p) for group in groups for p in group["params"]]
    assert sorted(every) == sorted(id(p) for p in module.parameters())
    before = {key: tensor.clone() for key, tensor in module.named_parameters()}
    optimizer = make_optimizer(module, recipe(LEAST, optimizer__weight_decay=0.1, optimizer__lr=0.05).optimizer)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(10):
        optimizer.step()
    for key, tensor in module.named_parameters():
        if tensor.dim() < 2:
            assert torch.equal(tensor, before[key]), key
        else:
            torch.testing.assert_close(tensor, before[key] * (1 - 0.05 * 0.1) ** 10)


def stand_in(work: Any, restore: Any) -> Any:
    """As cuda_graph, without a GPU: what is recorded runs as it is."""
    for _ in range(4):
        work()
    restore()
    return work


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_recorded_step_is_the_step(tmp_path: Path, name: str) -> None:
    """Recording changes neither weights nor buffers nor optimizer, also after steps that went before (a resume), and
    rates reach it; a smaller batch goes past it."""
    (tmp_path / "net.py").write_text(MODEL.replace("nn.Dropout(0.3)", "nn.Identity()"))
    asked = recipe(LEAST, batch=6, optimizer__name=name)
    batches = [batch(size, 8) for size in (6, 4, 6, 6, 2, 6)]
    for first in (0, 3):  # steps before recording
        found = []
        seed = int(torch.randint(0, 1 << 30, ()))
        for recorded in (False, True):
            torch.manual_seed(seed)
            module = build_model(f"{tmp_path / 'net.py'}:net", (1, 8, 8), 3, 6).module.double()
            step = Step(module, make_optimizer(module, asked.optimizer), asked, "fp64", False, False)
            before = [step(*one, 0.01) for one in batches[:first]]
            do = GraphStep(step, 6, stand_in) if recorded else step
            seen = [do(*one, 0.001 * (n + 1)).clone() for n, one in enumerate(batches[first:])]
            found.append((torch.stack(before + seen), weights_of(module)))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-7)
        for one, other in zip(found[0][1].values(), found[1][1].values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)  # rates are fp32 in a graph


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_cuda_graph_is_the_step(name: str, tmp_path: Path) -> None:
    from training_runs import go_on

    values = files(tmp_path / "data") | {"model": f"{tmp_path / 'data' / 'net.py'}:Plain", "steps": 40}
    values["optimizer"] = {"name": name, "lr": 0.01}
    for graph in (True, False):
        go_on("gpu", recipe(values, graph=graph, precision="fp32"), tmp_path / str(graph))
    one, other = losses(tmp_path / "True"), losses(tmp_path / "False")
    for a, b in zip(one, other, strict=True):
        assert a.get("loss", 0.0) == pytest.approx(b.get("loss", 0.0), rel=1e-3)


# ---- feeds


class LateCopier:
    """A device that copies only when it is made to: the worst that a stream may do (case 29)."""

    def __init__(self, honest: bool) -> None:
        self.honest, self.waiting = honest, []

    def buffer(self, like: torch.Tensor, samples: int) -> torch.Tensor:
        return torch.empty((samples, *like.shape[1:]), dtype=like.dtype)

    def copy(self, host: Any) -> Any:
        batch = tuple(torch.empty_like(tensor) for tensor in host)
        event = LateEvent(self, host, batch)
        self.waiting.append(event)
        return batch, event

    def ready(self, event: Any, batch: Any) -> None:
        pass  # the step is queued behind the copy, nobody waits


class LateEvent:
    def __init__(self, copier: LateCopier, host: Any, batch: Any) -> None:
        self.copier, self.host, self.batch, self.done = copier, host, batch, False

    def synchronize(self) -> None:
        if self.copier.honest:
            self.run()

    def run(self) -> None:
        if not self.done:
            for one, other in zip(self.batch, self.host, strict=True):
                one.copy_(other)
        self.done = True


@pytest.mark.parametrize("honest", [True, False])
def test_a_buffer_is_not_written_while_it_is_copied(honest: bool) -> None:
    """Without waiting for the event (honest False) batches are wrong: the test can fail."""
    pixels, labels = arrays(31)
    images = Images(pixels[:, None], labels, "test")
    order = Order(31, 4, 3)
    copier = LateCopier(honest)
    whole = WholeFeed(images, order.of_step, torch.device("cpu"))
    staged = StagedFeed(images, order.of_step, 19, copier)
    found = [staged.of_step(step) for step in range(19)]
    for event in copier.waiting:
        event.run()
    equal = [all(torch.equal(a, b) for a, b in zip(found[s], whole.of_step(s), strict=True)) for s in range(19)]
    assert all(equal) == honest
    assert len(copier.waiting) == 19  # nothing is staged beyond the end


# ---- what is counted


@pytest.mark.parametrize("samples", [1, 7])
def test_flop_of_the_cnn_are_those_that_torch_counts(samples: int) -> None:
    module = built()
    step = Step(module, make_optimizer(module, recipe(LEAST).optimizer), recipe(LEAST), "fp32", False, False)
    with FlopCounterMode(display=False) as counter:
        step(*batch(samples), 0.1)
    training = Training("full", recompute="none", master=False, optimizer="sgd_momentum", fused=True)
    work = Workload("train", samples, 1, weights="fp32", compute="fp32", training=training)
    ours = sum(op.count * sum(op.flop.values()) for op in ops_of(read_known("cnn-28x28"), work))
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_flop_of_a_factory_are_those_that_torch_counts(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    made = build_model(f"{tmp_path / 'net.py'}:net", (1, 8, 8), 3, 4)
    asked = recipe(LEAST, batch=4)
    step = Step(made.module, make_optimizer(made.module, asked.optimizer), asked, "fp32", False, False)
    with FlopCounterMode(display=False) as counter:
        step(*batch(4, 8), 0.1)
    ran = Ran("m", "d", "fp32", 4, "adamw", 8, 2, 2, 1.0, None)
    ours = sum(op.count * sum(op.flop.values()) for op in step_ops(made.spec, made.not_known, ran))
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def outcome(spec: ModelSpec | None = None, **other: Any) -> Any:
    ran = Ran(**({
        "model": "cnn-28x28", "device": "d", "precision": "fp32", "batch": 64, "optimizer": "adamw", "images": 6400,
        "steps": 100, "total_steps": 100, "training": 60.0, "memory_bytes": 1, "sampled": {"data": 1.0, "forward": 4.0,
        "backward": 4.0, "update": 1.0},
    } | other))  # fmt: skip
    load = Load(60.0, energy_j=640.0, energy_scope="device")
    return outcome_of(ran, spec or read_known("cnn-28x28"), None, cpu_only().devices[0], load)


def test_the_outcome_adds_up() -> None:
    found = outcome()
    assert found.got["images_per_s"] == pytest.approx(6400 / 60)
    assert found.share["images_per_s"] == found.share["flop_per_s"]
    assert found.share["images_per_s"] == pytest.approx(found.got["images_per_s"] / found.limit["images_per_s"])
    assert found.energy is not None
    assert found.energy.per_unit == pytest.approx(0.1)
    least = 6400 / found.limit["images_per_s"]
    assert sum(gap.seconds for gap in found.gap) == pytest.approx(60 - least)
    assert "multiply-add" in found.result["flop_convention"]


def test_more_than_the_limit_is_no_share() -> None:
    found = outcome(training=1e-6)
    assert found.share == {"images_per_s": None, "flop_per_s": None}
    assert "are less than the limit" in found.reason["images_per_s"]
    nothing = outcome(images=0, steps=0, training=0.0, sampled={})
    assert nothing.got["images_per_s"] is None
    assert nothing.reason["images_per_s"] == "no step was left to do"


# ---- what is refused


@pytest.mark.parametrize(
    ("body", "factory", "said"),
    [
        ("def net():\n    return 3\n", "net", "gave int; an nn.Module is expected"),
        ("def net():\n    return nn.DataParallel(nn.Linear(784, 10))\n", "net", "the model is an nn.DataParallel. "),
        ("def net():\n    return nn.Sequential(nn.Flatten(), nn.DataParallel(nn.Linear(784, 10)))\n", "net",
         "1 is an nn.DataParallel. "),
        ("def network():\n    return nn.Linear(784, 10)\n", "netwrk", "has no netwrk; did you mean network?"),
        ("def net(size):\n    return nn.Linear(size, 10)\n", "net", "It takes no arguments"),
        ("def net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(783, 10))\n", "net",
         "does not take images of 1 × 28 × 28"),
        ("def net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 9))\n", "net",
         "gives 9 classes; the labels go up to 9"),
        ("def net():\n    return nn.Conv2d(1, 10, 3)\n", "net", "gave (2, 10, 26, 26) for 2 images"),
        ("def net():\n    return nn.Flatten()\n", "net", "has no parameter to train"),
        ("import nothing_of_this_name\n", "net", "cannot be run: ModuleNotFoundError"),
        ("def net(:\n", "net", "cannot be run: SyntaxError"),
    ],
)  # fmt: skip
def test_factories_that_are_wrong(tmp_path: Path, body: str, factory: str, said: str) -> None:
    (tmp_path / "net.py").write_text(f"from torch import nn\n\n\n{body}")
    with pytest.raises(UserError) as caught:
        build_model(f"{tmp_path / 'net.py'}:{factory}", (1, 28, 28), 10, 8)
    assert said in str(caught.value)
    assert ("DataParallel" in said) == (DATA_PARALLEL in str(caught.value))


def test_names_that_are_wrong(tmp_path: Path) -> None:
    for name, said in (
        ("cnn-28x27", "is no known model"),
        ("llama-3.1-8b", "is of family llama"),
        (f"{tmp_path / 'none.py'}:net", "is no file"),
    ):
        with pytest.raises(UserError, match=said):
            build_model(name, (1, 28, 28), 10, 8)
    with pytest.raises(
        UserError, match=r"takes images of 1 × 28 × 28 \(channels, height, width\), the data has 3 × 28"
    ):
        build_model("cnn-28x28", (3, 28, 28), 10, 8)


def test_what_cannot_be_compiled_is_an_error_and_never_slow(tmp_path: Path) -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(64, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.map(x.flatten(1))
            return y * (2.0 if y.sum().item() > 0 else 1.0)

    module, asked = Breaks(), recipe(LEAST, batch=4)
    step = Step(module, make_optimizer(module, asked.optimizer), asked, "fp32", False, True)
    with pytest.raises(UserError, match="the model cannot be compiled"):
        step(*batch(4, 8), 0.1)


def test_compiled_once_though_the_last_batch_is_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 23, with a backend that counts and compiles nothing."""
    compiled: list[int] = []

    def counting(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **named: real(f, backend=counting, **named))
    values = files(tmp_path / "data") | {"epochs": 2, "compile": True}
    go(recipe(values), tmp_path / "compiled")
    assert len(compiled) == 1
    go(recipe(values, compile=False), tmp_path / "eager")
    assert losses(tmp_path / "compiled")[-1]["test_loss"] == pytest.approx(
        losses(tmp_path / "eager")[-1]["test_loss"], rel=1e-4
    )
    assert all("_orig_mod" not in key for key in weights(tmp_path / "compiled"))


def test_canonical_names_whatever_wraps_the_module() -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    compiled = torch.compile(plain)
    assert weights_of(compiled).keys() == weights_of(plain).keys()
    assert canonical("module.layers.0._orig_mod.weight") == "layers.0.weight"
    other = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    load_weights(other, weights_of(compiled))
    assert same_bits(weights_of(other), weights_of(plain))
    with pytest.raises(UserError, match=r"1 tensors are missing \(2.bias\), 1 belong nowhere \(3.bias\)"):
        load_weights(other, {**{k: v for k, v in weights_of(plain).items() if k != "2.bias"}, "3.bias": torch.ones(1)})
    with pytest.raises(UserError, match=r"0.bias has the shape \(4,\) as saved, here \(3,\)"):
        load_weights(other, {**weights_of(plain), "0.bias": torch.ones(4)})


# ---- a whole run


def test_it_learns_and_says_the_same_twice(tmp_path: Path) -> None:
    values = files(tmp_path / "data", samples=90) | {"epochs": 6}
    for name in ("one", "other"):
        go(recipe(values), tmp_path / name)
    assert same_bits(weights(tmp_path / "one"), weights(tmp_path / "other"))
    assert losses(tmp_path / "one") == losses(tmp_path / "other")
    last = losses(tmp_path / "one")[-1]
    assert last["test_accuracy"] > 0.8
    go(recipe(values, seed=6), tmp_path / "third")
    assert not same_bits(weights(tmp_path / "one"), weights(tmp_path / "third"))


def test_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    import gc
    import random

    values = files(tmp_path / "data") | {"steps": 3}
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), torch.get_num_threads()
    go(recipe(values, threads=2), tmp_path / "run")
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), torch.get_num_threads()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert gc.isenabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loss_that_is_no_number_stops_and_is_not_saved(tmp_path: Path) -> None:
    values = files(tmp_path / "data") | {"steps": 12, "optimizer": {"name": "sgd", "lr": 1e30}, "save_every": 1}
    with pytest.raises(UserError, match=r"the loss is (nan|inf) after step \d+: .* Lower optimizer.lr"):
        go(recipe(values), tmp_path / "run")
    for kept in (tmp_path / "run" / "checkpoints").iterdir():
        assert int(kept.name[-3:]) <= 2


def test_settings_that_are_tried_do_not_change_the_seed(tmp_path: Path) -> None:
    """The trial works on copies: the weights that a run begins with are those without it."""
    values = files(tmp_path / "data") | {"steps": 100, "deterministic": False, "threads": None}
    tried = go(recipe(values), tmp_path / "tried")
    reasons = {name: reason for name, _, reason in tried.ran.settings}
    if torch.get_num_threads() == 1 and "the only one" in reasons["threads"]:
        pytest.skip("a machine of one core has nothing to try")
    assert "a trial just now" in reasons["threads"]
    go(recipe(values, threads=1), tmp_path / "fixed")
    assert losses(tmp_path / "tried")[0]["loss"] == pytest.approx(losses(tmp_path / "fixed")[0]["loss"], rel=1e-5)


def test_one_candidate_needs_no_trial() -> None:
    asked: Recipe = recipe(LEAST, threads=1, channels_last=True, precision="fp32")
    facts = Facts("cpu", "no units", 10**9, 10**6, 4, True, 1000)
    (only,) = candidates(asked, facts)
    chosen = choose(asked, facts, (Tried(only, None),))
    assert (chosen.threads, chosen.channels_last) == (1, True)


def test_evaluation_knows_right_from_wrong() -> None:
    from nearpeak.training.evaluate import evaluate

    class Knows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(x[:, 0, 0, 0].mul(255).round().long(), 4).float() * 30 * self.w

    labels = np.arange(2005) % 4
    pixels = np.broadcast_to(labels[:, None, None, None], (2005, 1, 2, 2)).astype(np.uint8).copy()
    wrong = labels.copy()
    wrong[:5] = (wrong[:5] + 1) % 4
    forward = Forward(Knows(), recipe(LEAST), "fp32", False)
    found = evaluate(forward, Images(pixels, wrong, "test"), torch.device("cpu"), 3)
    assert found.accuracy == 2000 / 2005
    assert found.loss == pytest.approx(30 * 5 / 2005, rel=1e-3)
