"""Whole-number arithmetic over named sizes, as in `ceil(m / 16)`: read by ast, computed exactly, never executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil

from nearpeak.records.errors import UserError

LONGEST = 500  # characters: more than any launch needs, and a bound on how large a number can get

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Fraction, Fraction], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ALLOWED = "names of sizes, whole numbers, + - * / // %, parentheses, ceil, min, max"


def evaluate(expression: str, sizes: Mapping[str, int]) -> int:
    """The whole number that the expression gives.

    Raises UserError where it cannot be read, names an unknown size, divides by zero or gives no whole number.
    """
    value = _Reader(expression, sizes).number(parse(expression))
    if value.denominator != 1:
        raise UserError(f"'{expression}' is {float(value):g}, no whole number; use // or ceil(a / b)")
    return int(value)


def holds(expression: str, sizes: Mapping[str, int]) -> bool:
    """Whether a condition such as `k % 8 == 0 and n > 1` holds. Raises UserError as `evaluate` does."""
    return _Reader(expression, sizes).condition(parse(expression))


def parse(expression: str) -> ast.expr:
    """The expression's tree, its grammar not yet looked at. Raises UserError where it is no expression at all."""
    if len(expression) > LONGEST:
        raise UserError(f"an expression of {len(expression)} characters, at most {LONGEST}: '{expression[:40]}…'")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"'{expression}' cannot be read; allowed are {_ALLOWED}") from None


def names(expression: str) -> frozenset[str]:
    """Names of the sizes that the expression uses."""
    tree = parse(expression)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)


class _Reader:
    """Computes one expression; knows its text for the messages."""

    def __init__(self, expression: str, sizes: Mapping[str, int]) -> None:
        self._expression = expression
        self._sizes = sizes

    def number(self, node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Fraction(node.value)
        if isinstance(node, ast.Name):
            return Fraction(self._size(node.id))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self.number(node.operand)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self.number(node.left), self.number(node.right)
            if right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
                raise UserError(f"'{self._expression}' divides by zero for {self._given()}")
            return _ARITHMETIC[type(node.op)](left, right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._function(node.func.id, [self.number(argument) for argument in node.args])
        raise self._not_allowed(node)

    def condition(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            parts = (self.condition(value) for value in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.condition(node.operand)
        if isinstance(node, ast.Compare):
            values = [self.number(part) for part in (node.left, *node.comparators)]
            for compare in node.ops:
                if type(compare) not in _COMPARISONS:
                    raise self._not_allowed(node)
            return all(
                _COMPARISONS[type(compare)](a, b) for compare, a, b in zip(node.ops, values, values[1:], strict=False)
            )
        raise UserError(f"'{self._expression}' is no condition; compare with ==, !=, <, <=, >, >= and join by and, or")

    def _function(self, name: str, values: list[Fraction]) -> Fraction:
        if name == "ceil" and len(values) == 1:
            return Fraction(ceil(values[0]))
        if name in ("min", "max") and values:
            return min(values) if name == "min" else max(values)
        given = f"{len(values)} value{'' if len(values) == 1 else 's'}"
        raise UserError(f"'{self._expression}': {name} with {given}; functions are ceil(a), min(a, …), max(a, …)")

    def _size(self, name: str) -> int:
        if name in self._sizes:
            return self._sizes[name]
        known = ", ".join(sorted(self._sizes)) or "none"
        raise UserError(f"'{self._expression}' names '{name}', which is no size of this op; its sizes: {known}")

    def _given(self) -> str:
        used = sorted(names(self._expression) & set(self._sizes))
        return ", ".join(f"{name} = {self._sizes[name]}" for name in used) or "any size"

    def _not_allowed(self, node: ast.AST) -> UserError:
        return UserError(f"'{self._expression}': '{ast.unparse(node)}' is not allowed; allowed are {_ALLOWED}")
