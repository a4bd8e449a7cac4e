"""Question in, plan out."""

from __future__ import annotations

from nearpeak.planning.question import Question
from nearpeak.records.plan import Plan

__all__ = ["Question", "plan"]


def plan(question: Question) -> Plan:
    """All candidates for a question, best first, with the advice in one sentence.

    Raises UserError for a card that the catalogue does not know, and for a precision or engine without figures.
    """
    raise NotImplementedError("the first version follows within the half hour")
