"""NVIDIA's compute-sanitizer on one run of a kernel: accesses out of bounds (memcheck), races in shared memory
(racecheck).

The reports' form: NVIDIA, "Compute Sanitizer", "Understanding Memcheck Errors" and "Understanding Racecheck Reports".
The place of a device frame has been written in two ways: "kernel(…)+0x90 in file.cu:31", and before 2022
"0x90 in file.cu:31:kernel(…)".
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal

from nearpeak.kernelcheck.kernel import Sizes
from nearpeak.kernelcheck.once import RAN, once_command
from nearpeak.kernelcheck.tool import find_tool, run_tool
from nearpeak.kernelcheck.verdict import Check, Finding, Verdict, shape_text
from nearpeak.records.errors import first_line

if TYPE_CHECKING:
    from nearpeak.kernelcheck.check import Request

TOOL = "compute-sanitizer"
TIMEOUT_S = 60.0
Kind = Literal["memcheck", "racecheck"]
KINDS: tuple[Kind, ...] = ("memcheck", "racecheck")
_WATCHED = {"memcheck": "accesses out of bounds", "racecheck": "races in shared memory"}
_MARK = re.compile(r"^={9} ?", re.MULTILINE)
_FAULT = re.compile(r"^(Invalid __\w+__ (?:read|write|atomic|access)\b.*|(?:\w+ )*[Mm]isaligned .*)")
_RACE = re.compile(r"^(Error|Warning|Warn|Info): *(?:\(.*?\) *)?(?:Potential )?.*?(?:Race reported|\w+ hazard)", re.I)
_PLACE = re.compile(r" in (\S+?):(\d+)(?=[:\s]|$)")
_NO_FINDING = ("Target application returned", "Saved host backtrace", "Host Frame", "Device Frame")


@dataclass(frozen=True)
class Report:
    """One error that the tool saw. what: its first line; function, file, line: where ("" and 0: not said); thread:
    "thread (255,0,0) in block (3,0,0)", or ""; more: what else it says in short; certain: False for a warning."""

    what: str
    function: str
    file: str
    line: int
    thread: str = ""
    more: str = ""
    certain: bool = True


@dataclass(frozen=True)
class Watched:
    """What one run under the tool gave. missing: why nothing can be said, else None."""

    kind: Kind
    reports: tuple[Report, ...] = ()
    missing: str | None = None


def watch(kind: Kind, request: Request, sizes: Sizes, device: str, seconds: float = TIMEOUT_S) -> Watched:
    """Run the kernel once under the tool, each tensor in an allocation of its own size. Nothing is raised.

    device   torch's name of it
    seconds  after which the tool is stopped
    """
    tool = find_tool(TOOL)
    if tool is None:
        return Watched(kind, missing=f"{TOOL} is not installed")
    # torch's pool would put all tensors into one allocation, whose inner borders the tool does not know.
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with tempfile.TemporaryDirectory(prefix="nearpeak-") as name:
        folder = Path(name)
        program = once_command(folder, request, sizes, device, profiled=False)
        try:
            ended = run_tool([str(tool), "--tool", kind, "--print-limit", "50", *program], seconds, alone)
        except OSError as error:
            return Watched(kind, missing=f"{TOOL} cannot be started: {first_line(error)}")
        ran = (folder / RAN).exists()
    reports = tuple(parse(ended.text))
    if reports or ran:
        return Watched(kind, reports)
    if ended.code is None:
        return Watched(kind, missing=f"{TOOL} {kind} gave no answer within {seconds:.0f} s")
    return Watched(kind, missing=f"{TOOL} {kind}: {refusal(ended.text, ended.code)}")


def refusal(text: str, code: int) -> str:
    """Why the program did not run under the tool, from what was printed."""
    own = [line for line in _own_lines(text) if line and line.strip("=") and line != "COMPUTE-SANITIZER"]
    said = [line for line in own if re.search(r"error|not supported|unsupported|denied|fail", line, re.I)]
    said = [line for line in said if "SUMMARY" not in line and not line.startswith(_NO_FINDING)]
    if said:
        return said[0].removeprefix("Error: ")[:200]
    others = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("=" * 9)]
    return (others[-1][:200] if others else "") or f"it ended with exit code {code}"


def _own_lines(text: str) -> list[str]:
    return [_MARK.sub("", line).strip() for line in text.splitlines() if line.startswith("=" * 9)]


def parse(text: str) -> Iterator[Report]:
    """The errors in the tool's output, in its order. Lines of the program in between are left out."""
    block: list[str] = []
    for line in [*_own_lines(text), ""]:
        if _FAULT.match(line) or _RACE.match(line) or not line:
            if block:
                yield _report(block)
            block = [line] if line else []
        elif block:
            block.append(line)


def _report(block: list[str]) -> Report:
    first = block[0]
    body = block[1:]
    if race := _RACE.match(first):
        text = " ".join(line for line in block if not line.startswith(_NO_FINDING))
        text = re.sub(r"^\w+: *", "", text)
        function, file, line = _place(text.partition(" and ")[0])
        kinds = re.findall(r"\b(\w+) access at\b", text) or ["access"]
        lines = re.findall(r"\band \w+ access at .*? in \S+?:(\d+)", text)
        other = [f"{how.lower()} in line {at}" for how, at in zip(kinds[1:], lines, strict=False)]
        more = f"against {', '.join(other)}" if other else ""
        return Report(f"race of a {kinds[0].lower()}", function, file, line, "", more, race[1].lower() == "error")
    at = next((line.removeprefix("at ") for line in body if line.startswith("at ")), "")
    function, file, line = _place(at)
    if not line and (frame := next((x for x in body if x.startswith("Device Frame") and _PLACE.search(x)), "")):
        _, file, line = _place(frame)
    thread = next((x.removeprefix("by ") for x in body if x.startswith("by thread")), "")
    facts = [re.sub(r"\b(?:Address|Access (?:to|at)) 0x[0-9a-fA-F]+ is ", "", x) for x in body if " is " in x]
    facts = [re.sub(r" at 0x[0-9a-fA-F]+", "", x).removeprefix("and is ") for x in facts]
    return Report(first, function, file, line, thread, ", ".join(facts))


def _place(text: str) -> tuple[str, str, int]:
    """(function, file, line) of a device frame in either form."""
    found = _PLACE.search(text)
    file, line = (found[1], int(found[2])) if found else ("", 0)
    rest = text[found.end() :].lstrip(":") if found else ""
    function = re.split(r"[(+<\[]", rest or re.sub(r"^.*\bat\s+(0x\w+ in )?", "", text))[0].strip()
    return function.split()[-1] if function and not function.startswith("0x") else "", file, line


@dataclass(frozen=True)
class Place:
    """Where the kernel's text comes from: its file, and what is added to a line of the compiled text."""

    path: Path
    line_offset: int = 0


def judge(
    verdict: Verdict, runs: Callable[[Kind, Sizes], Watched], ragged: Sizes, place: Place, races: bool
) -> Verdict:
    """The verdict with what the tool says: a right kernel is watched at the shape `ragged`, a wrong one where it was
    seen to leave its tensors, to race or to break.

    runs    runs the kernel under one of the tool's kinds
    races   whether a race that it reports is one: not where threads also meet at barriers that the tool may not follow
    """
    if not verdict.right:
        findings = [_explained(found, runs, place) for found in verdict.findings]
        return replace(verdict, findings=tuple(findings))
    findings, notes = [], []
    for kind in KINDS:
        seen = runs(kind, ragged)
        certain = [report for report in seen.reports if report.certain] if kind == "memcheck" or races else []
        if certain:
            check: Check = "bounds" if kind == "memcheck" else "race"
            findings.append(Finding(check, shape_text(ragged), _words(kind, certain, place)))
        elif seen.reports:
            notes.append(f"not judged: {_words(kind, seen.reports, place)}")
        elif seen.missing:
            notes.append(f"{_WATCHED[kind]} were not looked for by {TOOL}: {seen.missing}")
        else:
            notes.append(f"{TOOL} saw no {_WATCHED[kind]} at {shape_text(ragged)}")
    failed = (*verdict.failed, shape_text(ragged)) if findings else verdict.failed
    return replace(verdict, right=not findings, findings=tuple(findings), failed=failed, notes=(*verdict.notes, *notes))


def _explained(found: Finding, runs: Callable[[Kind, Sizes], Watched], place: Place) -> Finding:
    """A finding with the line that the tool names, where it is one of those that the tool can explain."""
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", found.shape)}
    kind: Kind = "racecheck" if found.check == "race" else "memcheck"
    if found.check not in ("bounds", "race", "crash") or not sizes:
        return found
    seen = runs(kind, sizes)
    return replace(found, text=f"{found.text}. {_words(kind, seen.reports, place)}") if seen.reports else found


def _words(kind: Kind, reports: Sequence[Report], place: Place) -> str:
    first = reports[0]
    further = place.line_offset if PurePath(first.file).name == place.path.name else 0
    where = f" in {PurePath(first.file).name}:{first.line + further}" if first.line else ""
    by = f", {first.thread}" if first.thread else ""
    more = re.sub(r"\bline (\d+)", lambda found: f"line {int(found[1]) + further}", first.more)
    more = f"; {more}" if more else ""
    rest = f" ({len(reports)} reports in all)" if len(reports) > 1 else ""
    function = f" of {first.function}" if first.function else ""
    return f"{TOOL} {kind}: {first.what}{where}{function}{by}{more}{rest}"
