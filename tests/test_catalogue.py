"""The catalogue: its figures against copied values, the wrong rows of other tools, exact matching, a person's file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from catalogue_help import (
    GIB,
    MIB,
    _no_own_catalogue,  # noqa: F401 (a fixture that acts by being here)
    catalogue,
    found,
    gpu,
    rates,
)
from nearpeak.hardware.catalogue import RATES, find_by_name, find_spec, load_catalogue
from nearpeak.records.errors import UserError

# name | vendor | family | year | architecture | link type | pcie | price in USD, low-high
MAKE = """\
GeForce RTX 2060 12 GB|NVIDIA|Turing|2021|sm_75||Gen3 x16|
GeForce RTX 2080 Ti|NVIDIA|Turing|2018|sm_75|NVLink2 bridge|Gen3 x16|
TITAN RTX|NVIDIA|Turing|2018|sm_75|NVLink2 bridge|Gen3 x16|
GeForce RTX 3080|NVIDIA|Ampere|2020|sm_86||Gen4 x16|350-350
GeForce RTX 3080 12 GB|NVIDIA|Ampere|2022|sm_86||Gen4 x16|
GeForce RTX 3090|NVIDIA|Ampere|2020|sm_86|NVLink3 bridge|Gen4 x16|500-800
GeForce RTX 4060 Ti 16 GB|NVIDIA|Ada|2023|sm_89||Gen4 x8|
GeForce RTX 4090|NVIDIA|Ada|2022|sm_89||Gen4 x16|1700-1700
GeForce RTX 5090|NVIDIA|Blackwell|2025|sm_120||Gen5 x16|3200-3200
RTX A6000|NVIDIA|Ampere|2020|sm_86|NVLink3 bridge|Gen4 x16|2500-2500
RTX 6000 Ada Generation|NVIDIA|Ada|2022|sm_89||Gen4 x16|
RTX PRO 6000 Blackwell|NVIDIA|Blackwell|2025|sm_120||Gen5 x16|
Tesla P100 SXM2|NVIDIA|Pascal|2016|sm_60|NVLink1|Gen3 x16|
V100 SXM2 32GB|NVIDIA|Volta|2018|sm_70|NVLink2|Gen3 x16|
Tesla T4|NVIDIA|Turing|2018|sm_75||Gen3 x16|
A30|NVIDIA|Ampere|2021|sm_80|NVLink3 bridge|Gen4 x16|
A40|NVIDIA|Ampere|2020|sm_86|NVLink3 bridge|Gen4 x16|
A100 PCIe 40 GB|NVIDIA|Ampere|2020|sm_80|NVLink3 bridge|Gen4 x16|
A100 SXM4 80 GB|NVIDIA|Ampere|2020|sm_80|NVLink3|Gen4 x16|
L4|NVIDIA|Ada|2023|sm_89||Gen4 x16|
L40|NVIDIA|Ada|2022|sm_89||Gen4 x16|
L40S|NVIDIA|Ada|2022|sm_89||Gen4 x16|
H100 PCIe 80 GB|NVIDIA|Hopper|2022|sm_90|NVLink4 bridge|Gen5 x16|
H100 NVL 94 GB|NVIDIA|Hopper|2023|sm_90|NVLink4 bridge|Gen5 x16|
H100 SXM5 80 GB|NVIDIA|Hopper|2022|sm_90|NVLink4|Gen5 x16|25000-30000
H200 SXM 141 GB|NVIDIA|Hopper|2024|sm_90|NVLink4|Gen5 x16|
GH200 96GB|NVIDIA|Hopper|2023|sm_90|NVLink4 + C2C||
B200|NVIDIA|Blackwell|2024|sm_100|NVLink5|Gen5 x16|40000-50000
GB200 (per GPU)|NVIDIA|Blackwell|2024|sm_100|NVLink5||
B300|NVIDIA|Blackwell Ultra|2025|sm_103|NVLink5|Gen5 x16|
Jetson AGX Orin 64 GB|NVIDIA|Ampere|2023|sm_87||Gen4 x4|
GB10 (DGX Spark)|NVIDIA|Blackwell|2025|sm_121|ConnectX-7||
MI50|AMD|GCN5.1|2018|gfx906|xGMI|Gen4 x16|
MI100|AMD|CDNA1|2020|gfx908|xGMI|Gen4 x16|
MI250X|AMD|CDNA2|2021|gfx90a|xGMI|Gen4 x16|
MI300X|AMD|CDNA3|2023|gfx942|xGMI|Gen5 x16|15000-20000
MI355X|AMD|CDNA4|2025|gfx950|xGMI|Gen5 x16|
RX 7900 XTX|AMD|RDNA3|2022|gfx1100||Gen4 x16|
RX 9070 XT|AMD|RDNA4|2025|gfx1201||Gen5 x16|
Arc B580|Intel|Xe2-HPG|2024|||Gen4 x8|
Gaudi2|Intel|Gaudi|2022||RoCE|Gen4 x16|
M3 Ultra|Apple|Apple GPU|2025|metal|unified||9500-9500
M4 Max|Apple|Apple GPU|2024|metal|unified||5000-5000
"""

# name | memory GB | bandwidth GB/s | power W | link GB/s | then TFLOPS: fp64 vector | fp64 matrix | fp32 vector |
# fp16 vector | tf32 | fp16 | fp16 with fp16 accumulate | bf16 | int8 | fp8 | fp4
FIGURES = """\
GeForce RTX 2060 12 GB|12|336|184||0.22||7.2|||28.7|57.4||114.9||
GeForce RTX 2080 Ti|11|616|250|100|0.42||13.4|||53.8|107.6||215.2||
TITAN RTX|24|672|280|100|0.51||16.3|||130.5|130.5||261||
GeForce RTX 3080|10|760.3|320||0.47||29.8||29.8|59.5|119.1|59.5|238.1||
GeForce RTX 3080 12 GB|12|912.4|350||0.48||30.6||30.6|61.3|122.6|61.3|245.1||
GeForce RTX 3090|24|936.2|350|112.5|0.56||35.6||35.6|71.2|142.3|71.2|284.7||
GeForce RTX 4060 Ti 16 GB|16|288|165||0.34||22.1||22.1|44.1|88.3|44.1|176.5|88.3|
GeForce RTX 4090|24|1008|450||1.29||82.6||82.6|165.2|330.3|165.2|660.6|330.3|
GeForce RTX 5090|32|1792|575||1.64||104.8||104.8|209.5|419|209.5|838|419|1676
RTX A6000|48|768|300|112.5|0.6||38.7||77.4|154.8|154.8|154.8|309.7||
RTX 6000 Ada Generation|48|960|300||1.42||91.1||182.1|364.2|364.2|364.2|728.5|728.5|
RTX PRO 6000 Blackwell|96|1792|600||1.97||126||251.9|503.8|503.8|503.8|1007.6|1007.6|2015.2
Tesla P100 SXM2|16|732|300|160|5.3||10.6|21.2|||||||
V100 SXM2 32GB|32|900|300|300|7.8||15.7|||125|||||
Tesla T4|16|320|70||0.25||8.1|||65|||130||
A30|24|933|165|200|5.2|10.3|10.3||82|165||165|330||
A40|48|696|300|112.5|0.58||37.4||74.8|149.7||149.7|299.3||
A100 PCIe 40 GB|40|1555|250|600|9.7|19.5|19.5||156|312||312|624||
A100 SXM4 80 GB|80|2039|400|600|9.7|19.5|19.5||156|312||312|624||
L4|24|300|72||0.47||30.3||60|121||121|242|242|
L40|48|864|300||1.41||90.5||90.5|181||181|362|362|
L40S|48|864|350||1.43||91.6||183|362||362|733|733|
H100 PCIe 80 GB|80|2000|350|600|25.6|51|51||378|756||756|1513|1513|
H100 NVL 94 GB|94|3938|400|600|30|60|60||417.5|835.5||835.5|1671|1671|
H100 SXM5 80 GB|80|3350|700|900|34|67|67||494.5|989||989|1979|1979|
H200 SXM 141 GB|141|4800|700|900|34|67|67||494.5|989||989|1979|1979|
GH200 96GB|96|4000|900|900|34|66.9|67||494.5|989||989|1979|1979|
B200|180|8000|1000|1800|37|37|75||1125|2250||2250|4500|4500|9000
GB200 (per GPU)|186|8000|1200|1800|40|40|80||1250|2500||2500|5000|5000|10000
B300|288|8000|1000|1800|1.2||80||1125|2250||2250||4500|15000
Jetson AGX Orin 64 GB|64|204.8|60||||5.3||21.3|42.6||42.6|85.2||
GB10 (DGX Spark)|128|273|140|50|||29.7||||||||500
MI50|16|1024|300||6.7||13.4|26.8|||||||
MI100|32|1229|300||11.5||23.1|||184.6||92.3|184.6||
MI250X|128|3277|560|700|47.9|95.7|47.9|||383||383|383||
MI300X|192|5300|750|896|81.7|163.4|163.4||653.7|1307.4||1307.4|2614.9|2614.9|
MI355X|288|8000|1400|1071|78.6|78.6|157.3|||2516.6||2516.6|5033|5033|10066
RX 7900 XTX|24|960|355||1.92||61.4|||122.8||122.8|122.8||
RX 9070 XT|16|644.6|304||1.52||48.7|||194.6||194.6|389.3|389.3|
Arc B580|12|456|190||1.71||13.7|||116.5||116.5|233||
Gaudi2|96|2460|600|600||||||||432||865|
M3 Ultra|512|819|180||||28.4||||||||
M4 Max|128|546|100||||18.4||||||||
"""

# --- the figures ---


def test_all_rows_are_there_once_with_their_makers() -> None:
    specs = load_catalogue()
    vendors = [spec.vendor for spec in specs]
    assert len(specs) == len({spec.name for spec in specs}) == 139
    assert {v: vendors.count(v) for v in set(vendors)} == {"NVIDIA": 85, "AMD": 29, "Intel": 8, "Apple": 17}


@pytest.mark.parametrize("line", MAKE.splitlines(), ids=lambda line: line.split("|")[0])
def test_what_a_card_is(line: str) -> None:
    name, vendor, family, year, architecture, link_type, pcie, price = line.split("|")
    spec = catalogue()[name]
    assert (spec.vendor, spec.family, spec.year) == (vendor, family, int(year))
    assert (spec.architecture, spec.link_type, spec.pcie) == (architecture or None, link_type or None, pcie or None)
    assert (f"{spec.price.low:g}-{spec.price.high:g}" if spec.price else "") == price
    assert spec.price is None or spec.price.source


@pytest.mark.parametrize("line", FIGURES.splitlines(), ids=lambda line: line.split("|")[0])
def test_every_figure_of_a_card(line: str) -> None:
    name, *numbers = line.split("|")
    spec = catalogue()[name]
    others = [spec.memory, spec.memory_bandwidth, spec.power, spec.link]
    got = [figure.value / scale if figure else None for figure, scale in zip(others, (1e9, 1e9, 1, 1e9), strict=True)]
    got += [rates(spec).get(column) for column in RATES]
    assert got == [pytest.approx(float(number), rel=1e-9) if number else None for number in numbers]


def test_every_rate_names_accumulate_and_unit() -> None:
    kinds = {(r.precision, r.accumulate, r.unit) for spec in load_catalogue() for r in spec.rates}
    assert kinds == set(RATES.values())
    assert all(unit == "vector" for precision, _, unit in kinds if precision == "fp32")
    assert ("fp16", "fp32", "vector") not in kinds


def test_figures_are_in_si_and_plausible() -> None:
    """A column in the wrong unit, or shifted by one, lands far outside these."""
    for spec in load_catalogue():
        for figure, low, high in (
            (spec.memory, 5e9, 600e9), (spec.memory_bandwidth, 50e9, 30e12), (spec.power, 10, 1500),
            (spec.link, 10e9, 4e12),
        ):  # fmt: skip
            assert figure is None or low <= figure.value <= high, spec.name
        assert spec.memory, spec.name
        assert spec.memory_bandwidth, spec.name
        assert 2016 <= spec.year <= 2027
        for rate in spec.rates:
            assert 0.1e12 <= rate.figure.value <= 4e16, (spec.name, rate)


# --- relations between figures ---


def test_fp16_accumulate_is_never_slower_and_matrix_units_never_slower_than_vector_ones() -> None:
    seen = 0
    for spec in load_catalogue():
        r = rates(spec)
        for fast, slow in (
            ("fp16_acc16_tflops", "fp16_tflops"), ("fp64_matrix_tflops", "fp64_vector_tflops"),
            ("tf32_tflops", "fp32_vector_tflops"), ("fp16_tflops", "fp32_vector_tflops"),
            ("fp8_tflops", "fp16_tflops"), ("fp4_tflops", "fp8_tflops"), ("fp32_vector_tflops", "fp64_vector_tflops"),
        ):  # fmt: skip
            if fast in r and slow in r:
                seen += 1
                # 0.993: figures are printed to one digit (RTX 3070 Ti: tf32 21.7, fp32 21.8)
                assert r[fast] >= 0.993 * r[slow], (spec.name, fast, slow)
    assert seen > 300


# NVIDIA's ratios, by compute capability: what one precision is to another on the same units. GeForce cards and the L40
# run fp16 with fp32 accumulate at half rate, so int8 is four times that.
HALF_RATE = {"L40"}
RATIO_EXCEPTIONS = {
    ("Rubin SXM (announced)", "int8_tops"): "int8 is given less hardware than 16-bit",
    ("Rubin SXM (announced)", "fp8_tflops"): "announced figures",
    ("B300", "fp4_tflops"): "Ultra has more fp4 hardware; two figures in the source, unverified",
    ("GB300 (per GPU)", "fp4_tflops"): "Ultra has more fp4 hardware",
}


def test_nvidia_matrix_rates_keep_the_ratios_of_their_architecture() -> None:
    checked = 0
    for spec in load_catalogue():
        if spec.vendor != "NVIDIA":
            continue
        r = rates(spec)
        half = "GeForce" in spec.name or spec.name in HALF_RATE
        expected = [("fp16_tflops", "tf32_tflops", 2), ("bf16_tflops", "fp16_tflops", 1)]
        expected += [("fp16_acc16_tflops", "fp16_tflops", 2 if half else 1), ("fp8_tflops", "fp16_tflops", 2)]
        expected += [("int8_tops", "fp16_tflops", 4 if "GeForce" in spec.name else 2)]
        expected += [("fp4_tflops", "fp8_tflops", 4 if "GeForce" in spec.name else 2)]
        for one, other, ratio in expected:
            if one in r and other in r:
                holds = r[one] / r[other] == pytest.approx(ratio, rel=0.03)
                assert holds != ((spec.name, one) in RATIO_EXCEPTIONS), (spec.name, one, r[one] / r[other])
                checked += 1
    assert checked > 230


def test_half_rate_cards_have_no_more_tf32_than_fp32() -> None:
    """At half rate tf32 equals the vector rate on sm_86, sm_89 and sm_120; at full rate it is twice that."""
    for spec in load_catalogue():
        r = rates(spec)
        if spec.architecture in {"sm_86", "sm_89", "sm_120"} and "tf32_tflops" in r:
            half = "GeForce" in spec.name or spec.name in HALF_RATE
            assert r["tf32_tflops"] / r["fp32_vector_tflops"] == pytest.approx(1 if half else 2, rel=0.03), spec.name


def test_fp64_matrix_rates() -> None:
    """Twice the vector rate, but equal to it where the matrix units were cut (Blackwell, CDNA 4)."""
    with_matrix = {spec.name: rates(spec) for spec in load_catalogue() if "fp64_matrix_tflops" in rates(spec)}
    assert set(with_matrix) == {
        "A30", "A100 PCIe 40 GB", "A100 PCIe 80 GB", "A100 SXM4 40 GB", "A100 SXM4 80 GB", "A800 SXM4 80 GB",
        "H100 PCIe 80 GB", "H100 NVL 94 GB", "H100 SXM5 80 GB", "H200 SXM 141 GB", "H200 NVL", "GH200 96GB", "B200",
        "GB200 (per GPU)", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI325X", "MI350X", "MI355X",
    }  # fmt: skip
    for name, r in with_matrix.items():
        equal = name in {"B200", "GB200 (per GPU)", "MI350X", "MI355X"}
        assert r["fp64_matrix_tflops"] / r["fp64_vector_tflops"] == pytest.approx(1 if equal else 2, rel=0.03), name


@pytest.mark.parametrize(
    ("name", "column", "units", "per_clock", "clock"),
    [
        ("A100 SXM4 80 GB", "bf16_tflops", 432, 512, 1.41e9),
        ("A100 SXM4 80 GB", "fp64_matrix_tflops", 108, 128, 1.41e9),
        ("A30", "fp64_matrix_tflops", 56, 128, 1.44e9),
        ("H100 SXM5 80 GB", "bf16_tflops", 528, 1024, 1.83e9),
        ("GH200 96GB", "fp64_matrix_tflops", 132, 256, 1.98e9),
        ("H200 SXM 141 GB", "fp64_vector_tflops", 132, 128, 1.98e9),
        ("RTX 4090", "fp16_tflops", 128, 512, 2.52e9),
        ("MI300X", "fp64_matrix_tflops", 304, 256, 2.1e9),
        ("MI300X", "bf16_tflops", 1216, 512, 2.1e9),
        ("MI250X", "fp64_matrix_tflops", 220, 256, 1.7e9),
        ("MI355X", "fp64_matrix_tflops", 256, 128, 2.4e9),
        ("MI355X", "bf16_tflops", 1024, 1024, 2.4e9),
        ("Gaudi2", "bf16_tflops", 2, 2 * 256 * 256, 1.65e9),
    ],
)
def test_units_times_clock(name: str, column: str, units: int, per_clock: int, clock: float) -> None:
    assert rates(find_by_name(name))[column] == pytest.approx(units * per_clock * clock / 1e12, rel=0.02)


# --- rows that other tools had wrong ---


def test_a100_is_312_and_not_its_tf32_156() -> None:
    for name in ("A100 PCIe 40 GB", "A100 PCIe 80 GB", "A100 SXM4 40 GB", "A100 SXM4 80 GB"):
        r = rates(catalogue()[name])
        assert (r["bf16_tflops"], r["fp16_tflops"], r["tf32_tflops"]) == (312, 312, 156)


def test_rtx_40_fp32_accumulate_is_neither_330_nor_660() -> None:
    r = rates(find_by_name("RTX 4090"))
    assert (r["fp16_tflops"], r["bf16_tflops"], r["fp16_acc16_tflops"]) == (165.2, 165.2, 330.3)
    assert find_by_name("RTX 4090").rate("fp16", "fp32").figure.value == 165.2e12  # type: ignore[union-attr]
    assert find_by_name("RTX 4080").rate("bf16", "fp32").figure.value == 97.5e12  # type: ignore[union-attr]


def test_l40s_is_no_l40() -> None:
    assert rates(find_by_name("L40S"))["bf16_tflops"] == 362
    assert rates(find_by_name("L40"))["bf16_tflops"] == 181
    assert (found("NVIDIA L40S", 46068 * MIB), found("NVIDIA L40", 46068 * MIB)) == ("L40S", "L40")


def test_h100_forms_differ() -> None:
    expected = {"NVIDIA H100 PCIe": 756, "NVIDIA H100 NVL": 835.5, "NVIDIA H100 80GB HBM3": 989}
    for name, tflops in expected.items():
        spec = find_spec(gpu(name))
        assert spec is not None
        assert rates(spec)["bf16_tflops"] == tflops


def test_hopper_is_not_the_constant_of_compute_capability_8() -> None:
    """One FLOP/SM/clock for everything from sm_80 gives Hopper half: 132 × 2048 × 1.83e9 = 495."""
    for name in ("H100 SXM5 80 GB", "H200 SXM 141 GB", "GH200 96GB", "H800 SXM"):
        assert rates(catalogue()[name])["bf16_tflops"] > 1.9 * 132 * 2048 * 1.83e9 / 1e12


def test_838_of_a_5090_is_no_fp32_accumulate_16_bit_rate() -> None:
    r = rates(find_by_name("RTX 5090"))
    assert (r["fp16_tflops"], r["bf16_tflops"]) == (209.5, 209.5)
    assert [column for column, value in r.items() if value == 838] == ["int8_tops"]
    assert r["fp8_tflops"] == 419


@pytest.mark.parametrize(
    ("name", "column", "sparse"),
    [
        ("A100 SXM4 80 GB", "bf16_tflops", 624), ("H100 SXM5 80 GB", "bf16_tflops", 1979),
        ("H100 SXM5 80 GB", "tf32_tflops", 989), ("H100 SXM5 80 GB", "fp8_tflops", 3958),
        ("H200 SXM 141 GB", "fp8_tflops", 3958), ("H200 NVL", "bf16_tflops", 1671), ("B200", "bf16_tflops", 4500),
        ("B200", "fp4_tflops", 18000), ("GB200 (per GPU)", "fp8_tflops", 10000), ("L40S", "bf16_tflops", 733),
        ("L4", "fp8_tflops", 485), ("A40", "bf16_tflops", 299.4), ("GB10 (DGX Spark)", "fp4_tflops", 1000),
        ("Jetson AGX Thor (T5000)", "fp4_tflops", 2070), ("MI300X", "bf16_tflops", 2614.9),
    ],
)  # fmt: skip
def test_sparse_figures_are_halved(name: str, column: str, sparse: float) -> None:
    assert rates(catalogue()[name])[column] == pytest.approx(sparse / 2, rel=0.015)


def test_no_matrix_rate_where_there_are_no_matrix_units() -> None:
    for name in ("Tesla P100 SXM2", "Tesla P40", "MI50", "MI60", "RX 6800 XT", "RX 6900 XT", "RX 6950 XT"):
        assert {rate.unit for rate in catalogue()[name].rates} == {"vector"}, name
    no_bf16 = [spec.name for spec in load_catalogue() if spec.architecture in {"sm_60", "sm_61", "sm_70", "sm_75"}]
    assert len(no_bf16) == 15
    assert not [name for name in no_bf16 if {"bf16_tflops", "tf32_tflops"} & set(rates(catalogue()[name]))]


# --- provenance ---


def words(name: str) -> dict[str, str]:
    spec = catalogue()[name]
    names = {kind: column for column, kind in RATES.items()}
    all_ = {"memory": spec.memory, "bandwidth": spec.memory_bandwidth, "power": spec.power, "link": spec.link}
    all_ |= {names[r.precision, r.accumulate, r.unit]: r.figure for r in spec.rates}
    return {what: figure.provenance for what, figure in all_.items() if figure}


def test_looked_up_rows_are_sheet() -> None:
    for name in ("A100 SXM4 80 GB", "H100 SXM5 80 GB", "H200 SXM 141 GB", "L40S", "B200"):
        assert set(words(name).values()) == {"sheet"}, name


def test_formula_rows_have_derived_rates_and_a_recalled_bridge() -> None:
    w = words("GeForce RTX 3090")
    assert (w["memory"], w["bandwidth"], w["power"], w["link"]) == ("sheet", "sheet", "sheet", "unverified")
    assert {word for what, word in w.items() if what in RATES} == {"derived"}
    bridges = [s for s in load_catalogue() if s.link and "bridge" in (s.link_type or "") and "RTX" in s.name]
    assert len(bridges) == 10
    assert {s.link.provenance for s in bridges if s.link} == {"unverified"}


@pytest.mark.parametrize(
    ("name", "sheet", "derived"),
    [
        ("V100 SXM2 16GB", {"memory", "bandwidth", "fp16_tflops"}, set()),
        ("A30", {"memory", "bandwidth"}, {"fp16_tflops", "bf16_tflops", "fp64_matrix_tflops"}),
        ("A800 SXM4 80 GB", {"memory", "bandwidth", "fp16_tflops", "bf16_tflops"}, set()),
        ("H100 NVL 94 GB", {"memory", "bandwidth", "power", "fp16_tflops", "bf16_tflops"}, set()),
        ("H20", {"memory", "bandwidth", "fp16_tflops", "bf16_tflops"}, set()),
        ("H800 SXM", {"memory", "bandwidth", "fp16_tflops", "bf16_tflops"}, set()),
        ("Jetson AGX Thor (T5000)", {"memory", "fp4_tflops"}, set()),
        ("MI300A", set(), {"fp64_matrix_tflops"}),
        ("Gaudi3", {"memory", "bandwidth", "link", "bf16_tflops", "fp8_tflops"}, set()),
        ("Data Center GPU Max 1550", {"memory", "bandwidth"}, set()),
        ("M1", {"bandwidth", "fp32_vector_tflops"}, set()),
    ],
)
def test_what_is_recalled_stays_unverified(name: str, sheet: set[str], derived: set[str]) -> None:
    w = words(name)
    assert {what for what, word in w.items() if word == "sheet"} == sheet
    assert {what for what, word in w.items() if word == "derived"} == derived
    assert "unverified" in w.values()


def test_where_sources_disagree_the_figure_is_unverified() -> None:
    assert words("B300")["fp4_tflops"] == words("B300")["power"] == "unverified"


def test_number_of_figures_by_provenance() -> None:
    """A figure that changes its word is meant to be noticed, and to be changed here too."""
    every = [word for spec in load_catalogue() for word in words(spec.name).values()]
    assert {word: every.count(word) for word in set(every)} == {"sheet": 659, "derived": 397, "unverified": 124}
    assert all(r.figure.source for spec in load_catalogue() for r in spec.rates)


# --- which device it is ---


@pytest.mark.parametrize(
    ("name", "memory", "architecture", "expected"),
    [
        ("NVIDIA H200", 143771 * MIB, "sm_90", "H200 SXM 141 GB"),
        ("NVIDIA H200 NVL", 143771 * MIB, "sm_90", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", 81559 * MIB, "sm_90", "H100 SXM5 80 GB"),
        ("NVIDIA A100-SXM4-80GB", 81920 * MIB, "sm_80", "A100 SXM4 80 GB"),
        ("A100-SXM4-40GB", 40536 * MIB, "sm_80", "A100 SXM4 40 GB"),
        ("NVIDIA A100 80GB PCIe", 81920 * MIB, "sm_80", "A100 PCIe 80 GB"),
        ("NVIDIA A100-PCIE-40GB", 40960 * MIB, "sm_80", "A100 PCIe 40 GB"),
        ("Tesla T4", 14.56 * GIB, "sm_75", "Tesla T4"),
        ("NVIDIA T4", 15360 * MIB, "sm_75", "Tesla T4"),
        ("Tesla V100-SXM2-32GB", 32768 * MIB, "sm_70", "V100 SXM2 32GB"),
        ("NVIDIA GeForce RTX 3090", 23.69 * GIB, "sm_86", "GeForce RTX 3090"),
        ("GeForce RTX 3090", 24268 * MIB, "sm_86", "GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24564 * MIB, "sm_86", "GeForce RTX 3090 Ti"),
        ("NVIDIA RTX 6000 Ada Generation", 49140 * MIB, "sm_89", "RTX 6000 Ada Generation"),
        ("NVIDIA RTX A6000", 49140 * MIB, "sm_86", "RTX A6000"),
        ("NVIDIA A10G", 23028 * MIB, "sm_86", "A10G"),
        ("NVIDIA GH200 480GB", 97871 * MIB, "sm_90", "GH200 96GB"),
        ("NVIDIA B200", 183359 * MIB, "sm_100", "B200"),
        ("NVIDIA B300 SXM6 AC", 275040 * MIB, "sm_103", "B300"),
        ("NVIDIA GB200", 199715979264, "sm_100", "GB200 (per GPU)"),
        ("NVIDIA GB300", 298500227072, "sm_103", "GB300 (per GPU)"),
        ("NVIDIA GB10", None, "sm_121", "GB10 (DGX Spark)"),
        ("NVIDIA Thor", 131.9e9, "sm_110", "Jetson AGX Thor (T5000)"),
        ("Orin", 65893269504, "sm_87", "Jetson AGX Orin 64 GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887 * MIB, "sm_120", "RTX PRO 6000 Blackwell"),
        ("AMD Instinct MI300X", 206141652992, "gfx942:sramecc+:xnack-", "MI300X"),
        ("Instinct MI300X", None, None, "MI300X"),
        ("AMD Radeon RX 7900 XTX", 24560 * MIB, "gfx1100", "RX 7900 XTX"),
        ("AMD Radeon 8060S Graphics", 80 * GIB, "gfx1151", "Ryzen AI Max+ 395 (Radeon 8060S)"),
        ("Intel(R) Arc(TM) B580 Graphics", 12118 * MIB, None, "Arc B580"),
        ("Intel(R) Arc(tm) Pro B60 Graphics", 24480 * MIB, None, "Arc Pro B60"),
        ("Apple M3 Max", 36 * GIB, None, "M3 Max"),
        ("Apple M1", 8 * GIB, None, "M1"),
    ],
)
def test_drivers_names(name: str, memory: float | None, architecture: str | None, expected: str) -> None:
    assert found(name, memory, architecture) == expected


@pytest.mark.parametrize(
    ("name", "memory", "architecture"),
    [
        ("NVIDIA GeForce RTX 9999", None, None),
        ("RTX 6000", 48 * GIB, "sm_86"),
        ("RTX 6000", 24 * GIB, "sm_75"),
        ("Quadro RTX 6000", 24 * GIB, "sm_75"),
        ("NVIDIA RTX 6000", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16 * GIB, "sm_89"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16 * GIB, "sm_86"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", 8 * GIB, "sm_75"),
        ("NVIDIA GeForce RTX 2070 Super", 8 * GIB, "sm_75"),  # a laptop's; the desktop card says SUPER
        ("NVIDIA H100", 80 * GIB, "sm_90"),
        ("NVIDIA H200 NVL Extra", 141 * GIB, "sm_90"),
        ("NVIDIA H20-3e", 141 * GIB, "sm_90"),
        ("NVIDIA GH200 144G HBM3e", 146831 * MIB, "sm_90"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887 * MIB, "sm_120"),
        ("NVIDIA GeForce RTX 5090 D", 32607 * MIB, "sm_120"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB, "sm_80"),
        ("AMD Instinct MI250X", 64 * GIB, "gfx90a"),
        ("", None, None),
        ("NVIDIA", None, None),
    ],
)
def test_no_spec_for_another_card(name: str, memory: float | None, architecture: str | None) -> None:
    assert found(name, memory, architecture) is None


def test_a_slice_or_a_cpu_has_no_spec() -> None:
    assert found("NVIDIA A100-SXM4-80GB", 80 * GIB, "sm_80") == "A100 SXM4 80 GB"
    assert found("NVIDIA A100-SXM4-80GB", 80 * GIB, "sm_80", id="MIG-7c7d") is None
    assert found("NVIDIA A100-SXM4-80GB", 10 * GIB, "sm_80") is None
    assert found("Apple M3 Max", kind="cpu") is None


def test_a_name_with_another_architecture_is_another_card() -> None:
    assert found("NVIDIA RTX 6000 Ada Generation", 49140 * MIB, "sm_86") is None
    assert found("AMD Instinct MI300X", None, "gfx90a") is None
    assert found("Apple M3 Max", None, "arm64") == "M3 Max"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("NVIDIA GeForce RTX 3080", {10: "GeForce RTX 3080", 12: "GeForce RTX 3080 12 GB", 20: None, None: None}),
        ("NVIDIA GeForce RTX 2060", {6: "GeForce RTX 2060", 12: "GeForce RTX 2060 12 GB", 8: None, None: None}),
        ("NVIDIA GeForce RTX 3060", {12: "GeForce RTX 3060 12 GB", 8: None}),
        ("NVIDIA GeForce RTX 4060 Ti", {16: "GeForce RTX 4060 Ti 16 GB", 8: None}),
        ("NVIDIA GeForce RTX 5060 Ti", {16: "GeForce RTX 5060 Ti 16 GB", 8: None}),
        ("NVIDIA GeForce RTX 3050", {8: "GeForce RTX 3050 8 GB", 6: None}),
        ("AMD Radeon RX 9060 XT", {16: "RX 9060 XT 16 GB", 8: None}),
        ("AMD Instinct MI50", {16: "MI50", 32: None}),
        ("Intel(R) Arc(TM) A770 Graphics", {16: "Arc A770 16GB", 8: None}),
        ("Orin", {61.4: "Jetson AGX Orin 64 GB", 30: "Jetson AGX Orin 32 GB", 15.3: "Jetson Orin NX 16 GB"}),
        ("Orin (nvgpu)", {7.44: None}),  # two rows: the Orin Nano in its two power modes
    ],
)
def test_memory_tells_sizes_of_one_name_apart(name: str, sizes: dict[float | None, str | None]) -> None:
    assert {size: found(name, size and size * GIB) for size in sizes} == sizes
    # what the driver and torch keep for themselves does not matter: 1.5 % and 3 % less give the same answer
    assert {size: found(name, size and size * GIB * 0.97) for size in sizes} == sizes


def test_rows_sharing_a_name_are_told_apart_by_memory_or_not_at_all() -> None:
    """Whatever the file says: a driver's name never finds a card when its memory says another."""
    for spec in load_catalogue():
        assert spec.memory is not None
        got = find_spec(gpu(f"NVIDIA {spec.name}", spec.memory.value * 1.04))
        assert got is None or got.memory == spec.memory


# --- names as people type them ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RTX 3090", "GeForce RTX 3090"), ("rtx3090", "GeForce RTX 3090"), ("4090", "GeForce RTX 4090"),
        ("h200", "H200 SXM 141 GB"), ("NVIDIA H200", "H200 SXM 141 GB"), ("h200 nvl", "H200 NVL"), ("l40", "L40"),
        ("L40S", "L40S"), ("h100 sxm", "H100 SXM5 80 GB"), ("H100 PCIe", "H100 PCIe 80 GB"), ("t4", "Tesla T4"),
        ("a6000", "RTX A6000"), ("rtx 6000 ada", "RTX 6000 Ada Generation"), ("mi300x", "MI300X"),
        ("geforce rtx 3080", "GeForce RTX 3080"), ("3080 12gb", "GeForce RTX 3080 12 GB"), ("m3 max", "M3 Max"),
        ("4060 Ti", "GeForce RTX 4060 Ti 16 GB"), ("7900 xtx", "RX 7900 XTX"), ("GB10", "GB10 (DGX Spark)"),
    ],
)  # fmt: skip
def test_find_by_name(text: str, expected: str) -> None:
    assert find_by_name(text).name == expected


def test_every_card_is_found_by_its_own_name() -> None:
    for spec in load_catalogue():
        assert find_by_name(spec.name) is spec
        assert find_by_name(f"{spec.vendor} {spec.name}".upper()) is spec


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("h100", ["H100 PCIe 80 GB", "H100 NVL 94 GB", "H100 SXM5 80 GB"]),
        ("RTX 3080", ["GeForce RTX 3080", "GeForce RTX 3080 12 GB"]),
        ("A100 80GB", ["A100 PCIe 80 GB", "A100 SXM4 80 GB"]),
        ("RTX 6000", ["RTX 6000 Ada Generation", "RTX PRO 6000 Blackwell"]),
        ("mi300", ["MI300A", "MI300X"]),
    ],
)
def test_an_ambiguous_name_lists_the_candidates(text: str, named: list[str]) -> None:
    with pytest.raises(UserError, match=r"fits \d cards") as error:
        find_by_name(text)
    assert all(name in str(error.value) for name in named)


@pytest.mark.parametrize(
    ("text", "near"), [("RTX 3091", "RTX 3090"), ("quadro rtx 6000", "Quadro RTX 8000"), ("H2OO", "H200")]
)
def test_an_unknown_name_lists_the_nearest(text: str, near: str) -> None:
    with pytest.raises(UserError, match="no card named") as error:
        find_by_name(text)
    assert near in str(error.value)


@pytest.mark.parametrize("text", ["", "   ", "?!", "NVIDIA"])
def test_no_name_is_a_user_error(text: str) -> None:
    with pytest.raises(UserError):
        find_by_name(text)


def test_no_torch() -> None:
    code = "import sys, nearpeak.hardware.catalogue as c; c.find_by_name('h200'); sys.exit('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)})
    assert run.returncode == 0
