"""What is impossible, which precisions there are, and how far a product is off: no hardware needed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fake_sensors import device
from nearpeak.ceilings.judge import impossible_bandwidth, impossible_matmul, spec_clock
from nearpeak.ceilings.precisions import precisions_of
from nearpeak.ceilings.product_error import fp64_product, product_error, relative_error
from nearpeak.ceilings.products import exactly, product, random_operand
from nearpeak.hardware.catalogue import find_by_name
from nearpeak.records.ceiling import Ceiling, Conditions
from nearpeak.records.spec import Figure, Spec

CPU = torch.device("cpu")


def spec(name: str) -> Spec:
    return find_by_name(name)


def rate(name: str, precision: str, accumulate: str = "fp32"):
    found = spec(name).rate(precision, accumulate)
    assert found is not None
    return found


H200 = device("gpu", "sm_90", units=132)
RTX_5090 = device("gpu", "sm_120", units=170)


def test_spec_clock_of_the_matrix_units_is_not_the_highest_clock() -> None:
    """H100 and H200: 989 TFLOP/s stands for 1830 MHz, though NVML reports up to 1980 MHz (which would give 1070)."""
    assert spec_clock(rate("H200 SXM 141 GB", "bf16"), spec("H200 SXM 141 GB"), H200) == pytest.approx(1.83e9, rel=2e-3)
    a100 = device("gpu", "sm_80", units=108)
    assert spec_clock(rate("A100 SXM4 80 GB", "bf16"), spec("A100 SXM4 80 GB"), a100) == pytest.approx(1.41e9, rel=2e-3)
    fp32 = rate("H200 SXM 141 GB", "fp32")
    assert spec_clock(fp32, spec("H200 SXM 141 GB"), H200) == pytest.approx(1.98e9, rel=5e-3)


def test_spec_clock_of_fp64_matrix_units() -> None:
    """H200: 67 TFLOP/s is 132 × 256 × 1983 MHz."""
    found = spec_clock(rate("H200 SXM 141 GB", "fp64", "fp64"), spec("H200 SXM 141 GB"), H200)
    assert found == pytest.approx(1.983e9, rel=1e-3)


def test_spec_clock_of_a_half_rate_card() -> None:
    """GeForce: 170 × 512 × 2407 MHz = 209.5 TFLOP/s with fp32 accumulation."""
    found = spec_clock(rate("GeForce RTX 5090", "bf16"), spec("GeForce RTX 5090"), RTX_5090)
    assert found == pytest.approx(2.407e9, rel=2e-3)


def test_mlx_benchmark_21_asynchronous_timing_is_no_record() -> None:
    """0.03 ms for 8192³ in bf16: the time was taken before the work was done."""
    measured = 2 * 8192**3 / 0.03e-3
    why = impossible_matmul(measured, rate("H200 SXM 141 GB", "bf16"), 1.98e9, 1.83e9)
    assert why is not None
    assert "1091" in why  # 989 × 1980 ÷ 1830 × 1.02
    assert "waited for" in why


def test_a_boost_above_the_rated_clock_is_no_error() -> None:
    """An RTX 5090 gave 224 to 242 of 209.5 TFLOP/s: its clock ran above the rated one."""
    bf16 = rate("GeForce RTX 5090", "bf16")
    assert impossible_matmul(242e12, bf16, 2.85e9, 2.407e9) is None
    assert impossible_matmul(242e12, bf16, None, None) is None
    assert impossible_matmul(242e12, bf16, 2.407e9, 2.407e9) is not None


def test_the_limit_follows_the_clock_that_was_held() -> None:
    bf16 = rate("H200 SXM 141 GB", "bf16")
    assert impossible_matmul(700e12, bf16, 1.2e9, 1.83e9) is not None  # at 1200 MHz the units do 648
    assert impossible_matmul(660e12, bf16, 1.2e9, 1.83e9) is None  # within 2 % of it


def test_an_unverified_spec_judges_nobody() -> None:
    bf16 = rate("H200 SXM 141 GB", "bf16")
    doubtful = dataclasses.replace(bf16, figure=Figure(1e12, "unverified", "from memory"))
    assert impossible_matmul(500e12, doubtful, 1.98e9, 1.83e9) is None
    assert impossible_matmul(500e12, None, 1.98e9, 1.83e9) is None


def test_llm_c_851_a_cache_is_no_memory() -> None:
    """3530 GB/s "of memory" on an 864 GB/s L40S."""
    assert impossible_bandwidth(memory_read(3530e9), spec("L40S")) is not None
    assert impossible_bandwidth(memory_read(714e9), spec("L40S")) is None
    assert impossible_bandwidth(memory_read(3530e9), None) is None


def memory_read(rate: float) -> Ceiling:
    conditions = Conditions(method="memory_read/1", how="a test", shape=(2**32,), samples=9)
    return Ceiling("memory_read", None, None, 700e9, rate, "B/s", 0.01, None, None, conditions)


def names(architecture: str) -> dict[str, str]:
    found = precisions_of(device("gpu", architecture))
    return {f"{p.name}/{p.accumulate}": "absent" if p.absent else "emulated" if p.emulated else "real" for p in found}


def test_pytorch_148322_bf16_on_a_t4_is_emulated() -> None:
    t4 = names("sm_75")
    assert t4["bf16/fp32"] == "emulated"
    assert t4["fp16/fp32"] == "real"
    assert t4["tf32/fp32"] == t4["fp8/fp32"] == "absent"


def test_pytorch_118703_fp8_is_decided_by_capability_and_not_by_name() -> None:
    assert names("sm_86")["fp8/fp32"] == "absent"  # "RTX 6000" with Ampere inside
    assert names("sm_89")["fp8/fp32"] == "real"  # "RTX 6000 Ada"
    assert set(names("sm_90").values()) == {"real"}
    assert names("sm_90a") == names("sm_90") == names("sm_120")


def test_an_unknown_architecture_promises_little() -> None:
    assert {k for k, v in names("gfx1100").items() if v == "real"} == {"fp64/fp64", "fp32/fp32"}


def test_cpu_precisions_follow_its_features() -> None:
    plain = {p.name: p for p in precisions_of(device("cpu"))}
    assert plain["fp64"].emulated is None
    assert "avx512_bf16" in (plain["bf16"].emulated or "")
    rich = {p.name: p for p in precisions_of(device("cpu", features=("amx_bf16", "avx512_vnni")))}
    assert rich["bf16"].emulated is None
    assert rich["int8"].emulated is None
    assert rich["fp16"].emulated is not None


@pytest.mark.parametrize(
    ("precision", "accumulate", "low", "high"),
    [("fp64", "fp64", 1e-17, 1e-14), ("fp32", "fp32", 1e-8, 5e-6), ("bf16", "fp32", 1e-3, 6e-3)],
)
def test_product_error_is_the_precisions_own(precision: str, accumulate: str, low: float, high: float) -> None:
    error = product_error(precision, accumulate, CPU)
    assert error is not None
    assert low < error < high


def test_integer_products_are_exact() -> None:
    a, b = (random_operand(n, 96, "int8", CPU) for n in (33, 17))
    assert torch.equal(product("int8", "int32", CPU)(a, b), a.int() @ b.int().t())
    assert product_error("int8", "int32", CPU) is None


def test_nan_is_no_small_error() -> None:
    r = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(ArithmeticError, match="not finite"):
        relative_error(torch.full((2, 2), float("nan"), dtype=torch.float64), r)


def test_reference_product_is_right() -> None:
    a, b = torch.randn(5, 200, dtype=torch.float64), torch.randn(7, 200, dtype=torch.float64)
    assert relative_error(fp64_product(a, b), torch.einsum("mk,nk->mn", a, b)) < 1e-14


def test_operands_are_random_and_never_zero() -> None:
    for precision in ("fp64", "fp32", "bf16", "fp8", "int8"):
        x = random_operand(64, 64, precision, CPU).double()
        assert float((x == 0).double().mean()) < 0.05
        assert float(x.std()) > 0.9


def test_torchs_switches_are_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with exactly("tf32", "fp32"):
        assert torch.get_float32_matmul_precision() == "high"
    try:
        with exactly("fp32", "fp32"):
            assert torch.get_float32_matmul_precision() == "highest"
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert torch.get_float32_matmul_precision() == before


def test_without_the_number_of_units_there_is_no_spec_clock() -> None:
    unknown = dataclasses.replace(H200, units=None)
    assert spec_clock(rate("H200 SXM 141 GB", "bf16"), spec("H200 SXM 141 GB"), unknown) is None
