"""How much a chat template may do: steps, time, and the size of everything that it makes.

A template comes from a stranger. Jinja's sandbox keeps it from Python's insides, but not from loops over loops, from
'a' * 10**10, or from a list that holds itself twice, twice, twice. Here every operation whose result can be larger than
its operands is held against what is left before it is done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from nearpeak.records.errors import UserError

STEPS = 1_000_000  # rounds of loops, and calls of macros
SECONDS = 10.0
VALUE = 4 << 20  # characters of one text; for lists see `expanded`
TOTAL = 128 << 20  # characters of all texts made, kept or not
NUMBER = 1_000_000  # widths, counts and the like
BITS = 100_000  # of a whole number
ITEM = 16  # characters that one item of a list counts as
WIDE = re.compile(r"\d{5,}")
BRACES = re.compile(r"\{[^{}]*\{")
STARRED = re.compile(r"%[^a-zA-Z%]*\*")
ONE_VALUE = frozenset(
    {"length", "count", "first", "last", "default", "d", "int", "float", "abs", "attr", "items", "round"}
)
"""Filters whose result is no larger than what they get."""
EACH_ITEM = frozenset({
    "list", "map", "select", "reject", "selectattr", "rejectattr", "sort", "unique", "min", "max", "sum", "batch",
    "slice", "reverse", "random", "groupby", "dictsort",
})  # fmt: skip
"""Filters that take a value item by item; all others make a text of it first."""


class Bounds:
    """What one rendering has left. All methods raise UserError where it would go beyond."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.start()

    def start(self) -> None:
        """A rendering begins."""
        self.steps, self.left, self.until = STEPS, TOTAL, time.perf_counter() + SECONDS

    def step(self, size: int = 0) -> str:
        """One more round of a loop, or call of a macro, whose own text and expressions have `size` characters."""
        self.steps -= 1
        if self.steps < 0:
            raise self.error(f"takes more than {STEPS:,} steps")
        self.clock()
        self._take(size)
        return ""

    def clock(self) -> None:
        """Time is up?"""
        if time.perf_counter() > self.until:
            raise self.error(f"takes more than {SECONDS:g} seconds")

    def fits(self, size: float) -> None:
        """A text of so many characters may be made."""
        if size > VALUE:
            raise self.error(f"makes a text or list of {size:.3g} characters; {VALUE:,} are possible")

    def made(self, value: Any) -> Any:
        """`value` was made; it is counted and given back."""
        self.clock()
        if isinstance(value, str):
            self.fits(len(value))
            self._take(len(value))
        elif isinstance(value, (list, tuple, dict, Namespace)):
            self._take(ITEM * (0 if isinstance(value, Namespace) else len(value)))
            self.fits(self.expanded(value))
        return value

    def expanded(self, value: object, seen: dict[int, float] | None = None, depth: int = 0) -> float:
        """Characters of `value` written out, about: what a list holds counts as often as it is held."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, Namespace):
            value = value._Namespace__attrs
        if not isinstance(value, (list, tuple, dict)):
            return value.bit_length() / 3 if isinstance(value, int) else ITEM
        seen = {} if seen is None else seen
        if (known := seen.get(id(value))) is not None:
            return known
        if depth > 100:
            raise self.error("nests lists more than 100 deep")
        seen[id(value)] = float("inf")  # inside itself
        parts: Iterable[object] = [*value, *value.values()] if isinstance(value, dict) else value
        size = sum(ITEM + self.expanded(part, seen, depth + 1) for part in parts)
        seen[id(value)] = size
        return size

    def operation(self, operator: str, left: Any, right: Any) -> None:
        """Before left operator right."""
        self.clock()
        if operator == "*":
            for some, count in ((left, right), (right, left)):
                if isinstance(some, (str, list, tuple)) and isinstance(count, int):
                    self.fits(self.expanded(some) * count)
            if isinstance(left, int) and isinstance(right, int):
                self._bits(left.bit_length() + right.bit_length())
        elif operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                self.fits(len(left) + len(right))
            elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
                self.fits(ITEM * (len(left) + len(right)))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            self._percent(left, right)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Before a call; the arguments to call it with."""
        self.clock()
        method = getattr(function, "__wrapped__", function)  # jinja wraps str.format
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(text, str):
            self._numbers(args, kwargs)
            if name == "replace" and len(args) > 1:
                self._replace(text, args[0], args[1])
            elif name == "join" and args:
                args = (list(args[0]), *args[1:])
                self.fits(self.expanded(args[0]) + len(text) * len(args[0]))
            elif name in ("format", "format_map"):
                self._braces(text, [*args, *kwargs.values()])
            elif name == "expandtabs":
                self.fits(len(text) + text.count("\t") * next((a for a in [*args, *kwargs.values()]), 8))
            elif name == "translate" and args:
                each = args[0].values() if isinstance(args[0], dict) else args[0]
                self.fits(len(text) * max((self.expanded(part) for part in each), default=1))
            elif name in ("split", "rsplit", "splitlines"):
                self.fits(
                    ITEM * (text.count(args[0]) if args and isinstance(args[0], str) and args[0] else len(text) / 16)
                )
        elif name not in ("step", "joined", "listed", "strftime_now", "raise_exception", "range"):
            self._numbers(args, kwargs)
        return args

    def filter(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Before a filter; the value to call it with."""
        self.clock()
        every = [*args, *kwargs.values()]
        if name not in ("default", "d"):
            self._numbers(args, kwargs)
        if name in ONE_VALUE or isinstance(value, Undefined):
            return value
        if name in EACH_ITEM:
            if isinstance(value, str):
                self.fits(ITEM * len(value))
            if name == "sum" and not all(isinstance(item, (str, int, float)) or item is None for item in every):
                raise self.error("adds up lists with the filter sum")
            return value
        if name == "join":
            value = value if isinstance(value, str) else list(value)
            between = max((self.expanded(part) for part in every), default=0)
            self.fits(self.expanded(value) + between * len(value))
            return value
        size = self.expanded(value)
        self.fits(size)
        if name == "replace" and len(every) > 1:
            self._replace(str(value), every[0], every[1])
        elif name == "format":
            self._percent(str(value), (*args, dict(kwargs)))
        elif name in ("indent", "tojson", "wordwrap", "xmlattr", "urlize"):
            widths = [item if isinstance(item, int) else len(item) if isinstance(item, str) else 0 for item in every]
            lines = str(value).count("\n") + 1 if name == "indent" else size / 8 + 1
            self.fits(size + lines * max([abs(width) for width in widths], default=0))
        return value

    def _replace(self, text: str, old: object, new: object) -> None:
        self.fits(len(text) + text.count(str(old)) * self.expanded(new))

    def _percent(self, text: str, values: object) -> None:
        if WIDE.search(text) or STARRED.search(text):
            raise self.error(f"formats with a width that is too large or not written out: {text[:80]!r}")
        self.fits(len(text) + text.count("%") * self.expanded(values))

    def _braces(self, text: str, values: list[object]) -> None:
        if WIDE.search(text) or BRACES.search(text.replace("{{", "")):
            raise self.error(f"formats with a width that is too large or not written out: {text[:80]!r}")
        self.fits(len(text) + text.count("{") * (10_000 + self.expanded(values)))

    def _numbers(self, args: Iterable[object], kwargs: Mapping[str, object]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and abs(value) > NUMBER:
                raise self.error(f"passes {value:.3g} to a function; up to {NUMBER:,} is possible")

    def _bits(self, bits: int) -> None:
        if bits > BITS:
            raise self.error(f"makes a number of {bits:,} bits")

    def _take(self, size: float) -> None:
        self.left -= int(size)
        if self.left < 0:
            raise self.error(f"makes more than {TOTAL:,} characters altogether")

    def error(self, what: str) -> UserError:
        """An error that names the template."""
        return UserError(f"{self.where} {what}. It is damaged or hostile: get it from a source that you trust.")


def bounded(name: str, function: Callable[..., Any], skip: int, bounds: Bounds) -> Callable[..., Any]:
    """A filter that is held against `bounds`. skip: 1 where jinja passes a context before the value."""
    from functools import wraps

    @wraps(function)  # its marks for jinja too
    def held(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= skip:
            return function(*args, **kwargs)
        value = bounds.filter(name, args[skip], args[skip + 1 :], kwargs)
        return bounds.made(function(*args[:skip], value, *args[skip + 1 :], **kwargs))

    return held
