"""Tiny runs for tests of `nearpeak train`: images that can be learned, a model of a few hundred numbers, one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from nearpeak.training.recipe import Recipe, make_recipe
from nearpeak.training.session import Trained, run_recipe

MODEL = '''
import torch
from torch import nn


def net():
    """Everything that a resume can get wrong: dropout (random numbers), batch norm (buffers), a bias, two kinds."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 36, 3)
    )


class Plain(nn.Module):
    """No batch norm, no dropout: a batch in parts has the same gradients."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x.flatten(1))))
'''


def arrays(samples: int = 26, size: int = 8, classes: int = 3, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images whose class shows as a bright third; labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, samples)
    labels[:classes] = range(classes)
    pixels = random.integers(0, 80, (samples, size, size), dtype=np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[:, label * size // classes : (label + 1) * size // classes] += 150
    return pixels, labels


def files(folder: Path, samples: int = 26) -> dict[str, Any]:
    """Data and model in a folder, and the recipe's values that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = arrays(samples)
    np.savez(folder / "data.npz", images=pixels, labels=labels)
    (folder / "net.py").write_text(MODEL)
    return {
        "model": f"{folder / 'net.py'}:net", "data": {"path": str(folder / "data.npz")}, "batch": 4, "seed": 5,
        "deterministic": True, "threads": 1, "evaluation": {"part": 0.2},
        "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    }  # fmt: skip


def recipe(values: dict[str, Any], **more: Any) -> Recipe:
    """more: further keys; "optimizer__lr" is optimizer.lr."""
    return make_recipe(values, {key.replace("__", "."): value for key, value in more.items()}, "test")


def go(asked: Recipe, out: Path, stop_at: int | None = None, notes: list[str] | None = None) -> Trained:
    """Run it on the CPU, up to and with step stop_at."""
    return go_on("cpu", asked, out, stop_at, notes)


def go_on(device: str, asked: Recipe, out: Path, stop_at: int | None = None, notes: list[str] | None = None) -> Trained:
    """Likewise on any device."""
    counted = [0]

    def stop() -> bool:
        counted[0] += 1
        return counted[0] == stop_at

    note: Callable[[str], None] = notes.append if notes is not None else lambda text: None
    return run_recipe(asked, out, device, note, stop=stop)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(out / "model.safetensors"))


def losses(out: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "images_per_s"} for line in lines]


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
