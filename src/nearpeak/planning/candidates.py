"""One card, one count: the best layout, its memory, its speeds with intervals, energy and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from nearpeak.limits.limit import limit_of
from nearpeak.limits.ops import ops_of
from nearpeak.planning import cost, energy
from nearpeak.planning.cards import Card
from nearpeak.planning.efficiency import Efficiency, Where
from nearpeak.planning.facts import ModelFacts
from nearpeak.planning.layouts import inference_layouts, training_layouts
from nearpeak.planning.memory import expanded_cache, inference_memory, pool_bytes, training_memory
from nearpeak.planning.precisions import Bits, bits_of, compute_of
from nearpeak.planning.speed import (
    PREFILL_READ,
    Setup,
    Terms,
    TrainSetup,
    decode_terms,
    encode_seconds,
    half_peak,
    load_terms,
    prefill_terms,
    train_terms,
    unpacks,
)
from nearpeak.records.limit import Limit, Op, Rates
from nearpeak.records.model_spec import ModelSpec
from nearpeak.records.plan import Candidate, Estimate, Layout, Memory, Step, Term
from nearpeak.records.spec import Spec
from nearpeak.records.workload import Workload

TRIED = 6  # layouts of a training step that fit and are timed; the list comes with the plainest first
NEWEST = {"llama.cpp": "2026"}  # the version whose rows stand for an engine's of today, where rows tell versions
LINKS = ("all-reduce", "all-to-all", "sends", "gradients and weights")
MEMORY_TERMS = ("weights", "cache", "elements", "update", "unpacking")
HALVES = {"bf16", "fp16", "fp32"}  # one of them is needed: attention's scores run in no narrower precision
FLOP_TERMS = ("products", "scores", "experts", "prompts")


@dataclass
class Need:
    """A layout under the recipe at `place`. alike: the same number for layouts that differ in their micro-batches
    alone; total: bytes on its fullest device, counted when first asked for."""

    task: Task
    place: int
    layout: Layout
    alike: int

    @cached_property
    def total(self) -> int:
        return self.task.memory(self.place, self.layout, 0.0).total


@dataclass
class Task:
    """What all candidates share: the model's sums, the works, and memory by layout, which no card changes.

    works     inference: prefill and decode, or encode; training: one train step for each recipe, the plainest first
    prompt, answer   positions read and written by a request
    """

    spec: ModelSpec
    facts: ModelFacts
    works: tuple[Workload, ...]
    engine: str
    users: int
    prompt: int
    answer: int
    eff: Efficiency
    electricity: float
    rented: float | None
    price: float | None
    _memory: dict[tuple[int, Layout], Memory] = field(default_factory=dict)
    _needs: dict[tuple[int, int, bool, int], tuple[Need, ...]] = field(default_factory=dict)
    _ops: dict[int, tuple[Op, ...]] = field(default_factory=dict)

    @property
    def training(self) -> bool:
        return self.works[0].training is not None

    def memory(self, place: int, layout: Layout, capacity: float) -> Memory:
        known = self._memory.get((place, layout))
        if known is None:
            count = training_memory if self.training else inference_memory
            known = self._memory[place, layout] = count(self.spec, self.works[place], layout, self.engine, 0.0)
        return replace(known, capacity=int(capacity))

    def needs(self, place: int, count: int, card: Card) -> tuple[Need, ...]:
        """The layouts of `count` cards that are joined alike, the same for all of them."""
        linked = card.link_kind != "none"
        key = place, count, linked, card.node
        known = self._needs.get(key)
        if known is None:
            found = []
            alike: dict[Layout, int] = {}
            for layout in self._layouts(count, linked, card.node):
                group = alike.setdefault(replace(layout, micro_batch=1, micro_batches=1), len(alike))
                found.append(Need(self, place, layout, group))
            known = self._needs[key] = tuple(found)
        return known

    def _layouts(self, count: int, linked: bool, node: int) -> Iterable[Layout]:
        work = self.works[0]
        if work.training:
            packed = work.training.method == "qlora"
            return training_layouts(self.facts, count, work.batch, work.tokens, linked, node, packed)
        return inference_layouts(self.facts, count, self.engine, linked, node)

    def ops(self, place: int) -> tuple[Op, ...]:
        if place not in self._ops:
            self._ops[place] = tuple(ops_of(self.spec, self.works[place]))
        return self._ops[place]


@dataclass(frozen=True)
class Choice:
    """A layout of one card and count, timed."""

    layout: Layout
    place: int
    memory: Memory
    terms: dict[str, Terms]
    tokens_per_s: dict[str, float]

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.memory.capacity


def candidate(task: Task, card: Card, spec: Spec | None, count: int) -> Candidate:
    """The best layout of `count` of this card. Of those that fit, the fastest; else the one that lacks least."""
    setup = _setup(task, card, Layout(), 0)
    fitting: list[Choice] = []
    least: Need | None = None
    for need in _options(task, card, count):
        if need.total > int(card.capacity):
            least = need if least is None or need.total < least.total else least
            continue
        memory = task.memory(need.place, need.layout, card.capacity)
        if not HALVES & card.matmul.keys():
            return _without_speed(task, card, count, need.layout, memory)
        fitting.append(_time(task, replace(setup, layout=need.layout), need.place, memory))
        if task.training and len(fitting) >= TRIED:
            break
    if fitting:
        return _told(task, card, spec, count, max(fitting, key=lambda c: _goal(task, c)))
    if least is None:
        return _no_layout(task, card, count)
    return _too_small(task, card, count, least.layout, task.memory(least.place, least.layout, card.capacity))


def _options(task: Task, card: Card, count: int) -> Sequence[Need]:
    """Recipes and layouts to look at. In training only the largest micro-batch that fits of each layout is kept, and
    a recipe that computes twice only where none before it fits."""
    if not task.training:
        return task.needs(len(task.works) - 1, count, card)
    capacity = int(card.capacity)
    found: list[Need] = []
    smallest: list[Need] = []
    for place in range(len(task.works)):
        done = None  # the micro-batches of a layout follow one another, the largest first
        for need in task.needs(place, count, card):
            if need.alike == done:
                continue
            if need.total <= capacity:
                done = need.alike
                found.append(need)
                if len(found) >= 2 * TRIED:
                    return found
            elif need.layout.micro_batch == 1:
                smallest.append(need)
        if found and place > 0:
            break
    return found or smallest


def _setup(task: Task, card: Card, layout: Layout, place: int) -> Setup:
    work = task.works[place]
    if work.training and work.training.method == "qlora":
        bits = Bits(4.127, 4.127, 16.0)
    else:
        bits = bits_of(work.weights, task.spec, task.engine)
    looked_up = 16.0 if work.training else min(bits.dense, bits.experts)
    where = Where(task.engine, NEWEST.get(task.engine, ""), looked_up, card.group, card.name, card.link_kind)
    stored = "bf16" if work.training else work.weights
    compute = compute_of(stored, card.matmul, task.engine, looked_up) if card.matmul else "bf16"
    cache = 1.0 if work.cache == "fp8" else 2.0
    chunk = 512 if task.engine == "llama.cpp" else None
    return Setup(task.facts, card, layout, where, bits, compute, cache, chunk)


def _time(task: Task, setup: Setup, place: int, memory: Memory) -> Choice:
    work, layout, eff = task.works[place], setup.layout, task.eff
    terms: dict[str, Terms] = {}
    speed: dict[str, float] = {}
    if work.training and task.facts.item_flop:
        terms["train"] = encode_seconds(setup, work.batch, work.tokens, True, eff)
        speed["train"] = work.batch / _sum(terms["train"])
    elif work.training:
        method = work.training.method
        train = TrainSetup(work.tokens, work.batch, method, work.training.recompute, sequence_parallel=True)
        terms["train"] = train_terms(setup, train, eff)
        speed["train"] = work.batch * work.tokens / _sum(terms["train"])
    elif task.spec.task == "encode":
        terms["encode"] = encode_seconds(setup, work.batch, work.tokens, False, eff)
        each = 1 if task.facts.item_flop else work.tokens
        speed["prefill"] = work.batch * each / _sum(terms["encode"])
    else:
        if task.prompt > 1:
            terms["prefill"] = prefill_terms(setup, 1, task.prompt, 0, eff)
            speed["prefill"] = task.prompt / _sum(terms["prefill"])
        if task.users > 1:
            terms["decode"] = load_terms(setup, task.users, task.prompt, task.answer, eff)
        else:
            terms["decode"] = decode_terms(setup, 1, work.context, eff)
        speed["decode"] = task.users / _sum(terms["decode"])
    return Choice(layout, place, memory, terms, speed)


def _goal(task: Task, choice: Choice) -> float:
    return choice.tokens_per_s.get("train") or choice.tokens_per_s.get("decode") or choice.tokens_per_s["prefill"]


def _sum(terms: Terms) -> float:
    return sum(terms.values())


def estimate(value: float, kind: str, level: str, eff: Efficiency) -> Estimate:
    """With the interval that 80 % of held-out rows of this kind, as near to what was seen, lay in."""
    width = eff.spread.get(f"{kind}: {level}") or eff.spread.get(f"{kind}: none") or math.log(2.0)
    return Estimate(value, value * math.exp(-width), value * math.exp(width))


# phase: the constant whose rows say how near this card was seen
SEEN_BY = {"prefill": "prefill flop", "decode": "decode bandwidth", "train": "train flop", "loaded": "load",
           "encode": "encode flop"}  # fmt: skip


def _estimates(task: Task, setup: Setup, choice: Choice) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for phase, value in choice.tokens_per_s.items():
        kind = "loaded" if phase == "decode" and task.users > 1 else phase
        if task.facts.item_flop and phase in ("prefill", "train") and task.spec.task == "encode":
            kind = "throughput" if phase == "prefill" else "train"
        level = task.eff.seen(SEEN_BY.get(kind, "encode flop"), setup.where)
        found[phase] = estimate(value, kind, level, task.eff)
    return found


def _told(task: Task, card: Card, spec: Spec | None, count: int, choice: Choice) -> Candidate:
    setup = _setup(task, card, choice.layout, choice.place)
    found = _estimates(task, setup, choice)
    main = "train" if "train" in found else "decode" if "decode" in found else "prefill"
    terms = choice.terms.get(main) or choice.terms["encode"]
    tokens = _goal(task, choice) * _sum(terms)
    active = count / choice.layout.pipeline if main == "decode" and task.users < choice.layout.pipeline else count
    joules = energy.joules_per_token(card, count, terms, tokens, active)
    price = cost.card_price(spec, task.price)
    hourly = cost.dollars_an_hour(price, task.rented, energy.watts(card, terms), task.electricity)
    missing = {}
    if joules is None:
        missing["joules_per_token"] = f"no power on the sheet of {card.name}"
    if hourly is None:
        missing["cost_per_million_tokens"] = f"no price is known of {card.name}: give --price-per-card"
    for phase in ("prefill", "decode", "train"):
        if phase not in found:
            missing[f"{phase}_tokens_per_s"] = _why_not(task, phase)
    return Candidate(
        card.name, count, True, choice.memory, choice.layout, found.get("prefill"), found.get("decode"),
        found.get("train"), joules, cost.cost_per_million(hourly, count, found[main].value), bound_by(terms), None,
        _rates(card, setup, task), _notes(task, card, choice), missing, _steps(task, card, setup, count, choice),
    )  # fmt: skip


def _why_not(task: Task, phase: str) -> str:
    if task.training:
        return "a training step has none"
    if phase == "train":
        return "asked was inference"
    return "one position to read" if task.spec.task != "encode" else "it writes no tokens"


def _notes(task: Task, card: Card, choice: Choice) -> tuple[str, ...]:
    notes = []
    pool = pool_bytes(task.engine, card.capacity)
    if pool and not task.training:
        notes.append(
            f"{task.engine} takes a pool of {pool / 2**30:.0f} GiB of each {card.name} from the start, needed or not"
        )
    work = task.works[choice.place]
    if task.engine == "llama.cpp" and (old := expanded_cache(task.spec, work)) and not work.training:
        notes.append(f"llama.cpp from before April 2025 keeps latents expanded: {old / 2**30:,.1f} GiB of cache in all")
    if work.training:
        notes.append(f"recipe: recompute {work.training.recompute}, loss {work.training.loss}")
    return tuple(notes)


def _rates(card: Card, setup: Setup, task: Task) -> str:
    level = task.eff.seen("train flop" if task.training else "decode bandwidth", setup.where)
    words = {"card": "this card", "class": "cards of its class", "engine": "other classes of card"}
    rows = f"rows of {words[level]}" if level in words else "no rows of this engine"
    return f"{card.source}; efficiency of {task.engine} from {rows}"


def bound_by(terms: Terms) -> str:
    """What most of a step's seconds go to."""
    sums = {
        "memory bandwidth": sum(terms.get(name, 0.0) for name in MEMORY_TERMS),
        "FLOPs": sum(terms.get(name, 0.0) for name in FLOP_TERMS),
        "link": sum(terms.get(name, 0.0) for name in LINKS),
        "fixed costs": terms.get("layers", 0.0) + terms.get("batch", 0.0) + terms.get("launches", 0.0),
        "pipeline bubble": terms.get("bubble", 0.0),
    }
    return max(sums, key=lambda name: sums[name])


def _steps(task: Task, card: Card, setup: Setup, count: int, choice: Choice) -> tuple[Step, ...]:
    found = []
    for phase, terms in choice.terms.items():
        place = choice.place if phase in ("train", "decode", "encode") else 0
        tokens = choice.tokens_per_s["prefill" if phase == "encode" else phase] * _sum(terms)
        limit = _limit(task, card, setup, count, place) if task.users == 1 or task.training else None
        formula = "encode" if phase == "train" and task.facts.item_flop else phase
        noted = tuple(Term(name, seconds, _note(name, formula, setup, task.eff)) for name, seconds in terms.items())
        found.append(Step(phase, tokens, noted, limit))
    return tuple(found)


def _limit(task: Task, card: Card, setup: Setup, count: int, place: int) -> Limit | None:
    """Of the step on all cards together, none of them waiting for another; products of weights in the precision that
    the engine runs them in there, scores in 16 bits. None where the card has no rate for one of them."""
    ops, need = task.ops(place), task.works[place].compute
    if setup.compute != need:
        ops = tuple(_run_in(op, need, setup.compute) for op in ops)
    matmul = {name: rate * count for name, rate in card.matmul.items()}
    matmul.setdefault("bf16", half_peak(setup) * count)
    if any(precision not in matmul for op in ops for precision in op.flop):
        return None
    return limit_of(ops, Rates(card.name, matmul, card.memory * count, card.source))


def _run_in(op: Op, need: str, runs: str) -> Op:
    if need not in op.flop or op.name.endswith((" scores", " state")):
        return op
    return replace(op, flop={runs if name == need else name: flop for name, flop in op.flop.items()})


# term: the constants in it, and what it is in words
WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "weights": (("decode bandwidth", "decode bytes a clock"), "weights ÷ (share of bandwidth, bytes a clock)"),
    "cache": (("cache bandwidth",), "cache ÷ share of bandwidth"),
    "layers": (("layer time",), "µs·GHz a layer ÷ clock"),
    "batch": (("batch time",), "µs a sequence"),
    "all-reduce": (("reduce latency", "reduce growth"), "two a layer: µs of latency, × a doubling of cards, and bytes"),
    "products": ((), "FLOPs ÷ share of dense peak"),
    "scores": ((), "FLOPs of attention ÷ their share of dense peak in 16 bits"),
    "all-to-all": (("reduce latency",), "two a block of experts: µs of latency, and bytes"),
    "sends": ((), "one hidden state from stage to stage"),
    "bubble": ((), "idle ends of the pipeline, and its slowest stage"),
    "update": ((), "gradients, optimizer state and weights, read and written"),
    "experts": (("train expert",), "products of experts take longer by 1 ÷ share"),
    "launches": ((), "what the host needs for its launches beyond the rest"),
    "unpacking": ((), "4-bit weights to 16 bits, each pass"),
    "elements": (("train bytes",), "widths moved a position and layer"),
    "gradients and weights": (("train exposed",), "share of gathers and reductions that nothing hides"),
    "prompts": (("load",), "prompts of others read between steps, ÷ share left by scheduling"),
}


# phase: the constants that products and scores have in it
FLOP_SHARES = {
    "prefill": {"products": "prefill flop", "scores": "prefill scores"},
    "train": {"products": "train flop", "scores": "train scores"},
    "encode": {"products": "encode flop"},
}


def _note(name: str, phase: str, setup: Setup, eff: Efficiency) -> str:
    constants, words = WORDS.get(name, ((), ""))
    if name == "weights" and phase == "prefill":
        constants, words = (), f"weights once, at {PREFILL_READ:g} of bandwidth"
    elif name == "weights" and not unpacks(setup):
        constants, words = ("decode bandwidth",), "weights ÷ share of bandwidth"
    elif name == "elements" and phase == "encode":
        constants, words = ("encode bytes",), "activations moved, times what their ops pass on"
    if share := FLOP_SHARES.get(phase, {}).get(name):
        constants = (share,)
        words += f" in {setup.compute}" if name == "products" and phase != "encode" else ""
    values = ", ".join(f"{c} {eff.value(c, setup.where):.3g}" for c in constants)
    return f"{words} ({values})" if values else words


NO_FIT = "it does not fit"


def _too_small(task: Task, card: Card, count: int, layout: Layout, memory: Memory) -> Candidate:
    lack = memory.total - memory.capacity
    notes = (f"{lack / 2**30:,.1f} GiB short" + (f" on each of {count}" if count > 1 else ""),)
    names = ("prefill_tokens_per_s", "decode_tokens_per_s", "train_tokens_per_s", "joules_per_token",
             "cost_per_million_tokens")  # fmt: skip
    return Candidate(
        card.name, count, False, memory, layout, None, None, None, None, None, "memory capacity", None, card.source,
        notes, dict.fromkeys(names, NO_FIT),
    )  # fmt: skip


def _no_layout(task: Task, card: Card, count: int) -> Candidate:
    memory = task.memory(0, Layout(), card.capacity)
    found = _too_small(task, card, count, Layout(), memory)
    reason = f"no layout divides {task.works[0].batch} sequences and the model over {count} cards"
    return replace(found, notes=(reason,), missing=dict.fromkeys(found.missing, reason), bound_by="no layout")


def _without_speed(task: Task, card: Card, count: int, layout: Layout, memory: Memory) -> Candidate:
    known = f" (known: {', '.join(card.matmul)})" if card.matmul else ""
    reason = f"no rate of products in 16 or 32 bits is known of {card.name}{known}: measure it with nearpeak measure"
    found = _too_small(task, card, count, layout, memory)
    return replace(found, fits=True, bound_by="unknown", notes=(), missing=dict.fromkeys(found.missing, reason))
