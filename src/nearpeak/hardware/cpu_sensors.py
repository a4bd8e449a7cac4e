"""Live readings of the CPU: RAPL counters, cpufreq and the temperature sensors, where the kernel lets us read them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from nearpeak.records.reading import Reading, missing

SCOPE = "CPU packages"
# A power reading is the counter's difference over at least this long; the counter itself moves every millisecond.
SHORTEST_S = 0.02


class CpuSensors:
    """Sensors of the CPU. No method raises. `cores` are those whose clock counts: others may idle while these work.

    `root` replaces "/", `now` (seconds) and `wait` the clock, in tests.
    """

    def __init__(
        self,
        cores: Sequence[int],
        root: Path = Path("/"),
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cores, self._root, self._now, self._wait = cores, root, now, wait
        self._zones = rapl_zones(root)
        self._last_raw: dict[Path, int] = {}
        self._joules = 0.0
        self._before: tuple[float, float] | None = None

    def power(self) -> Reading:
        """Watts of all CPU packages: the mean since the last call, or over 20 ms at the first one."""
        how = "powercap: energy_uj over time"
        energy = self.energy()
        if energy.number is None:
            return missing("W", energy.reason or "", how)
        before, now = self._before, (self._now(), energy.number)
        if before is None or now[0] - before[0] < SHORTEST_S:
            before = before or now
            self._wait(SHORTEST_S)
            energy = self.energy()
            if energy.number is None:
                return missing("W", energy.reason or "", how)
            now = (self._now(), energy.number)
        self._before = now
        seconds, joules = now[0] - before[0], now[1] - before[1]
        if seconds <= 0 or joules <= 0:
            return missing("W", "the energy counter did not move", how)
        return Reading(joules / seconds, "W", how, SCOPE)

    def energy(self) -> Reading:
        """Joules of all CPU packages, with the counters' wrapping undone."""
        how = "powercap: energy_uj"
        if not self._zones:
            return missing("J", "the kernel offers no CPU energy counter (no powercap zones)", how)
        now: dict[Path, int] = {}
        for zone in self._zones:
            try:
                now[zone] = int((zone / "energy_uj").read_text())
            except PermissionError:
                return missing("J", "no permission to read the CPU's energy counter (energy_uj); root may", how)
            except (OSError, ValueError):
                return missing("J", "the CPU's energy counter cannot be read", how)
        for zone, raw in now.items():
            step = raw - self._last_raw.get(zone, 0)
            if step < 0:
                step += _whole(zone / "max_energy_range_uj") or 0
            self._joules += max(0, step) * 1e-6
        self._last_raw = now
        return Reading(self._joules, "J", how, SCOPE)

    def clock(self) -> Reading:
        """Hz, the median over the cores, now."""
        folder = self._root / "sys/devices/system/cpu"
        found = [f for core in self._cores if (f := _whole(folder / f"cpu{core}/cpufreq/scaling_cur_freq"))]
        if found:
            return Reading(statistics.median(found) * 1e3, "Hz", "cpufreq: scaling_cur_freq, median of the cores")
        listed = _megahertz(_lines(self._root / "proc/cpuinfo"))
        known = [mhz for core in self._cores if (mhz := listed.get(core))]
        if known:
            return Reading(statistics.median(known) * 1e6, "Hz", "/proc/cpuinfo: cpu MHz, median of the cores")
        return missing("Hz", "the kernel gives no CPU clock", "cpufreq")

    def temperature(self) -> Reading:
        """Degrees Celsius, the hottest of the CPU's sensors."""
        found = []
        for folder in sorted((self._root / "sys/class/hwmon").glob("hwmon*")):
            if "".join(_lines(folder / "name")) in ("coretemp", "k10temp", "zenpower", "cpu_thermal"):
                found += [t for path in folder.glob("temp*_input") if (t := _whole(path))]
        for folder in sorted((self._root / "sys/class/thermal").glob("thermal_zone*")):
            if not found and "".join(_lines(folder / "type")) in ("x86_pkg_temp", "cpu-thermal", "CPU-therm"):
                found += [t for t in (_whole(folder / "temp"),) if t]
        if not found:
            return missing("°C", "the kernel offers no CPU temperature sensor", "hwmon")
        return Reading(max(found) * 1e-3, "°C", "hwmon or thermal zone, the hottest")

    def throttle_reasons(self) -> Reading:
        """Always missing: Linux does not name them."""
        return missing("", "the operating system does not say why a CPU's clock is held back")

    def processes(self) -> Reading:
        """Always missing: every process uses the CPU."""
        return missing("", "every process uses the CPU; none is listed")


def rapl_zones(root: Path = Path("/")) -> tuple[Path, ...]:
    """The powercap zones of whole CPU packages; their parts (cores, memory) and the platform would count twice."""
    folders = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
    return tuple(f for f in folders if f.name.count(":") == 1 and "".join(_lines(f / "name")).startswith("package"))


def _megahertz(cpuinfo: list[str]) -> dict[int, float]:
    """Core number to MHz; x86 lists both for each core."""
    found, core = {}, -1
    for line in cpuinfo:
        key, _, value = line.partition(":")
        with suppress(ValueError):
            if key.strip() == "processor":
                core = int(value)
            elif key.strip() == "cpu MHz":
                found[core] = float(value)
    return found


def _whole(path: Path) -> int | None:
    """A number above zero; None for anything else."""
    text = "".join(_lines(path))
    return int(text) or None if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return []
