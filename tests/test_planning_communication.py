"""Collectives and pipelines: closed forms, and what cards' links make of them."""

from __future__ import annotations

import pytest

from nearpeak.hardware.catalogue import find_by_name
from nearpeak.models.read import read_model
from nearpeak.planning import communication as c
from nearpeak.planning.cards import Card, card_of
from nearpeak.planning.facts import facts_of
from nearpeak.planning.layouts import inference_layouts, tensors, training_layouts
from nearpeak.planning.speed import uneven


def card(name: str) -> Card:
    found = card_of(find_by_name(name))
    assert found is not None
    return found


def test_a_ring_moves_what_the_closed_form_says() -> None:
    # all-reduce of 1 GB over 8: each card sends 2 · 7/8 GB; over NVLink 4 (450 GB/s one way, 80 % reached) 4.86 ms
    h100, size = card("H100 SXM5 80 GB"), 1e9
    seconds = c.all_reduce(h100, 8, size) - c.latency(h100, 8)
    assert seconds == pytest.approx(2 * 7 / 8 * 1e9 / (0.8 * 450e9))
    halves = c.all_gather(h100, 8, size) - c.latency(h100, 8)
    assert 2 * halves == pytest.approx(seconds)
    assert c.all_to_all(h100, 8, size) == pytest.approx(c.all_gather(h100, 8, size))


def test_one_card_has_nobody_to_talk_to() -> None:
    h100 = card("H100 SXM5 80 GB")
    assert c.all_reduce(h100, 1, 1e9) == c.all_gather(h100, 1, 1e9) == c.all_to_all(h100, 1, 1e9) == 0.0


def test_geforce_cards_copy_through_the_host() -> None:
    # no peer access over PCIe: half a slot's rate; a workstation card with peer access has 0.8 of it
    ada, pro = card("GeForce RTX 4090"), card("RTX PRO 6000 Blackwell")
    assert (ada.link_kind, ada.link) == ("pcie host", 16e9)
    assert pro.link_kind == "pcie"
    assert c.all_reduce(ada, 2, 1e6) > 2 * c.all_reduce(pro, 2, 1e6)


def test_a_bridge_joins_two_cards_only() -> None:
    amp = card("GeForce RTX 3090")
    assert amp.link_kind == "nvlink"
    assert c.bus(amp, 4) < c.bus(amp, 2)


def test_an_h100_bridge_pair_is_near_what_was_measured() -> None:
    # 116 GB/s bus bandwidth on an H100 PCIe pair whose sheet says 600 (nccl issue 1161)
    assert c.bus(card("H100 PCIe 80 GB"), 2) == pytest.approx(116e9, rel=0.1)


def test_beyond_a_machine_the_network_sets_the_pace() -> None:
    h100 = card("H100 SXM5 80 GB")
    assert c.bus(h100, 16) == pytest.approx(0.7 * 50e9)
    assert c.latency(h100, 16) > c.latency(h100, 8)


def test_a_bubble() -> None:
    assert c.bubble(8, 32) == pytest.approx(7 / 32)
    assert c.bubble(8, 32, chunks=4) == pytest.approx(7 / 128)


def test_blocks_are_dealt_out_whole() -> None:
    assert c.stages(10, 4, 1.0, 0.0, 0.0) == [2, 3, 3, 2]
    assert c.stages(11, 4, 1.0, 0.0, 0.5) == [3, 3, 3, 2.5]
    assert sum(c.stages(61, 8, 1.0, 0.5, 2.0)) == 63.5
    assert uneven(facts_of(read_model("llama-3.1-8b")), 1) == pytest.approx(1.0)


def test_layouts_divide_and_multiply_to_the_count() -> None:
    facts = facts_of(read_model("llama-3.1-70b"))
    for layout in inference_layouts(facts, 8, "vllm", linked=True):
        assert layout.data * layout.tensor * layout.pipeline == 8
        assert facts.heads % layout.tensor == 0
        assert facts.hidden % layout.tensor == 0
    assert all(x.tensor == 1 for x in inference_layouts(facts, 8, "llama.cpp", linked=True))
    assert {(x.tensor, x.pipeline) for x in inference_layouts(facts, 4, "vllm", linked=False)} == {(1, 1)}


def test_heads_that_do_not_divide_are_no_option() -> None:
    # Qwen2.5-1.5B has 12 heads and 2 key-value heads of 128: 8 cards cannot share 12 heads
    assert tensors(facts_of(read_model("qwen2.5-1.5b")), 8) == [1, 2, 4]


def test_training_layouts_share_a_step_out() -> None:
    facts = facts_of(read_model("llama-3.1-8b"))
    found = list(training_layouts(facts, 8, 32, 4096, linked=True))
    assert found
    for x in found:
        assert x.data * x.tensor * x.pipeline * x.context == 8
        assert x.data * x.micro_batch * x.micro_batches == 32
        assert x.context == 1  # 4,096 positions are not worth splitting
    assert found[0].data == 8
    assert found[0].sharded == 8
    assert any(x.context > 1 for x in training_layouts(facts, 8, 8, 131_072, linked=True))


def test_experts_spread_only_where_they_divide() -> None:
    facts = facts_of(read_model("qwen3-30b-a3b"))
    wide = [x for x in inference_layouts(facts, 8, "trtllm", linked=True) if x.expert > 1]
    assert wide
    assert all(128 % x.expert == 0 for x in wide)
