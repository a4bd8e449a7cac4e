"""A model's folder: config.json and safetensors headers → ModelSpec."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from nearpeak.models.config import Config
from nearpeak.models.families import architecture_of
from nearpeak.models.json_file import read_json
from nearpeak.models.packing import unpack
from nearpeak.models.shards import read_shards
from nearpeak.models.spec_of import model_spec
from nearpeak.models.storage import BITS, stored_parts
from nearpeak.models.tensors import Account, account, head_is_there
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec

DTYPE_NAMES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
MAX_FILES = 100_000
CONFIG_BYTES = 4 << 20


def read_folder(folder: Path) -> ModelSpec:
    """Raises UserError: no config.json, or one of a family that is not known, or weights that contradict it."""
    names = list_folder(folder)
    if "config.json" not in names:
        raise UserError(f"{folder} has no config.json. {what_else(names)}")
    where = str(folder / "config.json")
    config = Config(read_json(folder / "config.json", CONFIG_BYTES), where)
    architecture = architecture_of(config)
    weights, notes = read_shards(folder, names)
    if weights:
        held = account(architecture, unpack(weights, config), str(folder))
    else:
        held = _from_config(folder, names, config, architecture.parts)
    if architecture.task == "generate" and not head_is_there(held.parts):
        architecture = replace(architecture, task="encode")
    name = folder.resolve().name or str(folder)
    return model_spec(name, architecture, config, held.parts, held.stored, str(folder), [*held.notes, *notes])


def list_folder(folder: Path) -> list[str]:
    """Names of the files in it."""
    try:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > MAX_FILES:
                    raise UserError(f"{folder} has more than {MAX_FILES:,} files: it is no model's folder.")
        return names
    except OSError as error:
        raise UserError(
            f"cannot read the folder {folder}: {error.strerror or error}. Check its permissions."
        ) from error


def _from_config(folder: Path, names: list[str], config: Config, parts: tuple) -> Account:  # type: ignore[type-arg]
    """A folder without weights that can be read: counted from the config alone, which the notes say."""
    if config.has("quantization_config"):
        raise config.error("quantization_config", "is there, but no .safetensors file that it packs; fetch the weights")
    key = "dtype" if config.has("dtype") else "torch_dtype"
    dtype = config.text(key, "float32").removeprefix("torch.")
    dtype = DTYPE_NAMES.get(dtype, dtype)
    if dtype not in BITS:
        raise config.error(key, f"is {dtype[:40]!r}: {', '.join(DTYPE_NAMES)} are known")
    pickled = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth")))
    why = f"{pickled[0]} is pickled and never opened" if pickled else "no weight files in the folder"
    return Account(parts, stored_parts(parts, dtype), (f"Counted from config.json at {dtype}: {why}.",))


def what_else(names: list[str]) -> str:
    """What is in a folder without config.json, and what to do."""
    if "adapter_config.json" in names:
        return "It is an adapter (adapter_config.json): name the folder of the model that it was trained for."
    if "model_index.json" in names:
        return "It is a pipeline of several models (model_index.json): name the folder of one of them."
    if "params.json" in names:
        return "It has a params.json of the makers' own format: convert it, or fetch the one for transformers."
    some = ", ".join(sorted(names)[:5])
    return f"There are: {some}." if names else "It is empty."
