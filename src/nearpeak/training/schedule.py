"""The learning rate of each step."""

from __future__ import annotations

import math

from nearpeak.training.recipe import Schedule


def rate_at(schedule: Schedule, lr: float, step: int, total: int) -> float:
    """Of step 0 … total − 1, counted by steps that were applied.

    Warm-up: lr · (step + 1) ÷ warm_up, so that no step has rate 0. After it, with t from 0 (first step) to 1 (last):
    linear: lr · (1 − (1 − end) · t); cosine: lr · (end + (1 − end) · (1 + cos πt) ÷ 2).
    """
    if step < schedule.warm_up:
        return lr * (step + 1) / schedule.warm_up
    if schedule.name == "constant":
        return lr
    t = min(1.0, (step - schedule.warm_up) / max(1, total - 1 - schedule.warm_up))
    if schedule.name == "linear":
        return lr * (1 - (1 - schedule.end) * t)
    return lr * (schedule.end + (1 - schedule.end) * (1 + math.cos(math.pi * t)) / 2)
