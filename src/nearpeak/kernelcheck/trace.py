"""Run a few thread blocks of a PTX kernel in numpy and note every memory access: the facts behind "why is it slow".

All threads of a block go through an instruction together as one array. Threads that part at a branch are kept apart by
their program counters; those furthest behind run first, so they meet again where their ways join. What is not known
stops the trace with a reason: there is never a guessed value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearpeak.kernelcheck.ptx_bulk import barrier, copy_box, in_cluster, is_bulk
from nearpeak.kernelcheck.ptx_choice import CHOICE
from nearpeak.kernelcheck.ptx_convert import convert, convert_address
from nearpeak.kernelcheck.ptx_float import FLOAT, FLOATS
from nearpeak.kernelcheck.ptx_integer import INTEGER, Step
from nearpeak.kernelcheck.ptx_matrix import PRODUCTS, move_tiles, product
from nearpeak.kernelcheck.ptx_memory import atomic, copy_async, load, save
from nearpeak.kernelcheck.ptx_records import Instruction, PtxKernel, PtxModule
from nearpeak.kernelcheck.ptx_registers import Array, NotTraced, Registers, Where, unknown
from nearpeak.kernelcheck.ptx_warp import WARP, WARP_WIDE, active_mask
from nearpeak.kernelcheck.trace_block import BlockRun, Entry
from nearpeak.kernelcheck.trace_memory import SHARED_BASE, AddressOnly, Memory, TensorMap
from nearpeak.kernelcheck.trace_notes import Notes
from nearpeak.kernelcheck.trace_records import Launch, Trace
from nearpeak.kernelcheck.unknown_values import decided_by_unknown

CAP = 50_000  # instructions of one warp; the inner loop of a 4096-long product takes some 22 000
_IGNORED = (
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "nanosleep",
    "discard",
    "applypriority",
    "pragma",
    "griddepcontrol",
    "setmaxnreg",
)


def trace(module: PtxModule, name: str, launch: Launch, blocks: tuple[int, ...] | None = None, cap: int = CAP) -> Trace:
    """Trace some blocks (linear indices; None: the first, the middle and the last) of the kernel `name`.

    Real arrays among the arguments are read and written, so running all blocks gives the kernel's result.
    """
    return _Tracer(module, module.kernels[name], launch, cap).run(
        blocks if blocks is not None else chosen_blocks(launch)
    )


def chosen_blocks(launch: Launch) -> tuple[int, ...]:
    """The first block, the one in the middle of the grid, and the last, which may stick out over a ragged edge."""
    x, y, z = _three(launch.grid)
    middle = x // 2 + x * (y // 2 + y * (z // 2))
    return tuple(sorted({0, middle, x * y * z - 1}))


def _three(extents: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1, 1)[:3]
    return x, y, z


class _Tracer:
    def __init__(self, module: PtxModule, kernel: PtxKernel, launch: Launch, cap: int) -> None:
        self.kernel, self.launch, self.cap = kernel, launch, cap
        self.code = kernel.instructions
        self.threads = (launch.threads + WARP - 1) // WARP * WARP
        self.lanes: Array = np.arange(self.threads, dtype=np.int64)
        self.symbols: dict[str, int] = {}
        shared = self._place([*module.variables, *kernel.variables], "shared", SHARED_BASE)
        self.shared_bytes = shared + launch.shared - SHARED_BASE
        local = self._place(kernel.variables, "local", 0)
        self.memory = Memory(self.threads, self.shared_bytes, local)
        self.parameters: dict[str, bytes] = {}
        self._bind()
        for v in module.variables:
            if v.space in ("global", "const") and v.initial is not None:
                contents = np.zeros(max(v.size, 1), np.uint8)
                contents[: len(v.initial)] = np.frombuffer(v.initial, np.uint8)
                self.symbols[v.name] = self.memory.add(v.name, contents)
        self.registers = Registers(self.threads, kernel.registers, self.symbols)
        self.notes = Notes(self.memory, self.code)
        self.steps: list[Entry | None] = [None] * len(self.code)
        self.issues = np.zeros(len(self.code))
        self.active = np.zeros(len(self.code))
        self.now = 0

    def _place(self, variables: list[Any], space: str, at: int) -> int:
        """Give the variables of a space their addresses; those without a size (extern shared) come last."""
        for v in sorted((v for v in variables if v.space == space), key=lambda v: v.size == 0):
            at = (at + v.align - 1) // v.align * v.align
            self.symbols[v.name] = at
            at += v.size
        return at

    def _bind(self) -> None:
        given = self.launch.arguments
        if len(given) != len(self.kernel.parameters):
            raise ValueError(
                f"{self.kernel.name} takes {len(self.kernel.parameters)} arguments, {len(given)} are given"
            )
        for n, (p, value) in enumerate(zip(self.kernel.parameters, given, strict=True)):
            name = self.launch.names[n] if n < len(self.launch.names) else f"argument {n}"
            if isinstance(value, np.ndarray | AddressOnly):
                data = self.memory.add(name, value).to_bytes(8, "little")
            elif isinstance(value, TensorMap):
                self.symbols[p.name] = self.memory.add_map(value)
                data = bytes(p.size)
            elif isinstance(value, bytes):
                data = value
            elif p.type in ("f32", "f64"):
                data = np.dtype("f" + str(p.size)).type(value).tobytes()
            elif isinstance(value, np.generic):
                data = value.tobytes()
            elif isinstance(value, int):
                data = (value & (1 << 8 * p.size) - 1).to_bytes(p.size, "little")
            else:
                raise ValueError(f"argument {name} is a {type(value).__name__}; the kernel takes a {p.type}")
            self.parameters[p.name] = data.ljust(p.size, b"\0")

    # ---- running ----------------------------------------------------------------------------------------------------
    def run(self, blocks: tuple[int, ...]) -> Trace:
        weights = self._weights(blocks)
        stopped, cut = decided_by_unknown(self.code), False
        with np.errstate(all="ignore"):
            for number, (block, weight) in enumerate(zip(blocks, weights, strict=True)):
                if stopped:
                    break
                self._begin(block)
                self.notes.begin(number, weight)
                one = BlockRun(self, self.lanes < self.launch.threads)
                try:
                    cut |= not one.run()
                except NotTraced as reason:
                    stopped = str(reason)
                self.issues += weight * np.array(one.issues)
                self.active += weight * np.array(one.lanes)
        sizes = {b.name: b.nbytes for b in self.memory.buffers.values()}
        return Trace(
            self.launch,
            blocks,
            weights,
            tuple(self.code),
            self.issues,
            self.active,
            self.notes.accesses(),
            sizes,
            self.shared_bytes,
            stopped,
            cut,
        )

    def _weights(self, blocks: tuple[int, ...]) -> tuple[float, ...]:
        """The block in the middle of the list stands for all that are not traced."""
        rest = self.launch.blocks - len(blocks)
        return tuple(1.0 + (rest if n == len(blocks) // 2 else 0) for n in range(len(blocks)))

    def _begin(self, block: int) -> None:
        thread, r = np.minimum(self.lanes, self.launch.threads - 1), self.registers
        r.clear()
        self.memory.new_block()
        values: dict[str, Any] = {
            "%laneid": self.lanes % WARP,
            "%warpid": self.lanes // WARP,
            "%nwarpid": 64,
            "%smid": 0,
            "%nsmid": 1,
            "%gridid": 0,
            "%dynamic_smem_size": self.launch.shared,
            "%cluster_nctarank": self.kernel.cluster,
            "%cluster_ctarank": block % self.kernel.cluster,
        }
        for names, extents, index in (("%tid", "%ntid", thread), ("%ctaid", "%nctaid", block)):
            for axis, extent in zip(
                "xyz", _three(self.launch.block if names == "%tid" else self.launch.grid), strict=True
            ):
                values[f"{extents}.{axis}"] = extent
                values[f"{names}.{axis}"] = index % extent
                index = index // extent
        bit = np.left_shift(np.uint64(1), (self.lanes % WARP).astype(np.uint64))
        values |= {
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - 1,
            "%lanemask_le": 2 * bit - 1,
            "%lanemask_ge": 2**32 - bit,
            "%lanemask_gt": 2**32 - 2 * bit,
        }
        for key, value in values.items():
            array = r.specials.setdefault(key, np.zeros(self.threads, np.uint32))
            array[...] = np.asarray(value).astype(np.uint32)

    # ---- instructions -----------------------------------------------------------------------------------------------
    def note(self, index: int, space: str, kind: str, addresses: Array, where: Where) -> None:
        self.notes.add(index, space, kind, addresses, where, self.now)

    def prepare(self, at: int) -> Entry:
        """An instruction as something that can be carried out: decoded once, when it is first reached."""
        i, r = self.code[at], self.registers
        predicate = None if i.predicate is None else r.predicate(i.predicate)
        if i.opcode == "bra":
            return "branch", self.kernel.labels[i.operands[0]], predicate
        if i.opcode in ("ret", "exit"):
            return "exit", None, predicate
        if i.opcode == "barrier" and i.modifiers[0] == "cluster":  # of its blocks one is here, so nobody waits
            return "plain", lambda where: None, predicate
        if i.opcode in ("bar", "barrier") and i.modifiers[:1] != ("warp",):
            return "barrier", self._barrier(i), predicate
        name = "bar.warp" if i.opcode == "bar" else i.opcode
        if name in WARP_WIDE:
            members = r.read(i.operands[-1], "u32")
            return "warp", (WARP_WIDE[name](i, r), lambda: members), predicate
        return "plain", self._step(at, i), predicate

    def _barrier(self, i: Instruction) -> tuple[Any, Any, bool]:
        """(number, count of threads or None, whether only to arrive)."""
        words = [m for m in i.modifiers if m not in ("cta", "aligned")]
        if words not in (["sync"], ["arrive"]):
            raise unknown(i)
        number = self.registers.read(i.operands[0], "u32") if i.operands else np.uint32(0)
        return number, self.registers.read(i.operands[1], "u32") if len(i.operands) > 1 else None, words == ["arrive"]

    def _step(self, at: int, i: Instruction) -> Step:
        r = self.registers
        if i.opcode in ("ld", "ldu"):
            return load(at, i, r, self)
        if i.opcode == "st":
            return save(at, i, r, self)
        if i.opcode in ("atom", "red"):
            return atomic(at, i, r, self)
        if is_bulk(i):
            return copy_box(at, i, r, self)
        if i.opcode == "cp":
            return copy_async(at, i, r, self) or (lambda where: None)
        if i.opcode == "cvt":
            return convert(i, r)
        if i.opcode == "cvta":
            return convert_address(i, r)
        if i.opcode in ("ldmatrix", "stmatrix"):
            return move_tiles(at, i, r, self)
        if i.opcode in PRODUCTS:
            return product(i, values=any(isinstance(a, np.ndarray) for a in self.launch.arguments))
        if i.opcode == "mbarrier":
            return barrier(i, r)
        if i.opcode == "mapa":
            return in_cluster(i, r)
        if i.opcode == "activemask":
            return active_mask(i, r)
        if i.opcode == "mov" and i.operands[1] in ("%clock", "%clock64", "%globaltimer", "%clock_hi"):
            target = r.write(i.operands[0], i.modifiers[-1])
            return lambda where: np.copyto(target, target.dtype.type(self.now), where=where)
        if i.opcode in _IGNORED:
            return lambda where: None
        if i.opcode in CHOICE:
            return CHOICE[i.opcode](i, r)
        table = FLOAT if any(m in FLOATS for m in i.modifiers) and i.opcode in FLOAT else INTEGER
        if i.opcode not in table:
            raise unknown(i)
        return table[i.opcode](i, r)
