"""How long collectives take between cards, and what a pipeline loses.

A ring over n cards moves, for a tensor of `size` bytes: all-reduce 2·(n − 1)/n · size through each card's link,
all-gather and reduce-scatter (n − 1)/n · size (Thakur, Rabenseifner and Gropp 2005, section 4; NCCL reports its "bus
bandwidth" by the same factors). Each collective pays a latency beside that.
"""

from __future__ import annotations

from nearpeak.planning.cards import Card

# Share of a link's one-way rate that large collectives reach: NVLink through switches 0.8 (370 of 450 GB/s in
# nccl-tests on an HGX H100); bridges less: an H100 PCIe pair was measured at 116 of 300 GB/s (nccl issue 1161).
BUS_SHARE = {"nvlink switch": 0.8, "nvlink": 0.4, "pcie": 0.7, "pcie host": 0.7, "none": 0.5}
# Seconds that a collective of a few bytes takes between two cards inside one machine, and across machines.
LATENCY = {"nvlink switch": 8e-6, "nvlink": 10e-6, "pcie": 15e-6, "pcie host": 25e-6, "none": 100e-6}
NETWORK_LATENCY = 25e-6
NETWORK_SHARE = 0.7


def bus(card: Card, cards: int) -> float:
    """Bytes/s that each of `cards` cards sees in a ring. Rings that leave a machine run at the network's rate."""
    if cards > card.node:
        return card.network * NETWORK_SHARE
    share, kind = card.link, card.link_kind
    if kind == "nvlink" and cards > 2 and card.group == "nvidia graphics":
        return min(share, 16e9) * BUS_SHARE["pcie"]  # a bridge joins two cards; the ring's slowest hop is the slot
    return share * BUS_SHARE[kind]


def latency(card: Card, cards: int) -> float:
    """Seconds of one collective with nothing in it: a step for each doubling of cards."""
    hop = NETWORK_LATENCY if cards > card.node else LATENCY[card.link_kind]
    return hop * max(1, (cards - 1).bit_length())


def all_reduce(card: Card, cards: int, size: float) -> float:
    """Seconds to add up `size` bytes over `cards` cards, the sum on each."""
    if cards < 2:
        return 0.0
    return latency(card, cards) + 2 * (cards - 1) / cards * size / bus(card, cards)


def all_gather(card: Card, cards: int, size: float) -> float:
    """Seconds until each of `cards` cards has all `size` bytes, each having had its part. A reduce-scatter takes as
    long."""
    if cards < 2:
        return 0.0
    return latency(card, cards) + (cards - 1) / cards * size / bus(card, cards)


def all_to_all(card: Card, cards: int, size: float) -> float:
    """Seconds for `size` bytes on each card to change places, all but its own share."""
    if cards < 2:
        return 0.0
    return latency(card, cards) + (cards - 1) / cards * size / bus(card, cards)


def send(card: Card, size: float, across: bool = False) -> float:
    """Seconds from one card to the next."""
    if across:
        return NETWORK_LATENCY + size / (card.network * NETWORK_SHARE)
    return LATENCY[card.link_kind] + size / (card.link * BUS_SHARE[card.link_kind])


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle time of a pipeline as a share of its busy time: (p − 1) ÷ (v · m), v chunks of layers a stage (Narayanan
    et al. 2021, section 2.2)."""
    return (stages - 1) / (chunks * micro_batches)


def imbalance(stage_seconds: list[float]) -> float:
    """How much slower a full pipeline is than perfectly even stages: the slowest stage sets the pace."""
    return max(stage_seconds) * len(stage_seconds) / sum(stage_seconds)


def stages(layers: int, count: int, layer_seconds: float, first: float, last: float) -> list[float]:
    """Seconds of each of `count` stages: blocks dealt out as evenly as whole ones can be, the larger shares in the
    middle, `first` (the embedding) with the first stage and `last` (the head) with the last."""
    least, more = divmod(layers, count)
    sizes = [least] * count
    order = sorted(range(count), key=lambda stage: (stage in (0, count - 1), stage == count - 1))
    for stage in order[:more]:
        sizes[stage] += 1
    seconds = [size * layer_seconds for size in sizes]
    seconds[0] += first
    seconds[-1] += last
    return seconds
