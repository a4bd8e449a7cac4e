"""What the planner needs to know of a card beside its sheet: class, clock, multiprocessors, and its links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from nearpeak.planning.precisions import HALF_SUMS
from nearpeak.records.limit import Rates
from nearpeak.records.spec import Spec

# architecture: (fp32 lanes of a multiprocessor, boost clock in GHz). NVIDIA's architecture white papers (P100, V100,
# Turing, GA100, GA102, Ada, H100) and CUDA Programming Guide, table "throughput of native arithmetic instructions".
# Where cards of one architecture differ, the clock of its largest card. Lanes of the others are left out: their
# decode is held against bandwidth alone.
NVIDIA_UNITS = {
    "sm_60": (64, 1.30), "sm_61": (128, 1.53), "sm_70": (64, 1.53), "sm_75": (64, 1.77), "sm_80": (64, 1.41),
    "sm_86": (128, 1.70), "sm_87": (128, 1.30), "sm_89": (128, 2.52), "sm_90": (128, 1.98), "sm_100": (128, 1.92),
    "sm_103": (128, 1.92), "sm_110": (128, 1.57), "sm_120": (128, 2.41), "sm_121": (128, 2.42),
}  # fmt: skip
OTHER_CLOCK = 1.8  # GHz; only the product with the fitted time a layer matters, and that is fitted per class

# The catalogue has the card-to-card link with both directions added; collectives use one direction at a time.
PCIE_BYTES = {"Gen3 x16": 16e9, "Gen4 x16": 32e9, "Gen4 x8": 16e9, "Gen4 x4": 8e9, "Gen5 x16": 64e9, "Gen5 x8": 32e9}

# Share of the sheet that ceilings reach on cards like those that the rows are from. Bursts: MAMF (ml-engineering)
# bf16 A100 0.81 to 0.87, H100 0.80; fp8 H100 0.71, H200 0.73. Sustained, under the power cap, and memory: the H200 of
# benchmarks/results/measure-h200 (bf16 690 of 989, fp8 1,305 of 1,979 TFLOP/s; 4.60 of 4.80 TB/s).
BURST = {"bf16": 0.80, "fp16": 0.80, "tf32": 0.80, "fp32": 0.77, "fp8": 0.73, "int8": 0.52, "fp4": 0.70}
SUSTAINED = {"bf16": 0.70, "fp16": 0.67, "tf32": 0.71, "fp32": 0.76, "fp8": 0.66, "int8": 0.46, "fp4": 0.60}
READ = 0.95


@dataclass(frozen=True)
class Card:
    """One kind of device as the planner sees it. All figures in SI units.

    group         whose efficiencies are alike: "nvidia data centre", "nvidia graphics", "amd instinct", "amd radeon",
                  "apple", "intel", "shared memory" (one chip with its host's memory), "cpu"
    matmul        dense FLOP/s by precision, fp32 sums, and fp16 with fp16 sums where that is faster; memory: bytes/s;
                  capacity: bytes that a program can have
    unit_clock    multiprocessors × clock in Hz, None where the architecture is not in the table
    clock         GHz
    link          bytes/s one way to a neighbour; link_kind: "nvlink switch", "nvlink", "pcie", "pcie host", "none"
    network       bytes/s one way to other nodes, per card; node: cards a node
    source        of matmul and memory: the sheet, or measured here
    """

    name: str
    group: str
    matmul: dict[str, float]
    memory: float
    capacity: float
    unit_clock: float | None
    clock: float
    link: float
    link_kind: str
    network: float
    node: int
    power: float | None
    source: str
    measured: bool = False


@lru_cache(maxsize=1024)
def card_of(spec: Spec) -> Card | None:
    """A card as its sheet has it; None where memory or its bandwidth is not known."""
    if spec.memory is None or spec.memory_bandwidth is None:
        return None
    vector = max((r.figure.value for r in spec.rates if r.unit == "vector" and r.precision == "fp32"), default=None)
    units = NVIDIA_UNITS.get(spec.architecture or "")
    unit_clock = vector / (2 * units[0]) if vector and units else None
    link, kind = _link(spec)
    return Card(
        name=spec.name, group=group_of(spec), matmul=_matmul(spec), memory=spec.memory_bandwidth.value,
        capacity=usable(spec), unit_clock=unit_clock, clock=units[1] if units else OTHER_CLOCK, link=link,
        link_kind=kind, network=_network(spec), node=72 if spec.name.startswith("GB") and spec.name[2:3].isdigit()
        and "per GPU" in spec.name else 8, power=spec.power.value if spec.power else None, source=_source(spec),
    )  # fmt: skip


def _source(spec: Spec) -> str:
    """Whose figures: and which of those that a plan mostly rests on nobody confirmed."""
    doubted = [
        r.precision for r in spec.rates if r.precision in ("bf16", "fp16") and r.figure.provenance == "unverified"
    ]
    if spec.memory_bandwidth and spec.memory_bandwidth.provenance == "unverified":
        doubted.append("bandwidth")
    return "the maker's sheet" + (f" (unverified: {', '.join(dict.fromkeys(doubted))})" if doubted else "")


def group_of(spec: Spec) -> str:
    name = spec.name
    if spec.vendor == "Apple":
        return "apple"
    if spec.vendor == "Intel":
        return "intel"
    if any(word in name for word in ("Jetson", "GB10", "Ryzen")):
        return "shared memory"
    if spec.vendor == "AMD":
        return "amd instinct" if name.startswith("MI") else "amd radeon"
    graphics = ("GeForce", "RTX", "TITAN", "Quadro")
    return "nvidia graphics" if any(word in name for word in graphics) else "nvidia data centre"


def usable(spec: Spec) -> float:
    """Bytes that a program can have.

    Sheets say "GB" for 2^30 bytes of memory chips, of which the driver keeps about 2 % (an H100 shows 79.6 of 80, an
    H200 139.8 of 141); ECC on GDDR takes 1/16 more (an L40S shows 45.0 of 48). Where memory is shared with the host,
    3/4 can be a GPU's (Apple's default limit of the working set).
    """
    assert spec.memory is not None
    size = spec.memory.value * (2**30 / 1e9)
    if spec.vendor == "Apple" or group_of(spec) == "shared memory":
        return 0.75 * size
    return 0.98 * size


def _matmul(spec: Spec) -> dict[str, float]:
    found: dict[str, float] = {}
    for precision in ("bf16", "fp16", "tf32", "fp32", "fp8", "int8", "fp4"):
        rate = spec.rate(precision, "int32" if precision == "int8" else "fp32")
        if rate:
            found[precision] = rate.figure.value
    smaller = ("bf16", "fp16", "fp8", "int8", "fp4")
    if not any(precision in found for precision in smaller):  # no matrix unit on the sheet: packed fp16, else fp32
        half = spec.rate("fp16", "fp16")
        if half or "fp32" in found:
            found["fp16"] = half.figure.value if half else found["fp32"]
    # matrix units do twice the products at half the bits (Ampere to Blackwell, XMX, CDNA): so from what the sheet has
    for precision, times in (("fp8", 2), ("int8", 2), ("fp4", 4)):
        found.setdefault("bf16", found.get("fp16", 0.0) or found.get(precision, 0.0) / times)
        if not found["bf16"]:
            del found["bf16"]
    found.setdefault("bf16", found.get("fp16", 0.0))
    found.setdefault("fp16", found.get("bf16", 0.0))
    half = spec.rate("fp16", "fp16")
    if half and half.figure.value > found["fp16"]:
        found[HALF_SUMS] = half.figure.value
    return {precision: value for precision, value in found.items() if value}


def _link(spec: Spec) -> tuple[float, str]:
    """Bytes/s one way between two cards of one machine, and how they are joined.

    A sheet's figure adds both directions. Bridges join pairs only. GeForce cards without a bridge have no peer access
    over PCIe (since the 40 series; NVIDIA's driver refuses it): each copy goes through the host's memory, at about
    half of the slot's rate.
    """
    kind = spec.link_type or ""
    if spec.link is not None and kind.startswith("NVLink"):
        bridge = "bridge" in kind
        return spec.link.value / 2, "nvlink" if bridge else "nvlink switch"
    if spec.link is not None and kind.startswith(("xGMI", "RoCE", "Xe")):
        return spec.link.value / 2, "nvlink"
    if kind.startswith("ConnectX"):
        return spec.link.value / 2 if spec.link else 12.5e9, "pcie"
    slot = PCIE_BYTES.get(spec.pcie or "", 0.0)
    if not slot:
        return 1e9, "none"
    if "GeForce" in spec.name:
        return slot / 2, "pcie host"
    return 0.8 * slot, "pcie"


def _network(spec: Spec) -> float:
    """Bytes/s one way for each card of a cluster node: one 400 Gb/s port a card since the H100, 200 before."""
    if spec.architecture in ("sm_90", "sm_100", "sm_103", "gfx942", "gfx950"):
        return 50e9
    return 25e9 if spec.architecture in ("sm_80", "gfx90a") else 12.5e9


def with_rates(card: Card, rates: Rates, sustained: bool, bursts: frozenset[str] = frozenset()) -> Card:
    """The card with what was measured of it in place of its sheet.

    Efficiencies are fitted as shares of the sheet, of which ceilings reach a usual share themselves (BURST, SUSTAINED,
    READ). A card that measures that share is taken at its sheet; one that measures less, or more, is slower or faster
    in proportion. bursts: precisions of which nothing sustained was measured. A precision that was not measured at all
    stays as on the sheet, though rates name what would run in its place.
    """
    matmul = dict(card.matmul)
    measured = matmul.keys() & rates.matmul.keys() - rates.missing.keys()
    for precision in measured:
        usual = SUSTAINED if sustained and precision not in bursts else BURST
        matmul[precision] = rates.matmul[precision] / usual.get(precision, 0.75)
    kept = [p for p in matmul if p not in measured and p not in (HALF_SUMS, "tf32", "fp32")]
    source = rates.source + (f", but for {', '.join(kept)}: {card.source}" if kept else "")
    if HALF_SUMS in matmul:
        matmul[HALF_SUMS] *= matmul["fp16"] / card.matmul["fp16"]
    return replace(card, matmul=matmul, memory=rates.memory / READ, source=source, measured=True)
