"""The data of a recipe: what is trained on, and what is held out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from nearpeak.records.errors import UserError
from nearpeak.training.idx import read_idx
from nearpeak.training.image_folder import class_folders, read_image_folder
from nearpeak.training.images import Images, checked
from nearpeak.training.npz import read_npz
from nearpeak.training.recipe import Recipe


@dataclass(frozen=True)
class Parts:
    """train; test: None where nothing is held out; how: the split in words."""

    train: Images
    test: Images | None
    how: str


def read_data(recipe: Recipe) -> Parts:
    """Both parts. Raises UserError for what is missing, damaged, or does not go together."""
    asked = recipe.evaluation
    train, test = _read(recipe.data.path, recipe.data.labels)
    if asked.path is not None:
        test, _ = _read(asked.path, asked.labels, train.names)
        how = f"evaluated on {asked.path}"
    elif asked.part is not None:
        held = held_out(len(train), asked.part)
        if not held.any() or held.all():
            raise UserError(f"a part of {asked.part:g} of {len(train):,} samples leaves one side empty.")
        train, test = train.take(~held), train.take(held)
        how = f"held out: {len(test):,} of {len(held):,} samples, those where ⌊(i + 1) · {asked.part:g}⌋ grows"
    elif test is not None:
        how = "evaluated on the data's own test part"
    else:
        how = "nothing is held out: evaluation.part would do that"
    if test is not None:
        if test.shape != train.shape:
            raise UserError(f"{test.source}: images of {test.shape}, those to train on have {train.shape}.")
        if test.classes > train.classes:
            raise UserError(f"{test.source}: label {test.classes - 1}; what is trained on has {train.classes} classes.")
        if test.pixels.dtype != train.pixels.dtype:
            raise UserError(f"{test.source}: pixels are {test.pixels.dtype}, those to train on {train.pixels.dtype}.")
    return Parts(train, test, how)


def held_out(samples: int, part: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A mask: sample i where ⌊(i + 1) · part⌋ > ⌊i · part⌋. Of 0.2 every fifth: 4, 9, 14, …; no draw is in it."""
    exact = Fraction(str(part))
    steps = [i * exact.numerator // exact.denominator for i in range(samples + 1)]
    return np.diff(np.array(steps)) > 0


def _read(where: str, labels: str | None, names: tuple[str, ...] = ()) -> tuple[Images, Images | None]:
    path = Path(where).expanduser()
    if not path.exists():
        raise UserError(f"{path} is not there. Give a folder, an .npz file or an IDX file of images.")
    if path.is_dir():
        return _folder(path, labels, names)
    if path.suffix.lower() == ".npz":
        (pixels, told), test = read_npz(path)
        return checked(pixels, told, str(path)), checked(*test, f"{path} (test)") if test else None
    return _idx(path, Path(labels).expanduser() if labels else labels_beside(path)), None


def _folder(path: Path, labels: str | None, names: tuple[str, ...]) -> tuple[Images, Images | None]:
    if labels is not None:
        raise UserError(f"{labels} goes with one file of images; {path} is a folder.")
    files = sorted(file for file in path.iterdir() if "-images-idx3-ubyte" in file.name and file.is_file())
    if files:
        test = next((file for file in files if file.name.startswith(("t10k", "test"))), None)
        train = next((file for file in files if file.name.startswith("train")), None)
        if train is None:
            if len(files) > 1:
                raise UserError(f"{path} has {', '.join(f.name for f in files)}: name the one to train on.")
            return _idx(files[0], labels_beside(files[0])), None
        return _idx(train, labels_beside(train)), _idx(test, labels_beside(test)) if test else None
    inner = path / "train"
    train_folder = inner if inner.is_dir() and class_folders(inner) else path
    if not class_folders(train_folder):
        raise UserError(f"{path} has neither IDX files (*-images-idx3-ubyte) nor folders of images, one a class.")
    pixels, told, names = read_image_folder(train_folder, names)
    train_images = replace(checked(pixels, told, str(train_folder)), names=names)
    if train_folder == inner and (path / "test").is_dir():
        pixels, told, _ = read_image_folder(path / "test", names)
        return train_images, replace(checked(pixels, told, str(path / "test")), names=names)
    return train_images, None


def labels_beside(images: Path) -> Path:
    """The file of labels that belongs to one of images, by its usual name."""
    name = images.name.replace("images-idx3", "labels-idx1")
    bare = name.removesuffix(".gz")
    found = next(
        (file for n in (name, bare, f"{bare}.gz") if (file := images.with_name(n)).is_file() and file != images), None
    )
    if found is None:
        raise UserError(f"no labels lie beside {images}: {os.path.basename(name)} is expected; name them by labels.")
    return found


def _idx(images: Path, labels: Path) -> Images:
    return checked(read_idx(images), read_idx(labels), str(images))
