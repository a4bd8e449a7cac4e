"""How fast the disk that a file lies on can be read: the ceiling of loading."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK, THREADS, SECONDS = 8 << 20, 4, 0.5


def disk_rate(file: Path, seconds: float = SECONDS) -> tuple[float | None, str | None]:
    """Bytes a second of large reads past the page cache, several at once, for about `seconds`; None and the reason
    where that cannot be: a file too small, or a file system without direct reads."""
    size = os.path.getsize(file)
    if size < 2 * BLOCK:
        return None, f"a file of {size:,} bytes is too small to time the disk with"
    try:
        handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except (OSError, AttributeError) as error:
        return None, f"its file system has no reads past the cache ({error})"
    try:
        with ThreadPoolExecutor(THREADS) as several:
            start = time.perf_counter()
            parts = [several.submit(_read, handle, size, part, start + seconds) for part in range(THREADS)]
            total = sum(part.result() for part in parts)
            spent = time.perf_counter() - start
    except OSError as error:
        return None, f"its file system refused a read past the cache ({error})"
    finally:
        os.close(handle)
    return total / spent, None


def _read(handle: int, size: int, part: int, until: float) -> int:
    """Every THREADS-th block, from `part` on, around and around until it is time: bytes read."""
    buffer = mmap.mmap(-1, BLOCK)  # direct reads need a buffer at a page's beginning
    blocks, at, total = size // BLOCK, part, 0
    while time.perf_counter() < until or not total:
        total += os.preadv(handle, [buffer], at % blocks * BLOCK)
        at += THREADS
    buffer.close()
    return total
