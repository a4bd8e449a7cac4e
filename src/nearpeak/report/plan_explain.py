"""The arithmetic behind a plan's first candidate: ops, limit, and every term that makes up a step's seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from nearpeak.records.limit import Limit, Op
from nearpeak.records.plan import Candidate, Plan, Step
from nearpeak.records.workload import Workload
from nearpeak.report import units
from nearpeak.report.plan_table import Block, say, show
from nearpeak.report.plan_words import PARTS, cards, gib, item, layout_words, training
from nearpeak.report.units import ABSENT


def render_explained(plan: Plan, ops: Mapping[str, Sequence[Op]], console: Console) -> None:
    """Print the arithmetic of the first candidate. ops: of each workload of the plan, by its phase."""
    if not plan.candidates:
        return
    first = plan.candidates[0]
    console.print()
    layout = layout_words(first.layout, training(plan))
    say(console, f"How 1. {cards(first.gpu, first.count)} ({layout}) comes about", "bold")
    for work in plan.workloads:
        if listed := ops.get(work.phase):
            console.print()
            say(console, f"{work.phase}: {workload_words(work, item(plan))}", "bold")
            show(console, ops_block(listed))
    for step in first.steps:
        console.print()
        say(console, step_title(step, item(plan)), "bold")
        if step.limit:
            for line in limit_lines(step.limit):
                say(console, line, hang=2)
        show(console, terms_block(step))
    console.print()
    say(console, "memory of the fullest device", "bold")
    for line in memory_lines(first):
        say(console, line)


def workload_words(work: Workload, what: str = "tok") -> str:
    """The workload's sizes and precisions in one line. what: the item that speeds count."""
    each = "sequence" if what == "tok" else what
    many = f"{work.batch:,} {each}s" if work.batch != 1 else f"one {each}"
    after = f" after {work.context:,}" if work.context else ""
    positions = f" of {work.tokens:,} new positions{after}" if what == "tok" else ""
    words = [f"{many}{positions}", f"weights {work.weights}", f"products {work.compute}"]
    words += [f"cache {work.cache}"] if work.phase in ("prefill", "decode") else []
    if t := work.training:
        words += [f"{t.method}" + (f" of rank {t.rank}" if t.method != "full" else ""), f"optimizer {t.optimizer}"]
        words += [f"gradients {t.gradient}", f"recompute {t.recompute}", f"loss {t.loss}"]
    return units.plain(", ".join(words))


def ops_block(ops: Sequence[Op]) -> Block:
    """Name, count, FLOPs and bytes of all of them together, and the arithmetic of one. Equal ops share a row."""
    rows: dict[tuple[object, ...], list[Op]] = {}
    for op in ops:
        rows.setdefault((op.name, op.note, *op.flop.items(), op.read, op.written), []).append(op)
    counts = [sum(op.count for op in alike) for alike in rows.values()]
    kinds = [alike[0] for alike in rows.values()]
    flops = [count * sum(op.flop.values()) for count, op in zip(counts, kinds, strict=True)]
    reads, writes = ([n * getattr(op, way) for n, op in zip(counts, kinds, strict=True)] for way in ("read", "written"))
    flop = units.column([sum(flops)], "FLOP")
    size = units.column([sum(reads) + sum(writes)], "B")
    cells = [
        (units.plain(op.name), str(n), _cell(flop, f), _cell(size, r), _cell(size, w), units.plain(op.note) or ABSENT)
        for op, n, f, r, w in zip(kinds, counts, flops, reads, writes, strict=True)
    ]
    cells.append(("all", "", flop.text(sum(flops)), size.text(sum(reads)), size.text(sum(writes)), ""))
    headers = ("op", "count", flop.unit, f"read\n{size.unit}", f"written\n{size.unit}", "arithmetic of one")
    return Block(headers, tuple(cells), frozenset({"op", headers[-1]}), frozenset({"op", headers[-1]}))


def _cell(scale: units.Scale, value: float) -> str:
    return "<0.001" if 0 < value / scale.factor < 0.0005 else scale.text(value)


def limit_lines(limit: Limit) -> Iterator[str]:
    """The two bounds of a step, and what no overlap could beat."""
    by = " + ".join(f"{units.quantity(value, units.flop_unit(p))} in {p}" for p, value in limit.flop.items() if value)
    flop, moved = (units.seconds(s) for s in (limit.flop_seconds, limit.byte_seconds))
    yield units.plain(f"limit {units.seconds(limit.seconds)}, bound by {limit.bound_by}; rates: {limit.source}")
    yield f"products {by or ABSENT}: {flop}; memory {units.quantity(limit.bytes, 'B')}: {moved}"
    yield f"one op after the other, activations moved between them: {units.seconds(limit.serial_seconds)}"


def step_title(step: Step, what: str) -> str:
    """Σ seconds, and the speed that they give: the number of the table."""
    rate = f" = {units.digits(step.tokens / step.seconds, whole=True)} {what}/s" if step.seconds > 0 else ""
    many = "s" * (what != "tok" and step.tokens != 1)
    return f"{step.phase}: {step.tokens:,.10g} {what}{many} in {units.seconds(step.seconds)}{rate}"


def terms_block(step: Step) -> Block:
    """Each term with its share of the whole; the last row is their sum."""
    scale = units.column([term.seconds for term in step.terms], "s")
    whole = step.seconds
    rows = [
        (units.plain(t.name), scale.text(t.seconds), units.percent(t.seconds / whole if whole else None),
         units.plain(t.note) or ABSENT)
        for t in step.terms
    ]  # fmt: skip
    rows.append(("all", scale.text(whole), "100 %", ""))
    headers = ("term", scale.unit, "share", "how it comes about")
    return Block(headers, tuple(rows), frozenset({"term", headers[-1]}), frozenset({"term", headers[-1]}))


def memory_lines(c: Candidate) -> Iterator[str]:
    """The sum of the parts against the capacity."""
    parts = [f"{part} {gib(size)}" for part in PARTS if (size := getattr(c.memory, part))]
    total, capacity = c.memory.total, c.memory.capacity
    verdict = f"{gib(capacity - total)} free" if total <= capacity else f"{gib(total - capacity)} short"
    yield f"{' + '.join(parts)} = {gib(total)} of {gib(capacity)} GiB, {verdict}"
