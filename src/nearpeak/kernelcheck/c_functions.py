"""Kernel functions in CUDA and OpenCL text: names and parameter lists, found without a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nearpeak.kernelcheck.declaration import split

_TOKEN = re.compile(
    r"""//(?:\\\r?\n|[^\n])*               # a comment to the end of the line, which a backslash carries on
      | /\*.*?(?:\*/|\Z)
      | R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
      | "(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z)
      | (?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])*(?:'|(?=\n)|\Z)   # not the ' of 1'000
    """,
    re.DOTALL | re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_STARTS = {"CUDA": re.compile(r"\b__global__\b"), "OpenCL": re.compile(r"\b(?:__kernel|kernel)\b")}
_NO_NAME = {"const", "int", "unsigned", "float", "double", "char", "short", "long", "bool", "half", "volatile", "void"}


@dataclass(frozen=True)
class Parameter:
    """type: as written, blanks made single, without the name; name: "" where the text gives none.

    pointer: whether it is an address (an array counts). const: what it points to cannot be written through it.
    """

    type: str
    name: str
    pointer: bool
    const: bool

    def __str__(self) -> str:
        return f"{self.type} {self.name}".strip()


@dataclass(frozen=True)
class Function:
    """A kernel's definition. name: with its namespaces (`a::f`); line: 1-based, in the text given."""

    name: str
    parameters: tuple[Parameter, ...]
    line: int
    template: bool = False

    @property
    def short_name(self) -> str:
        return self.name.rsplit("::", 1)[-1]

    def listed(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"


def blank(text: str) -> str:
    """The text with comments, strings and character constants replaced by spaces: same length, same lines."""
    return _TOKEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def find_functions(text: str, language: str) -> tuple[Function, ...]:
    """All kernels defined in the text (prototypes left out), in its order. language: "CUDA" or "OpenCL"."""
    plain = blank(text)
    found: list[Function] = []
    for start in _STARTS[language].finditer(plain):
        place = _name_and_parameters(plain, start.end())
        if place is None:
            continue
        name_at, name, opening, closing = place
        before = plain[: start.start()]
        template = re.search(r"\btemplate\s*<[^;{}]*$", before) is not None
        parameters = tuple(_parameters(plain[opening + 1 : closing]))
        function = Function(_namespace(before) + name, parameters, plain.count("\n", 0, name_at) + 1, template)
        if function.name not in (other.name for other in found):
            found.append(function)
    return tuple(found)


def _name_and_parameters(text: str, start: int) -> tuple[int, str, int, int] | None:
    """Where the function after `__global__` has its name, and the brackets of its parameters; None: no definition."""
    place = start
    while True:
        match = re.compile(r"\s*([A-Za-z_]\w*|[*&:]+|<)").match(text, place)
        if match is None:
            return None
        place = match.end()
        if match[1] == "<":
            return None
        if not _WORD.match(match[1]):
            continue
        opening = re.compile(r"\s*\(").match(text, place)
        if opening is None:
            continue
        closing = closing_bracket(text, opening.end() - 1)
        if closing is None:
            return None
        after = text[closing + 1 :].lstrip()[:1]
        if after == "{":
            return match.start(1), match[1], opening.end() - 1, closing
        if after in (";", ""):
            return None
        place = closing + 1  # an attribute with arguments, such as __launch_bounds__(256)


def closing_bracket(text: str, opening: int) -> int | None:
    """Where the bracket that opens at `opening` closes; None where it does not."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    return None


def _namespace(before: str) -> str:
    """`a::b::` of the namespaces still open at the end of the text."""
    stack: list[str] = []
    for match in re.finditer(r"\bnamespace\b\s*([\w:]*)\s*\{|\{|\}", before):
        if match[0] == "}":
            del stack[-1:]
        else:
            stack.append(match[1] or "")
    return "".join(f"{name}::" for name in stack if name)


def _parameters(text: str) -> Iterator[Parameter]:
    if text.strip() in ("", "void"):
        return
    for part in _split_types(text):
        part = " ".join(part.split("=", 1)[0].split())
        array = part.find("[")
        declared = part if array < 0 else part[:array].rstrip()
        match = re.search(r"([A-Za-z_]\w*)$", declared)
        name = match[1] if match else ""
        kind = declared[: match.start()].rstrip() if match else declared
        if not kind or name in _NO_NAME:
            kind, name = declared, ""
        pointer = "*" in kind or array >= 0
        const = pointer and re.search(r"\b(?:const|__constant|constant)\b", kind.split("*")[0]) is not None
        yield Parameter(kind + ("*" if array >= 0 else ""), name, pointer, const)


def _split_types(text: str) -> list[str]:
    """Like `split`, but the commas of `A<1, 2>` do not count either."""
    parts: list[str] = []
    for part in split(text):
        if parts and parts[-1].count("<") > parts[-1].count(">"):
            parts[-1] += f", {part}"
        else:
            parts.append(part)
    return parts


def line_of(text: str, pattern: str) -> int | None:
    """1-based line of the first match of the pattern outside comments and strings; None where there is none."""
    match = re.search(pattern, blank(text))
    return None if match is None else text.count("\n", 0, match.start()) + 1


def typedefs(text: str) -> dict[str, str]:
    """Simple names for types: `typedef unsigned int u32;`, `using u32 = unsigned int;`."""
    plain = blank(text)
    found = {match[2]: match[1].strip() for match in re.finditer(r"\btypedef\s+([\w\s]+?)\s+(\w+)\s*;", plain)}
    found.update((match[1], match[2].strip()) for match in re.finditer(r"\busing\s+(\w+)\s*=\s*([\w\s]+?)\s*;", plain))
    return found
