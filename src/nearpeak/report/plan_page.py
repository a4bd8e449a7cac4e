"""A plan as one self-contained HTML page: memory bars, speed against context and batch, the tables, the assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from nearpeak.records.plan import SCHEMA, Plan, Variation
from nearpeak.report.charts import chart
from nearpeak.report.document import document, escaped, paragraph, table
from nearpeak.report.plan_charts import Curve, memory_bars, speed_curves
from nearpeak.report.plan_lines import sections
from nearpeak.report.plan_table import Block, memory_block, speed_block
from nearpeak.report.plan_words import billions, cards, first_speed, gib, item, more_line, shown, speeds, title

HOW = (
    ("fits", "all parts of memory of the fullest device together are within what a program can have of it"),
    ("[low–high]", "holds the truth in 80 of 100 cases, going by how far off the same method was on measured models "
                   "that it had not seen"),
    ("speed", "limit ÷ efficiency + fixed costs + communication; --explain shows each term for the first row"),
    ("limit", "the larger of FLOPs ÷ the card's rate and compulsory bytes ÷ its memory bandwidth"),
    ("bound by", "the largest part of a step's time"),
    ("nearest measured", "the published measurement that is most like the row, for a check; it is not the row itself"),
)  # fmt: skip


def page(plan: Plan, variations: Sequence[Variation], curves: Mapping[str, Sequence[Curve]]) -> str:
    """The page as text: no network, no script, light and dark. All foreign text is escaped.

    curves: by axis ("context", "users", "batch"), one for each choice of cards that is drawn.
    """
    first, second = title(plan)
    name = str(plan.model.get("name", "model"))
    body = [f"<h1>{escaped(name)}: {escaped(_task(plan))}</h1>", paragraph(first, "muted"), paragraph(second, "muted")]
    body += [_facts(plan), paragraph(plan.advice, "line")]
    if plan.candidates:
        body += ["<h2>Which cards, and how fast?</h2>", _block(speed_block(plan))]
        body += [paragraph(more, "note")] if (more := more_line(plan)) else []
        body += [*_curves(plan, curves), "<h2>Does it fit?</h2>", *_bars(plan), _block(memory_block(plan))]
    for heading, lines in sections(plan, variations):
        body += [f"<h3>{escaped(heading)}</h3>", *(paragraph(line, "note") for line in lines)]
    body += ["<h2>How each number was made</h2>", table(("number", "how"), HOW, prose=True)]
    return document(f"nearpeak: {name}", [*body, paragraph(f"Made by nearpeak plan, {SCHEMA}.", "note")])


def _task(plan: Plan) -> str:
    words = {"infer": "inference", "train": "full training", "lora": "LoRA fine-tuning", "qlora": "QLoRA fine-tuning"}
    task = str(plan.workload.get("task", "plan"))
    return words.get(task, task)


def _facts(plan: Plan) -> str:
    """The few numbers to remember: of the model, and of the first candidate."""
    found = []
    if isinstance(count := plan.model.get("parameters"), int):
        found.append((billions(count), "parameters"))
    if plan.candidates:
        c = plan.candidates[0]
        found.append((cards(c.gpu, c.count), "comes first" if c.fits else "is nearest to fitting"))
        found.append((f"{gib(c.memory.total)} of {gib(c.memory.capacity)} GiB", "of its fullest device"))
        found += [
            (text.partition(" ")[2], f"{text.partition(' ')[0]}, with its 80 % interval")
            for text in first_speed(c, plan)
        ]
    items = "".join(f"<li><b>{escaped(number)}</b><span>{escaped(what)}</span></li>" for number, what in found)
    return f'<ul class="facts">{items}</ul>' if found else ""


def _block(block: Block) -> str:
    """The table with the place before the first column of words; the last column is always one of words."""
    _, words, *others = block.headers
    headers = (words, *others)
    rows = [(f"{row[0]}. {row[1]}", *row[2:]) for row in block.rows]
    if others[-1] in block.left:
        return table(headers, rows)
    return table((*headers, ""), [(*row, "") for row in rows])


def _bars(plan: Plan) -> Iterator[str]:
    rows = shown(plan)
    if rows and all(c.memory.capacity > 0 for c in rows):
        caption = "Memory of the fullest device by part; the wide grey bar behind is what a program can have of it."
        yield chart(lambda f: memory_bars(f, plan), (9.6, 1.1 + 0.42 * len(rows)), caption, "m")


def _curves(plan: Plan, curves: Mapping[str, Sequence[Curve]]) -> Iterator[str]:
    for axis, every in curves.items():
        if not any(c.drawn for c in every):
            continue
        name = _axis(axis, plan)
        asked = plan.workload.get("context" if axis == "context" else "batch")
        value = asked if isinstance(asked, int) else None
        word = next((word for word, _ in speeds(plan).values()), "speed")
        caption = (
            f"{word.capitalize()} of all cards together against {name}; bands are 80 % intervals, the "
            "dotted line is what was asked. A line ends where it no longer fits, or with the model's own context."
        )
        draw = partial(speed_curves, curves=every, axis=name, what=item(plan), asked=value)
        yield chart(draw, (9.6, 4.2), caption, f"c{axis}")


def _axis(axis: str, plan: Plan) -> str:
    what = "sequences" if item(plan) == "tok" else f"{item(plan)}s"
    return {"context": "context, tokens a sequence", "users": f"{what} at once"}.get(axis, f"{what} in a step")
