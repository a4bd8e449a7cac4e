"""What a model asks of a machine, summed once over its parts, so that thousands of layouts are weighed in a blink."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.limits.ops import ops_of
from nearpeak.limits.pairs import pairs
from nearpeak.limits.weights import is_head
from nearpeak.records.model_spec import (
    Attention,
    Convolution,
    Experts,
    FeedForward,
    Linear,
    ModelSpec,
    Part,
    Recurrent,
    Table,
)
from nearpeak.records.workload import Workload


@dataclass(frozen=True)
class Scores:
    """`count` attention layers whose scores cost the same.

    products   multiply-adds a pair of positions: heads · (head_dim + value_dim)
    absorbed   the same at decode where MLA keeps its latent compressed: heads · (2·kv_rank + rotary), else products
    cached     numbers kept a position; window: positions seen at most, None for all
    """

    count: int
    products: int
    absorbed: int
    cached: int
    window: int | None
    causal: bool
    positions: int | None

    def seen(self, context: float) -> float:
        """Positions that one query sees: all, the window's, or those of the other stream (cross-attention)."""
        if self.positions is not None:
            return self.positions
        return min(context, self.window) if self.window else context


@dataclass(frozen=True)
class ModelFacts:
    """Sums over a model's parts. All counts are parameters unless said.

    dense          in products for every position, without head and experts; head: of the output head
    experts        all routed experts; chosen: those that one position uses; expert_layers: how many blocks have them
    mixer_layers   blocks of linear attention: those whose state is a matrix
    table          looked up, or added: never in a product
    layers, width  blocks and the width of the hidden state; kv_heads: 0 where there is no cache
    state          numbers of fixed state a sequence (linear attention, convolution); state_flop a position
    bits           mean bits a weight as stored
    item_flop      forward FLOPs of one image or clip, in parts whose stream has a fixed number of positions
    item_numbers   activations that its ops take in and give out, if each runs by itself
    """

    dense: int
    head: int
    experts: int
    chosen: int
    expert_layers: int
    expert_count: int
    mixer_layers: int
    table: int
    parameters: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    scores: tuple[Scores, ...]
    state: int
    state_flop: float
    bits: float
    item_flop: float
    item_numbers: float

    @property
    def active(self) -> int:
        """Parameters in products for one position that is given logits."""
        return self.dense + self.head + self.chosen

    def touched(self, tokens: float) -> float:
        """Parameters of experts that a step of `tokens` positions reads: each picks `chosen` of them by chance."""
        if not self.experts:
            return 0.0
        missed: float = (1.0 - self.chosen / self.experts) ** max(tokens, 1.0)
        return self.experts * (1.0 - missed)

    def streamed(self, tokens: float) -> float:
        """Parameters that a step reads at least once."""
        return self.dense + self.head + self.touched(tokens)

    def cache_numbers(self, context: float) -> float:
        """Numbers in the cache of one sequence after `context` positions, fixed state included."""
        kept = sum(s.count * s.cached * s.seen(context) for s in self.scores)
        return kept + self.state

    def score_flop(self, tokens: float, context: float) -> float:
        """FLOPs of attention scores and their use, forward, one sequence: `tokens` new positions after `context`."""
        flop = self.state_flop * tokens
        for s in self.scores:
            seen = tokens * s.positions if s.positions else pairs(round(tokens), round(context), s.window, s.causal)
            flop += 2.0 * s.count * s.products * seen
        return flop

    def decode_score_flop(self, context: float) -> float:
        """As score_flop for one new position, with MLA absorbed."""
        return sum(2.0 * s.count * s.absorbed * s.seen(context + 1) for s in self.scores) + self.state_flop


def facts_of(spec: ModelSpec) -> ModelFacts:
    """The sums of one spec."""
    dense = head = experts = chosen = table = state = expert_layers = expert_count = mixers = hidden = 0
    width = heads = kv_heads = vocab = 0
    state_flop = item_flop = 0.0
    scores: list[Scores] = []
    for part in spec.parts:
        positions = spec.streams.get(part.stream)
        if isinstance(part, Table):
            table += part.count * part.parameters
            vocab = max(vocab, part.rows)
        elif positions is not None:
            item_flop += _item_flop(part, positions)
        elif isinstance(part, Experts):
            experts += part.count * part.experts * part.one_expert
            chosen += part.count * part.chosen * part.one_expert
            dense += part.count * (part.shared + part.router)
            expert_layers, expert_count = expert_layers + part.count, max(expert_count, part.experts)
            hidden = hidden or part.hidden
        elif isinstance(part, Linear) and is_head(part):
            head, vocab = head + part.count * part.active, part.outputs
        else:
            dense += part.count * part.active
        if isinstance(part, Attention):
            if positions is None:
                scores.append(_scores(part, spec))
            if part.reads is None:
                width, heads, kv_heads = part.width, part.heads, part.kv_heads
        if isinstance(part, Recurrent):
            mixers += part.count if part.state > 16 * part_width(part) else 0  # a matrix, not a few last positions
            state += part.count * part.state
            state_flop += part.count * part.state_flop
            width = width or part_width(part)
        if isinstance(part, FeedForward):
            width, hidden = width or part.width, max(hidden, part.hidden)
    stored = sum(s.parameters for s in spec.stored.values())
    bits = 8.0 * spec.weight_bytes / stored if stored else 16.0
    return ModelFacts(
        dense, head, experts, chosen, expert_layers, expert_count, mixers, table, spec.parameters, spec.layers, width,
        heads, kv_heads, hidden, vocab, tuple(scores), state, state_flop, bits, item_flop,
        _item_numbers(spec) if item_flop else 0.0,
    )  # fmt: skip


def _item_numbers(spec: ModelSpec) -> float:
    ops = ops_of(spec, Workload("encode", 1, 1, 0, "bf16", "bf16", "bf16"))
    return sum(op.count * op.passed for op in ops) / 2.0


def _item_flop(part: Part, positions: int) -> float:
    """FLOPs of one item (an image, a clip) in a part whose stream has a fixed number of positions."""
    if isinstance(part, Convolution):
        return 2.0 * part.count * part.active * part.positions
    if isinstance(part, Linear) and part.once:
        return 2.0 * part.count * part.active
    flop = 2.0 * part.count * part.active * positions
    if isinstance(part, Attention):
        products = part.heads * (part.head_dim + part.value_dim)
        flop += 2.0 * part.count * products * pairs(positions, 0, part.window, part.causal)
    return flop


def _scores(part: Attention, spec: ModelSpec) -> Scores:
    products = part.heads * (part.head_dim + part.value_dim)
    latent = part.latent
    absorbed = part.heads * (2 * latent.kv_rank + latent.rotary) if latent else products
    positions = spec.streams.get(part.reads) if part.reads else None
    return Scores(part.count, products, absorbed, part.cached, part.window, part.causal, positions)


def part_width(part: Recurrent) -> int:
    """Of the hidden state that it takes in."""
    return next(iter(part.shapes.values()))[0]
