"""What kernels a Python file holds: found by reading it, never by executing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nearpeak.kernelcheck.c_functions import Function, find_functions
from nearpeak.records.errors import UserError

_HOLDERS = ("format", "format_map", "replace", "substitute", "safe_substitute", "render")


@dataclass(frozen=True)
class CudaString:
    """CUDA source in a string. line_offset: added to a line of `text` it gives the line of the .py file."""

    text: str
    line_offset: int
    functions: tuple[Function, ...]


@dataclass(frozen=True)
class PythonContent:
    """triton: functions decorated with triton.jit that no other of them calls; helpers: those that are called.

    callables: other functions, and names assigned at the top of the module. made_at_run_time: lines of CUDA source
    that is only put together when the file runs.
    """

    triton: tuple[str, ...]
    helpers: tuple[str, ...]
    cuda: tuple[CudaString, ...]
    callables: tuple[str, ...]
    assigned: tuple[str, ...]
    made_at_run_time: tuple[int, ...]


def read_python(text: str, path: str) -> PythonContent:
    """Raises UserError with the line where the file is no valid Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno or 1}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{path}: cannot be read as Python: {error}") from None
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    marks = _triton_marks(tree)
    jitted = [node for node in defined if any(_is_jit(decorator, marks) for decorator in node.decorator_list)]
    names = {node.name for node in jitted}
    called = {
        node.func.id
        for function in jitted
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != function.name
    }
    strings, unknown = _cuda_strings(tree, text)
    return PythonContent(
        triton=tuple(node.name for node in jitted if node.name not in called),
        helpers=tuple(node.name for node in jitted if node.name in called),
        cuda=strings,
        callables=tuple(node.name for node in defined if node.name not in names),
        assigned=tuple(_assigned(tree)),
        made_at_run_time=unknown,
    )


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Names bound at the top of the module by something other than `def`: assignments, imports and classes."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _triton_marks(tree: ast.Module) -> set[str]:
    """How this file writes triton.jit: `triton.jit`, `tr.jit`, `jit`, …"""
    marks = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "triton" or (alias.name.startswith("triton.") and alias.asname is None):
                    marks.add(f"{alias.asname or 'triton'}.jit")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton":
            marks.update(alias.asname or alias.name for alias in node.names if alias.name == "jit")
    return marks


def _is_jit(decorator: ast.expr, marks: set[str]) -> bool:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator) in marks


def _cuda_strings(tree: ast.Module, text: str) -> tuple[tuple[CudaString, ...], tuple[int, ...]]:
    """The strings that hold CUDA kernels, and the lines of those that a run of the file would still change."""
    constants = _module_constants(tree)
    found: list[CudaString] = []
    unknown: list[int] = []
    used: set[int] = set()
    templates: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in used or not isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            base = _text_of(node.left, constants)
            whole = _text_of(node, constants)
            if "__global__" not in (whole or base or ""):
                continue
            used.update(id(child) for child in ast.walk(node))
            if isinstance(node.left, ast.Name):
                templates.add(constants.get(node.left.id) or "")  # type: ignore[arg-type]
            if whole is None:
                unknown.append(node.lineno)
            else:
                _add(found, whole, _where(node.left, tree), text)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _HOLDERS:
            base = _text_of(node.func.value, constants)
            if base is not None and "__global__" in base:
                used.update(id(child) for child in ast.walk(node))
                templates.add(base)
                unknown.append(node.lineno)
        elif isinstance(node, ast.JoinedStr):
            used.update(id(child) for child in ast.walk(node))
            if any("__global__" in str(getattr(part, "value", "")) for part in node.values):
                unknown.append(node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            _add(found, node.value, node, text)
    # A text that is only a pattern for another one is no source itself.
    return tuple(string for string in found if string.text not in templates), tuple(unknown)


def _add(found: list[CudaString], value: str, node: ast.expr, text: str) -> None:
    functions = find_functions(value, "CUDA")
    if functions and all(value != other.text for other in found):
        found.append(CudaString(value, _line_offset(value, node, text), functions))


def _line_offset(value: str, node: ast.expr, text: str) -> int:
    """Lines of the file above the string's first: from where `__global__` stands in both."""
    inside = value[: value.index("__global__")].count("\n")
    segment = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
    place = segment.find("__global__")
    return node.lineno - 1 + (segment[:place].count("\n") - inside if place >= 0 else 0)


def _module_constants(tree: ast.Module) -> dict[str, str | int | float]:
    """Names that are bound exactly once at the top of the module, to a plain string or number."""
    bound: dict[str, list[object]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    bound.setdefault(target.id, []).append(getattr(node.value, "value", None))
    return {
        name: values[0]
        for name, values in bound.items()
        if len(values) == 1 and isinstance(values[0], str | int | float)
    }


def _text_of(node: ast.expr, constants: dict[str, str | int | float]) -> str | None:
    """The string that the expression gives; None where only a run would tell."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        value = constants.get(node.id)
        return value if isinstance(value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text_of(node.left, constants), _text_of(node.right, constants)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _filled(_text_of(node.left, constants), node.right, constants)
    return None


def _filled(pattern: str | None, values: ast.expr, constants: dict[str, str | int | float]) -> str | None:
    """`pattern % {"SIZE": SIZE}` with values that are known; only %(name)s and %(name)d."""
    if pattern is None or not isinstance(values, ast.Dict):
        return None
    known: dict[str, str | int | float] = {}
    for key, value in zip(values.keys, values.values, strict=True):
        got = value.value if isinstance(value, ast.Constant) else constants.get(getattr(value, "id", ""))
        if not isinstance(key, ast.Constant) or not isinstance(got, str | int | float):
            return None
        known[str(key.value)] = got
    places = re.findall(r"%(?:%|\((\w+)\)[sdi])?", pattern)
    if any(name and name not in known for name in places) or re.search(
        r"%(?!%|\(\w+\)[sdi])", pattern.replace("%%", "")
    ):
        return None
    return re.sub(r"%%|%\((\w+)\)[sdi]", lambda match: "%" if match[0] == "%%" else str(known[match[1]]), pattern)


def _where(node: ast.expr, tree: ast.Module) -> ast.expr:
    """The string's own place: where a name stands, that of its assignment."""
    while isinstance(node, ast.BinOp):
        node = node.left
    if isinstance(node, ast.Name):
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == node.id for target in statement.targets
            ):
                return statement.value
    return node
