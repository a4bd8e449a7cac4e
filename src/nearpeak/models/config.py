"""The keys of a config.json, read strictly: each with its type and bounds, and a record of which were honoured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar, overload

from nearpeak.models.config_keys import NO_MATTER
from nearpeak.records.errors import UserError

T = TypeVar("T")

MAX_SIZE = 1 << 40  # no width, vocabulary or count of a model comes near it; the products stay exact
MAX_LAYERS = 1 << 16


class Config:
    """One object of a config.json.

    values    the object; where: its file, for errors; honoured: keys that were asked for, with what was found
    defaults  what the family's own code takes where a key is missing; taken: those that were needed
    """

    def __init__(self, values: Mapping[str, object], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix
        self.honoured: dict[str, object] = {}
        self.defaults: dict[str, object] = {}
        self.taken: dict[str, object] = {}

    def has(self, key: str) -> bool:
        """The key is there, or has a default of the family, and is not null."""
        return self.values.get(key, self.defaults.get(key)) is not None

    def find(self, key: str) -> object:
        """What stands there, None where nothing does."""
        value = self.values.get(key)
        if value is not None:
            self.honoured[self.prefix + key] = value
        elif key in self.defaults and key not in self.values:
            value = self.taken[self.prefix + key] = self.defaults[key]
        return value

    @overload
    def size(self, key: str, default: int) -> int: ...
    @overload
    def size(self, key: str) -> int: ...

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1. Raises UserError: missing without a default, another type, out of bounds."""
        return self._whole(key, default, 1)

    def count(self, key: str, default: int | None = None) -> int:
        """As size, or 0."""
        return self._whole(key, default, 0)

    def either(self, *keys: str) -> str:
        """The first of these names for one setting that is there, else the first."""
        return next((key for key in keys if self.values.get(key) is not None), keys[0])

    def layers(self, key: str, default: int | None = None) -> int:
        """As size, bounded by what can be listed one by one."""
        value = self._whole(key, default, 1)
        if value > MAX_LAYERS:
            raise self.error(key, f"is {value:,}: more than {MAX_LAYERS:,} layers are not read")
        return value

    def optional_size(self, key: str) -> int | None:
        """As size; None where the key is missing or null."""
        return self._whole(key, None, 1) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.find(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {_short(value)}: true or false is expected")
        return value

    def number(self, key: str, default: float) -> float:
        """A factor, from 0 to a million."""
        value = self.find(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(key, f"is {_short(value)}: a finite number is expected")
        if not 0 <= value <= 1e6:
            raise self.error(key, f"is {_short(value)}: from 0 to a million is possible")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self.find(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "is missing" if value is None else f"is {_short(value)}: a text is expected")
        return value

    def sizes(self, key: str, default: tuple[int, ...] | None = None, least: int = 1) -> tuple[int, ...]:
        """A list of whole numbers, each at least `least`."""
        value = self.find(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise self.error(key, "is missing" if value is None else f"is {_short(value)}: a list is expected")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not least <= item <= MAX_SIZE:
                raise self.error(key, f"has {_short(item)} in it: whole numbers from {least} are expected")
        return tuple(value)

    def depths(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """As sizes: layers of each stage, together no more than can be listed one by one."""
        value = self.sizes(key, default)
        if not value or sum(value) > MAX_LAYERS:
            raise self.error(key, f"has {len(value)} stages with {sum(value):,} layers; 1 to {MAX_LAYERS:,} are read")
        return value

    def texts(self, key: str, length: int | None = None) -> tuple[str, ...]:
        """A list of texts, of this length where one is given."""
        value = self.find(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "is missing" if value is None else f"is {_short(value)}: a list of texts is expected")
        if length is not None and len(value) != length:
            raise self.error(key, f"has {len(value)} entries for {length} layers")
        return tuple(value)

    def architecture(self) -> str | None:
        """The first class that `architectures` names."""
        named = self.find("architectures")
        if named is None or named == []:
            return None
        if not isinstance(named, list) or not isinstance(named[0], str):
            raise self.error("architectures", f"is {_short(named)}: a list of texts is expected")
        return named[0]

    def labels(self) -> int:
        """How many classes a classifier has."""
        names = self.values.get("id2label")
        return len(names) if isinstance(names, dict) and names else self.size("num_labels", 2)

    def part(self, key: str) -> Config:
        """The object under `key`."""
        value = self.find(key)
        if not isinstance(value, dict):
            raise self.error(key, "is missing" if value is None else f"is {_short(value)}: an object is expected")
        del self.honoured[self.prefix + key]  # its own keys are recorded, not the whole
        inner = Config(value, self.where, f"{self.prefix}{key}.")
        inner.honoured, inner.taken = self.honoured, self.taken
        return inner

    def must_be(self, key: str, value: object, why: str) -> None:
        """Refuse by name a setting that another computation would follow from."""
        found = self.find(key)
        if found is not None and found != value:
            raise self.error(key, f"is {_short(found)}: {why}")

    def divides(self, key: str, part: int, other: str, whole: int) -> None:
        """`part` (the value of `key`) must divide `whole` (the value of `other`)."""
        if whole % part:
            raise self.error(other, f"is {whole:,}, which {key} {part:,} does not divide")

    def error(self, key: str, what: str) -> UserError:
        """An error that names file and key."""
        return UserError(f"{self.where}: {self.prefix}{key} {what}. Correct the file, or fetch it again.")

    def unknown(self) -> list[str]:
        """Keys that nobody asked for and that are not known to be without effect."""
        return sorted(
            self.prefix + key
            for key, value in self.values.items()
            if value is not None and key not in NO_MATTER and not self._asked(key)
        )

    def _asked(self, key: str) -> bool:
        name = self.prefix + key
        return name in self.honoured or any(other.startswith(name + ".") for other in self.honoured)

    def _whole(self, key: str, default: int | None, least: int) -> int:
        value = self.find(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_SIZE:
            value = int(value)  # some files write 4096.0
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"is {_short(value)}: a whole number is expected")
        if not least <= value <= MAX_SIZE:
            raise self.error(key, f"is {_short(value)}: from {least} to {MAX_SIZE:,} is possible")
        return value


def _short(value: object) -> str:
    """A value in few letters; numbers too long to print are described."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
