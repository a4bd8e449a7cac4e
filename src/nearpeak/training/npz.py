"""NPZ files: images and labels as numpy arrays under their usual names. Nothing in them is run: pickles are refused."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearpeak.records.errors import UserError, first_line

TRAIN = (("x_train", "y_train"), ("train_images", "train_labels"), ("images", "labels"), ("x", "y"))
TEST = (("x_test", "y_test"), ("test_images", "test_labels"))
LARGEST = 1 << 36

Pair = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]


def read_npz(path: Path) -> tuple[Pair, Pair | None]:
    """(images, labels) to train on, and those of a test part where the file has one.

    Raises UserError for a file that is cut, no zip, too large unpacked, without the names above, or with pickles.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > LARGEST:
                raise UserError(f"{path} unpacks to {unpacked:,} bytes; at most {LARGEST:,} are read.")
        with np.load(path, allow_pickle=False) as file:
            train = next((pair for pair in TRAIN if set(pair) <= set(file.files)), None)
            if train is None:
                known = " or ".join(" and ".join(pair) for pair in TRAIN)
                raise UserError(f"{path} holds {', '.join(file.files) or 'nothing'}; {known} are expected.")
            test = next((pair for pair in TEST if set(pair) <= set(file.files)), None)
            return (file[train[0]], file[train[1]]), ((file[test[0]], file[test[1]]) if test else None)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if "pickle" in str(error):
            raise UserError(f"{path} holds pickled objects, which could run code: save plain arrays.") from error
        raise UserError(f"cannot read {path}: {first_line(error)}. It may be cut: fetch it again.") from error
