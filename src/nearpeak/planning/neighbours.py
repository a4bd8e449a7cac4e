"""The same question with one thing changed: what would change the answer, and speed against context and batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from nearpeak.planning.precisions import bits_of
from nearpeak.planning.question import Question, Task
from nearpeak.records.errors import UserError
from nearpeak.records.plan import Candidate, Plan, Variation

Planner = Callable[[Question], Plan]

LIGHTER: dict[Task, tuple[Task, ...]] = {"train": ("lora", "qlora"), "lora": ("qlora",)}
LONGEST = 2**17
MOST_SEQUENCES = 256


def variations(question: Question, answer: Plan, planner: Planner) -> tuple[Variation, ...]:
    """What the first candidate's cards give with a lower precision or a lighter method, half and twice the context,
    twice the cards, more users. Where nothing fits, only what makes less of the need, and more cards until it fits.

    planner is `plan`. What it refuses is left out.
    """
    if not answer.candidates:
        return ()
    first = answer.candidates[0]
    base = _on(question, first)
    found = list(_lighter(base, first, answer, planner))
    context = answer.workload.get("context")
    if isinstance(context, int) and context > 1:
        other = 2 * context if first.fits else context // 2
        found += _tried(base, "context", other, planner) if other <= (question.spec.context or other) else ()
    counts = [2 * first.count] if first.fits else more_cards(first)
    found += _first_that_fits(v for count in counts for v in _tried(base, "count", count, planner))
    if first.fits and question.task == "infer" and question.spec.task == "generate":
        found += _tried(base, "users", 16 * question.sequences, planner)
    return tuple(found)


def more_cards(c: Candidate) -> list[int]:
    """Twice to 32 times the cards of one that does not fit, without those that cannot hold its states, divided evenly;
    at least the most."""
    m = c.memory
    states = (m.weights + m.gradients + m.optimizer) * c.count
    counts = [c.count * 2**n for n in range(1, 6)]
    return [n for n in counts if states / n <= 1.3 * m.capacity] or counts[-1:]


def curves(
    question: Question, candidates: Sequence[Candidate], axis: str, planner: Planner
) -> tuple[tuple[Candidate, tuple[Variation, ...]], ...]:
    """Each candidate's cards over powers of two of "context", "users" or "batch", as far as the planner goes."""
    found = []
    for c in candidates:
        base = _on(question, c)
        points = [v for value in steps(question, axis) for v in _tried(base, axis, value, planner)]
        found.append((c, tuple(points)))
    return tuple(found)


def steps(question: Question, axis: str) -> list[int]:
    """Powers of two up to the model's own context (2^17 at most), or to 256 sequences, and the value asked for."""
    if axis == "context":
        most, asked = min(question.spec.context or LONGEST, LONGEST), question.context or question.spec.context
        least = 512 if most >= 8192 else 64
    else:
        least, most, asked = 1, MOST_SEQUENCES, question.sequences if axis == "users" else question.batch
    values = {2**n for n in range(18) if least <= 2**n <= most}
    return sorted(values | ({asked} if asked and (axis != "context" or asked <= most) else set()))


def _on(question: Question, c: Candidate) -> Question:
    """The question about one candidate's cards alone, without goals that would leave it out. A CPU has no catalogue
    entry: it is asked about by the profile that it was measured in."""
    alone = replace(question, gpu=c.gpu, count=c.count, any=False, target_tps=None, max_price=None)
    profile = question.profile
    if profile and (cpus := tuple(d for d in profile.devices if d.kind == "cpu" and d.name == c.gpu)):
        return replace(alone, gpu=None, profile=replace(profile, devices=cpus))
    return alone


def _lighter(base: Question, first: Candidate, answer: Plan, planner: Planner) -> Iterator[Variation]:
    for task in LIGHTER.get(base.task, ()):
        yield from _tried(base, "task", task, planner)
    if base.task == "infer" and base.spec.task == "generate":
        packed = "llama.cpp" in str(answer.workload.get("engine"))
        for most, precision in ((12.0, "q8_0" if packed else "fp8"), (6.0, "q4_k_m" if packed else "int4")):
            if bits_of(base.precision or "stored", base.spec).dense > most:
                yield from _tried(base, "precision", precision, planner)


def _tried(base: Question, axis: str, value: int | str, planner: Planner) -> Iterator[Variation]:
    """One variation; none where the planner refuses it (a context beyond the model's, a precision without figures)."""
    try:
        changed = replace(base, **{axis: value, **({"batch": None} if axis == "users" else {})})  # type: ignore[arg-type]
        found = planner(changed).candidates
    except UserError:
        return
    if found:
        yield Variation(axis, value, found[0])


def _first_that_fits(tried: Iterator[Variation]) -> list[Variation]:
    """The first that fits, and none after it is tried; else the last, which lacks least."""
    last: list[Variation] = []
    for variation in tried:
        last = [variation]
        if variation.candidate.fits:
            break
    return last
