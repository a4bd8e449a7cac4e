"""Chat templates: jinja programs from a model's files that turn messages into one text.

They mean what they mean to transformers' apply_chat_template: the same environment (trim_blocks, lstrip_blocks, loop
controls, tojson that leaves letters alone, raise_exception, strftime_now, {% generation %}), sandboxed and immutable.
Only jinja's global `lipsum` is left out, and what `template_bounds` forbids. Not bounded: the time that jinja and
Python take to translate a template (of at most 256 KiB: seconds), and one operation on a text of 4 million characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from nearpeak.models.template_bounds import Bounds, bounded
from nearpeak.records.errors import UserError, first_line

MAX_SOURCE = 256 << 10  # the longest that we know of has 30 KB
MAX_OUTPUT = 16 << 20
Message = Mapping[str, object]


class ChatTemplate:
    """One template. `where` names its file and key in errors. Translated when first used."""

    def __init__(self, source: str, where: str) -> None:
        self.source, self.where = source, where
        self._ready: tuple[_Environment, jinja2.Template] | None = None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool, variables: Mapping[str, object]) -> str:
        """The text of a conversation. variables: what else it may use, such as bos_token.

        Raises UserError: what the template itself refuses (raise_exception), a mistake in it, too much work.
        """
        try:
            environment, template = self._translated()
            environment.bounds.start()
            pieces, size = [], 0
            for piece in template.generate(
                messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **variables
            ):
                size += len(piece)
                if size > MAX_OUTPUT:
                    raise environment.bounds.error(f"gives more than {MAX_OUTPUT:,} characters")
                pieces.append(piece)
            return "".join(pieces)
        except UserError:
            raise
        except _Refused as error:
            raise UserError(f"{self.where} refuses this conversation: {str(error)[:500]}") from error
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"{self.where} is no template: {first_line(error)[:300]}, line {error.lineno}.") from error
        except RecursionError as error:
            raise UserError(f"{self.where} is nested too deeply, or calls itself without end.") from error
        except Exception as error:  # a template is a program: whatever went wrong in it
            why = first_line(error)[:300]
            raise UserError(f"{self.where} fails: {type(error).__name__}: {why}. Use --raw to leave it out.") from error

    def _translated(self) -> tuple[_Environment, jinja2.Template]:
        if self._ready is None:
            if len(self.source) > MAX_SOURCE:
                raise UserError(f"{self.where} has {len(self.source):,} characters; {MAX_SOURCE:,} are possible.")
            environment = _Environment(Bounds(self.where))
            tree = environment.parse(self.source)
            _Counted().visit(tree)
            code = environment.compile(tree)
            self._ready = (
                environment,
                environment.template_class.from_code(environment, code, dict(environment.globals)),
            )
        return self._ready


class _Refused(jinja2.TemplateError):
    """The template called raise_exception."""


class _Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %}: what the model said; here its text is all that counts."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Any) -> Any:
        return caller()


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Every operation that can make something large asks `bounds` first."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, cache_size=0, finalize=self._shown,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )  # fmt: skip
        self.bounds = bounds
        self.filters["tojson"] = _to_json
        for name, function in list(self.filters.items()):
            skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
            self.filters[name] = bounded(name, function, skip, bounds)
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _now

    def step(self, size: int) -> str:
        """A loop's round, or a macro's call."""
        return self.bounds.step(size)

    def joined(self, *parts: Any) -> str:
        """a ~ b ~ c"""
        self.bounds.fits(sum(self.bounds.expanded(part) for part in parts))
        return "".join(map(str, parts))

    def listed(self, value: Any) -> Any:
        """A list, tuple or dictionary that the template wrote out."""
        return self.bounds.made(value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.bounds.operation(operator, left, right)
        return self.bounds.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        args = __self.bounds.call(__obj, args, kwargs)
        return __self.bounds.made(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        found = super().getitem(obj, argument)
        return self.bounds.made(found) if isinstance(argument, slice) else found

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        # jinja's own prints as nothing until it is used
        raise UserError(
            f"{self.bounds.where} reaches for {attribute[:60]!r} of a {type(obj).__name__}, which no template needs. "
            "It is hostile: get it from a source that you trust."
        )

    def _shown(self, value: Any) -> Any:
        if not isinstance(value, str):
            self.bounds.fits(self.bounds.expanded(value))
        self.bounds.made(value if isinstance(value, str) else "")
        return value


class _Counted(NodeTransformer):
    """Puts a step at the head of every loop and macro, and makes ~ and lists ask for room."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._stepped(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._stepped(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._stepped(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _asked("joined", node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _asked("listed", [node]) if node.items else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _asked("listed", [node]) if node.items and node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _asked("listed", [node]) if node.items else node

    def _stepped(self, node: Any) -> nodes.Node:
        size = sum(map(_size, node.body))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_asked("step", [nodes.Const(size)])).set_lineno(node.lineno))
        return node  # type: ignore[no-any-return]


def _asked(name: str, args: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None)


def _size(node: nodes.Node) -> int:
    """Characters that one pass through `node` can write or build; loops and macros inside count their own."""
    if isinstance(node, nodes.TemplateData):
        return len(node.data)
    inner = (nodes.For, nodes.Macro, nodes.CallBlock)
    return 8 + sum(_size(child) for child in node.iter_child_nodes() if not isinstance(child, inner))


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> None:
    raise _Refused(str(message)[:2000])


def _now(form: str) -> str:
    return datetime.now().strftime(str(form)[:200])
