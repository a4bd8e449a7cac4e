"""FILE or FILE:NAME → the kernel's text, its language, and what the file says of its kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from nearpeak.kernelcheck.c_functions import Function, find_functions
from nearpeak.kernelcheck.declaration import read_declarations
from nearpeak.kernelcheck.kernel import Declaration, Language
from nearpeak.kernelcheck.python_source import PythonContent, read_python
from nearpeak.records.errors import UserError

LARGEST = 4 * 2**20  # bytes; a kernel's file is text that someone wrote
_SUFFIXES = (".cu", ".cl", ".py")


@dataclass(frozen=True)
class Source:
    """One kernel's source.

    text         what is compiled or imported; for CUDA in a Python string that string
    name         the kernel chosen by NAME, or the only one; None where the declarations must decide
    kernels      names of all kernels found in the file
    functions    their parameter lists (CUDA, OpenCL; empty for Python)
    line_offset  added to a line of `text` it gives the line of the file
    """

    path: Path
    text: str
    language: Language
    name: str | None
    kernels: tuple[str, ...]
    functions: tuple[Function, ...] = ()
    declarations: tuple[Declaration, ...] = ()
    line_offset: int = 0

    def function(self, kernel: str) -> Function:
        """The definition of that kernel; `f<int>` finds `f`, and `f` finds `a::f`. Raises UserError, listing all."""
        plain = kernel.split("<", 1)[0].strip()
        matches = [f for f in self.functions if f.name == plain] or [f for f in self.functions if f.short_name == plain]
        if len(matches) == 1:
            return matches[0]
        listed = ", ".join(f.name for f in self.functions) or "none"
        problem = "holds several kernels" if matches else "holds no kernel"
        raise UserError(f"{self.path} {problem} '{kernel}'; it holds: {listed}")


def read_source(file_and_name: str) -> Source:
    """Read FILE or FILE:NAME. Nothing is executed.

    Raises UserError: no such file, over 4 MB, binary or empty; another suffix than .cu, .cl, .py; no kernel in it;
    several and no NAME; no kernel of that NAME.
    """
    path, name = split_name(file_and_name)
    text = read_text(path)
    if path.suffix == ".py":
        return _from_python(path, text, name)
    language: Language = "CUDA" if path.suffix == ".cu" else "OpenCL"
    functions = find_functions(text, language)
    if not functions:
        word = "__global__" if language == "CUDA" else "__kernel"
        raise UserError(f"{path} holds no {language} kernel: no function marked {word}")
    declarations = read_declarations(text, "//", str(path))
    kernels = tuple(function.name for function in functions)
    source = Source(path, text, language, name, kernels, functions, declarations)
    return _named(source)


def split_name(file_and_name: str) -> tuple[Path, str | None]:
    """FILE and NAME apart; NAME may hold colons of its own (`a::f`). Raises UserError for an unknown suffix."""
    match = re.fullmatch(r"(.+?\.(?:cu|cl|py))(?::(.*))?", file_and_name, re.DOTALL)
    path = Path(file_and_name)
    if match is not None and not path.is_file():
        if match[2] == "":
            raise UserError(f"'{file_and_name}': no name after the colon")
        return Path(match[1]), match[2]
    if path.suffix not in _SUFFIXES:
        raise UserError(f"'{file_and_name}': a kernel's file ends in {', '.join(_SUFFIXES)}")
    return path, None


def read_text(path: Path) -> str:
    """The file's text. Raises UserError in one line where it cannot be had."""
    try:
        if not path.exists():
            raise UserError(f"{path}: no such file")
        if not path.is_file():
            raise UserError(f"{path} is no file")
        size = path.stat().st_size
        if size > LARGEST:
            raise UserError(f"{path} is {size / 2**20:.1f} MiB; a kernel's source may have {LARGEST / 2**20:.0f}")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if not data.strip():
        raise UserError(f"{path} is empty")
    try:
        if b"\0" in data:
            raise ValueError
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except ValueError:
        raise UserError(f"{path} is no text (UTF-8) file") from None


def _named(source: Source) -> Source:
    """The source with the name decided: given, the only one declared, or the only one there."""
    declared = [declaration.kernel for declaration in source.declarations]
    name = source.name
    if name is None and len(declared) == 1:
        name = declared[0]
    if name is None and not declared and len(source.kernels) == 1:
        name = source.kernels[0]
    if name is None:
        listed = ", ".join(declared or source.kernels)
        raise UserError(f"{source.path} holds several kernels ({listed}); name one: {source.path}:NAME")
    if source.functions:
        source.function(name)
    return replace(source, name=name)


def _from_python(path: Path, text: str, name: str | None) -> Source:
    content = read_python(text, str(path))
    declarations = read_declarations(text, "#", str(path))
    if name is None and len(declarations) == 1:
        name = declarations[0].kernel
    if name is None and len(declarations) > 1:
        return _named(Source(path, text, "Python", None, (), (), declarations))
    cuda = [string for string in content.cuda if name is None or _holds(string.functions, name)]
    if name in content.triton + content.helpers or (name is None and content.triton):
        return _named(Source(path, text, "Triton", name, content.triton, (), declarations))
    if len(cuda) > 1:
        listed = ", ".join(function.name for string in cuda for function in string.functions)
        raise UserError(f"{path} holds several strings with CUDA kernels ({listed}); name one: {path}:NAME")
    if cuda:
        string = cuda[0]
        inside = read_declarations(string.text, "//", str(path), string.line_offset)
        kernels = tuple(function.name for function in string.functions)
        both = declarations + inside
        return _named(Source(path, string.text, "CUDA", name, kernels, string.functions, both, string.line_offset))
    if name is None or name in content.callables + content.assigned:
        if name is None and content.made_at_run_time:
            raise _made_at_run_time(path, content)
        return _named(_plain(path, text, name, content, declarations))
    if content.made_at_run_time:
        raise _made_at_run_time(path, content)
    raise UserError(f"{path} holds no kernel '{name}'; it holds: {', '.join(_all_names(content)) or 'none'}")


def _plain(
    path: Path, text: str, name: str | None, content: PythonContent, declarations: tuple[Declaration, ...]
) -> Source:
    if name is None and not content.callables:
        raise UserError(f"{path} holds no function, no Triton kernel and no string with CUDA source")
    return Source(path, text, "Python", name, content.callables, (), declarations)


def _holds(functions: tuple[Function, ...], name: str) -> bool:
    plain = name.split("<", 1)[0].strip()
    return any(plain in (function.name, function.short_name) for function in functions)


def _all_names(content: PythonContent) -> list[str]:
    of_strings = [function.name for string in content.cuda for function in string.functions]
    return [*content.triton, *of_strings, *content.callables]


def _made_at_run_time(path: Path, content: PythonContent) -> UserError:
    return UserError(
        f"{path}:{content.made_at_run_time[0]}: this CUDA source is put together only when the file runs, and nearpeak "
        "does not run it; write it as one plain string, or to a .cu file"
    )
