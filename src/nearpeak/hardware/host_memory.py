"""The host's main memory: /proc/meminfo, and a smaller control-group limit where there is one."""

from __future__ import annotations

from pathlib import Path

from nearpeak.records.reading import Reading, missing

# Version 1 writes a huge number where there is no limit.
NO_LIMIT = 2**60


def host_memory(root: Path = Path("/"), scope: str = "device") -> tuple[Reading, Reading]:
    """Total and available bytes: of the host, or of this process's control group where that has less."""
    how = "/proc/meminfo"
    table = meminfo(root)
    total, available = table.get("MemTotal"), table.get("MemAvailable")
    group = group_limit(root)
    if group is not None:
        limit, left = group
        if total is None or limit < total:
            total, how = limit, "the control group's memory limit"
        if left is not None:
            available = left if available is None else min(available, left)
    if not total:
        return missing("B", "/proc/meminfo cannot be read", how), missing("B", "/proc/meminfo cannot be read", how)
    first = Reading(total, "B", how, scope)
    if available is None:
        return first, missing("B", "/proc/meminfo has no MemAvailable", how)
    return first, Reading(available, "B", "/proc/meminfo and control group" if group else how, scope)


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """/proc/meminfo in bytes; empty where it cannot be read."""
    try:
        lines = (root / "proc/meminfo").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    table = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            table[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return table


def group_limit(root: Path = Path("/")) -> tuple[int, int | None] | None:
    """Bytes that the control group allows and has left (None where unknown); None where no limit is set."""
    best: tuple[int, int | None] | None = None
    for folder, limit_name, usage_name, cache_name in _group_folders(root):
        limit = _number(folder / limit_name)
        if limit is None or limit >= NO_LIMIT:
            continue
        usage = _number(folder / usage_name)
        left = None
        if usage is not None:
            # Cached file pages count as used but are given back when memory is short.
            left = max(0, limit - max(0, usage - _statistic(folder / "memory.stat", cache_name)))
        if best is None or limit < best[0]:
            best = (limit, left)
    return best


def _group_folders(root: Path) -> list[tuple[Path, str, str, str]]:
    """This process's group and those above it (a limit may sit on any), for both versions of control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if parts[:2] == ["0", ""]:
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in parts[1].split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        steps = [s for s in parts[2].split("/") if s not in ("", "..", ".")]
        folders += [(base.joinpath(*steps[:n]), *names) for n in range(len(steps), -1, -1)]
    return folders


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _statistic(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name and words[1].isdigit():
                return int(words[1])
    except OSError:
        pass
    return 0
