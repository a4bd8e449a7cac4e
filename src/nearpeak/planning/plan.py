"""Question in, plan out."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.hardware.catalogue import find_by_name, find_spec, load_catalogue
from nearpeak.limits.rates import bursts_alone, rates_of_profile
from nearpeak.planning import cost
from nearpeak.planning.advice import advice
from nearpeak.planning.candidates import Task, candidate
from nearpeak.planning.cards import Card, card_of, with_rates
from nearpeak.planning.efficiency import load_efficiency
from nearpeak.planning.facts import ModelFacts, facts_of
from nearpeak.planning.measured import Claim, nearest_row
from nearpeak.planning.processor import processor_card
from nearpeak.planning.question import DEFAULT_CONTEXT, DEFAULT_OUTPUT_SHARE, TRAINED, Question
from nearpeak.planning.ranking import rank, rule
from nearpeak.records.errors import UserError
from nearpeak.records.machine_profile import MachineProfile
from nearpeak.records.plan import SCHEMA, Candidate, Measured, Plan
from nearpeak.records.spec import Spec
from nearpeak.records.workload import Method, Training, Workload

__all__ = ["Question", "plan"]

COUNTS = (1, 2, 4, 8)
COMPARED = 24  # candidates that get their nearest measured row
BATCH = 8  # sequences of a training step where the question names none


def plan(question: Question) -> Plan:
    """All candidates for a question, best first, with the advice in one sentence.

    Raises UserError for a card that the catalogue does not know, and for a precision without figures.
    """
    facts = facts_of(question.spec)
    cards = _cards(question)
    found: list[Candidate] = []
    notes: list[str] = []
    works: tuple[Workload, ...] = ()
    tasks: dict[str, Task] = {}
    for card, spec in cards:
        engine = _engine(question, card)
        if engine not in tasks:
            tasks[engine] = _task(question, facts, engine)
        task = tasks[engine]
        works = works or (task.works[:1] if task.training else task.works)
        for count in counts_of(question, card):
            if count > 1 and card.group in ("cpu", "apple"):
                continue  # machines of one chip do not share memory with others
            price = cost.card_price(spec, question.price_per_card)
            if question.max_price is not None and (price is None or price * count > question.max_price):
                continue
            found.append(candidate(task, card, spec, count))
    if not found and question.max_price is None:
        raise UserError(
            f"{cards[0][0].name} and its memory are one chip, not joined with others: ask for a --count of 1."
        )
    if question.max_price is not None:
        notes.append(f"left out: cards without a known price, or above {question.max_price:g} US$ together")
    prompt = next(iter(tasks.values())).prompt if tasks else 0
    ranked = sorted(found, key=lambda c: rank(question, c, prompt))
    ranked = [replace(c, nearest_measured=_nearest(question, c, cards)) for c in ranked[:COMPARED]] + [
        replace(c, missing={**c.missing, "nearest_measured": f"looked up for the first {COMPARED} only"})
        for c in ranked[COMPARED:]
    ]
    notes += _notes(question, tasks)
    return Plan(
        SCHEMA, _model(question, facts), _asked(question, tasks), works, tuple(ranked), advice(question, ranked),
        tuple(notes), rule(question, "image" if _items(question, facts) else "token") if len(ranked) > 1 else "",
    )  # fmt: skip


def counts_of(question: Question, card: Card) -> tuple[int, ...]:
    """How many of a card are looked at: as asked; of a profile's own devices as many as it has; else COUNTS."""
    if question.count:
        return (question.count,)
    if question.gpu or question.any or not question.profile:
        return COUNTS
    names = [spec.name if (spec := find_spec(d.device) or d.spec) else d.name for d in question.profile.devices]
    return (max(1, names.count(card.name)),)


def _items(question: Question, facts: ModelFacts) -> bool:
    """Whether speeds count images (or clips) in place of tokens."""
    return bool(facts.item_flop) and question.spec.task == "encode"


def _cards(question: Question) -> list[tuple[Card, Spec | None]]:
    """The cards that are looked at, with what was measured of them in place of their sheets."""
    specs = [find_by_name(question.gpu)] if question.gpu else list(load_catalogue()) if question.any else []
    found: list[tuple[Card, Spec | None]] = []
    for spec in specs:
        card = card_of(spec)
        if card is not None and "(announced)" not in card.name:
            found.append((_measured(card, question.profile, question.training_task), spec))
    if not specs and question.profile:
        names = {known.name for d in question.profile.devices if (known := find_spec(d.device) or d.spec)}
        for name in sorted(names):
            spec = find_by_name(name)
            card = card_of(spec)
            if card is not None:
                found.append((_measured(card, question.profile, question.training_task), spec))
    if question.any or not specs:
        found += [(card, None) for card in processor_card(question.profile)]
    if not found:
        name = question.gpu or "the profile's devices"
        raise UserError(f"{name}: memory or its bandwidth is not known; measure it with nearpeak measure.")
    return found


def _measured(card: Card, profile: MachineProfile | None, sustained: bool) -> Card:
    """Work of minutes is held against what lasts, answers of seconds against bursts."""
    for device in profile.devices if profile else ():
        spec = find_spec(device.device) or device.spec
        if spec and spec.name == card.name:
            return with_rates(card, rates_of_profile(device, sustained), sustained, bursts_alone(device))
    return card


def _engine(question: Question, card: Card) -> str:
    """The engine whose rows are nearest to what a person would run on this card."""
    if question.engine:
        return question.engine
    if question.task != "infer":
        return "torchtune" if question.task in ("lora", "qlora") else "llm-foundry"
    if question.spec.task == "encode":
        return "timm"
    packed = (question.precision or "").startswith("q")
    nvidia = card.group.startswith("nvidia")
    if packed or not (nvidia or card.group == "amd instinct"):
        return "llama.cpp"
    if question.sequences > 1:
        return "vllm"
    return "gpt-fast" if card.group != "nvidia graphics" else "llama.cpp"


def _task(question: Question, facts: ModelFacts, engine: str) -> Task:
    context = question.context or min(DEFAULT_CONTEXT, question.spec.context or DEFAULT_CONTEXT)
    answer = max(1, round(context * DEFAULT_OUTPUT_SHARE))
    works: tuple[Workload, ...]
    if question.task != "infer":
        batch = question.batch or max(BATCH, question.count or 1)
        works = tuple(_recipes(question, facts, batch, context))
    elif question.spec.task == "encode":
        works = (Workload("encode", question.sequences, 1 if facts.item_flop else context, 0, _weights(question)),)
    else:
        weights, compute = _weights(question), _compute(question)
        cache = "bf16"
        prompt = Workload("prefill", 1, max(1, context - answer), 0, weights, compute, cache)
        write = Workload("decode", question.sequences, 1, context - 1, weights, compute, cache)
        works = (prompt, write)
    return Task(
        question.spec, facts, works, engine, question.sequences if question.task == "infer" else 1,
        max(1, context - answer), answer, load_efficiency(), question.electricity, question.price_per_hour,
        question.price_per_card,
    )  # fmt: skip


def _weights(question: Question) -> str:
    return question.precision or ("stored" if question.spec.stored else "bf16")


def _compute(question: Question) -> str:
    return {"fp8": "fp8", "fp4": "fp4", "nvfp4": "fp4", "fp32": "fp32"}.get(question.precision or "", "bf16")


def _recipes(question: Question, facts: ModelFacts, batch: int, context: int) -> list[Workload]:
    """Training recipes, each needing less memory than the one before and more time."""
    precision = question.precision or "bf16"
    method: Method = "lora" if question.task == "lora" else "qlora" if question.task == "qlora" else "full"
    tokens = 1 if _items(question, facts) else context
    plain = Training(
        method=method, recompute="attention", loss="plain", master=method == "full",
        gradient="fp32" if method == "full" else "bf16",
    )  # fmt: skip
    chunked = replace(plain, loss="chunked")
    recipes = (plain, chunked, replace(chunked, recompute="full"))
    compute = precision if precision in TRAINED else "bf16"
    return [Workload("train", batch, tokens, 0, precision, compute, "bf16", recipe) for recipe in recipes]


def _model(question: Question, facts: ModelFacts) -> dict[str, object]:
    spec = question.spec
    cached = sum(s.count * s.cached for s in facts.scores if s.positions is None)
    return {
        "name": spec.name, "family": spec.family, "task": spec.task, "parameters": spec.parameters,
        "active_parameters": spec.active_parameters, "weight_bytes": spec.weight_bytes, "layers": spec.layers,
        "kv_bytes_per_token": 2 * cached if spec.task != "encode" else 0, "source": spec.source,
    }  # fmt: skip


def _asked(question: Question, tasks: dict[str, Task]) -> dict[str, object]:
    task = next(iter(tasks.values()))
    work = task.works[-1]
    found: dict[str, object] = {"task": question.task, "precision": _weights(question)}
    if question.task != "infer":
        found = {"task": question.task, "precision": work.weights}
    if not _items(question, task.facts):
        found["context"] = work.context + work.tokens
    found["batch"] = work.batch
    found["engine"] = ", ".join(tasks)
    if _items(question, task.facts):
        found["item"] = "image"
    for name in ("target_tps", "max_price"):
        if getattr(question, name) is not None:
            found[name] = getattr(question, name)
    return found


def _notes(question: Question, tasks: dict[str, Task]) -> list[str]:
    task = next(iter(tasks.values()))
    notes = []
    if question.context is None and question.spec.task != "encode":
        notes.append(f"context {task.prompt + task.answer} is taken, since none was asked for")
    if question.task == "infer" and question.spec.task == "generate":
        notes.append(f"of the context {task.prompt} positions are read and {task.answer} written")
    if question.task != "infer" and question.batch is None:
        what = "images" if _items(question, task.facts) else "sequences"
        notes.append(f"a step of {task.works[0].batch} {what} is taken, since none was asked for")
    notes.append("each interval holds the truth in 80 of 100 cases: from rows of models that the fit had not seen")
    notes.append(cost.assumptions(question.price_per_hour, question.price_per_card, question.electricity))
    notes.append("joules are of the cards alone, without the machine around them")
    return notes


def _nearest(question: Question, c: Candidate, cards: list[tuple[Card, Spec | None]]) -> Measured | None:
    card = next(card for card, _ in cards if card.name == c.gpu)
    kind = "train" if question.task != "infer" else "throughput" if question.spec.task == "encode" else "decode"
    precision = question.precision or next(iter(question.spec.stored), "bf16")
    sequences = float(question.batch or question.sequences)
    claim = Claim(
        kind, question.spec.name, float(question.spec.parameters), c.gpu, card.group, c.count, precision,
        _engine(question, card), sequences, question.context or DEFAULT_CONTEXT, _method(question),
    )  # fmt: skip
    return nearest_row(claim)


def _method(question: Question) -> str:
    return {"infer": "", "train": "full"}.get(question.task, question.task)
