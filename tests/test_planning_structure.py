"""With the very rows left out that show it, the fit still finds what they show: it is in the terms, not in constants of
single cards."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from fit_efficiency import computable, fit

from nearpeak.models.read import read_model
from nearpeak.planning.efficiency import Efficiency, Where
from nearpeak.planning.facts import facts_of
from nearpeak.planning.measured import Row, load_measured
from nearpeak.planning.precisions import bits_of
from nearpeak.planning.replay import catalogue_card, most_sequences
from nearpeak.planning.speed import Setup, decode_terms, load_terms
from nearpeak.records.plan import Layout


def shown_by(row: Row) -> bool:
    """Rows that show one of the three."""
    ladder = row.engine == "gpt-fast" and "8B" in row.model and row.cards > 1
    packed = row.engine == "llama.cpp" and row.card in ("H200 SXM 141 GB", "H200 NVL", "GeForce RTX 4090")
    return ladder or packed or row.card.startswith("RTX PRO 6000")


@pytest.fixture(scope="module")
def eff() -> Efficiency:
    rows, _ = computable(row for row in load_measured() if not shown_by(row))
    assert len(rows) > 300
    return fit(rows)


def setup(model: str, card_name: str, precision: str, engine: str, layout: Layout) -> Setup:
    spec, card = read_model(model), catalogue_card(card_name)
    assert card is not None
    bits = bits_of(precision, spec, engine)
    version = "2026" if engine == "llama.cpp" else ""
    where = Where(engine, version, min(bits.dense, bits.experts), card.group, card.name, card.link_kind)
    compute = "fp4" if precision == "fp4" else "bf16"
    return Setup(facts_of(spec), card, layout, where, bits, compute, 1.0 if precision == "fp4" else 2.0)


def test_eight_cards_give_one_stream_three_times_the_speed(eff: Efficiency) -> None:
    # gpt-fast, Llama-3.1-8B in bf16: 93.9 tokens/s on one A100, 149, 217 and 276 on 2, 4 and 8: 2.9 times, not 8
    one = setup("llama-3.1-8b", "A100 SXM4 80 GB", "bf16", "gpt-fast", Layout())
    seconds = {n: sum(decode_terms(replace(one, layout=Layout(tensor=n)), 1, 100, eff).values()) for n in (1, 2, 4, 8)}
    assert 2.4 < seconds[1] / seconds[8] < 3.6
    assert 1.35 < seconds[1] / seconds[2] < 1.8


def test_unpacking_four_bits_leaves_an_h200_idle(eff: Efficiency) -> None:
    # llama.cpp, Q4_K_M: 79 % of the sheet's bandwidth on a 4090, 29 % on an H200 (slope between 9B and 27B)
    shares = {}
    for name in ("H200 SXM 141 GB", "GeForce RTX 4090"):
        s = setup("qwen3.5-27b", name, "q4_k_m", "llama.cpp", Layout())
        size = s.facts.streamed(1) * s.bits.dense / 8
        shares[name] = size / decode_terms(s, 1, 256, eff)["weights"] / s.card.memory
    assert shares["H200 SXM 141 GB"] < 0.36
    assert shares["GeForce RTX 4090"] > 0.65


def test_replicas_beat_wide_expert_parallelism_over_pcie(eff: Efficiency) -> None:
    # TensorRT-LLM, Qwen3-30B-A3B in fp4 on PRO 6000 cards, tokens/s a card: 9,938 alone, 3,985 with experts over 8
    def each(layout: Layout) -> float:
        s = setup("qwen3-30b-a3b", "RTX PRO 6000 Blackwell", "fp4", "trtllm", layout)
        batch = most_sequences(s, 2048)
        return batch / sum(load_terms(s, batch, 1024, 1024, eff).values()) / layout.data

    alone, replicas, wide = each(Layout()), each(Layout(data=8)), each(Layout(data=8, expert=8))
    assert replicas == pytest.approx(alone, rel=0.01)
    assert replicas > 1.3 * wide
