"""One thread block on its way through a program: who stands where, who waits, and who runs next."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from nearpeak.kernelcheck.ptx_records import Instruction
from nearpeak.kernelcheck.ptx_registers import Array, NotTraced, Where
from nearpeak.kernelcheck.ptx_warp import WARP
from nearpeak.kernelcheck.trace_notes import Notes

_FAR = 1 << 30
Entry = tuple[
    str, Any, Array | None
]  # kind ("plain", "branch", "exit", "barrier", "warp"), what it does, its predicate


class Program(Protocol):
    """What a block needs of the tracer: the code, made ready as it is reached."""

    code: list[Instruction]
    steps: list[Entry | None]
    notes: Notes
    cap: int
    now: int

    def prepare(self, at: int) -> Entry: ...


class BlockRun:
    """The state of one block. issues and lanes: per instruction, warps that issued it and threads that took part."""

    def __init__(self, program: Program, alive: Array) -> None:
        self.program, self.alive = program, alive
        self.threads = n = len(alive)
        self.pc, self.barrier, self.expected = np.zeros(n, np.int64), np.full(n, -1), np.zeros(n, np.int64)
        self.arrived: dict[int, int] = {}  # threads that have arrived at a barrier without waiting
        self.held = np.zeros(n, bool)  # threads that wait for others of their warp
        self.counters = np.zeros(n // WARP, np.int64)
        self.issues, self.lanes = [0] * len(program.code), [0] * len(program.code)

    def run(self) -> bool:
        """To the end; False where a warp reached the cap."""
        while True:
            ready = self.alive & (self.barrier < 0) & ~self.held
            if not ready.any():
                if not self.alive.any():
                    return True
                raise NotTraced(self._deadlock())
            at = int(self.pc[ready].min())
            group = ready & (self.pc == at)
            others = self.pc[ready & ~group]
            if not self._run_group(group, at, int(others.min()) if len(others) else _FAR):
                return False

    def _deadlock(self) -> str:
        stuck = sorted({self.program.code[min(int(p), len(self.program.code) - 1)].line for p in self.pc[self.alive]})
        return (
            f"deadlock: threads wait near line {', '.join(map(str, stuck))} for others of their block that never come"
        )

    def _run_group(self, group: Array, at: int, join: int) -> bool:
        """Run threads that stand at one instruction until they part, wait, end, or come to where others stand."""
        where: Where = True if group.all() else group
        warps = group.reshape(-1, WARP).any(axis=1)
        warp_count, lane_count = int(warps.sum()), int(group.sum())
        left = self.program.cap - int(self.counters[warps].max())
        issues, lanes, steps, taken = self.issues, self.lanes, self.program.steps, 0
        try:
            while True:
                if at >= len(self.program.code):
                    self._leave(group)
                    return True
                if at >= join:
                    self.pc[group] = at
                    return True
                entry = steps[at]
                if entry is None:
                    entry = steps[at] = self.program.prepare(at)
                kind, action, predicate = entry
                if taken >= left or self.program.notes.full:
                    return False
                if kind == "warp" and not self._together(action[1], group, at):
                    return True
                taken += 1
                self.program.now += 1
                issues[at] += warp_count
                if predicate is None:
                    lanes[at] += lane_count
                    if kind == "plain":
                        action(where)
                        at += 1
                        continue
                    acting: Any = group
                else:
                    acting = group & (~predicate if self.program.code[at].negated else predicate)
                    count = int(np.count_nonzero(acting))
                    lanes[at] += lane_count if kind == "branch" else count
                    if kind == "plain" or not count:
                        if count:
                            action(acting)
                        at += 1
                        continue
                if kind == "branch":
                    if predicate is None or count == lane_count:
                        at = action
                        continue
                    self.pc[group], self.pc[acting] = at + 1, action
                    return True
                if kind == "warp":
                    action[0](True if acting is group and where is True else acting)
                    at += 1
                elif kind == "exit":
                    self.pc[group] = at + 1
                    self._leave(acting)
                    return True
                else:
                    self.pc[group] = at + 1
                    self._meet(acting, *action)
                    return True
        finally:
            if taken:  # somebody has moved: those who wait for others of their warp look again
                self.held[:] = False
            self.counters[warps] += taken

    def _leave(self, threads: Array) -> None:
        self.alive &= ~threads
        self._release()

    def _together(self, mask: Any, group: Array, at: int) -> bool:
        """Whether all threads that a warp-wide instruction names are here; if not, those that are wait for the
        others."""
        missing = self.alive & ~group
        if not missing.any():
            return True
        members = np.broadcast_to(np.asarray(mask(), np.uint32), (self.threads,))
        named = np.zeros(self.threads, bool)
        for warp in np.flatnonzero(group.reshape(-1, WARP).any(axis=1)):
            lanes = slice(warp * WARP, (warp + 1) * WARP)
            word = int(np.bitwise_or.reduce(members[lanes][group[lanes]]))
            named[lanes] = [bool(word >> k & 1) for k in range(WARP)]
        lacking = (named & missing).reshape(-1, WARP).any(axis=1)
        if not lacking.any():
            return True
        self.pc[group] = at
        waits = group & np.repeat(lacking, WARP)
        self.held |= waits
        return False

    def _meet(self, threads: Array, number: Any, count: Any, arrive: bool) -> None:
        """bar.sync (wait) and bar.arrive (only be counted)."""
        first = int(np.argmax(threads))
        which = int(number if np.ndim(number) == 0 else number[first])
        many = 0 if count is None else int(count if np.ndim(count) == 0 else count[first])
        if arrive:
            self.arrived[which] = self.arrived.get(which, 0) + int(threads.sum())
        else:
            self.barrier[threads], self.expected[threads] = which, many
        self._release()

    def _release(self) -> None:
        """Let those go on whose barrier is complete: all threads of the block that still run, or as many as it
        names."""
        for which in {int(b) for b in self.barrier[self.barrier >= 0]}:
            waiting = self.barrier == which
            many = int(self.expected[waiting].max())
            here = int(waiting.sum()) + self.arrived.get(which, 0)
            if here >= many if many else here >= int(self.alive.sum()):
                self.barrier[waiting] = -1
                self.arrived.pop(which, None)
