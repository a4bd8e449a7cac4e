"""Damaged folders and GGUF files: a clear refusal, or a load whose numbers are those of the safetensors and gguf
libraries. No crash, no hang, no memory beyond the size of the file."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fuzz_files import Damaged
from gguf_files import write_gguf
from nearpeak.inference.load import load_decoder
from nearpeak.models.checkpoint import Checkpoint, open_checkpoint
from nearpeak.records.errors import UserError
from tiny_folders import save_tiny

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")
ROOM = 1 << 30  # bytes of address space beyond what the process has


@contextmanager
def bounded() -> Iterator[None]:
    """Address space is limited while this runs: what asks for more gets a MemoryError, which is a failure here."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def right(checkpoint: Checkpoint) -> None:
    """Every tensor is what the library of its format reads from the same file."""
    if checkpoint.kind == "safetensors":
        library: dict[str, torch.Tensor] = {}
        for path in {place.path for place in checkpoint.files.places.values()}:
            library |= load_file(path)
        for name, held in checkpoint.held.items():
            assert torch.equal(_bits(checkpoint.read(name)), _bits(library[held.name])), name
        return
    try:
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(checkpoint.path).tensors}
    except Exception:  # keys twice or of odd types, which are none of ours to judge
        return
    for name, held in checkpoint.held.items():
        if held.heads or held.offset:
            continue  # in another order, or changed: compared with whole files in test_tensor_files.py
        with np.errstate(all="ignore"):
            wanted = gguf.quants.dequantize(tensors[held.name].data, tensors[held.name].tensor_type)
        wanted = wanted.reshape(held.shape[::-1]).T if held.turned else wanted.reshape(held.shape)
        assert np.array_equal(checkpoint.read(name, torch.float32).numpy(), wanted, equal_nan=True), name


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def damage(tmp_path: Path, count: int) -> None:
    """`count` damaged models; refusals and loads must both be among them."""
    seed = random.randrange(1 << 30)
    good = []
    for case, how in {"llama 3": {}, "gemma3": {}, "qwen3_moe": {"max_shard_size": "100KB"}, "gpt2": {}}.items():
        folder = tmp_path / case.replace(" ", "_")
        save_tiny(folder, case, **how)
        good.append(folder)
        if case != "qwen3_moe":
            kind = {"llama 3": "Q8_0", "gemma3": "Q4_0", "gpt2": "F16"}[case]
            good.append(write_gguf(folder, folder.with_suffix(".gguf"), kind))
    (tmp_path / "work").mkdir()
    damaged = Damaged(good, tmp_path / "work", seed)
    device, refusals, loads = torch.device("cpu"), 0, 0
    for number in range(count):
        path = damaged.next()
        start, where = time.perf_counter(), f"seed {seed}, number {number}"
        try:
            with bounded():
                loaded = load_decoder(path, torch.float32, device)
        except UserError as error:
            text = str(error)
            assert "\n" not in text, where
            assert len(text) < 3000, where
            refusals += 1
        except Exception as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
        else:
            loads += 1
            right(open_checkpoint(path))
            assert not any(parameter.is_meta for parameter in loaded.decoder.parameters()), where
        assert time.perf_counter() - start < 20, where
    assert refusals > count // 3
    assert loads > count // 50


def test_damaged_models(tmp_path: Path) -> None:
    damage(tmp_path, 300)


@pytest.mark.long
def test_many_damaged_models(tmp_path: Path) -> None:
    damage(tmp_path, 10_000)
