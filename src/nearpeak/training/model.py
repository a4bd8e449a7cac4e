"""The module that a recipe names: a known shape with fresh weights, or what a function of the user's file gives."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearpeak.models.known import find_known, nearest_names, read_known
from nearpeak.models.module import spec_of_module
from nearpeak.networks.cnn import Cnn
from nearpeak.records.errors import UserError, first_line
from nearpeak.records.model_spec import ModelSpec
from nearpeak.training.evaluate import evaluating
from nearpeak.training.trial import unchanged_generators

DATA_PARALLEL = (
    "nn.DataParallel copies the module to every card and gathers on the first one in each step, in one Python process: "
    "it is often slower than one card. Give the plain module"
)


@dataclass(frozen=True)
class Built:
    """spec None: its FLOPs are not known, `not_known` says why."""

    module: nn.Module
    name: str
    spec: ModelSpec | None
    not_known: str | None


def build_model(what: str, shape: tuple[int, int, int], classes: int, batch: int) -> Built:
    """The module, its weights drawn from torch's generator as it stands, tried on images of this shape.

    what     a known name ("cnn-28x28") or "file.py:factory"; the factory is called without arguments
    shape    channels, height, width

    Raises UserError where it cannot be built, or does not give `classes` numbers (or more) an image.
    """
    built = _of_file(what, shape, batch) if ".py:" in what else _known(what, shape)
    refuse_data_parallel(built.module)
    if not any(p.requires_grad for p in built.module.parameters()):
        raise UserError(f"{built.name} has no parameter to train.")
    _try(built, shape, classes)
    return built


def refuse_data_parallel(module: nn.Module) -> None:
    """Raises UserError where an nn.DataParallel is anywhere in it."""
    for name, inner in module.named_modules():
        if isinstance(inner, nn.DataParallel):
            raise UserError(f"{name or 'the model'} is an nn.DataParallel. {DATA_PARALLEL}.")


def canonical(name: str) -> str:
    """A parameter's name without what wrappers put into it: `_orig_mod.` (torch.compile), `module.` (DDP) in front."""
    name = name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def _known(what: str, shape: tuple[int, int, int]) -> Built:
    name = find_known(what)
    if name is None:
        near = ", ".join(nearest_names(what, 3))
        raise UserError(f"{what!r} is no known model{f' (nearest: {near})' if near else ''}, and no file.py:factory.")
    spec = read_known(name)
    if spec.family != "cnn":
        raise UserError(f"{name} is of family {spec.family}; trained from scratch is cnn-28x28, or a file.py:factory.")
    inputs: Any = spec.config["input"]
    layers: Any = spec.config["layers"]
    if shape != (inputs[0], inputs[1], inputs[1]):
        raise UserError(
            f"{name} takes images of {inputs[0]} × {inputs[1]} × {inputs[1]} (channels, height, width), the data has "
            f"{' × '.join(map(str, shape))}."
        )
    return Built(Cnn(inputs, layers), name, spec, None)


def _of_file(what: str, shape: tuple[int, int, int], batch: int) -> Built:
    """Runs the user's own file: it was named for that."""
    where, _, factory = what.rpartition(":")
    path = Path(where).expanduser()
    if not path.is_file():
        raise UserError(f"{path} is no file. A model of your own is named as file.py:factory.")
    name = f"nearpeak_user_{path.stem}"
    loader = importlib.util.spec_from_file_location(name, path)
    assert loader is not None, path
    assert loader.loader is not None, path
    python = importlib.util.module_from_spec(loader)
    sys.modules[name] = python  # dataclasses and pickled classes look themselves up there
    try:
        loader.loader.exec_module(python)
    except Exception as error:
        raise UserError(f"{path} cannot be run: {type(error).__name__}: {first_line(error)}.") from error
    if not hasattr(python, factory):
        near = get_close_matches(factory, [n for n in vars(python) if not n.startswith("_")], 1, 0.4)
        raise UserError(f"{path} has no {factory}{f'; did you mean {near[0]}?' if near else '.'}")
    try:
        module = getattr(python, factory)()
    except Exception as error:
        raise UserError(
            f"{what} failed: {type(error).__name__}: {first_line(error)}. It takes no arguments."
        ) from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{what} gave {type(module).__name__}; an nn.Module is expected.")
    refuse_data_parallel(module)
    try:
        return Built(module, f"{path.name}:{factory}", spec_of_module(module, [(batch, *shape)], factory), None)
    except UserError as error:
        return Built(module, f"{path.name}:{factory}", None, str(error))


def _try(built: Built, shape: tuple[int, int, int], classes: int) -> None:
    """Two images through it, nothing kept of that: neither statistics nor random numbers."""
    try:
        with unchanged_generators(), evaluating(built.module), torch.no_grad():
            first = next(p for p in built.module.parameters())
            out = built.module(torch.zeros(2, *shape, dtype=first.dtype, device=first.device))
    except Exception as error:
        sizes = " × ".join(map(str, shape))
        raise UserError(f"{built.name} does not take images of {sizes}: {first_line(error)}.") from error
    if not isinstance(out, torch.Tensor) or out.dim() != 2 or len(out) != 2:
        got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise UserError(f"{built.name} gave {got} for 2 images; numbers for each class, (2, classes), are expected.")
    if out.shape[1] < classes:
        raise UserError(f"{built.name} gives {out.shape[1]} classes; the labels go up to {classes - 1}.")
