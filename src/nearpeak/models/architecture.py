"""What a config says that a model is made of: parts, and for each the tensors that must hold it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from nearpeak.records.model_spec import Part


@dataclass(frozen=True)
class Tensor:
    """A tensor that a checkpoint must hold.

    name     in safetensors, "{i}" for the layer, "{e}" for the expert
    shape    as in safetensors: a Linear's is (outputs, inputs)
    gguf     its name in a GGUF file, "{i}" likewise; there all experts lie in one tensor; "" where there is none
    experts  how many of it a layer has (one each expert)
    transposed   stored (inputs, outputs), as GPT-2 does; a GGUF file has (outputs, inputs) all the same
    """

    name: str
    shape: tuple[int, ...]
    gguf: str = ""
    experts: int = 1
    transposed: bool = False

    @property
    def parameters(self) -> int:
        """Of all experts of one layer."""
        return self.experts * math.prod(self.shape)

    def names(self, layers: tuple[int, ...]) -> Iterator[str]:
        """Every name of it in a checkpoint."""
        if "{i}" not in self.name:
            layers = layers[:1]
        for layer in layers:
            name = self.name.replace("{i}", str(layer))
            if "{e}" not in name:
                yield name
                continue
            before, _, after = name.partition("{e}")
            for expert in range(self.experts):
                yield f"{before}{expert}{after}"


@dataclass(frozen=True)
class Piece:
    """A part and where it lies.

    layers     the numbers that fill "{i}", as many as part.count; (0,) for what is there once
    tensors    that hold one of it; a tied head has none
    otherwise  other ways in which the same numbers are stored (experts in one tensor, or one each)
    optional   it may be missing from a file; without a file it is counted only where `expected`
    """

    part: Part
    tensors: tuple[Tensor, ...]
    layers: tuple[int, ...] = (0,)
    otherwise: tuple[tuple[Tensor, ...], ...] = ()
    optional: bool = False
    expected: bool = True


@dataclass(frozen=True)
class Architecture:
    """All pieces of one model.

    roots       what may stand in front of the names in place of the first of them ("model.", then "" for a model
                saved without its head, …)
    duplicates  names of tensors that repeat another one (a tied head stored again), with the name of that other
    ignored     regular expressions: tensors that are no parameters (masks, rotary frequencies)
    beside      prefixes of whole modules that are counted, not modelled (a vision tower), with what they are
    aside       prefixes of tensors that are parameters, yet not counted, with why (multi-token prediction)
    """

    family: str
    task: Literal["generate", "encode", "transcribe"]
    pieces: tuple[Piece, ...]
    streams: dict[str, int | None]
    context: int | None
    roots: tuple[str, ...] = ("",)
    duplicates: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    beside: dict[str, str] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that the config alone says are there."""
        return tuple(piece.part for piece in self.pieces if piece.expected)
