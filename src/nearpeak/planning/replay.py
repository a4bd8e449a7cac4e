"""A measured row, predicted: in its own unit, by the functions that plans are made with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from nearpeak.hardware.catalogue import load_catalogue
from nearpeak.models.known import read_known
from nearpeak.planning.cards import Card, card_of
from nearpeak.planning.efficiency import Efficiency, Where
from nearpeak.planning.facts import ModelFacts, facts_of
from nearpeak.planning.measured import Row
from nearpeak.planning.precisions import GGUF, Bits, bits_of, compute_of
from nearpeak.planning.speed import (
    Setup,
    TrainSetup,
    decode_terms,
    encode_seconds,
    load_terms,
    prefill_terms,
    train_terms,
)
from nearpeak.records.model_spec import ModelSpec

LLAMA_CPP_CHUNK = 512  # its `ubatch`: positions of a prompt worked on at once
MOST_AT_ONCE = 2048  # sequences that a serving engine takes, whatever memory is left


class CannotCompute(Exception):
    """A row that has no prediction; the text says why."""


@cache
def known_spec(name: str) -> ModelSpec:
    return read_known(name)


@cache
def known_facts(name: str) -> ModelFacts:
    return facts_of(known_spec(name))


@cache
def catalogue_card(name: str) -> Card | None:
    for spec in load_catalogue():
        if spec.name == name:
            return card_of(spec)
    return None


@cache
def setup_of(row: Row) -> Setup:
    """What the row ran on. Raises CannotCompute."""
    if row.left_out:
        raise CannotCompute(row.left_out)
    if not row.spec:
        raise CannotCompute("no shape of this model")
    card = catalogue_card(row.card)
    if card is None:
        raise CannotCompute("not a card of the catalogue")
    if not row.precision:
        raise CannotCompute("precision not told")
    spec, facts = known_spec(row.spec), known_facts(row.spec)
    bits = bits_of(row.precision, spec, row.engine)
    if row.file_bytes and facts.expert_layers == 0:
        mean = 8.0 * row.file_bytes / facts.parameters
        bits = Bits(mean, mean, mean)
    where = Where(row.engine, row.version, min(bits.dense, bits.experts), card.group, card.name, card.link_kind)
    if not card.matmul and row.kind != "decode":
        raise CannotCompute("no rate of products on this card's sheet")
    compute = compute_of(row.precision, card.matmul, row.engine, where.bits) if card.matmul else "bf16"
    cache_bytes = 1.0 if row.precision in ("fp8", "fp4") and row.engine == "trtllm" else 2.0
    chunk = LLAMA_CPP_CHUNK if row.precision in GGUF or row.engine == "llama.cpp" else None
    return Setup(facts, card, row.layout, where, bits, compute, cache_bytes, chunk)


def predict(row: Row, eff: Efficiency) -> float:
    """The row's value as predicted, in the row's unit. Raises CannotCompute."""
    if row.kind == "decode":
        return _decode(row, eff)
    if row.kind == "prefill":
        return _prefill(row, eff)
    if row.kind == "train":
        return _train(row, eff)
    if row.kind == "throughput":
        return _throughput(row, eff)
    raise CannotCompute("memory: see the memory rows")


def _decode(row: Row, eff: Efficiency) -> float:
    setup = setup_of(row)
    if row.batch > 1 and row.answer:
        # time between tokens under load: other requests' prompts are read in between
        seconds = sum(load_terms(setup, row.batch, row.length, row.answer, eff).values())
    else:
        seconds = sum(decode_terms(setup, row.batch or 1, row.depth or 256, eff).values())
    return 1.0 / seconds if row.unit == "tok/s" else 1e3 * seconds


def _prefill(row: Row, eff: Efficiency) -> float:
    setup = setup_of(row)
    seconds = sum(prefill_terms(setup, 1, row.length, 0, eff).values())
    if "TTFT" in row.unit:  # others wait in line too; how long depends on the engine's order
        seconds *= max(row.batch, 1.0) ** eff.value("queue", setup.where)
    return row.length / seconds if row.unit == "tok/s" else 1e3 * seconds


def _train(row: Row, eff: Efficiency) -> float:
    setup = setup_of(row)
    if row.unit == "img/s":
        seconds = sum(encode_seconds(setup, row.batch, 0, True, eff).values())
        return row.batch / seconds
    if not row.length or not row.batch:
        raise CannotCompute("batch or length not told")
    train = TrainSetup(row.length, row.batch, row.method, row.recompute, row.chunks, "sequence-parallel" in row.flags)
    seconds = sum(train_terms(setup, train, eff).values())
    tokens = row.batch * row.length
    if row.engine == "torchtune":  # its batch is of each card; 8-card rows are the sum over cards
        tokens *= row.cards
        seconds = sum(train_terms(setup, replace(train, batch=row.batch * row.cards), eff).values())
    if row.unit == "s/iteration":
        return seconds
    if row.unit == "GPU-hours":
        total = next(float(flag.split("=")[1]) for flag in row.flags if flag.startswith("tokens="))
        return total / (tokens / seconds) * row.cards / 3600
    return tokens / seconds / (row.cards if row.unit.endswith("/gpu") else 1)


def _throughput(row: Row, eff: Efficiency) -> float:
    setup = setup_of(row)
    if row.unit == "img/s":
        return row.batch / sum(encode_seconds(setup, row.batch, 0, False, eff).values())
    if not row.length or not row.answer:
        raise CannotCompute("lengths not told")
    batch = row.batch or most_sequences(setup, row.length + row.answer)
    if batch < 1:
        raise CannotCompute("does not fit by our count")
    step = sum(load_terms(setup, batch, row.length, row.answer, eff).values())
    return batch / step / (row.cards if row.unit.endswith("/gpu") else 1)


def most_sequences(setup: Setup, length: float) -> float:
    """Sequences whose cache fits beside the weights, over all cards; half of a sequence's answer is still unwritten
    on average, which engines use."""
    facts, bits, layout = setup.facts, setup.bits, setup.layout
    dense = (facts.dense * bits.dense + (facts.head + facts.table) * bits.head) / 8 / layout.tensor / layout.pipeline
    experts = facts.experts * bits.experts / 8 / max(layout.tensor, layout.expert) / layout.pipeline
    room = 0.92 * setup.card.capacity - dense - experts - 2e9
    split = min(layout.tensor, max(1, facts.kv_heads)) * layout.pipeline
    each = facts.cache_numbers(length * 0.75) * setup.cache / split
    return min(max(0.0, room / each), MOST_AT_ONCE) * layout.data
