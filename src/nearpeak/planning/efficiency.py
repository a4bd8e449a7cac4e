"""Fitted constants: which share of a limit an engine reaches, and what it pays beside it.

A constant is exp(Σ of terms), one for each level that is known: all, the engine, engine and precision, engine and class
of card, engine and card. A level that was never seen adds nothing, so a card without rows takes its class's figure, and
an engine without rows that of all. `benchmarks/fit_efficiency.py` makes `data/efficiency.json` from the measured rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import Any

SCHEMA = "nearpeak.efficiency/1"


@dataclass(frozen=True)
class Where:
    """What an efficiency is looked up by.

    engine      "llama.cpp", "gpt-fast", "vllm", "llm-foundry", …; version: "2024" where rows tell it, else ""
    bits        a weight: its family is "16-bit", "8-bit" or "4-bit"
    group       class of card; card: its name; link: how cards are joined
    """

    engine: str
    version: str
    bits: float
    group: str
    card: str
    link: str = ""

    @property
    def precision(self) -> str:
        return "16-bit" if self.bits > 12 else "8-bit" if self.bits > 6 else "4-bit"


# level: what its key is made of
LEVELS: dict[str, tuple[str, ...]] = {
    "all": (),
    "class": ("group",),
    "precision": ("precision",),
    "link": ("link",),
    "engine": ("engine",),
    "engine version": ("engine", "version"),
    "engine precision": ("engine", "precision"),
    "engine class": ("engine", "group"),
    "engine link": ("engine", "link"),
    "engine precision class": ("engine", "precision", "group"),
    "engine card": ("engine", "card"),
    "engine precision card": ("engine", "precision", "card"),
}


ROUNDING = 8.0


@dataclass(frozen=True)
class Constant:
    """A fitted constant: where it starts from, and how far each level may move it (a prior, as a factor's log).

    prior    before any row; `loose` is the prior's own standard deviation in log
    levels   level: standard deviation of its term
    most     what it cannot exceed: a share is at most 1 (rounded where it comes near, so that a fit can move it)
    """

    prior: float
    loose: float
    levels: dict[str, float]
    most: float | None = None


_BY_CARD = {"engine": 0.3, "engine precision": 0.2, "engine class": 0.2, "engine precision card": 0.15}
CONSTANTS: dict[str, Constant] = {
    # share of memory bandwidth at which one sequence's decode streams weights
    "decode bandwidth": Constant(0.82, 0.1, {"engine": 0.08, "engine precision": 0.06, "engine class": 0.06,
                                             "engine version": 0.04, "engine precision card": 0.05}, 1.0),
    # bytes of weights that a multiprocessor takes in a clock: what unpacking and issuing allow
    "decode bytes a clock": Constant(8.0, 0.5, {"precision": 0.5, "engine": 0.8, "engine precision": 0.5,
                                                "engine version": 0.1, "engine precision card": 0.08}),
    # share of bandwidth at which the cache is read
    "cache bandwidth": Constant(0.5, 0.5, {"engine": 0.3, "engine class": 0.3, "engine card": 0.2}, 1.0),
    # microseconds a layer beside the weights, at 1 GHz; more for a block of experts, and for linear attention
    "layer time": Constant(90.0, 0.5, {"engine": 0.4, "engine version": 0.3, "engine class": 0.3, "engine card": 0.15}),
    "expert layer time": Constant(80.0, 0.6, {"engine": 0.6, "engine class": 0.2, "engine card": 0.1}),
    "mixer layer time": Constant(40.0, 0.6, {"engine": 0.4, "engine class": 0.2, "engine card": 0.1}),
    # microseconds of an all-reduce of a few kilobytes between two cards; each doubling of cards multiplies
    "reduce latency": Constant(20.0, 0.3, {"link": 0.2, "engine": 0.3, "engine link": 0.2}),
    "reduce growth": Constant(1.25, 0.1, {"engine": 0.1}),
    # share of dense peak in products of a prompt, and of many sequences at once
    "prefill flop": Constant(0.50, 0.3, {**_BY_CARD, "precision": 0.2, "class": 0.2, "engine version": 0.1}, 1.0),
    "prefill scores": Constant(0.25, 0.4, {"engine": 0.3, "engine class": 0.3, "engine card": 0.2}, 1.0),
    # of the speed-up that a pipeline's stages could give a prompt read in chunks, as a power of it: 0 none, 1 all
    "prefill overlap": Constant(0.3, 0.7, {"engine": 0.5, "engine precision": 0.7}, 1.0),
    "batch time": Constant(10.0, 0.7, {"engine": 0.5, "engine class": 0.2}),
    # time to a first token with n others at once ÷ alone: n to this power
    "queue": Constant(0.35, 0.4, {"engine": 0.3}),
    # what is reached of the limit with many users: scheduling, uneven lengths, sampling
    "load": Constant(0.6, 0.3, {"engine": 0.3, "engine version": 0.3, "engine precision": 0.2, "engine class": 0.2,
                                "engine card": 0.2}),
    "expert load": Constant(0.5, 0.4, {"engine": 0.3, "engine class": 0.2, "engine card": 0.2}),
    # training: share of dense peak in products; of the scores; bytes that element-wise work moves, in widths a layer
    "train flop": Constant(0.70, 0.15, {"engine": 0.15, "engine precision": 0.25, "class": 0.1, "engine class": 0.1,
                                        "engine precision card": 0.1}, 1.0),
    "train scores": Constant(0.30, 0.4, {"engine": 0.3, "engine precision card": 0.2}, 1.0),
    "train bytes": Constant(60.0, 0.5, {"engine": 0.3, "engine version": 0.3, "engine card": 0.1}),
    "train network": Constant(0.7, 0.4, {"engine": 0.3}),
    "train exposed": Constant(0.3, 0.5, {"engine": 0.3}),
    "train expert": Constant(0.4, 0.4, {"engine": 0.3, "engine class": 0.2, "engine card": 0.15}),
    # encoders (images): times that activations are moved beside what their ops pass on (norms, activation functions);
    # share of dense peak, forward and in training
    "encode bytes": Constant(2.0, 0.5, {"engine": 0.2, "class": 0.2}),
    "encode flop": Constant(0.45, 0.3, {"class": 0.2, "engine": 0.2, "engine card": 0.2}, 1.0),
}  # fmt: skip


@lru_cache(maxsize=65536)
def keys(name: str, where: Where) -> tuple[tuple[str, float], ...]:
    """The keys of a constant's terms with their priors' deviations, the widest level first."""
    constant = CONSTANTS[name]
    found = [(name, constant.loose)]
    for level, deviation in constant.levels.items():
        values = [getattr(where, field_) for field_ in LEVELS[level]]
        if all(values):
            found.append((f"{name} | {level} | {' | '.join(values)}", deviation))
    return tuple(found)


@dataclass
class Efficiency:
    """The terms, and the spread that was found when they were tried on models that they had not seen.

    terms    key: log of its factor
    spread   kind and level ("decode: engine and card seen"): standard deviation of log(measured ÷ predicted)
    touched  the keys looked up since it was last cleared, each with its constant and deviation; only the fit reads it
    moved    a constant's name: added to its log; the fit takes derivatives by it
    """

    terms: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    touched: dict[str, tuple[str, float]] | None = None
    moved: dict[str, float] = field(default_factory=dict)
    _known: dict[tuple[str, Where], float] = field(default_factory=dict)

    def value(self, name: str, where: Where) -> float:
        if self.touched is None:
            known = self._known.get((name, where))
            if known is not None:
                return known
        total = math.log(CONSTANTS[name].prior) + self.moved.get(name, 0.0)
        for key, deviation in keys(name, where):
            if self.touched is not None:
                self.touched[key] = name, deviation
            total += self.terms.get(key, 0.0)
        result = math.exp(total)
        if most := CONSTANTS[name].most:
            result /= (1.0 + (result / most) ** ROUNDING) ** (1.0 / ROUNDING)
        if self.touched is None:
            self._known[name, where] = result
        return result

    def seen(self, name: str, where: Where) -> str:
        """The narrowest level with rows behind it: "card", "class", "engine" or "nothing"."""
        known = [key for key, _ in keys(name, where) if key in self.terms]
        for word in ("card", "class", "engine"):
            for key in known:
                level = key.split(" | ")[1] if " | " in key else ""
                if word in level.split() and (word != "class" or "engine" in level):
                    return word
        return "nothing"


@cache
def engines() -> tuple[str, ...]:
    """Names of those that the fit has rows of, sorted."""
    return tuple(sorted({key.split(" | ")[2] for key in load_efficiency().terms if " | engine | " in key}))


@cache
def load_efficiency() -> Efficiency:
    """The fit that the package comes with."""
    text = (resources.files("nearpeak.planning") / "data" / "efficiency.json").read_text("utf-8")
    document = json.loads(text)
    if document["schema"] != SCHEMA:
        raise ValueError(f"efficiency.json has schema {document['schema']}, this version reads {SCHEMA}")
    return Efficiency(document["terms"], document["spread"], document["about"])
