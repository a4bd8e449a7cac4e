"""How many pairs of positions attention looks at."""

from __future__ import annotations


def pairs(new: int, context: int = 0, window: int | None = None, causal: bool = True) -> int:
    """Pairs (query, key) of one sequence: `new` queries after `context` earlier positions.

    Causal: query i sees i + 1 positions, or the last `window` of them, itself among them. Otherwise all see all, or
    those closer than `window` on either side.
    """
    total = new + context
    if causal:
        return _before(new, context, window)
    if window is None or window >= total:
        return new * total
    after = _before(new, 0, window) - new  # by symmetry: what a query sees behind it, without itself
    return _before(new, context, window) + after


def _before(new: int, context: int, window: int | None) -> int:
    """Pairs of queries context … context + new − 1 with themselves and the positions before them."""
    if window is None or window >= new + context:
        return new * context + new * (new + 1) // 2
    growing = max(0, min(new, window - context))  # queries that still see everything before them
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * window
