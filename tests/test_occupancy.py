"""Occupancy against values that NVIDIA's calculator and the literature give."""

from __future__ import annotations

import pytest

from nearpeak.kernelcheck.occupancy import (
    LIMITS,
    first_level_cache,
    launch_bound,
    limits_of,
    occupancy,
    unified_cache,
    waves,
)


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "blocks", "share", "limited_by"),
    [
        # CUDA C++ Programming Guide, "Multiprocessor Level": two blocks with 64 registers, one with 65
        ("sm_70", 512, 64, 0, 2, 0.5, "registers"),
        ("sm_70", 512, 65, 0, 1, 0.25, "registers"),
        # siboehm.com, "How to Optimize a CUDA Matmul Kernel", kernel 3 on an A6000: one block, 66 %
        ("sm_86", 1024, 37, 8192, 1, 32 / 48, "threads"),
        # the calculator's own examples: full with 32 registers, half with 64, one block with 255
        ("sm_80", 256, 32, 0, 8, 1.0, "threads"),
        ("sm_80", 256, 64, 0, 4, 0.5, "registers"),
        ("sm_80", 256, 255, 0, 1, 0.125, "registers"),
        ("sm_89", 32, 16, 0, 24, 0.5, "blocks"),
        ("sm_90", 32, 16, 0, 32, 0.5, "blocks"),
        ("sm_90", 384, 168, 0, 1, 12 / 64, "registers"),
        # 48 KB and the kilobyte of the system: four fit into 228 KB, 227 KB fit once
        ("sm_90", 128, 32, 48 * 1024, 4, 16 / 64, "shared memory"),
        ("sm_90a", 128, 32, 227 * 1024, 1, 4 / 64, "shared memory"),
        ("sm_75", 1024, 32, 0, 1, 1.0, "threads"),
    ],
)  # fmt: skip
def test_known_values(
    architecture: str, threads: int, registers: int, shared: int, blocks: int, share: float, limited_by: str
) -> None:
    found = occupancy(architecture, threads, registers, shared)
    assert found is not None
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.share == pytest.approx(share)


def test_what_cannot_run_says_why() -> None:
    for arguments, reason in [
        (("sm_90", 1025, 32, 0), "1024 are allowed"),
        (("sm_86", 128, 32, 100 * 1024), "101376 are allowed"),
        (("sm_90", 1024, 128, 0), "do not fit"),
    ]:
        found = occupancy(*arguments)
        assert found is not None
        assert found.blocks == 0
        assert reason in (found.refused or "")


def test_an_unknown_architecture_is_none() -> None:
    assert occupancy("sm_52", 128, 32, 0) is None
    assert limits_of("compute_90a") == LIMITS["sm_90"]


def test_more_of_anything_never_raises_occupancy() -> None:
    for architecture in LIMITS:
        for threads in (32, 96, 256, 512, 1024):
            for registers in (16, 40, 64, 128, 255):
                here = occupancy(architecture, threads, registers, 1024)
                more = occupancy(architecture, threads, registers, 30_000)
                assert here is not None
                assert more is not None
                assert here.blocks >= more.blocks
                assert here.blocks * threads * registers <= 65536


def test_waves() -> None:
    even = waves(264, 2, 132)
    assert (even.waves, even.imbalance, even.idle) == (1.0, 1.0, 0)
    tail = waves(133, 1, 132)
    assert tail.imbalance == pytest.approx(2 * 132 / 133)
    assert waves(16, 4, 132).idle == 116
    assert waves(16, 4, 132).imbalance == pytest.approx(132 / 16)
    assert waves(65536, 8, 132).imbalance == pytest.approx(1, abs=0.01)


def test_launch_bound() -> None:
    assert launch_bound(4e-6, 2e-6)
    assert not launch_bound(1e-3, 2e-6)


def test_a_block_has_its_share_of_the_first_level_cache() -> None:
    fit = occupancy("sm_90", 256, 32, 16384)
    assert fit is not None
    assert first_level_cache("sm_90a", fit, 16384) == 256 * 1024 / fit.blocks - 16384
    assert first_level_cache("sm_90", None, 0) == 128 * 1024
    assert first_level_cache("sm_52", None, 0) == 64 * 1024
    assert first_level_cache("sm_75", fit, 10**6) == 8 * 1024


@pytest.mark.parametrize(
    ("architecture", "warps", "blocks", "shared", "block_shared", "cache"),
    [  # CUDA Programming Guide 13, tables 30 to 32, in KB; 7.0 by the guide of CUDA 12
        ("sm_70", 64, 32, 96, 96, 128),
        ("sm_75", 32, 16, 64, 64, 96),
        ("sm_80", 64, 32, 164, 163, 192),
        ("sm_86", 48, 16, 100, 99, 128),
        ("sm_87", 48, 16, 164, 163, 192),
        ("sm_89", 48, 24, 100, 99, 128),
        ("sm_90", 64, 32, 228, 227, 256),
        ("sm_100", 64, 32, 228, 227, 256),
        ("sm_103", 64, 32, 228, 227, 256),
        ("sm_110", 48, 24, 228, 227, 256),
        ("sm_120", 48, 24, 100, 99, 128),
        ("sm_121", 48, 24, 100, 99, 128),
    ],
)
def test_the_limits_are_those_of_the_programming_guide(
    architecture: str, warps: int, blocks: int, shared: int, block_shared: int, cache: int
) -> None:
    found = LIMITS[architecture]
    assert (found.warps, found.blocks) == (warps, blocks)
    assert (found.shared, found.block_shared, found.cache) == tuple(1024 * n for n in (shared, block_shared, cache))
    assert unified_cache(architecture + "a") == found.cache
    # a block may have all but the system's kilobyte, where there is one; what is no shared memory is cache
    assert found.block_shared + found.system_shared == found.shared < found.cache
