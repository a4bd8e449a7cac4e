"""The few ceilings that one piece of work is held against, measured on the spot where no machine profile was given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nearpeak.ceilings import cache_read, matmul, memory_read
from nearpeak.ceilings.bench import Bench, NotMeasured
from nearpeak.ceilings.precisions import precisions_of
from nearpeak.records.ceiling import Ceiling
from nearpeak.records.errors import first_line
from nearpeak.records.machine_profile import DeviceProfile


def measure_needed(bench: Bench, *products: tuple[str, str]) -> DeviceProfile:
    """Bursts of products, each (precision, sums in), of reading memory and of reading the cache: some seconds on a GPU.

    `bench.quick` should be True: what is asked for on the spot is bursts. What cannot be had is in `skipped`.
    """
    found: list[Ceiling] = []
    skipped: dict[str, str] = {}
    parts: dict[str, Callable[[], list[Ceiling]]] = {
        f"matmul {precision}": partial(_product, bench, precision, accumulate) for precision, accumulate in products
    }
    parts |= {"memory_read": lambda: memory_read.measure(bench), "cache_read": lambda: cache_read.measure(bench)}
    for kind, part in parts.items():
        try:
            found += part()
        except (NotMeasured, MemoryError, ArithmeticError, RuntimeError) as error:
            skipped[kind] = first_line(error)
    device = bench.device
    return DeviceProfile(device.id, device.name, device.kind, device, bench.spec, None, tuple(found), skipped)


def _product(bench: Bench, precision: str, accumulate: str) -> list[Ceiling]:
    for one in precisions_of(bench.device):
        if (one.name, one.accumulate) == (precision, accumulate):
            if one.absent:
                raise NotMeasured(one.absent)
            bench.progress(f"matmul {precision} (sums in {accumulate}), burst")
            return [matmul.burst_of(bench, one)]
    raise NotMeasured(f"no product of {precision} with sums in {accumulate} is known on this device")
