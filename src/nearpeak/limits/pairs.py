"""How many pairs of positions attention looks at."""

from __future__ import annotations


def pairs(new: int, context: int = 0, window: int | None = None, causal: bool = True) -> int:
    """Pairs (query, key) of one sequence: `new` queries after `context` earlier positions.

    Causal: query i sees i + 1 positions, or the last `window` of them, itself among them. Otherwise all see all, or
    those closer than `window` on either side.
    """
    total = new + context
    if not causal:
        if window is None or window >= total:
            return new * total
        return sum(min(i + window, total) - max(i - window + 1, 0) for i in range(context, total))
    if window is None or window >= total:
        return new * context + new * (new + 1) // 2
    growing = max(0, min(new, window - context))  # queries that still see everything before them
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * window
