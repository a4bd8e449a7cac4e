"""Data of every format, damaged and hostile files among them."""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearpeak.records.errors import UserError
from nearpeak.training.data import Parts, held_out, read_data
from nearpeak.training.idx import read_idx
from nearpeak.training.recipe import make_recipe
from training_runs import arrays


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def read(path: Path, **more: Any) -> Parts:
    data = {"path": str(path)} | {key: str(value) for key, value in more.items() if key == "labels"}
    return read_data(make_recipe({"model": "m", "data": data, "evaluation": more.get("evaluation", {})}, {}, "test"))


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **more)
    return str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_idx(tmp_path: Path, packed: bool) -> None:
    pixels, labels = arrays(20)
    end = ".gz" if packed else ""
    for name, array in (("images-idx3", pixels), ("labels-idx1", labels.astype(np.uint8))):
        content = idx(array)
        (tmp_path / f"t10k-{name}-ubyte{end}").write_bytes(gzip.compress(content) if packed else content)
    for where in (tmp_path, tmp_path / f"t10k-images-idx3-ubyte{end}"):
        parts = read(where)
        assert parts.test is None
        np.testing.assert_array_equal(parts.train.pixels[:, 0], pixels)
        np.testing.assert_array_equal(parts.train.labels, labels)


def test_idx_of_both_parts(tmp_path: Path) -> None:
    for part, count in (("train", 12), ("t10k", 5)):
        pixels, labels = arrays(count)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels.astype(np.uint8))))
    parts = read(tmp_path)
    assert parts.test is not None
    assert (len(parts.train), len(parts.test)) == (12, 5)


def test_numbers_of_several_bytes_are_big_endian(tmp_path: Path) -> None:
    values = np.array([1, -2, 70000], ">i4")
    (tmp_path / "f").write_bytes(idx(values, 12))
    assert read_idx(tmp_path / "f").tolist() == [1, -2, 70000]


def test_idx_with_absurd_sizes_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 2_000_000, 28, 28) + b"x" * 100)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"says that it holds \(2000000, 28, 28\), 1,568,000,000 bytes, and holds 100"):
        read_idx(file)
    assert tracemalloc.get_traced_memory()[1] < 5e7
    tracemalloc.stop()
    file.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 4_000_000_000, 4_000_000_000, 4_000_000_000))
    with pytest.raises(UserError, match="at most 68,719,476,736 are read"):
        read_idx(file)


def test_a_gzip_bomb_is_read_no_further_than_its_header_says(tmp_path: Path) -> None:
    bomb = gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 10) + bytes(200_000_000), 1)
    (tmp_path / "f").write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(UserError, match="holds more"):
        read_idx(tmp_path / "f")
    assert tracemalloc.get_traced_memory()[1] < 1e7
    tracemalloc.stop()


def test_idx_cut_anywhere_or_with_any_bit_flipped(tmp_path: Path) -> None:
    pixels, labels = arrays(6)
    (tmp_path / "l").write_bytes(idx(labels.astype(np.uint8)))
    for content in (idx(pixels), gzip.compress(idx(pixels))):
        for _ in range(60):
            file = tmp_path / "images"
            file.write_bytes(content[: random.randrange(len(content))])
            assert str(file) in refused(file, labels=tmp_path / "l")
            broken = bytearray(content)
            broken[random.randrange(len(content))] ^= 1 << random.randrange(8)
            file.write_bytes(broken)
            with contextlib.suppress(UserError):  # a pixel that changed is not seen in a plain file
                read(file, labels=tmp_path / "l")


@pytest.mark.parametrize("names", [("images", "labels"), ("x_train", "y_train"), ("x", "y")])
def test_npz(tmp_path: Path, names: tuple[str, str]) -> None:
    pixels, labels = arrays(9)
    np.savez_compressed(tmp_path / "d.npz", **{names[0]: pixels, names[1]: labels[:, None]})
    parts = read(tmp_path / "d.npz")
    np.testing.assert_array_equal(parts.train.pixels[:, 0], pixels)
    np.testing.assert_array_equal(parts.train.labels, labels)


def test_npz_with_a_test_part_colours_and_floats(tmp_path: Path) -> None:
    random_ = np.random.default_rng()
    pixels = random_.random((9, 5, 6, 3))
    np.savez(tmp_path / "d.npz", x_train=pixels, y_train=np.arange(9) % 3, x_test=pixels[:4], y_test=np.arange(4) % 3)
    parts = read(tmp_path / "d.npz")
    assert parts.train.shape == (3, 5, 6)
    np.testing.assert_array_equal(parts.train.pixels, pixels.transpose(0, 3, 1, 2).astype(np.float32))
    assert parts.test is not None
    assert len(parts.test) == 4


def test_npz_with_pickles_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "ran"), "w"))

    np.savez(tmp_path / "d.npz", images=np.array([Evil()], dtype=object), labels=np.zeros(1, np.int64))
    assert "pickled objects, which could run code" in refused(tmp_path / "d.npz")
    assert not (tmp_path / "ran").exists()


def test_npz_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    pixels, labels = arrays(9)
    np.savez(file, pictures=pixels, labels=labels)
    assert "holds pictures, labels; x_train and y_train or" in refused(file)
    np.savez_compressed(file, images=pixels, labels=labels)
    content = file.read_bytes()
    for _ in range(30):
        file.write_bytes(content[: random.randrange(len(content))])
        assert str(file) in refused(file)
    file.write_bytes(b"")
    assert str(file) in refused(file)


@pytest.mark.parametrize(
    ("pixels", "labels", "said"),
    [
        (np.zeros((3, 4, 4), np.uint8), np.array([0, 1]), r"3 images, and labels of shape \(2,\)"),
        (np.zeros((3, 4, 4), np.uint8), np.array([0, -1, 1]), "label -1 of sample 1"),
        (np.zeros((3, 4, 4), np.uint8), np.array([0.0, 1.0, 1.5]), "labels of type float64"),
        (np.zeros((3, 4, 4), np.uint8), np.array([0, 1, 1 << 40]), "is no class's"),
        (np.zeros((3, 16), np.uint8), np.zeros(3, np.int64), r"images of shape \(3, 16\)"),
        (np.zeros((0, 4, 4), np.uint8), np.zeros(0, np.int64), "has no image"),
        (np.array([[[1.0]], [[np.nan]]]), np.zeros(2, np.int64), "image 1 has a pixel that is not finite; 1 in all"),
        (np.zeros((2, 1, 1), np.complex64), np.zeros(2, np.int64), "pixels of type complex64"),
    ],
)
def test_what_does_not_belong_together(tmp_path: Path, pixels: Any, labels: Any, said: str) -> None:
    np.savez(tmp_path / "d.npz", images=pixels, labels=labels)
    with pytest.raises(UserError, match=said):
        read(tmp_path / "d.npz")


def test_a_test_part_must_fit(tmp_path: Path) -> None:
    pixels, labels = arrays(9)
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=labels, x_test=pixels[:, :4], y_test=labels)
    assert "images of (1, 4, 8), those to train on have (1, 8, 8)" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels + 1)
    assert "label 3; what is trained on has 3 classes" in refused(tmp_path / "b.npz")


def save_png(file: Path, mode: str = "L", size: tuple[int, int] = (6, 5)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    shape = size[::-1] if mode == "L" else (*size[::-1], 3)
    Image.fromarray(np.random.default_rng().integers(0, 256, shape, dtype=np.uint8), mode).save(file)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_image_folders(tmp_path: Path, mode: str) -> None:
    for part in ("train", "test"):
        for name in ("b", "a"):
            for number in range(3):
                save_png(tmp_path / part / name / f"{number}.png", mode)
    parts = read(tmp_path)
    assert parts.test is not None
    assert parts.train.names == ("a", "b")
    assert parts.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert parts.train.shape == (1 if mode == "L" else 3, 5, 6)
    with Image.open(tmp_path / "train" / "b" / "1.png") as image:
        expected = np.asarray(image)
    found = parts.train.pixels[4]
    np.testing.assert_array_equal(found[0] if mode == "L" else found.transpose(1, 2, 0), expected)


def test_image_folders_that_are_wrong(tmp_path: Path) -> None:
    save_png(tmp_path / "a" / "0.png")
    save_png(tmp_path / "b" / "1.png", size=(7, 5))
    assert "1.png has 7 × 5 pixels" in refused(tmp_path)
    content = (tmp_path / "a" / "0.png").read_bytes()
    (tmp_path / "b" / "1.png").write_bytes(content[:40])
    assert "cannot read the image" in refused(tmp_path)
    assert "neither IDX files" in refused(tmp_path / "a")
    assert "is not there" in refused(tmp_path / "c")
    buffer = io.BytesIO()
    Image.new("1", (20000, 20000)).save(buffer, "png")
    (tmp_path / "a" / "0.png").write_bytes(buffer.getvalue())
    assert "cannot read the image" in refused(tmp_path)


def test_labels_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(arrays(4)[0]))
    assert "no labels lie beside" in refused(tmp_path)


def test_held_out_by_the_stated_rule() -> None:
    assert np.flatnonzero(held_out(20, 0.2)).tolist() == [4, 9, 14, 19]
    for part in (0.1, 0.3, 0.7):
        assert held_out(1000, part).sum() == round(1000 * part)


def test_no_sample_is_in_both_parts(tmp_path: Path) -> None:
    pixels, labels = arrays(31)
    np.savez(tmp_path / "d.npz", images=pixels, labels=labels)
    parts = read(tmp_path / "d.npz", evaluation={"part": 0.25})
    assert parts.test is not None
    seen = {one.tobytes() for one in parts.train.pixels} | {one.tobytes() for one in parts.test.pixels}
    assert len(parts.train) + len(parts.test) == len(seen) == 31
    assert "leaves one side empty" in refused(tmp_path / "d.npz", evaluation={"part": 0.01})
