"""All safetensors files of a folder as one set of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from nearpeak.models.json_file import read_json
from nearpeak.models.safetensors_header import read_header
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError

SHARD = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})\.safetensors")
INDEX = ".safetensors.index.json"
Reader = Callable[[Path], dict[str, Weight]]


def read_shards(folder: Path, names: Iterable[str], read: Reader = read_header) -> tuple[dict[str, Weight], list[str]]:
    """Tensors of the model in `folder`, of whose files `names` are; and notes. No file: no tensors.

    read   gives the tensors of one file; called once for each file of the model

    An index rules; else model.safetensors; else one set of numbered shards; else the one file there is. Raises
    UserError where a file that an index names is missing or elsewhere, or index and headers contradict each other.
    """
    names = sorted(names)
    files = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    indices = [name for name in names if name.endswith(INDEX)]
    index = "model" + INDEX if "model" + INDEX in indices else (indices[0] if len(indices) == 1 else None)
    if index and "model.safetensors" not in files:
        chosen = _by_index(folder, index)
        tensors = _indexed(folder, index, chosen, read)
        return tensors, _left(files, set(chosen.values()))
    chosen_files = _without_index(folder, files)
    return _together(folder, chosen_files, read), _left(files, set(chosen_files))


def _by_index(folder: Path, index: str) -> dict[str, str]:
    """Tensor → file, each a plain name in the folder itself."""
    where = folder / index
    table = read_json(where).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise UserError(f"{where}: weight_map is missing or empty. Fetch the file again.")
    checked: set[object] = set()
    for tensor, file in table.items():
        if isinstance(file, str) and file in checked:
            continue
        checked.add(file if isinstance(file, str) else None)
        if not isinstance(file, str) or not file.endswith(".safetensors") or re.search(r"[/\\\x00-\x1f]|^\.", file):
            raise UserError(
                f"{where}: tensor {tensor[:200]!r} is said to lie in {str(file)[:200]!r}; a .safetensors file in the "
                "same folder is expected. Do not use this folder unless you trust it."
            )
    return table


def _indexed(folder: Path, index: str, table: dict[str, str], read: Reader) -> dict[str, Weight]:
    found: dict[str, Weight] = {}
    for file in sorted(set(table.values())):
        if not (folder / file).exists():
            count = sum(1 for other in table.values() if other == file)
            raise UserError(f"{folder / file} is missing: {index} puts {count:,} tensors there. Fetch it too.")
        for tensor, weight in read(folder / file).items():
            said = table.get(tensor)
            if said != file:
                where = f"puts it in {said}" if said else "does not name it"
                raise UserError(f"{folder / file}: holds tensor {tensor[:200]!r}; {index} {where}. Fetch both again.")
            found[tensor] = weight
    for tensor, file in table.items():
        if tensor not in found:
            raise UserError(f"{folder / file}: tensor {tensor[:200]!r} is missing, which {index} puts there.")
    return found


def _without_index(folder: Path, files: list[str]) -> list[str]:
    if "model.safetensors" in files or len(files) <= 1:
        return ["model.safetensors"] if "model.safetensors" in files else files
    sets: dict[tuple[str, str], list[str]] = {}
    for file in files:
        if match := SHARD.fullmatch(file):
            sets.setdefault((match[1], match[3]), []).append(file)
    key = next((key for key in sets if key[0] == "model"), next(iter(sets)) if len(sets) == 1 else None)
    if key is None:
        raise UserError(f"{folder} has several sets of weights: {', '.join(files[:6])}. Leave one in the folder.")
    name, total = key
    wanted = [f"{name}-{number:0{len(total)}}-of-{total}.safetensors" for number in range(1, int(total) + 1)][:100_000]
    missing = [file for file in wanted if file not in files]
    if missing:
        raise UserError(f"{folder}: {len(missing)} of {len(wanted)} files are missing, the first {missing[0]}.")
    return wanted


def _together(folder: Path, files: list[str], read: Reader) -> dict[str, Weight]:
    found: dict[str, Weight] = {}
    for file in files:
        for tensor, weight in read(folder / file).items():
            if tensor in found:
                raise UserError(f"{folder / file}: tensor {tensor[:200]!r} lies in another file of the set too.")
            found[tensor] = weight
    return found


def _left(files: list[str], chosen: set[str]) -> list[str]:
    left = [file for file in files if file not in chosen]
    return [f"Weight files beside the model's own were not read: {', '.join(left[:6])}."] if left else []
