"""What it costs to start one small piece of work: from Python, and from a CUDA graph. Lower is better."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from nearpeak.ceilings.bench import Bench, NotMeasured
from nearpeak.records.ceiling import Ceiling, Conditions
from nearpeak.timing.sensor_window import SensorWindow
from nearpeak.timing.statistics import percentile, spread
from nearpeak.timing.timer import synchronize, warm_up

METHOD = "launch/2"
CALLS, REPLAYS = 1000, 5  # trains so long that starting one and waiting for its end does not count
PLACES = 8  # addresses, 1 MiB apart
UNDISTURBED = 0.1  # the share of trains that set the figure: whatever else a host does only ever adds to a cost
# A host needs a while to reach its clock. Seen on one: a core stays 40 % slower for seconds, then not; hence several
# tries with pauses between them, of which the best counts.
WARM_UP_S, TIMED_S, QUICK_S = 0.5, 1.5, 0.3
TRIES, PAUSE_S = 5, 0.3
TRAINS = 5  # at least, however long they take


def launch(bench: Bench) -> list[Ceiling]:
    """Seconds from one eager call to the next, when the host does nothing else: what a step of small ops pays each."""
    one = torch.zeros(1, device=bench.torch_device)

    def train() -> None:
        for _ in range(CALLS):
            one.add_(1)

    how, found = "torch add_ of one element, eager", []
    for tried in range(TRIES):
        time.sleep(PAUSE_S if tried else 0)
        found.append(_cost(bench, "launch", how, train, CALLS, 1 / TRIES))
    return [min(found, key=lambda ceiling: ceiling.burst or 0.0)]


def launch_graph(bench: Bench) -> list[Ceiling]:
    """The same inside one CUDA graph: seconds from one kernel's start to the next.

    Each kernel loads and stores one element, so the way from the multiprocessor to where that element lies in the
    last-level cache is part of the cost: several addresses are tried, and the best one counts.
    """
    if bench.is_cpu:
        raise NotMeasured("CUDA graphs are for GPUs")
    how = f"torch add_ of one element, {CALLS} in a CUDA graph, best of {PLACES} addresses"
    elements = torch.zeros(PLACES, 2**18, device=bench.torch_device)
    found = [
        _cost(bench, "launch_graph", how, _replays(bench, element[:1]), REPLAYS * CALLS, 1 / PLACES)
        for element in elements
    ]
    return [min(found, key=lambda ceiling: ceiling.burst or 0.0)]


def _replays(bench: Bench, one: torch.Tensor) -> Callable[[], object]:
    """One replay after the other: the host prepares the next while the device runs this one."""
    one.add_(1)
    graph = torch.cuda.CUDAGraph()
    synchronize(bench.torch_device)
    with torch.cuda.device(bench.torch_device), torch.cuda.graph(graph):
        for _ in range(CALLS):
            one.add_(1)

    def train() -> None:
        for _ in range(REPLAYS):
            graph.replay()

    return train


def _cost(bench: Bench, kind: str, how: str, train: Callable[[], object], calls: int, part: float = 1.0) -> Ceiling:
    bench.progress(kind.replace("_", " "))
    device = bench.torch_device
    # Slow sampling: the sensors' thread takes the interpreter from the thread that launches.
    costs: list[float] = []
    with SensorWindow(bench.sensors, interval=0.25) as window:
        warm_up(train, device, WARM_UP_S * part)
        start = time.perf_counter()
        least = (QUICK_S if bench.quick else TIMED_S) * part
        while time.perf_counter() - start < least or len(costs) < TRAINS:
            costs.append(_seconds(train, device) / calls)
    return Ceiling(
        kind=kind,  # type: ignore[arg-type]
        precision=None,
        accumulate=None,
        burst=percentile(costs, UNDISTURBED),
        sustained=None,
        unit="s",
        spread=spread(costs),
        error=None,
        energy_per_unit=None,
        conditions=Conditions(
            method=METHOD,
            how=how,
            shape=(),
            samples=len(costs),
            burst=window.load(),
            other_processes=bench.other_processes(),
            missing={
                "sustained": "a cost has no sustained figure",
                "error": "only products have an error",
                "energy_per_unit": "too short for the energy counter",
            },
        ),
    )


def _seconds(train: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    train()
    synchronize(device)
    return time.perf_counter() - start
