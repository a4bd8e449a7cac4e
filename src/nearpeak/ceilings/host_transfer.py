"""How fast data moves between host memory and the device: each way and both at once, pinned and pageable."""

from __future__ import annotations

from itertools import cycle

import torch

from nearpeak.ceilings.bandwidth import Way, bandwidth_ceiling, random_words
from nearpeak.ceilings.bench import Bench, NotMeasured
from nearpeak.records.ceiling import Ceiling, Kind

METHOD = "host_transfer/1"
SIZE = 2**28  # 256 MiB: far past what a driver stages, and quick to pin
BUFFERS = 4  # pageable memory is slower or faster by where its pages lie: several places take turns


def host_to_device(bench: Bench) -> list[Ceiling]:
    return _one_way(bench, "host_to_device")


def device_to_host(bench: Bench) -> list[Ceiling]:
    return _one_way(bench, "device_to_host")


def host_bidirectional(bench: Bench) -> list[Ceiling]:
    """Both ways at once on two streams; the bytes of both count."""
    _needs_gpu(bench)
    device = bench.torch_device
    up_host, down_host = _host_words(bench, pinned=True), _host_words(bench, pinned=True)
    up, down = torch.empty_like(up_host, device=device), random_words(SIZE, device)
    side = torch.cuda.Stream(device)

    def both() -> None:
        main = torch.cuda.current_stream(device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            down_host.copy_(down, non_blocking=True)
        up.copy_(up_host, non_blocking=True)
        main.wait_stream(side)

    way = Way("torch copy_, two streams", (SIZE,), 2 * SIZE, both)
    ceiling = bandwidth_ceiling(bench, "host_bidirectional", METHOD, [way], {"host_memory": "pinned"})
    _check(up_host, up)
    _check(down_host, down)
    return [ceiling]


def _one_way(bench: Bench, kind: Kind) -> list[Ceiling]:
    _needs_gpu(bench)
    found = []
    for pinned in (True, False):
        device = random_words(SIZE, bench.torch_device)
        hosts = [_host_words(bench, pinned) for _ in range(1 if pinned else BUFFERS)]
        pairs = [(host, device) if kind == "host_to_device" else (device, host) for host in hosts]
        turns = cycle(pairs)
        way = Way("torch copy_", (SIZE,), SIZE, lambda turns=turns: _copy(*next(turns)))  # type: ignore[misc]
        notes = {"host_memory": "pinned" if pinned else "pageable"}
        found.append(bandwidth_ceiling(bench, kind, METHOD, [way], notes))
        for source, target in pairs:
            _copy(source, target)
            _check(source, target)
    return found


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _host_words(bench: Bench, pinned: bool) -> torch.Tensor:
    words = random_words(SIZE, torch.device("cpu"))
    return words.pin_memory(bench.torch_device) if pinned else words


def _check(source: torch.Tensor, target: torch.Tensor) -> None:
    """Raise ArithmeticError where the copy is not what was sent."""
    torch.cuda.synchronize()
    if not torch.equal(source.cpu(), target.cpu()):
        raise ArithmeticError("what arrived does not equal what was sent")


def _needs_gpu(bench: Bench) -> None:
    if bench.is_cpu:
        raise NotMeasured("the CPU works in host memory; nothing is moved")
