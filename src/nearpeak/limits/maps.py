"""The linear maps of a part, one by one, and the adapters that LoRA puts on them."""

from __future__ import annotations

from dataclasses import dataclass

from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Attention, Experts, FeedForward, Linear, ModelSpec, Part, Recurrent
from nearpeak.records.workload import Training

# A target also names the pair of maps that stands in its place in latent attention.
STANDS_FOR = {"q_down": ("q",), "q_up": ("q",), "kv_down": ("k", "v"), "kv_up": ("k", "v")}


@dataclass(frozen=True)
class Map:
    """y = x·Wᵀ, in one piece of a part.

    copies, used   how many there are (experts), and how many of them one position passes
    level          order inside the piece: maps of one level read the same tensor, those of the next what came of it
    source         whose positions pass: "own", "reads" (the other stream of cross-attention) or "keys" (every position
                   that is looked at, where a latent is expanded again)
    """

    name: str
    inputs: int
    outputs: int
    copies: int = 1
    used: int = 1
    level: int = 0
    source: str = "own"

    @property
    def parameters(self) -> int:
        return self.copies * self.inputs * self.outputs


def maps_of(part: Part) -> tuple[Map, ...]:
    """Of one piece; biases, norms and tables are none. Convolutions are counted apart."""
    if isinstance(part, Attention):
        return tuple(_attention_map(part, name, shape) for name, shape in part.linear_shapes.items())
    if isinstance(part, Recurrent):
        last = len(part.shapes) - 1
        return tuple(Map(n, *shape, level=int(i == last)) for i, (n, shape) in enumerate(part.shapes.items()))
    if isinstance(part, FeedForward):
        return _widening(part.width, part.hidden, part.gated, 1, 1)
    if isinstance(part, Experts):
        found = [Map("router", part.width, part.experts)]
        found += _widening(part.width, part.hidden, part.gated, part.experts, part.chosen)
        if part.shared_hidden:
            found += _widening(part.width, part.shared_hidden, part.gated, 1, 1)
        if part.shared_gate:
            found.append(Map("shared_gate", part.width, part.shared_gate // part.width))
        return tuple(found)
    if isinstance(part, Linear):
        return (Map(part.name, part.inputs, part.outputs),)
    return ()


def _attention_map(part: Attention, name: str, shape: tuple[int, int]) -> Map:
    level = {"q_up": 1, "kv_up": 1, "o": 2}.get(name, 0)
    source = "own"
    if name in ("k", "v", "kv_down", "kv_up") and part.reads:
        source = "reads"
    elif name == "kv_up":
        source = "keys"
    return Map(name, *shape, level=level, source=source)


def _widening(width: int, hidden: int, gated: bool, copies: int, used: int) -> tuple[Map, ...]:
    gate = (Map("gate", width, hidden, copies, used),) if gated else ()
    return (*gate, Map("up", width, hidden, copies, used), Map("down", hidden, width, copies, used, level=1))


def has_adapter(name: str, training: Training) -> bool:
    """Whether LoRA puts an adapter on a map of this name; a full fine-tune has none."""
    return training.method != "full" and any(t in training.targets for t in (name, *STANDS_FOR.get(name, ())))


def trained_parameters(spec: ModelSpec, training: Training) -> int:
    """All of them, or those of the adapters: rank · (inputs + outputs) for each linear map that gets one.

    Raises UserError where no map of the model is among the targets.
    """
    if training.method == "full":
        return spec.parameters
    count = sum(part.count * adapter_parameters(part, training) for part in spec.parts)
    if not count:
        names = dict.fromkeys(m.name for part in spec.parts for m in maps_of(part))
        targets = ", ".join(training.targets)
        raise UserError(f"no adapter fits {spec.name}: the targets are {targets}; its maps are {', '.join(names)}")
    return count


def adapter_parameters(part: Part, training: Training) -> int:
    """Parameters of the adapters on one piece."""
    return sum(
        m.copies * training.rank * (m.inputs + m.outputs) for m in maps_of(part) if has_adapter(m.name, training)
    )
