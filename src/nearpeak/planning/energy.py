"""What cards draw, and joules a token."""

from __future__ import annotations

from nearpeak.planning.cards import Card

# Share of the sheet's power that a card draws while it waits for the host, and at most under a steady load. From the
# anchors in docs/planning.md: 8B at batch 64 on an H100 takes 0.12 J a token (ML.ENERGY), single-stream decode between
# 0.7 and 1.1 of the sheet's power at the wall, machine included (geerlingguy/ai-benchmarks).
IDLE, BUSY = 0.20, 0.80
# What of a step's terms keeps a card's memory or matrix units at work.
WORK = ("weights", "cache", "products", "scores", "elements", "experts", "update", "prompts", "unpacking", "batch")


def watts(card: Card, terms: dict[str, float]) -> float | None:
    """Mean power of one card during a step with these terms, None where its sheet has no power."""
    if card.power is None:
        return None
    whole = sum(terms.values())
    busy = sum(seconds for name, seconds in terms.items() if name in WORK) / whole if whole else 0.0
    return card.power * (IDLE + (BUSY - IDLE) * busy)


def joules_per_token(
    card: Card, count: int, terms: dict[str, float], tokens: float, active: float = 1.0
) -> float | None:
    """Joules of all cards for each token of a step. active: cards at work at a time (a pipeline with one sequence has
    one stage at work while the others wait)."""
    drawn = watts(card, terms)
    if drawn is None or card.power is None or not tokens:
        return None
    waiting = (count - active) * IDLE * card.power
    return (active * drawn + waiting) * sum(terms.values()) / tokens
