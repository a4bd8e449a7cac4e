"""A folder of images, one folder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearpeak.records.errors import UserError, first_line

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LARGEST = 1 << 36


def class_folders(folder: Path) -> list[Path]:
    """The folders of the classes, sorted by name: those with an image right inside."""
    return [inner for inner in sorted(folder.iterdir()) if inner.is_dir() and _images(inner)]


def read_image_folder(
    folder: Path, names: tuple[str, ...] = ()
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[str, ...]]:
    """uint8 [samples, channels, height, width], labels, and the classes' names: the folders', sorted.

    All images have the size of the first, and its channels (1 where it is grey, else 3). names: those of another part,
    so that both count alike. Raises UserError that names the file which is broken, or of another size.
    """
    from PIL import Image

    found = class_folders(folder)
    names = names or tuple(inner.name for inner in found)
    strange = [inner.name for inner in found if inner.name not in names]
    if strange:
        raise UserError(f"{folder} has the class {strange[0]}, which the other part has not: {', '.join(names[:8])}.")
    files = [(file, names.index(inner.name)) for inner in found for file in _images(inner)]
    pixels: npt.NDArray[np.uint8] | None = None
    first = Path()
    for number, (file, _) in enumerate(files):
        try:
            with Image.open(file) as image:
                if pixels is None:
                    mode = "L" if image.mode in ("1", "L", "I", "I;16") else "RGB"
                    shape = (len(files), 1 if mode == "L" else 3, image.height, image.width)
                    if np.prod(shape, dtype=np.float64) > LARGEST:
                        raise UserError(f"{folder}: {len(files):,} images like {file} are more than {LARGEST:,} bytes.")
                    pixels, first = np.empty(shape, np.uint8), file
                if (image.height, image.width) != pixels.shape[2:]:
                    raise UserError(
                        f"{file} has {image.width} × {image.height} pixels, {first} has {pixels.shape[3]} × "
                        f"{pixels.shape[2]}: bring all to one size first."
                    )
                array = np.asarray(image.convert(mode))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"cannot read the image {file}: {first_line(error)}.") from error
        pixels[number] = array if mode == "L" else array.transpose(2, 0, 1)
    if pixels is None:
        raise UserError(f"{folder} has no folder with images in it.")
    return pixels, np.array([label for _, label in files], np.int64), names


def _images(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.suffix.lower() in ENDINGS and file.is_file()]
