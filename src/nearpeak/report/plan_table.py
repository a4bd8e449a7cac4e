"""A plan as text: what fits and how fast, how it lies in memory, the advice, and what the claim rests on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nearpeak.records.plan import Candidate, Estimate, Layout, Plan, Variation
from nearpeak.report import units
from nearpeak.report.units import ABSENT, Scale

T = TypeVar("T", bound=Hashable)
MOST_ROWS = 10
NEAREST = 3  # candidates whose nearest measured row is named
SPEEDS = {
    "decode_tokens_per_s": "decode",
    "prefill_tokens_per_s": "prefill",
    "train_tokens_per_s": "training",
}
PARTS = ("weights", "kv", "activations", "gradients", "optimizer", "overhead")
PART_WORDS = {
    "kv": "KV, state",
    "activations": "activ-\nations",
    "gradients": "grad-\nients",
    "optimizer": "opti-\nmizer",
}


@dataclass(frozen=True)
class Block:
    """A table. wraps: the columns whose words may go over several lines; left: those that are words."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str]
    wraps: frozenset[str]


def render(plan: Plan, variations: Sequence[Variation], console: Console) -> None:
    """Print both tables and the lines under them."""
    model, workload = title(plan)
    say(console, model, "bold")
    say(console, workload)
    console.print()
    if plan.candidates:
        show(console, speed_block(plan))
        if more := more_line(plan):
            say(console, more, "dim")
        console.print()
    say(console, plan.advice, "bold" if fits(plan) else "bold yellow")
    if plan.candidates:
        console.print()
        show(console, memory_block(plan))
    for heading, lines in sections(plan, variations):
        console.print()
        say(console, heading, "bold")
        for line in lines:
            say(console, line, "", hang=2)


def shown(plan: Plan) -> tuple[Candidate, ...]:
    """The candidates that have a row."""
    return plan.candidates[:MOST_ROWS]


def fits(plan: Plan) -> bool:
    return any(c.fits for c in plan.candidates)


def item(plan: Plan) -> str:
    """What speeds count, as units have it: "tok" where the plan names nothing else (images, clips)."""
    word = units.plain(plan.workload.get("item") or "token")
    return "tok" if word == "token" else word


def title(plan: Plan) -> tuple[str, str]:
    """The model, then the workload, a line each."""
    model = plan.model
    facts = []
    if isinstance(count := model.get("parameters"), int):
        facts.append(f"{billions(count)} parameters")
        active = model.get("active_parameters")
        if isinstance(active, int) and active != count:
            facts[-1] += f", {billions(active)} of them active"
    if isinstance(size := model.get("weight_bytes"), int):
        facts.append(f"{units.size(size)} of weights as stored")
    if isinstance(cache := model.get("kv_bytes_per_token"), int | float) and cache:
        facts.append(f"{units.size(cache)} of KV cache a token")
    asked = [f"{k.replace('_', ' ')} {_plain(v)}" for k, v in plan.workload.items() if _plain(v) and k != "item"]
    return units.plain(" · ".join([str(model.get("name", "model")), *facts])), units.plain(" · ".join(asked))


def billions(count: int) -> str:
    """Parameters as people say them: "8.03 B", "124 M", "431,080"."""
    for unit, step in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= 0.9995 * step:
            return f"{units.digits(count / step)} {unit}"
    return f"{count:,}"


def speeds(plan: Plan) -> dict[str, tuple[str, Scale]]:
    """The fields of speed that a row has, each with its word and one unit for its column."""
    found = {}
    for field, word in SPEEDS.items():
        if values := [e.value for c in shown(plan) if (e := getattr(c, field))]:
            once = field == "prefill_tokens_per_s" and any(work.phase == "encode" for work in plan.workloads)
            found[field] = "forward" if once else word, scale(values, item(plan))
    return found


def scale(values: Sequence[float], what: str) -> Scale:
    """One unit for all: tok/s, or ktok/s where one of them is above 10,000 and none is under 100; and so on."""
    for factor, prefix in ((1e6, "M"), (1e3, "k")):
        if max(values) >= 10 * factor and min(values) >= 0.1 * factor:
            return Scale(factor, f"{prefix}{' ' * (what != 'tok')}{what}/s")
    return Scale(1.0, f"{what}/s")


def speed_block(plan: Plan) -> Block:
    """One row a candidate: does it fit, how fast with its 80 % interval, energy, cost, what binds."""
    rows, what, there = shown(plan), item(plan), speeds(plan)
    costs = {"joules_per_token": f"J/{what}", "cost_per_million_tokens": f"US$ a\nM {what}"} if fits(plan) else {}
    headers = (
        "#",
        "GPU",
        "fits",
        *(f"{word}\n{unit.unit}" for word, unit in there.values()),
        *costs.values(),
        "bound by",
    )
    cells = []
    for place, c in enumerate(rows, 1):
        figures = (estimate(getattr(c, field), unit.factor) for field, (_, unit) in there.items())
        spent = (_digits(getattr(c, field)) for field in costs)
        fit, bound = "yes" if c.fits else "no", units.plain(c.bound_by) or ABSENT
        cells.append((str(place), cards(c.gpu, c.count), fit, *figures, *spent, bound))
    return Block(headers, tuple(cells), frozenset({"GPU", "fits", "bound by"}), frozenset({"GPU", "bound by"}))


def memory_block(plan: Plan) -> Block:
    """One row a candidate: its layout, and the fullest device's memory by part against its capacity, in GiB."""
    rows = shown(plan)
    there = [part for part in PARTS if any(getattr(c.memory, part) for c in rows)]
    headers = ("#", "layout", *(PART_WORDS.get(p, p) for p in there), "total\nGiB", "of\nGiB")
    short = not all(c.fits for c in rows)
    headers += ("short\nGiB",) if short else ()
    cells = []
    for place, c in enumerate(rows, 1):
        parts = (gib(getattr(c.memory, part)) for part in there)
        total, capacity = c.memory.total, c.memory.capacity
        lack = (gib(total - capacity) if total > capacity else ABSENT,) if short else ()
        words = layout_words(c.layout, training(plan))
        cells.append((str(place), words, *parts, gib(total), gib(capacity), *lack))
    return Block(headers, tuple(cells), frozenset({"layout"}), frozenset({"layout"}))


def training(plan: Plan) -> bool:
    return any(c.train_tokens_per_s for c in plan.candidates) or plan.workload.get("task") not in (None, "infer")


def gib(size: float) -> str:
    """Bytes as GiB, three digits; what is there but would round to nothing says so."""
    value = size / 2**30
    if size == 0 or value >= 999.5:
        return f"{value:.0f}"
    return "<0.01" if value < 0.005 else f"{value:.{2 if value < 9.995 else 1}f}"


def cards(gpu: str, count: int) -> str:
    return f"{count} × {units.plain(gpu)}"


def layout_words(layout: Layout, train: bool) -> str:
    """ "tensor 2", "FSDP 8", "2 replicas × tensor 4", and for a step of several micro-batches their size and number.

    What stands between × multiplies to the number of cards; experts lie within that, and so may a split of sequences
    within FSDP.
    """
    replicas = layout.data // layout.sharded
    words = [f"data {replicas}" if train else f"{replicas} replicas"] if replicas > 1 else []
    words += [f"FSDP {layout.sharded}"] if layout.sharded > 1 else []
    degrees = {"tensor": layout.tensor, "pipeline": layout.pipeline, "context": layout.context}
    inside = {"context"} if layout.sharded > layout.data else set()
    words += [f"{word} {degree}" for word, degree in degrees.items() if degree > 1 and word not in inside]
    text = " × ".join(words) or "one device"
    text += f", of it context {layout.context}" if inside and layout.context > 1 else ""
    text += f", experts over {layout.expert}" if layout.expert > 1 else ""
    if train and (layout.micro_batch > 1 or layout.micro_batches > 1):
        several = f" × {layout.micro_batches}" if layout.micro_batches > 1 else ""
        text += f", micro-batch {layout.micro_batch}{several}"
    return text


def estimate(value: Estimate | None, factor: float = 1.0) -> str:
    """ "47 [38–58]": the expected value and its 80 % interval, two digits at least, whole numbers from 10 on."""
    if value is None:
        return ABSENT
    return f"{rough(value.value / factor)} [{rough(value.low / factor)}–{rough(value.high / factor)}]"


def rough(value: float) -> str:
    """Two significant digits; whole numbers from 10 on: 0.43, 4.7, 47, 276."""
    if not abs(value) < 1e300:
        return ABSENT
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f}"
    return f"{value:.{1 if abs(value) >= 0.995 else 2}f}" if abs(value) >= 0.0995 else f"{value:.2g}"


def more_line(plan: Plan) -> str:
    """What the table leaves out."""
    rest = len(plan.candidates) - len(shown(plan))
    return f"{len(shown(plan))} of {len(plan.candidates)} candidates; --json has all" if rest > 0 else ""


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


def first_speed(c: Candidate, plan: Plan) -> list[str]:
    """The speed that a candidate is there for, with its interval, in the unit of the table; empty where it has none."""
    for field, word in SPEEDS.items():
        if e := getattr(c, field):
            word, unit = speeds(plan).get(field, (word, scale([e.value], item(plan))))
            return [f"{word} {estimate(e, unit.factor)} {unit.unit}"]
    return []


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


def _plain(value: object) -> str:
    """A value of the workload as text; empty for what is not set or is no plain value."""
    if value is None or isinstance(value, dict | list | tuple):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _digits(value: float | None) -> str:
    return ABSENT if value is None else units.digits(value)


def show(console: Console, block: Block) -> None:
    """A table in the console's width: only columns of words wrap; if that is not enough it is wider, never cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, header in enumerate(block.headers):
        wraps = header in block.wraps
        least = 0 if wraps else max(cell_len(t) for t in (*header.split("\n"), *(row[index] for row in block.rows)))
        side: Literal["left", "right"] = "left" if header in block.left else "right"
        table.add_column(Text(header), justify=side, no_wrap=not wraps, min_width=least, vertical="top")
    for row in block.rows:
        table.add_row(*(Text(cell) for cell in row))
    least = Measurement.get(console, console.options.update(max_width=10_000), table).minimum
    table.width = least if least > console.width else None
    console.print(table, crop=False)


def say(console: Console, text: str, style: str = "", hang: int = 0) -> None:
    """One paragraph, wrapped at words; further lines set in by `hang`."""
    lines = Text(text, style=style).wrap(console, max(console.width - hang, 20))
    for number, line in enumerate(lines):
        console.print(Text(" " * hang * (number > 0)) + line, soft_wrap=True)
