"""The lines under a plan's tables: what is measured nearby, what would change the answer, what it rests on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from nearpeak.records.plan import Plan, Variation
from nearpeak.report import units
from nearpeak.report.plan_words import SPEEDS, first_speed, gib, shown, speeds, training
from nearpeak.report.units import ABSENT

T = TypeVar("T", bound=Hashable)
NEAREST = 3  # candidates whose nearest measured row is named


def sections(plan: Plan, variations: Sequence[Variation]) -> Iterator[tuple[str, list[str]]]:
    """The lines under the tables: (heading, lines); none is empty."""
    found = (
        ("Nearest measured", list(nearest_lines(plan))),
        ("What would change it", [variation_line(v, plan) for v in variations]),
        ("Assumptions", [*rate_lines(plan), *note_lines(plan)]),
        (f"{ABSENT} means", list(missing_lines(plan))),
    )
    yield from ((heading, lines) for heading, lines in found if lines)


def nearest_lines(plan: Plan) -> Iterator[str]:
    """The measured row nearest to each of the first candidates' claims, so that it can be checked."""
    for places, text in _grouped(
        (place, f"{m.text}: {units.digits(m.value, whole=True)} {m.unit} ({m.source})")
        for place, c in enumerate(shown(plan)[:NEAREST], 1)
        if (m := c.nearest_measured)
    ):
        yield units.plain(f"to {places}: {text}")
    without = [str(place) for place, c in enumerate(shown(plan)[:NEAREST], 1) if c.nearest_measured is None]
    if without:
        yield f"to {', '.join(without)}: none is near enough to be named"


def variation_line(v: Variation, plan: Plan) -> str:
    """The same question with one thing changed: what it was changed to, and what that gives."""
    c = v.candidate
    value = f"{v.value:,}" if isinstance(v.value, int) else units.plain(v.value)
    change = f"{value} × {units.plain(c.gpu)}" if v.axis == "count" else f"{v.axis} {value}"
    lack = c.memory.total - c.memory.capacity
    if not c.fits:
        return f"{change}: does not fit" + (f", {gib(lack)} GiB short" if lack > 0 else "")
    return ", ".join(
        [f"{change}: fits in {gib(c.memory.total)} of {gib(c.memory.capacity)} GiB", *first_speed(c, plan)]
    )


def rate_lines(plan: Plan) -> Iterator[str]:
    """Where the rates of each candidate come from."""
    for places, text in _grouped((place, c.rates) for place, c in enumerate(shown(plan), 1) if c.rates):
        yield units.plain(f"rates of {places}: {text}")


def note_lines(plan: Plan) -> Iterator[str]:
    """What was taken where the question left it open; then what is so for single candidates."""
    yield from map(units.plain, plan.notes)
    for places, text in _grouped((place, note) for place, c in enumerate(shown(plan), 1) for note in c.notes):
        yield units.plain(f"{places}: {text}")


def missing_lines(plan: Plan) -> Iterator[str]:
    """Why a cell is a dash: each reason once, with what it is the reason of."""
    rows, there = shown(plan), speeds(plan)
    wanted = [field for field in SPEEDS if (field == "train_tokens_per_s") == training(plan)]
    names = {field: there[field][0] if field in there else SPEEDS[field] for field in there or wanted}
    names |= {"joules_per_token": "energy", "cost_per_million_tokens": "cost"}
    fields: dict[tuple[str, str], list[str]] = {}
    for places, (field, reason) in _grouped(
        (place, (field, reason.replace(c.gpu, "the card")))
        for place, c in enumerate(rows, 1)
        for field, reason in c.missing.items()
    ):
        if field in names:
            fields.setdefault((places, reason), []).append(names[field])
    for (places, reason), words in fields.items():
        yield units.plain(f"{', '.join(words)} of {places}: {reason}")


def _grouped(lines: Iterable[tuple[int, T]]) -> Iterator[tuple[str, T]]:
    """Each text once, with the places that it holds for: "1–3, 5"."""
    by_text: dict[T, list[int]] = {}
    for place, text in lines:
        if place not in by_text.setdefault(text, []):
            by_text[text].append(place)
    for text, places in by_text.items():
        yield _ranges(places), text


def _ranges(places: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
