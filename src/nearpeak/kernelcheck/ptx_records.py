"""What a PTX text consists of: instructions, variables, parameters, kernels."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    opcode     first part of the name ("ld"); modifiers the rest in order ("global", "f32")
    operands   as written, a vector as "{%f1, %f2}", an address as "[%rd1+4]"; register names made unique per scope
    predicate  the register that guards it, or None; negated is True for @!p
    line       1-based line of the source by the last `.loc`; 0 where the compiler gave none
    file       name of the source by `.file`, "" where unknown
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    predicate: str | None = None
    negated: bool = False
    line: int = 0
    file: str = ""

    @property
    def name(self) -> str:
        """The full name: "ld.global.f32"."""
        return ".".join((self.opcode, *self.modifiers))

    def __str__(self) -> str:
        guard = f"@{'!' if self.negated else ''}{self.predicate} " if self.predicate else ""
        return f"{guard}{self.name} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Variable:
    """A variable with an address. `size` in bytes, 0 for an array whose size the launch gives (extern
    shared); `initial`: its bytes at the start, None where they hold an address."""

    name: str
    space: str
    size: int
    align: int
    initial: bytes | None = b""


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: its type ("u64", "f32", "b8" for a struct) and size in bytes."""

    name: str
    type: str
    size: int
    align: int


@dataclass
class PtxKernel:
    """One `.entry`. `labels`: a label to the index of the instruction behind it; `shared_bytes`: static ones;
    `cluster`: blocks along x that run side by side, 1 where nothing is said."""

    name: str
    parameters: tuple[Parameter, ...] = ()
    registers: dict[str, str] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    shared_bytes: int = 0
    cluster: int = 1


@dataclass
class PtxModule:
    """A PTX text: kernels by name, the module's own variables, and the target ("sm_90")."""

    kernels: dict[str, PtxKernel]
    variables: list[Variable]
    target: str


_OF_BYTES = {
    1: ("b8", "u8", "s8", "pred"),
    2: ("b16", "u16", "s16", "f16", "bf16"),
    4: ("b32", "u32", "s32", "f32", "f16x2", "bf16x2"),
    8: ("b64", "u64", "s64", "f64"),
    16: ("b128",),
}
TYPE_BYTES = {kind: size for size, kinds in _OF_BYTES.items() for kind in kinds}
