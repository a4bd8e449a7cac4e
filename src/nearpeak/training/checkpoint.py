"""Checkpoints that are whole or not there: written aside, brought to disk, hashed, a manifest last, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nearpeak.records.errors import UserError, first_line

SCHEMA = "nearpeak.checkpoint/1"
MANIFEST = "manifest.json"
TENSORS = {"weights": "weights.safetensors", "state": "state.safetensors"}


@dataclass(frozen=True)
class Checkpoint:
    """weights: by canonical name; state: everything else that is a tensor; facts: everything else that is not."""

    step: int
    weights: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    facts: dict[str, Any]


class Damaged(Exception):
    """A checkpoint that is not what its manifest says; the text names the file and the numbers."""


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write `folder`/step-… and remove all but the `keep` newest. Whatever happens meanwhile, kill -9 or a power cut
    among it, the older ones stay loadable, and a folder of that name is complete.

    Raises OSError (a full disk); nothing is left behind then.
    """
    from safetensors.torch import save as to_bytes

    final = folder / f"step-{checkpoint.step:09d}"
    aside = folder / f".step-{checkpoint.step:09d}-{secrets.token_hex(4)}.tmp"
    aside.mkdir(parents=True)
    try:
        files = {}
        for name, tensors in ((TENSORS["weights"], checkpoint.weights), (TENSORS["state"], checkpoint.state)):
            content = to_bytes({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
            _write(aside / name, content)
            files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest = {"schema": SCHEMA, "step": checkpoint.step, "files": files, "facts": checkpoint.facts}
        text = json.dumps(manifest, indent=1, allow_nan=False)
        seal = hashlib.sha256(text.encode()).hexdigest()
        _write(aside / MANIFEST, json.dumps({"sha256": seal, "manifest": text}).encode())
        sync_folder(aside)
        if final.exists():  # damaged, or of a step that was run again
            shutil.rmtree(final)
        os.rename(aside, final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for old in _found(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_newest(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """The newest complete one; None where there is none at all. Each that is passed over is told to `note`, with the
    file that is damaged. What a killed save left behind is removed. Raises UserError where all are damaged."""
    for left in folder.glob(".step-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    found = _found(folder)
    for one in found:
        try:
            return load(one)
        except Damaged as error:
            note(f"passed over the checkpoint {one.name}: {error}")
    if found:
        raise UserError(
            f"all {len(found)} checkpoints in {folder} are damaged. Name another folder by --out to begin anew."
        )
    return None


def load(path: Path) -> Checkpoint:
    """One checkpoint, every byte held against its manifest. Raises Damaged, naming file and numbers."""
    from safetensors.torch import load as of_bytes

    try:
        sealed = json.loads((path / MANIFEST).read_bytes())
        text = sealed["manifest"]
        if hashlib.sha256(text.encode()).hexdigest() != sealed["sha256"]:
            raise Damaged(f"{MANIFEST} does not have its own hash")
        manifest = json.loads(text)
        if manifest["schema"] != SCHEMA:
            raise Damaged(f"{MANIFEST} is {manifest['schema']}; this nearpeak reads {SCHEMA}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} cannot be read: {type(error).__name__}: {first_line(error)}") from error
    held: dict[str, dict[str, torch.Tensor]] = {}
    for name, about in manifest["files"].items():
        try:
            content = (path / name).read_bytes()
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror or error}") from error
        if len(content) != about["bytes"]:
            raise Damaged(f"{name} has {len(content):,} bytes of {about['bytes']:,}")
        if hashlib.sha256(content).hexdigest() != about["sha256"]:
            raise Damaged(f"{name} has {len(content):,} bytes, and another hash than when it was written")
        held[name] = of_bytes(content)
    return Checkpoint(manifest["step"], held[TENSORS["weights"]], held[TENSORS["state"]], manifest["facts"])


def write_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """One safetensors file, whole or not at all. Raises UserError."""
    from safetensors.torch import save as to_bytes

    aside = path.with_name(f".nearpeak-{secrets.token_hex(8)}.tmp")
    try:
        content = {key: tensor.detach().cpu().contiguous() for key, tensor in weights.items()}
        _write(aside, to_bytes(content, metadata={"format": "pt"}))
        os.replace(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}. Make room, or name another --out.") from error


def _found(folder: Path) -> list[Path]:
    """Newest first."""
    names = [one for one in folder.glob("step-*") if re.fullmatch(r"step-\d+", one.name)] if folder.is_dir() else []
    return sorted(names, key=lambda one: int(one.name.removeprefix("step-")), reverse=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring names to disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
