"""Which candidate comes first, and the rule in words."""

from __future__ import annotations

from nearpeak.planning.question import Question
from nearpeak.records.plan import Candidate, Estimate

# What a person who reads along waits for: an answer's tokens come faster than most people read (about 5 words a
# second), and the first of them within some seconds.
PACE, PATIENCE = 10.0, 10.0


def speed(c: Candidate) -> Estimate | None:
    """The one that the candidate is there for."""
    return c.train_tokens_per_s or c.decode_tokens_per_s or c.prefill_tokens_per_s


def rank(question: Question, c: Candidate, prompt: int) -> tuple[float | str, ...]:
    """The lowest comes first. What fits goes before what does not, of which the one that lacks least goes first.

    With a target: those that reach it, the cheapest by the hour first. All cards: dollars a token among those that
    answer in reasonable time (`in_time`), then those without a price, then the slow ones. One card: the fastest.
    prompt: positions that a request reads.
    """
    found = speed(c)
    value = found.value if found else 0.0
    lack = max(0, c.memory.total - c.memory.capacity)
    if not c.fits or not found:
        return 4, not c.fits, lack, c.count, c.gpu
    dollars = c.cost_per_million_tokens
    if question.target_tps is not None:
        hourly = dollars * value if dollars is not None else float("inf")
        return (0, hourly, c.count, -value, c.gpu) if value >= question.target_tps else (1, -value, c.count, c.gpu)
    if not question.any:
        return 0, -value, c.count, c.gpu
    if not in_time(question, c, prompt):
        return 2, -value, c.count, c.gpu
    return (0, dollars, c.count, -value, c.gpu) if dollars is not None else (1, -value, c.count, c.gpu)


def in_time(question: Question, c: Candidate, prompt: int) -> bool:
    """Whether a user who reads along need not wait; nobody reads along with training, or with what writes nothing."""
    decode, prefill = c.decode_tokens_per_s, c.prefill_tokens_per_s
    if question.task != "infer" or decode is None:
        return True
    first = prompt / prefill.value if prefill else 0.0
    return decode.value >= PACE * question.sequences and first <= PATIENCE


def rule(question: Question, item: str) -> str:
    """For the foot of the table. item: what speeds count, "token" or "image"."""
    if question.target_tps is not None:
        reached = f"those that reach {question.target_tps:g} {item}s/s, the cheapest by the hour first"
        return f"order: {reached}; then the fastest"
    if not question.any:
        return "order: the fastest first"
    words = f"order: the least cost of a million {item}s first"
    if question.task == "infer" and question.spec.task != "encode":
        words += f" among those that give a user {PACE:g} tokens/s and the first within {PATIENCE:g} s"
        words += " (slower ones come last)"
    return f"{words}; then those without a price, the fastest first"
