"""Models that need no file: one data file a name, read by the same code as a folder's config.json."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from importlib import resources

from nearpeak.models.config import Config
from nearpeak.models.families import architecture_of
from nearpeak.models.json_file import parse_json
from nearpeak.models.spec_of import model_spec, parameters_of
from nearpeak.models.storage import stored_parts
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec


@cache
def known_names() -> tuple[str, ...]:
    """All of them, sorted."""
    folder = resources.files("nearpeak.models") / "data"
    return tuple(sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json")))


def find_known(what: str) -> str | None:
    """The known name that `what` means; case, separators and an owner before "/" do not count.

    A name as it is written wins; then one that has the same words and numbers ("GPT 3 13B"); then one that has the same
    letters and digits ("llama-31-8b"). Raises UserError where several have those: "gpt-3-1-3b" is 1.3b or 13b.
    """
    what = re.sub(r"\s*\([^()]*\)\s*$", "", what)  # a remark behind it: "Qwen3.5-9B (5.7 GB)"
    names = _by_plain_name()
    for spelling in (what, what.rsplit("/", 1)[-1]):
        for alias, name in _aliases():
            if _words(alias) == _words(spelling) != ():
                return name
        letters = _letters(spelling)
        same = sorted({name for plain, name in names.items() if letters and _letters(plain) == letters})
        if len(same) > 1:
            raise UserError(f"{what!r} may be {' or '.join(same)}: write one of them.")
        if same:
            return same[0]
    return None


def nearest_names(what: str, count: int = 5) -> list[str]:
    """Known names that look most like it."""
    names = _by_plain_name()
    plain = _plain(what.rsplit("/", 1)[-1])
    near = [spelling for spelling in names if plain and spelling.startswith(plain)]  # "llama3": all of that name
    near += get_close_matches(plain, names, count * 2, 0.4)
    return list(dict.fromkeys(names[plain] for plain in near))[:count]


def read_known(name: str) -> ModelSpec:
    """The spec of one of known_names()."""
    data = _data(name)
    where = f"the known model {name}"
    values = data["config"]
    assert isinstance(values, dict), where
    config = Config(values, where)
    architecture = architecture_of(config)
    parts = architecture.parts
    if parameters_of(parts) != data["parameters"]:
        raise UserError(
            f"{where}: its config gives {parameters_of(parts):,} parameters, its data file says {data['parameters']:,}."
        )
    stored = stored_parts(parts, str(data["dtype"]))
    return model_spec(name, architecture, config, parts, stored, str(data["source"]), _notes(data))


def _notes(data: dict[str, object]) -> list[str]:
    notes = data.get("notes", [])
    assert isinstance(notes, list)
    return [str(note) for note in notes]


@cache
def _by_plain_name() -> dict[str, str]:
    """Names and aliases as _plain has them → name."""
    found: dict[str, str] = {}
    for alias, name in _aliases():
        found.setdefault(_plain(alias), name)
    return found


@cache
def _data(name: str) -> dict[str, object]:
    text = (resources.files("nearpeak.models") / "data" / f"{name}.json").read_bytes()
    return parse_json(text, f"models/data/{name}.json")


@cache
def _aliases() -> tuple[tuple[str, str], ...]:
    """(name or alias as written, name), names first."""
    found = [(name, name) for name in known_names()]
    for name in known_names():
        aliases = _data(name)["aliases"]
        assert isinstance(aliases, list)
        found += [(str(alias), name) for alias in aliases]
    return tuple(found)


@cache
def _words(name: str) -> tuple[str, ...]:
    """Runs of letters, and numbers with their points: ("gpt", "3", "1.3", "b")."""
    return tuple(re.findall(r"[a-z]+|\d+(?:\.\d+)*", name.lower()))


def _letters(name: str) -> str:
    return _plain(name).replace(".", "")


def _plain(name: str) -> str:
    """Letters, digits, and points between digits."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]", "", name.lower())
