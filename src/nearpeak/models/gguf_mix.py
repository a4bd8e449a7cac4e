"""Bytes that a model takes at one of llama.cpp's GGUF mixes, from its parts alone.

A mix such as q4_k_m is no single type: the head, the embedding, values and the maps down of some layers get more bits.
The rule is that of llama.cpp's src/llama-quant.cpp (2026), without an importance matrix. Biases, norms, routers,
positions and convolutions stay fp32, as its converter leaves them. The file's header, about 8 MB of vocabulary, is not
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from nearpeak.models.gguf_header import TYPES
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import (
    Attention,
    Experts,
    FeedForward,
    Linear,
    ModelSpec,
    Part,
    Recurrent,
    Stored,
    Table,
)

BASE = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0", "q4_1": "q4_1", "q5_0": "q5_0",
    "q5_1": "q5_1", "q2_k": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k", "q4_k_s": "q4_k",
    "q4_k_m": "q4_k", "q5_k_s": "q5_k", "q5_k_m": "q5_k", "q6_k": "q6_k",
}  # fmt: skip
MIXES = tuple(BASE)
BLOCKS = {name: (numbers, size) for name, numbers, size in TYPES.values()}
FALLBACK = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
ONE_MAP = frozenset({"phi3", "gpt2", "qwen", "mpt"})  # whose GGUF has q, k and v in one tensor


def gguf_stored(spec: ModelSpec, mix: str) -> dict[str, Stored]:
    """Parameters and bytes by type. Raises UserError: no such mix, or no text model."""
    name = mix.lower()
    if name not in BASE:
        raise UserError(f"{mix!r} is no GGUF mix that nearpeak knows. Known: {', '.join(MIXES)}.")
    if spec.task != "generate" or not any(isinstance(part, Attention) for part in spec.parts):
        raise UserError(f"{spec.name} is no text model: GGUF mixes are planned for those alone.")
    return _Mix(spec, name).stored()


class _Mix:
    def __init__(self, spec: ModelSpec, mix: str) -> None:
        self.spec, self.mix, self.base = spec, mix, BASE[mix]
        self.quantised = self.base not in ("fp32", "fp16", "bf16")
        attention = [part for part in spec.parts if isinstance(part, Attention)]
        self.heads, self.kv_heads = attention[0].heads, attention[0].kv_heads
        self.layers = spec.layers
        self.eight = any(isinstance(part, Experts) and part.experts == 8 for part in spec.parts)
        self.seventy = self.layers == 80 and (
            spec.family == "qwen2" or (spec.family == "llama" and self.kv_heads < self.heads)
        )
        self.valued = [part for part in spec.parts if self._value(part)]
        self.tied = any(isinstance(part, Linear) and part.tied and part.name == "head" for part in spec.parts)
        self.numbers: Counter[str] = Counter()

    def stored(self) -> dict[str, Stored]:
        for part in self.spec.parts:
            self._part(part)
        return {
            kind: Stored(count, count // BLOCKS[kind][0] * BLOCKS[kind][1])
            for kind, count in sorted(self.numbers.items())
        }

    def _part(self, part: Part) -> None:
        taken = 0
        for inputs, outputs, times, kind in self._maps(part):
            self._add(inputs, outputs, times, kind)
            taken += inputs * outputs * times
        self.numbers["fp32"] += part.count * part.parameters - taken
        if not self.numbers["fp32"]:
            del self.numbers["fp32"]

    def _add(self, inputs: int, outputs: int, times: int, kind: str) -> None:
        if inputs % BLOCKS[kind][0]:
            kind = FALLBACK.get(kind, "fp16")
            kind = "fp16" if inputs % BLOCKS[kind][0] else kind
        if times:
            self.numbers[kind] += inputs * outputs * times

    def _maps(self, part: Part) -> list[tuple[int, int, int, str]]:
        """inputs, outputs, how many, type: of all that is no fp32."""
        count = part.count
        if isinstance(part, Table):
            if part.name != "embedding":
                return []
            return [(part.width, part.rows, count, self._output(part.width) if self.tied else self.base)]
        if isinstance(part, Linear):
            if part.tied:
                return []
            kind = self._output(part.inputs) if part.name == "head" else self.base
            return [(part.inputs, part.outputs, count, kind)]
        if isinstance(part, FeedForward):
            return [(part.width, part.hidden, count * (part.matrices - 1), self.base), *self._down(part, part.hidden)]
        if isinstance(part, Experts):
            into = 2 if part.gated else 1
            maps = [(part.width, part.hidden, count * into * part.experts, self.base)]
            maps += self._down(part, part.hidden, part.experts)
            if part.shared_hidden:
                maps += [(part.width, part.shared_hidden, count * into, self.base)]
                maps += self._down(part, part.shared_hidden)
            return maps
        if isinstance(part, Recurrent):
            maps = []
            for name, (inputs, outputs) in part.shapes.items():
                maps += self._values(part, inputs, outputs) if name == "qkv" else [(inputs, outputs, count, self.base)]
            return maps
        return self._attention(part) if isinstance(part, Attention) else []

    def _attention(self, part: Attention) -> list[tuple[int, int, int, str]]:
        maps = []
        shapes = dict(part.linear_shapes)
        if self.spec.family in ONE_MAP:
            inputs = shapes["q"][0]
            maps += self._values(part, inputs, sum(shapes.pop(name)[1] for name in ("q", "k", "v")))
        for name, (inputs, outputs) in shapes.items():
            if name == "v":
                maps += self._values(part, inputs, outputs)
            elif name == "kv_up" and part.latent:  # stored as two: keys turned, so that rows are head_dim long
                plain = part.head_dim - part.latent.rotary
                maps.append((plain, part.heads * part.latent.kv_rank, part.count, self.base))
                maps.append((inputs, part.heads * part.value_dim, part.count, self.base))
            else:
                kind = "q8_0" if name == "k" and self.eight and self.quantised else self.base
                maps.append((inputs, outputs, part.count, self._attention_output() if name == "o" else kind))
        return maps

    def _output(self, width: int) -> str:
        if not self.quantised or self.base == "q8_0":
            return self.base
        return "q8_0" if width % BLOCKS[self.base][0] else "q6_k"

    def _attention_output(self) -> str:
        if self.eight:
            return "q5_k" if self.mix in ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m") else self.base
        return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(self.mix, self.base)

    @staticmethod
    def _value(part: Part) -> bool:
        if isinstance(part, Attention):
            return not part.latent and not part.keys_are_values
        return isinstance(part, Recurrent) and "qkv" in part.shapes

    def _values(self, part: Part, inputs: int, outputs: int) -> list[tuple[int, int, int, str]]:
        """The map to values, of which some layers get more bits; unlike layers share those in proportion."""
        total = sum(other.count for other in self.valued)
        kinds = Counter(self._value_kind(layer, total) for layer in range(total))
        return self._shared(part.count, total, kinds, inputs, outputs)

    def _shared(
        self, count: int, total: int, kinds: Counter[str], inputs: int, outputs: int
    ) -> list[tuple[int, int, int, str]]:
        maps, left = [], count
        for kind, number in kinds.most_common()[1:]:
            share = min(left, round(number * count / total))
            maps.append((inputs, outputs, share, kind))
            left -= share
        return [*maps, (inputs, outputs, left, kinds.most_common(1)[0][0])]

    def _value_kind(self, layer: int, total: int) -> str:
        if self.eight and self.quantised:
            return "q8_0"
        kind = self.base
        if self.mix == "q2_k":
            kind = "q4_k" if self.heads // self.kv_heads >= 4 else "q3_k"
        elif self.mix == "q3_k_m":
            kind = "q5_k" if layer < 2 else "q4_k"
        elif self.mix == "q3_k_l":
            kind = "q5_k"
        elif self.mix in ("q4_k_m", "q5_k_m") and more_bits(layer, total):
            kind = "q6_k"
        elif self.mix == "q4_k_s" and layer < 4:
            kind = "q5_k"
        return "q5_k" if self.seventy and kind in ("q3_k", "q4_k") else kind

    def _down(self, part: Part, hidden: int, times: int = 1) -> list[tuple[int, int, int, str]]:
        """The maps down of this part's layers, which are the last ones where it is not in all."""
        assert isinstance(part, (FeedForward, Experts))
        first = self.layers - part.count if isinstance(part, Experts) else 0
        kinds = Counter(self._down_kind(first + layer, self.layers) for layer in range(part.count))
        return [(hidden, part.width, number * times, kind) for kind, number in kinds.items()]

    def _down_kind(self, layer: int, total: int) -> str:
        rules: dict[str, Callable[[], str]] = {
            "q2_k": lambda: "q3_k",
            "q3_k_m": lambda: "q5_k" if layer < total // 16 else "q4_k",
            "q3_k_l": lambda: "q5_k",
            "q4_k_m": lambda: "q6_k" if more_bits(layer, total) else self.base,
            "q5_k_m": lambda: "q6_k" if more_bits(layer, total) else self.base,
            "q4_k_s": lambda: "q5_k" if layer < total // 8 else self.base,
        }
        return rules.get(self.mix, lambda: self.base)()


def more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
