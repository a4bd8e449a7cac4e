"""What a training run is asked to be: read from YAML or the command line, every key known or refused by name."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nearpeak.records.errors import UserError, first_line

LARGEST = 1 << 20  # bytes of a recipe; a person's has a few hundred

Precision = Literal["auto", "fp32", "bf16", "fp64"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Data(_Part):
    """Where the images lie, and what is done to each number: x ÷ 255 (bytes only), then (x − mean) ÷ std.

    path     a folder (IDX files, or one folder a class), an .npz file, or an IDX file of images
    labels   an IDX file of labels, where it does not lie beside the images under its usual name
    """

    path: str
    labels: str | None = None
    mean: float = 0.0
    std: float = Field(default=1.0, gt=0)


class Optimizer(_Part):
    """weight_decay acts on matrices and kernels (two dimensions and more), never on biases and norms."""

    name: Literal["sgd", "adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _belongs(self) -> Optimizer:
        strange = {"sgd": {"betas", "eps"}, "adamw": {"momentum"}}[self.name] & self.model_fields_set
        if strange:
            raise ValueError(f"{self.name} has no {' and no '.join(sorted(strange))}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas lie from 0 to below 1")
        return self


class Schedule(_Part):
    """Of the learning rate: linear from 0 over warm_up steps, then constant, or down to `end` × lr at the last step."""

    name: Literal["constant", "cosine", "linear"] = "constant"
    warm_up: int = Field(default=0, ge=0)
    end: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _belongs(self) -> Schedule:
        if self.name == "constant" and "end" in self.model_fields_set:
            raise ValueError("a constant schedule has no end")
        return self


class Evaluation(_Part):
    """What is held out: part of the data (sample i where ⌊(i + 1)·part⌋ > ⌊i·part⌋: of 0.2 every fifth), or other data.

    Data that brings a test part of its own (t10k-*, x_test, a folder test/) is evaluated on that, if nothing is said.
    """

    part: float | None = Field(default=None, gt=0, lt=1)
    path: str | None = None
    labels: str | None = None
    every: int = Field(default=1, ge=1, description="epochs")

    @model_validator(mode="after")
    def _one(self) -> Evaluation:
        if self.part is not None and self.path is not None:
            raise ValueError("part and path exclude each other")
        if self.labels is not None and self.path is None:
            raise ValueError("labels go with a path")
        return self


class Recipe(_Part):
    """A whole run. epochs and steps exclude each other; without either, 5 epochs.

    micro_batch     largest number of images in one pass; a batch that is larger is accumulated. None: whole batches
    save_every      steps between checkpoints; None: at the end alone. keep: newest checkpoints that are kept
    threads         of the CPU; None: what a short trial finds fastest
    channels_last   None: where the model has convolutions
    compile         the whole forward pass must be compilable, nothing falls back silently
    graph           None: on a GPU each whole step is one CUDA graph, where a batch is not accumulated
    deterministic   algorithms that give the same bits each time; no trials
    """

    model: str
    data: Data
    task: Literal["classification"] = "classification"
    batch: int = Field(default=64, ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    precision: Precision = "auto"
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    evaluation: Evaluation = Evaluation()
    save_every: int | None = Field(default=None, ge=1)
    keep: int = Field(default=2, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    threads: int | None = Field(default=None, ge=1)
    channels_last: bool | None = None
    compile: bool = False
    graph: bool | None = None
    deterministic: bool = False

    @model_validator(mode="after")
    def _one_length(self) -> Recipe:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps exclude each other")
        return self

    def total_steps(self, samples: int) -> int:
        """Steps of the whole run; the last batch of an epoch is as small as what is left."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 5) * -(-samples // self.batch)

    def difference(self, other: dict[str, Any]) -> list[str]:
        """Keys, with dots, whose values are others in another recipe, as `model_dump` gives it."""
        return _difference(self.model_dump(mode="json"), other, "")


def read_recipe(path: Path, overrides: dict[str, Any]) -> Recipe:
    """The recipe in a YAML file; overrides: {"optimizer.lr": 0.1}, from the command line. Paths in the file are seen
    from its folder. Raises UserError that names file, key, and the nearest key that exists."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror or error}.") from error
    if len(raw) > LARGEST:
        raise UserError(f"{path} has {len(raw):,} bytes; a recipe has at most {LARGEST:,}.")
    try:
        values = yaml.load(raw, _OnceLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} holds {type(values).__name__}, and a recipe is a map of keys such as model and data.")
    if isinstance(values.get("data"), str):
        values["data"] = {"path": values["data"]}
    for part in ("data", "evaluation"):
        for key in ("path", "labels"):
            held = values.get(part)
            if isinstance(held, dict) and isinstance(held.get(key), str):
                held[key] = str(path.parent / Path(held[key]).expanduser())
    named = values.get("model")
    if isinstance(named, str) and ".py:" in named:
        values["model"] = str(path.parent / Path(named).expanduser())
    return make_recipe(values, overrides, str(path))


def make_recipe(values: dict[str, Any], overrides: dict[str, Any], where: str) -> Recipe:
    """A recipe of plain values. Raises UserError as read_recipe does."""
    values = dict(values)
    for key, value in overrides.items():
        at = values
        *outer, last = key.split(".")
        for name in outer:
            held = at.get(name)
            at[name] = dict(held) if isinstance(held, dict) else {}
            at = at[name]
        at[last] = value
        if key in ("epochs", "steps"):  # the command line's length replaces the file's, whichever kind that was
            values.pop("steps" if key == "epochs" else "epochs", None)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {'; '.join(_said(one) for one in error.errors())}.") from error


def _said(error: Any) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        *outer, last = error["loc"]
        known = _keys(outer)
        near = get_close_matches(str(last), known, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"known here are {', '.join(known)}"
        return f"unknown key {key}; {hint}"
    if error["type"] == "missing":
        return f"{key} is missing"
    text = first_line(ValueError(error["msg"])).removeprefix("Value error, ")
    held = error["input"]
    shown = "" if isinstance(held, dict) else f" (found {str(held)[:60]!r})"
    return f"{key}: {text}{shown}" if key else text


def _keys(outer: list[Any]) -> list[str]:
    at: Any = Recipe
    for name in outer:
        field = at.model_fields.get(name)
        at = field.annotation if field else Recipe
    return list(at.model_fields)


def _difference(ours: dict[str, Any], theirs: dict[str, Any], stem: str) -> list[str]:
    found = []
    for key in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(key), theirs.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += _difference(one, other, f"{stem}{key}.")
        elif one != other:
            found.append(f"{stem}{key}")
    return found


class _OnceLoader(yaml.SafeLoader):
    """YAML without tags that make objects, and without a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is no single word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
