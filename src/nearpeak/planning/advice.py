"""A plan in one sentence: the fewest cards that do, and what would do better."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nearpeak.planning.question import Question
from nearpeak.planning.ranking import speed
from nearpeak.records.plan import Candidate

WORDS = {"infer": "inference", "train": "a full fine-tune", "lora": "LoRA", "qlora": "QLoRA"}


def advice(question: Question, ranked: Sequence[Candidate]) -> str:
    """What the candidates say about the question. They are ranked, best first."""
    what = f"{question.spec.name}: {WORDS[question.task]}"
    item = "images" if question.spec.task == "encode" and None not in question.spec.streams.values() else "tokens"
    fitting = [c for c in ranked if c.fits]
    if not ranked:
        return f"{what}: no cards are left within the price."
    if not fitting:
        return f"{what} fits none of these: {_least(ranked)}."
    if question.target_tps is not None:
        reached = [c for c in fitting if _value(c) >= question.target_tps]
        if not reached:
            best = max(fitting, key=_value)
            return (
                f"{what} reaches {question.target_tps:g} {item}/s on none of these; {_fast(best, item)} comes nearest."
            )
        cheap = "cheapest" if reached[0].cost_per_million_tokens is not None else "smallest"
        return f"{what} reaches {question.target_tps:g} {item}/s on {_fast(reached[0], item)}, the {cheap} here."
    fewest = min(fitting, key=lambda c: (c.count * c.memory.capacity, c.count))
    best = fitting[0]
    if question.gpu:
        tight = max((c for c in ranked if not c.fits and c.count < fewest.count), key=lambda c: c.count, default=None)
        more = f"; {tight.count} of them lack{'s' * (tight.count == 1)} {_lack(tight)}" if tight else ""
        more += " each" if tight and tight.count > 1 else ""
        second = f"; {_fast(best, item)} is fastest" if best is not fewest else ""
        return f"{what} fits {_fast(fewest, item)}{second}{more}."
    return f"{what} {_of_many(fitting, fewest, item)}."


def _of_many(fitting: Sequence[Candidate], fewest: Candidate, item: str) -> str:
    """Of all cards: the first, which costs least where a price is known, the smallest, and the fastest."""
    first, fastest = fitting[0], max(fitting, key=_value)
    dollars = first.cost_per_million_tokens
    if dollars is None:
        unpriced = " (no price is known of it)" if speed(first) else ""
        said = [f"fits {_fast(first, item)}{unpriced}"]
    else:
        said = [f"costs least on {_fast(first, item)}, {digits(dollars)} US$ a million {item}"]
    said.append("that is the smallest that does" if first is fewest else f"{_cards(fewest)} is the smallest that does")
    if _value(fastest) > 1.05 * _value(first):
        said.append(f"{_fast(fastest, item)} is the fastest here")
    return "; ".join(said)


def _value(c: Candidate) -> float:
    found = speed(c)
    return found.value if found else 0.0


def _cards(c: Candidate) -> str:
    return c.gpu if c.count == 1 else f"{c.count} × {c.gpu}"


def _fast(c: Candidate, item: str) -> str:
    s = speed(c)
    return f"{_cards(c)} ({digits(s.value)} {item}/s)" if s else _cards(c)


def digits(value: float) -> str:
    """Three figures, no exponent: 45.3, 1,410, 60,700, 0.0000667."""
    if value >= 1000:
        step = 10 ** (len(str(int(value))) - 3)
        return f"{round(value / step) * step:,}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.{2 - math.floor(math.log10(value))}f}"


def _lack(c: Candidate) -> str:
    return f"{max(0, c.memory.total - c.memory.capacity) / 2**30:,.1f} GiB"


def _least(ranked: Sequence[Candidate]) -> str:
    near = min(ranked, key=lambda c: c.memory.total - c.memory.capacity)
    return f"{_cards(near)} is nearest and lacks {_lack(near)}" + (" on each card" if near.count > 1 else "")
