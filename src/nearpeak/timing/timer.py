"""Seconds that calls take on a device: events on a GPU, the monotonic clock on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Work = Callable[[], object]

# Long enough for the host to queue a train of calls (some 12 µs each on a slow host) while the GPU spins.
HEAD_START_CYCLES = 10_000_000


def time_calls(work: Work, device: torch.device, samples: int, before: Work | None = None) -> tuple[float, ...]:
    """Seconds of each of `samples` calls of `work`; `before` runs untimed ahead of each (to cool a cache).

    On a GPU all calls are queued behind a spinning kernel and timed by events, so neither asynchronous return nor the
    host's launch cost is in the figures. Nothing is warmed up here: call `warm_up` first.
    """
    if device.type == "cpu":
        return tuple(_time_on_host(work, before) for _ in range(samples))
    return _time_by_events(work, device, samples, before)


def warm_up(work: Work, device: torch.device, seconds: float) -> float:
    """Call `work` until `seconds` have passed (twice at least). Returns the seconds of one call, the first left out."""
    work()
    synchronize(device)
    calls, start = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        synchronize(device)
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return elapsed / calls


def batches(work: Work, device: torch.device, calls: int) -> Iterator[float]:
    """Run batches of `calls` calls without end, the device never idle between them; yields the seconds of each.

    On a GPU one batch is always queued ahead of the one waited for. Close the iterator to wait for what is queued.
    """
    if device.type == "cpu":
        while True:
            start = time.perf_counter()
            for _ in range(calls):
                work()
            yield time.perf_counter() - start
    import torch

    def enqueue() -> torch.cuda.Event:
        for _ in range(calls):
            work()
        return _mark()

    with torch.cuda.device(device):
        try:
            previous, queued = _mark(), enqueue()
            while True:
                following = enqueue()
                queued.synchronize()
                yield previous.elapsed_time(queued) / 1e3
                previous, queued = queued, following
        finally:
            synchronize(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type != "cpu":
        import torch

        torch.cuda.synchronize(device)


def _time_on_host(work: Work, before: Work | None) -> float:
    if before is not None:
        before()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _time_by_events(work: Work, device: torch.device, samples: int, before: Work | None) -> tuple[float, ...]:
    import torch

    with torch.cuda.device(device):
        synchronize(device)
        torch.cuda._sleep(HEAD_START_CYCLES)
        pairs = []
        for _ in range(samples):
            if before is not None:
                before()
            start = _mark()
            work()
            pairs.append((start, _mark()))
        synchronize(device)
        return tuple(start.elapsed_time(end) / 1e3 for start, end in pairs)


def _mark() -> torch.cuda.Event:
    import torch

    # A blocking event lets the waiting thread sleep, so that the sensors' thread gets its turns.
    event = torch.cuda.Event(enable_timing=True, blocking=True)
    event.record()
    return event
