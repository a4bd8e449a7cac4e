"""`nearpeak plan`: what fits, how fast, at what cost, and on which cards."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nearpeak.planning.plan import Question
    from nearpeak.records.limit import Op
    from nearpeak.records.machine_profile import MachineProfile
    from nearpeak.records.model_spec import ModelSpec
    from nearpeak.records.plan import Candidate, Plan

TASKS = ("infer", "train", "lora", "qlora")
DRAWN = 4  # candidates whose curves are on the page


@click.command("plan")
@click.argument("model")
@click.option("--task", type=click.Choice(TASKS), default="infer", show_default=True, help="What the cards shall do.")
@click.option(
    "--gpu", help='The card, such as "RTX 3090". Without it: the cards of this machine, or all where none is.'
)
@click.option("--count", type=int, help="How many. Without it 1, 2, 4 and 8, or what a --profile has.")
@click.option("--any", "every", is_flag=True, help="All cards of the catalogue.")
@click.option("--context", type=int, help="Tokens a sequence: prompt and answer together, or a training sequence.")
@click.option("--batch", type=int, help="Sequences in a training step, or at once in inference.")
@click.option("--users", type=int, help="People who ask at the same time.")
@click.option("--precision", help="Of the weights: bf16, fp8, int8, q4_k_m, …")
@click.option("--engine", help="Whose efficiency counts: llama.cpp, vllm, … Without it the usual one.")
@click.option("--target-tps", type=float, help="Tokens a second that must be reached.")
@click.option("--max-price", type=float, help="US dollars for all cards together.")
@click.option("--profile", type=click.Path(path_type=Path), help="A machine profile: measured ceilings come first.")
@click.option("--price-per-hour", type=float, help="US dollars an hour of one card. Without it: from its price.")
@click.option("--price-per-card", type=float, help="US dollars for one card, where the catalogue has none or another.")
@click.option("--electricity", type=float, help="US dollars a kWh.")
@click.option("--explain", is_flag=True, help="Show ops, limit and every term of the first candidate's seconds.")
@click.option("--html", type=click.Path(path_type=Path), help="Write one self-contained page with charts.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON document.")
def plan(
    model: str, gpu: str | None, every: bool, profile: Path | None, explain: bool, html: Path | None, as_json: bool,
    **asked: Any,
) -> None:  # fmt: skip
    """Which cards a model fits on, how fast it runs or trains there, what that takes in joules and dollars, and what
    binds it. MODEL is a folder, a .gguf file, or a known name such as llama-3.1-8b. Nothing is loaded but headers.

    Each speed comes with an interval that holds the truth in 80 of 100 cases, and with the nearest measured row.

    Example: nearpeak plan llama-3.1-8b --task qlora --gpu "RTX 3090" --count 2
    """
    from nearpeak.models.read import read_model
    from nearpeak.planning.plan import plan as planned
    from nearpeak.records.files import check_writable

    if html:
        check_writable(html)
    if asked.get("precision") is not None:
        asked["precision"] = asked["precision"].lower()  # people write Q4_K_M and BF16 as well
    spec = read_model(model)
    question, said = question_of(spec, gpu, every, profile, {k: v for k, v in asked.items() if v is not None})
    answer = _with_notes(planned(question), said)
    if html:
        _write_page(html, question, answer, planned)
    ops = ops_by_phase(spec, answer) if explain else {}
    if as_json:
        print(document(answer, ops, explain))
        return
    _print(question, answer, ops, planned)


def question_of(
    spec: ModelSpec, gpu: str | None, every: bool, profile: Path | None, asked: dict[str, Any]
) -> tuple[Question, list[str]]:
    """The question as the planner takes it, and what was taken where the command line left it open.

    Raises UserError for what contradicts itself, is out of range, or fits no card.
    """
    from nearpeak.ceilings import profile_file
    from nearpeak.planning.machine import cards_here, devices_here, kept_profile
    from nearpeak.planning.plan import Question
    from nearpeak.planning.variants import card_named
    from nearpeak.records.errors import UserError

    if gpu is not None and every:
        raise UserError(f"--gpu {gpu} names one card and --any means all of them: give one of the two.")
    for name, value in asked.items():
        if isinstance(value, int | float) and not (
            0 <= value < math.inf if name == "electricity" else 0 < value < math.inf
        ):
            least = "0 or more" if name == "electricity" else "above 0, and finite"
            raise UserError(f"--{name.replace('_', '-')} is {value:g}: it must be {least}.")
    if "context" in asked and None not in spec.streams.values():
        items = " and ".join(spec.streams)
        raise UserError(
            f"--context {asked['context']} counts tokens, but {spec.name} takes items of one size ({items})."
        )
    if spec.context is not None and asked.get("context", 0) > spec.context:
        raise UserError(
            f"--context {asked['context']:,} is beyond what {spec.name} was made for, {spec.context:,} tokens. "
            f"Ask for {spec.context:,} or less."
        )
    said: list[str] = []
    devices = devices_here()
    measured: MachineProfile | None = profile_file.load(profile) if profile else kept_profile(devices)
    if gpu is not None and gpu.lower() == "cpu":
        gpu, measured = None, processor(measured, profile)
    elif gpu is not None:
        card, note = card_named(gpu)
        gpu = card.name
        said += [note] if note else []
    elif not every and profile is None:
        here = cards_here(devices)
        said += here.notes
        gpu, every = here.gpu, here.gpu is None
        asked = {"count": here.count, **asked} if here.gpu else asked
    if measured and profile is None:
        said.append(f"this machine's own ceilings are from its profile of {measured.machine.date[:10]}")
    return Question(spec=spec, gpu=gpu, any=every, profile=measured, **asked), said


def processor(measured: MachineProfile | None, file: Path | None) -> MachineProfile:
    """The CPU of a machine profile. Raises UserError where it was never measured: no sheet says what a CPU sustains."""
    from nearpeak.records.errors import UserError

    cpus = tuple(d for d in measured.devices if d.kind == "cpu") if measured else ()
    if measured is None or not cpus:
        where = f"{file} has no CPU in it" if file else "the CPU of this machine has not been measured"
        raise UserError(f"{where}, and no sheet says what it sustains. Measure it: nearpeak measure --device cpu")
    return replace(measured, devices=cpus)


def ops_by_phase(spec: ModelSpec, answer: Plan) -> dict[str, tuple[Op, ...]]:
    """The ops of each workload of the plan."""
    from nearpeak.limits.ops import ops_of

    return {work.phase: tuple(ops_of(spec, work)) for work in answer.workloads}


def document(answer: Plan, ops: dict[str, tuple[Op, ...]], explain: bool) -> str:
    """The JSON text: model, workload, every candidate whole, null where absent. With --explain the ops too."""
    body: dict[str, Any] = {
        "schema": answer.schema,
        "model": answer.model,
        "workload": answer.workload,
        "candidates": [_candidate(c) for c in answer.candidates],
        "ranking": answer.ranking,
        "advice": answer.advice,
        "notes": list(answer.notes),
        "workloads": [asdict(work) for work in answer.workloads],
    }
    if explain:
        body["ops"] = {phase: [asdict(op) for op in listed] for phase, listed in ops.items()}
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False)


def _candidate(c: Candidate) -> dict[str, Any]:
    """All fields, memory as memory_bytes with its sum, each step with its seconds."""
    found = asdict(c)
    found["memory_bytes"] = {**found.pop("memory"), "total": c.memory.total}
    for step, seen in zip(found["steps"], c.steps, strict=True):
        step["seconds"] = seen.seconds
    return found


def _with_notes(answer: Plan, said: list[str]) -> Plan:
    return replace(answer, notes=(*said, *(note for note in answer.notes if note not in said)))


def _print(
    question: Question, answer: Plan, ops: dict[str, tuple[Op, ...]], planner: Callable[[Question], Plan]
) -> None:
    from rich.console import Console

    from nearpeak.planning.neighbours import variations
    from nearpeak.report.plan_explain import render_explained
    from nearpeak.report.plan_table import render

    # A pipe has no width; a fixed one keeps the tables readable there.
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    render(answer, variations(question, answer, planner), console)
    if ops:
        render_explained(answer, ops, console)


def _write_page(html: Path, question: Question, answer: Plan, planner: Callable[[Question], Plan]) -> None:
    from nearpeak.planning.neighbours import curves, variations
    from nearpeak.records.files import write_text_atomically
    from nearpeak.report.plan_charts import Curve
    from nearpeak.report.plan_page import page
    from nearpeak.report.plan_words import SPEEDS, cards

    drawn: dict[str, list[Curve]] = {}
    field = next((f for f in SPEEDS if any(getattr(c, f) for c in answer.candidates)), None)
    for axis in axes(question) if field else ():
        for c, points in curves(question, drawn_of(question, answer), axis, planner):
            line = tuple((int(v.value), getattr(v.candidate, str(field)) if v.candidate.fits else None) for v in points)
            drawn.setdefault(axis, []).append(Curve(cards(c.gpu, c.count), line))
    write_text_atomically(html, page(answer, variations(question, answer, planner), drawn))
    print(f"Page: {html}", file=sys.stderr)


def drawn_of(question: Question, answer: Plan) -> tuple[Candidate, ...]:
    """The first candidates; of many kinds of card, the best of each kind: cards and not counts are then compared."""
    best = {c.gpu: c for c in reversed(answer.candidates)} if question.any else {}
    kinds = [best[name] for name in dict.fromkeys(c.gpu for c in answer.candidates)] if best else answer.candidates
    return tuple(kinds[:DRAWN])


def axes(question: Question) -> tuple[str, ...]:
    """What speed is drawn against: images and clips have no context of their own choosing."""
    many = "users" if question.task == "infer" else "batch"
    return ("context", many) if None in question.spec.streams.values() else (many,)
