"""The memory kernels against their references; in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux only")

from nearpeak.kernels import memory


def words(n: int, device: str) -> torch.Tensor:
    """All of int32 on a GPU, where sums wrap; smaller numbers in the interpreter, which refuses to wrap."""
    most = 2**15 if device == "cpu" else 2**31 - 1
    return torch.randint(-most, most, (n,), dtype=torch.int32).to(device)


DEVICES = [pytest.param("cpu", id="interpreter"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("n", [1, 1023, 4096, 3 * 8192 + 17])
@pytest.mark.parametrize("loads", [4, 8, 16])
def test_read_sum(n: int, loads: int, device: str) -> None:
    x = words(n, device)
    partial = torch.full((memory.partial_count(n, loads),), -7, dtype=torch.int32, device=device)
    memory.read_sum(x, partial, loads)
    assert torch.equal(partial.cpu(), memory.read_sum_reference(x.cpu(), loads))


@pytest.mark.parametrize("n", [1, 1023, 5000])
def test_write_random_writes_all_and_no_more(n: int, device: str) -> None:
    guarded = torch.full((n + 64,), -7, dtype=torch.int32, device=device)
    memory.write_random(guarded[:n], 12345)
    assert torch.equal(guarded[:n].cpu(), memory.write_random_reference(n, 12345))
    assert bool((guarded[n:] == -7).all())


@pytest.mark.parametrize(("tiles", "programs", "rounds"), [(1, 3, 2), (5, 7, 4), (8, 8, 3)])
def test_read_sum_cached(tiles: int, programs: int, rounds: int, device: str) -> None:
    x = words(tiles * memory.BLOCK * 8, device)
    partial = torch.full((programs,), -7, dtype=torch.int32, device=device)
    moved = memory.read_sum_cached(x, partial, rounds)
    assert torch.equal(partial.cpu(), memory.read_sum_cached_reference(x.cpu(), programs, rounds))
    assert moved == programs * rounds * memory.BLOCK * 8 * 4


def test_read_sum_cached_takes_whole_tiles_only() -> None:
    with pytest.raises(ValueError, match="no whole number of tiles"):
        memory.read_sum_cached(words(100, "cpu"), torch.zeros(1, dtype=torch.int32), 1)
