"""PTX text (the GPU assembly that the CUDA compiler emits) taken apart into kernels and instructions, with source
lines.

The grammar: NVIDIA, "Parallel Thread Execution ISA", chapters 4 (syntax) and 11 (directives). Only text is read here;
what an instruction does is in the `ptx_*` files, and `trace` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nearpeak.kernelcheck.ptx_records import TYPE_BYTES, Instruction, Parameter, PtxKernel, PtxModule, Variable

_ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$.]+)\s*(\(|$|\s)")
_FUNCTION = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+|\.extern\s+)*\.func\b")
_LOC = re.compile(r"^\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_LABEL = re.compile(r"^[\w$%]+\s*:$")
_REGISTERS = re.compile(r"^\.reg\s+\.(\w+)\s+(.*)$", re.S)
_VARIABLE = re.compile(
    r"^(?:\.visible\s+|\.weak\s+|\.extern\s+|\.common\s+)*\.(shared|global|local|const)\s+(?:\.align\s+(\d+)\s+)?"
    r"\.(\w+)\s+([\w$.]+)((?:\[[^\]]*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)
_NAME = re.compile(r"[%$A-Za-z_][\w$]*")


def parse(text: str) -> PtxModule:
    """Take a PTX text apart. Functions (`.func`) are left out: a kernel that calls one cannot be traced."""
    text = re.sub(r"/\*.*?\*/", " ", text.replace("\0", ""), flags=re.S)
    files = {int(n): name for n, name in _FILE.findall(text)}
    target = re.search(r"^\.target\s+(\w+)", text, re.M)
    module = PtxModule({}, [], target.group(1) if target else "")
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        line = _bare(lines[at])
        entry = _ENTRY.search(line)
        if entry or _FUNCTION.match(line):
            head, body, at = _split_body(lines, at)
            if entry:
                module.kernels[entry.group(1)] = _kernel(entry.group(1), head, body, files)
            continue
        statement = line.strip()
        if re.match(r"^(\.visible\s+|\.weak\s+|\.extern\s+|\.common\s+)*\.(global|const|shared)\b", statement):
            while ";" not in statement and at + 1 < len(lines):
                at += 1
                statement += " " + _bare(lines[at]).strip()
            if variable := _variable(statement.rstrip("; ")):
                module.variables.append(variable)
        at += 1
    for kernel in module.kernels.values():  # demoted and module-wide shared variables
        static = [v for v in [*module.variables, *kernel.variables] if v.space == "shared"]
        used = {name for i in kernel.instructions for o in i.operands for name in _NAME.findall(o)}
        kernel.shared_bytes = sum(v.size for v in static if v.name in used)
    return module


def _bare(line: str) -> str:
    return line if line.lstrip().startswith(".file") else line.split("//", 1)[0]


def _split_body(lines: list[str], at: int) -> tuple[str, list[str], int]:
    """(text up to the brace, lines within it, index of the line behind it); a declaration has no body."""
    head: list[str] = []
    while at < len(lines):
        line = _bare(lines[at])
        if "{" in line or line.rstrip().endswith(";"):
            break
        head.append(line)
        at += 1
    if at >= len(lines) or "{" not in (line := _bare(lines[at])):
        return "\n".join(head), [], at + 1
    before, after = line.split("{", 1)
    head.append(before)
    depth, body, line = 1, [], after
    while True:
        depth += line.count("{") - line.count("}")
        if depth <= 0 or at + 1 >= len(lines):
            body.append(line.rsplit("}", 1)[0])
            return "\n".join(head), body, at + 1
        body.append(line)
        at += 1
        line = _bare(lines[at])


def _variable(statement: str) -> Variable | None:
    found = _VARIABLE.match(statement)
    if not found:
        return None
    space, align, kind, name, dimensions, values = found.groups()
    each = TYPE_BYTES.get(kind, 1)
    size = each
    for extent in re.findall(r"\[([^\]]*)\]", dimensions):
        size *= int(extent) if extent.strip() else 0
    initial: bytes | None = b""
    if values:
        numbers = [_number(v.strip()) for v in values.strip("{} ").split(",")]
        initial = None  # an address, which is not known here
        if None not in numbers:
            initial = b"".join((n & (1 << 8 * each) - 1).to_bytes(each, "little") for n in numbers if n is not None)
    return Variable(name, space, size, int(align) if align else each, initial)


def _number(text: str) -> int | None:
    if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", text):
        return int(text[2:], 16)
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        return None


def _kernel(name: str, head: str, body: list[str], files: dict[int, str]) -> PtxKernel:
    kernel = PtxKernel(name)
    parameters = re.findall(
        r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\b[^,)]*?\s)?([\w$.]+)(?:\[(\d+)\])?\s*(?=[,)]|$)",
        re.sub(r"\.ptr(\s+\.\w+)?(\s+\.align\s+\d+)?", "", head),
    )
    kernel.parameters = tuple(
        Parameter(n, kind, TYPE_BYTES[kind] * int(count or 1), int(align or TYPE_BYTES[kind]))
        for align, kind, n, count in parameters
    )
    if cluster := re.search(r"\.reqnctapercluster\s+(\d+)", head):
        kernel.cluster = int(cluster.group(1))
    _Body(kernel, files).read(body)
    return kernel


class _Body:
    """Reads the statements of one kernel, keeping the scopes that inline assembly opens apart."""

    def __init__(self, kernel: PtxKernel, files: dict[int, str]) -> None:
        self.kernel, self.files = kernel, files
        self.scopes: list[tuple[int, dict[str, str]]] = [(0, {})]  # (number, unique name by written name)
        self.opened = 0
        self.line, self.file = 0, ""

    def read(self, lines: list[str]) -> None:
        for statement in self._statements(lines):
            self._take(statement)

    def _statements(self, lines: list[str]) -> Iterator[str]:
        """Statements without their semicolon; "{" and "}" alone where a scope opens or closes."""
        text, vector = "", 0
        for line in lines:
            if found := _LOC.match(line.strip()):
                if int(found.group(2)):  # line 0: code of no line in particular, counted to the one before
                    self.line, self.file = int(found.group(2)), self.files.get(int(found.group(1)), "")
                continue
            for character, following in zip(line + " ", line[1:] + "  ", strict=False):
                if character == "{" and not text.strip():
                    yield "{"
                    text = ""
                elif character == "}" and not vector and not text.strip():
                    yield "}"
                    text = ""
                elif character == ";":
                    yield text.strip()
                    text = ""
                else:
                    vector += (character == "{") - (character == "}")
                    text += character
                    if character == ":" and following != ":" and not vector and _LABEL.match(text.strip()):
                        yield text.strip()
                        text = ""

    def _take(self, statement: str) -> None:
        if statement == "{":
            self.opened += 1
            self.scopes.append((self.opened, {}))
        elif statement == "}":
            if len(self.scopes) > 1:
                self.scopes.pop()
        elif statement.endswith(":"):
            self.kernel.labels[self._declare(statement[:-1].strip())] = len(self.kernel.instructions)
        elif found := _REGISTERS.match(statement):
            self._registers(found.group(1), found.group(2))
        elif variable := _variable(statement):
            self.kernel.variables.append(variable)
        elif statement and not statement.startswith("."):
            self.kernel.instructions.append(self._instruction(statement))

    def _declare(self, name: str) -> str:
        """The unique name of something declared in the innermost scope."""
        if len(self.scopes) == 1:
            return name
        number, names = self.scopes[-1]
        names[name] = unique = f"{name}__{number}"
        return unique

    def _registers(self, kind: str, names: str) -> None:
        for name in (n.strip() for n in names.split(",")):
            many = re.fullmatch(r"([\w$%]+)<(\d+)>", name)
            every = [f"{many.group(1)}{i}" for i in range(int(many.group(2)))] if many else [name]
            for one in every:
                self.kernel.registers[self._declare(one)] = kind

    def _resolve(self, found: re.Match[str]) -> str:
        for _, names in reversed(self.scopes[1:]):
            if found.group(0) in names:
                return names[found.group(0)]
        return found.group(0)

    def _instruction(self, statement: str) -> Instruction:
        predicate, negated = None, False
        if guard := re.match(r"^@(!?)\s*([%\w$]+)\s+", statement):
            negated, statement = bool(guard.group(1)), statement[guard.end() :]
            predicate = _NAME.sub(self._resolve, guard.group(2))
        name, _, rest = statement.partition(" ") if " " in statement else (statement, "", "")
        if "\t" in name:
            name, _, more = name.partition("\t")
            rest = f"{more} {rest}"
        opcode, *modifiers = name.split(".")
        if len(self.scopes) > 1:
            rest = _NAME.sub(self._resolve, rest)
        return Instruction(opcode, tuple(modifiers), tuple(_operands(rest)), predicate, negated, self.line, self.file)


def _operands(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()
