"""The tools of the CUDA toolkit, where the kernel runs on a GPU and there is time left for them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearpeak.kernelcheck import counters, sanitizer
from nearpeak.kernelcheck.counters import Counters
from nearpeak.kernelcheck.kernel import Declaration, Sizes
from nearpeak.kernelcheck.op import Op
from nearpeak.kernelcheck.sanitizer import Kind, Place, Watched
from nearpeak.kernelcheck.shapes import ragged_shape
from nearpeak.kernelcheck.source import Source
from nearpeak.kernelcheck.verdict import Verdict, shape_text

if TYPE_CHECKING:
    import torch

    from nearpeak.kernelcheck.check import Request

LEAST_S = 15.0  # less is not worth a start: importing torch alone takes a good part of it
SPARE_S = 60.0  # for the timing and the rest of the check, which come after compute-sanitizer
END_S = 15.0  # for the start before the clock runs, and for the answer
# Threads that wait for copies and matrix units meet at barriers in memory, which racecheck need not follow.
_OTHER_BARRIERS = r"mbarrier|cp\.async\.bulk|wgmma|tcgen05|cuda::barrier|cuda::pipeline"


@dataclass
class Tools:
    """Runs them on one kernel; every reason why one is not run is told."""

    request: Request
    source: Source
    declaration: Declaration
    op: Op
    sizes: Sizes
    device: torch.device
    progress: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)

    def watch(self, verdict: Verdict) -> Verdict:
        """The verdict with what compute-sanitizer says; as it is where the kernel does not run on CUDA."""
        if self.device.type != "cuda" or self.source.language not in ("CUDA", "Triton") or not self.request.tools:
            return verdict
        ragged = ragged_shape(self.op, self.sizes, self.declaration.require)
        place = Place(self.source.path, self.source.line_offset if self.source.language == "CUDA" else 0)
        races = self.source.language == "CUDA" and not re.search(_OTHER_BARRIERS, self.source.text)
        return sanitizer.judge(verdict, self._watched, ragged, place, races)

    def count(self) -> Counters | str:
        """The hardware's counters of a run at the asked shape, or why there are none."""
        if self.device.type != "cuda":
            return "it does not run on a CUDA GPU"
        if not self.request.tools:
            return "left out by --no-tools"
        left = self._left(counters.TIMEOUT_S, 0.0)
        if left < LEAST_S:
            return self._no_time()
        self._make_room()
        self.progress("counters")
        return counters.count(self.request, self.sizes, str(self.device), self.declaration.kernel, left)

    def _watched(self, kind: Kind, sizes: Sizes) -> Watched:
        left = self._left(sanitizer.TIMEOUT_S, SPARE_S)
        if left < LEAST_S:
            return Watched(kind, missing=self._no_time())
        self._make_room()
        self.progress(f"{sanitizer.TOOL} {kind} at {shape_text(sizes)}")
        return sanitizer.watch(kind, self.request, sizes, str(self.device), left)

    def _left(self, most: float, spare: float) -> float:
        """Seconds that a tool may take, so that it is not the kernel that seems to hang."""
        if self.request.seconds is None:
            return most
        return min(most, self.request.seconds - (time.monotonic() - self.started) - spare - END_S)

    def _no_time(self) -> str:
        return f"too little is left of --timeout {self.request.seconds:g}"

    def _make_room(self) -> None:
        """Give back the memory that torch keeps in reserve: another process needs some."""
        import torch

        try:
            torch.cuda.empty_cache()
        except RuntimeError:  # the kernel has broken the context: then its memory is not ours to give back
            return
