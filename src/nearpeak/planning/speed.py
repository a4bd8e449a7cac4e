"""How long a step takes: the limit ÷ an efficiency, fixed costs, and communication, each a named term.

Every constant comes from `efficiency.py`. The same functions make predictions and are fitted, so a constant can mean
nothing else than what it does here.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.planning.cards import Card
from nearpeak.planning.communication import all_gather, all_to_all, bubble, bus, imbalance, send, stages
from nearpeak.planning.efficiency import Efficiency, Where
from nearpeak.planning.facts import ModelFacts
from nearpeak.planning.precisions import Bits
from nearpeak.records.plan import Layout

Terms = dict[str, float]  # name: seconds

# Seconds that the host needs for a launch outside a graph (benchmarks/results/measure-h200), and launches of a block:
# of an attention block its norms, maps, rotation, scores, sums and gate; of a convolution itself, its norm and
# activation. No row is small enough to tell; it keeps small models from being promised what no host can launch.
LAUNCH = 9.4e-6
BLOCK_LAUNCHES, CONVOLUTION_LAUNCHES = 12, 3
PREFILL_READ = 0.8  # share of bandwidth at which a prompt's weights are read: hidden where there is much to multiply


@dataclass(frozen=True)
class Setup:
    """What runs where.

    where      what efficiencies are looked up by; its card and link are those of `card`
    compute    precision of the products; cache: bytes of a number in the cache
    chunk      positions of a prompt that are worked on at once, None for all (an engine's way)
    """

    facts: ModelFacts
    card: Card
    layout: Layout
    where: Where
    bits: Bits
    compute: str = "bf16"
    cache: float = 2.0
    chunk: int | None = None

    @property
    def cards(self) -> int:
        return self.layout.data * self.layout.tensor * self.layout.pipeline * self.layout.context


def decode_terms(setup: Setup, batch: float, context: float, eff: Efficiency) -> Terms:
    """Seconds of one decode step, by term; it gives one token to each of `batch` sequences.

    A replica has batch ÷ data of them. A pipeline's stages work on batch ÷ pipeline at once, one group behind another,
    so a step of a whole group passes all layers.
    """
    facts, layout, where, card = setup.facts, setup.layout, setup.where, setup.card
    tensor = layout.tensor
    local = max(1.0, batch / layout.data / layout.pipeline)
    bandwidth = eff.value("decode bandwidth", where) * card.memory
    if card.unit_clock and unpacks(setup):  # the slower of the two, rounded where they cross: neither hides the other
        unpack = eff.value("decode bytes a clock", where) * card.unit_clock
        bandwidth = (bandwidth**-8 + unpack**-8) ** -0.125
    spread = max(tensor, layout.expert)
    weights = weight_bytes(setup, local * (layout.expert / tensor if layout.expert > tensor else 1), spread) / bandwidth
    flop = 2.0 * facts.active * local / tensor
    if local > 1:
        weights = max(weights, flop / (eff.value("prefill flop", where) * peak(setup)))
    cache = local * facts.cache_numbers(context) * setup.cache / min(tensor, max(1, facts.kv_heads))
    terms = {
        "weights": weights,
        "cache": cache / (eff.value("cache bandwidth", where) * card.memory),
        "layers": fixed(setup, eff),
    }
    if local > 1:
        terms["batch"] = local * 1e-6 * eff.value("batch time", where)
    terms.update(exchange(setup, local, eff))
    if layout.pipeline > 1 and batch / layout.data >= layout.pipeline:  # full: the slowest stage sets the pace
        terms["bubble"] = sum(terms.values()) * (uneven(facts, layout.pipeline) - 1)
    return terms


def unpacks(setup: Setup) -> bool:
    """Whether multiprocessors may bind a decode's weights: 16-bit ones need no unpacking, and no row of a compiled
    engine shows such a bound for them; llama.cpp's kernels for one position have it."""
    return setup.where.precision != "16-bit" or setup.where.engine == "llama.cpp"


def uneven(facts: ModelFacts, pipeline: int) -> float:
    """How much slower the slowest stage is than even ones would be: blocks come whole, and the last stage has the
    head beside its own."""
    block = (facts.dense + facts.chosen) / max(1, facts.layers)
    return imbalance(stages(facts.layers, pipeline, 1.0, 0.0, facts.head / block))


def weight_bytes(setup: Setup, tokens: float, spread: int) -> float:
    """Bytes of weights that one card reads in a step of `tokens` positions (with all layers of a pipeline)."""
    facts, bits = setup.facts, setup.bits
    dense = (facts.dense * bits.dense + facts.head * bits.head) / 8 / setup.layout.tensor
    return dense + facts.touched(tokens) * bits.experts / 8 / spread


def fixed(setup: Setup, eff: Efficiency) -> float:
    """Seconds that all layers take whatever their size: launches, and dependent small kernels."""
    facts, where = setup.facts, setup.where
    each = 1e-6 / setup.card.clock
    seconds = facts.layers * eff.value("layer time", where) * each
    if facts.expert_layers:
        seconds += facts.expert_layers * eff.value("expert layer time", where) * each
    if facts.mixer_layers:
        seconds += facts.mixer_layers * eff.value("mixer layer time", where) * each
    return seconds


def exchange(setup: Setup, tokens: float, eff: Efficiency) -> Terms:
    """Seconds of communication in a forward pass over `tokens` positions."""
    facts, layout, card = setup.facts, setup.layout, setup.card
    size = 2.0 * tokens * facts.width
    terms: Terms = {}
    if layout.tensor > 1:
        each = reduce_seconds(setup, size, eff)
        terms["all-reduce"] = (2 * facts.layers - (facts.expert_layers if layout.expert > layout.tensor else 0)) * each
    if layout.expert > layout.tensor and facts.expert_layers:
        chosen = max(1.0, facts.expert_count * facts.chosen / max(facts.experts, 1))
        moved = size * min(chosen, layout.expert)
        each = all_to_all(card, layout.expert, moved) + eff.value("reduce latency", setup.where) * 1e-6
        terms["all-to-all"] = 2 * facts.expert_layers * each
    if layout.pipeline > 1:
        terms["sends"] = (layout.pipeline - 1) * send(card, size)
    return terms


def reduce_seconds(setup: Setup, size: float, eff: Efficiency) -> float:
    """Seconds of one all-reduce over the tensor-parallel cards: a fitted latency that grows with each doubling, and
    the bytes."""
    n, card = setup.layout.tensor, setup.card
    doublings = (n - 1).bit_length() - 1
    latency = 1e-6 * eff.value("reduce latency", setup.where) * eff.value("reduce growth", setup.where) ** doublings
    return latency + 2 * (n - 1) / n * size / bus(card, n)


def peak(setup: Setup) -> float:
    """Dense FLOP/s of the products, as far as the card has units for them."""
    return setup.card.matmul.get(setup.compute) or max(setup.card.matmul.values())


def half_peak(setup: Setup) -> float:
    """Dense FLOP/s of attention scores, which stay at 16 bits."""
    rates = setup.card.matmul
    return rates.get("bf16") or rates.get("fp16") or rates.get("fp32") or max(rates.values())


def prefill_terms(setup: Setup, batch: float, tokens: float, context: float, eff: Efficiency) -> Terms:
    """Seconds to read `batch` prompts of `tokens` positions after `context` cached ones; logits for the last alone."""
    facts, layout, where = setup.facts, setup.layout, setup.where
    local = max(1.0, batch / layout.data)
    positions = local * tokens / layout.context
    split = layout.tensor
    linear = (2.0 * (facts.dense + facts.chosen) * positions + 2.0 * facts.head * local) / split
    scores = local * facts.score_flop(tokens, context) / split / layout.context
    pipe = 1.0
    if layout.pipeline > 1:
        pieces = local * (max(1.0, tokens / setup.chunk) if setup.chunk else 1.0)
        ideal = pieces * layout.pipeline / (pieces + layout.pipeline - 1)
        pipe = ideal ** -(eff.value("prefill overlap", where) if setup.chunk else 1.0)
    terms = {
        "products": pipe * linear / (eff.value("prefill flop", where) * peak(setup)),
        "scores": pipe * scores / (eff.value("prefill scores", where) * half_peak(setup)),
        "weights": weight_bytes(setup, positions, max(layout.tensor, layout.expert))
        / (PREFILL_READ * setup.card.memory),
        "layers": fixed(setup, eff) * (max(1.0, tokens / setup.chunk) if setup.chunk else 1.0),
    }
    terms.update(exchange(setup, positions, eff))
    return terms


@dataclass(frozen=True)
class TrainSetup:
    """A training step beside its Setup.

    sequence      positions; batch: sequences in a step by all cards together
    method        full, lora, qlora; recompute: none, attention, full
    rank_share    trained parameters ÷ all, of LoRA
    chunks        of a pipeline's stage (interleaving); prefetch: whether weights are gathered while computing
    """

    sequence: int
    batch: float
    method: str = "full"
    recompute: str = "none"
    chunks: int = 1
    sequence_parallel: bool = False
    optimizer_bytes: float = 16.0


def train_terms(setup: Setup, train: TrainSetup, eff: Efficiency) -> Terms:
    """Seconds of one training step (forward, backward, update) of all cards together."""
    facts, layout, where, card = setup.facts, setup.layout, setup.where, setup.card
    tokens = train.batch * train.sequence / (layout.data * layout.context)  # of one replica
    model = layout.tensor * layout.pipeline
    linear = facts.dense + facts.chosen
    backward = 2.0 if train.method == "full" else 1.0  # frozen weights need no gradient of their own
    again = 1.0 if train.recompute == "full" else 0.0
    products = 2.0 * tokens * (linear * (1 + backward + again) + facts.head * (1 + backward)) / model
    sequences = train.batch / layout.data
    scores = sequences * facts.score_flop(train.sequence, 0) / layout.context / model
    # the scores' backward pass has twice the forward's FLOPs, and computes them once more (flash attention)
    scores *= 3.5 + again
    moved = tokens * facts.layers * facts.width * 2.0 * eff.value("train bytes", where) * (1 + 0.3 * again)
    elements = moved / (0.85 * card.memory) / layout.pipeline / (layout.tensor if train.sequence_parallel else
                                                                max(1.0, layout.tensor**0.5))  # fmt: skip
    busy = {
        "products": products / (eff.value("train flop", where) * peak(setup)),
        "scores": scores / (eff.value("train scores", where) * half_peak(setup)),
        "elements": elements,
    }
    terms = dict(busy)
    if train.method == "qlora":
        passes = layout.micro_batches * (2 + again)
        unpacked = facts.streamed(1e9) * (0.5 + 2 + 2) / model
        terms["unpacking"] = passes * unpacked / (0.5 * card.memory)
    if facts.expert_layers:
        terms["experts"] = (
            busy["products"] * (facts.chosen / max(linear, 1)) * (1 / eff.value("train expert", where) - 1)
        )
    trained = facts.parameters if train.method == "full" else 0.005 * facts.parameters
    terms["update"] = train.optimizer_bytes * 1.5 * trained / model / layout.sharded / (0.8 * card.memory)
    host = launching(facts) * (2 + backward + again) * layout.micro_batches / layout.pipeline
    terms["launches"] = max(0.0, host - sum(terms.values()))
    if layout.tensor > 1:
        size = 2.0 * tokens / max(1, layout.micro_batches) * facts.width
        each = 2 * (layout.tensor - 1) / layout.tensor * size / bus(card, layout.tensor) + 15e-6
        passes = layout.micro_batches * (4 + 2 * again) * facts.layers / layout.pipeline
        terms["all-reduce"] = passes * each
    if layout.expert > 1 and facts.expert_layers:
        chosen = max(1.0, facts.expert_count * facts.chosen / max(facts.experts, 1))
        size = 2.0 * tokens * facts.width * min(chosen, layout.expert)
        terms["all-to-all"] = 4 * facts.expert_layers / layout.pipeline * all_to_all(card, layout.expert, size)
    exposed = data_parallel_seconds(setup, train, eff)
    if exposed:
        hidden = sum(busy.values()) * 0.9
        share = eff.value("train exposed", where)
        terms["gradients and weights"] = max(exposed * min(share, 1.0), exposed - hidden)
    if layout.pipeline > 1:
        through = sum(terms.values()) - terms["update"] - terms.get("gradients and weights", 0.0)
        slow = uneven(facts, layout.pipeline) - 1
        terms["bubble"] = through * (bubble(layout.pipeline, layout.micro_batches, train.chunks) + slow)
    return terms


def launching(facts: ModelFacts) -> float:
    """Seconds in which the host launches one forward pass, kernel by kernel; hidden where the card takes longer."""
    return LAUNCH * facts.layers * (BLOCK_LAUNCHES if facts.heads else CONVOLUTION_LAUNCHES)


def data_parallel_seconds(setup: Setup, train: TrainSetup, eff: Efficiency) -> float:
    """Seconds of communication that replicas and shards need in a step, none of it hidden."""
    facts, layout, card = setup.facts, setup.layout, setup.card
    replicas = layout.data * layout.context
    if replicas < 2:
        return 0.0
    share = facts.parameters / (layout.tensor * layout.pipeline)
    if layout.expert > 1:
        share = (facts.parameters - facts.experts + facts.experts / layout.expert) / (layout.tensor * layout.pipeline)
    beside = layout.tensor * layout.pipeline
    size = 2.0 * share
    spread = replicas * beside
    network = eff.value("train network", setup.where) if spread > card.node else 1.0
    # each node's cards pull a shard's bytes through their own ports, then share them inside: a card's link to the
    # network carries size ÷ (cards a node) of what it needs
    if spread > card.node:
        ports = max(1, card.node // beside) if beside < card.node else 1
        once = size / ports / (card.network * network)
    else:
        once = all_gather(card, replicas, size)
    if train.method != "full":
        once *= 1.0 if layout.sharded > 1 else 0.01
    gathers = 2 * layout.micro_batches if layout.sharded > 1 else 0
    return once * (gathers + (2 if layout.sharded == 1 else layout.micro_batches))


def encode_seconds(setup: Setup, items: float, positions: float, training: bool, eff: Efficiency) -> Terms:
    """Seconds of a pass over `items` images, clips, or texts of `positions`; of training: three passes."""
    facts, where, card = setup.facts, setup.where, setup.card
    flop = facts.item_flop + 2.0 * (facts.dense + facts.head) * positions + facts.score_flop(positions, 0)
    work = (3.0 if training else 1.0) * items / setup.layout.data
    moved = 2.0 * facts.item_numbers * eff.value("encode bytes", where)
    terms = {
        "products": work * flop / (eff.value("encode flop", where) * half_peak(setup)),
        "elements": work * moved / (0.85 * card.memory),
    }
    host = launching(facts) * (4.0 if training else 1.0)  # of training: forward, twice backward, update
    terms["launches"] = max(0.0, host - sum(terms.values()))
    return terms


def load_terms(setup: Setup, batch: float, prompt: float, answer: float, eff: Efficiency) -> Terms:
    """Seconds of one decode step when `batch` sequences come and go, each with a prompt to read and an answer to write:
    between two steps, batch ÷ answer prompts are read. Divided by what scheduling leaves of it."""
    decode = decode_terms(setup, batch, prompt + answer / 2, eff)
    reading = sum(prefill_terms(setup, batch, prompt, 0, eff).values()) / answer
    share = eff.value("load", setup.where)
    if setup.facts.expert_layers:
        share *= eff.value("expert load", setup.where)
    terms = {name: seconds / share for name, seconds in decode.items()}
    terms["prompts"] = reading / share
    return terms
