"""The exact account: every tensor of a file belongs to one part, and every part has its tensors."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from nearpeak.models.architecture import Architecture, Piece, Tensor
from nearpeak.models.weights import Weight, shape_text
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Linear, Part, Stored, Vector

Weights = dict[str, Weight]
NO_WEIGHTS = frozenset(
    {"int64", "int32", "int16", "uint64", "uint32", "uint16", "uint8", "bool", "complex64"}
)  # what a weight is only as a packed one, which packing.py has given another name


@dataclass(frozen=True)
class Account:
    """What the file holds: parts, bytes by dtype, and what is not counted and why.

    names   of the tensors as the architecture has them → as they stand in the file
    """

    parts: tuple[Part, ...]
    stored: dict[str, Stored]
    notes: tuple[str, ...]
    names: dict[str, str] = field(default_factory=dict)


def account(architecture: Architecture, weights: Weights, where: str) -> Account:
    """Hold a file's tensors against what its config says.

    Raises UserError naming the tensor: one is missing, has another shape, or belongs to no part.
    """
    left = dict(weights)
    root = _root(architecture, weights)
    parts: list[Part] = []
    counted: list[Weight] = []
    names: dict[str, str] = {}
    for piece in architecture.pieces:
        tensors = _layout(piece, architecture, root, left)
        if tensors is None:
            continue
        parts.append(piece.part)
        for tensor in tensors:
            for wanted in tensor.names(piece.layers):
                name = names[wanted] = _renamed(wanted, architecture, root, left)
                weight = left.pop(name, None)
                if weight is None:
                    raise _missing(name, tensor, architecture, weights, root, where)
                if weight.shape != tensor.shape or weight.dtype in NO_WEIGHTS:
                    _check(name, tensor, weight, where)
                counted.append(weight)
    notes: list[str] = []
    beside = _leftover(architecture, left, weights, root, notes, where)
    parts += [Vector(name, 1, "text", size=_numbers(several)) for name, several in beside.items()]
    counted += [weight for several in beside.values() for weight in several]
    numbers: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for weight in counted:
        numbers[weight.dtype] += weight.parameters
        sizes[weight.dtype] += weight.bytes
    stored = {dtype: Stored(count, sizes[dtype]) for dtype, count in numbers.items()}
    total, held = sum(part.count * part.parameters for part in parts), sum(numbers.values())
    assert total == held, f"{where}: parts have {total} parameters, their tensors {held}"
    return Account(tuple(parts), stored, tuple(notes), names)


def _layout(piece: Piece, architecture: Architecture, root: str, left: Weights) -> tuple[Tensor, ...] | None:
    """Which of the ways that this piece may be stored the file has; None: it has not, and need not."""
    ways = [way for way in (piece.tensors, *piece.otherwise) if all(tensor.name for tensor in way)]

    def there(tensor: Tensor) -> bool:
        return _renamed(next(tensor.names(piece.layers)), architecture, root, left) in left

    for way in ways:
        if all(there(tensor) for tensor in way):
            return way
    if piece.optional and not (ways and any(there(tensor) for tensor in ways[0])):
        return None
    return max(ways, key=lambda way: sum(there(tensor) for tensor in way))


def _check(name: str, tensor: Tensor, weight: Weight, where: str) -> None:
    """Raise what is wrong with a tensor, if anything is: packed ones have no shape."""
    fits = weight.shape == tensor.shape if weight.shape is not None else weight.parameters == _size(tensor)
    if not fits:
        raise UserError(
            f"{where}: tensor {shown(name)} is {weight.text()}; by the config it should be {shape_text(tensor.shape)}. "
            "Config and weights are not of the same model."
        )
    if weight.dtype in NO_WEIGHTS:
        raise UserError(
            f"{where}: tensor {shown(name)} is {weight.dtype}: no weights, or packed without quantization_config in "
            "config.json. Fetch the folder again."
        )


def _size(tensor: Tensor) -> int:
    return tensor.parameters // tensor.experts


def _root(architecture: Architecture, weights: Weights) -> str:
    """What stands in front of the names in this file."""
    first = architecture.roots[0]
    for piece in architecture.pieces:
        for tensor in piece.tensors:
            if tensor.name.startswith(first):
                name = next(tensor.names(piece.layers))
                for root in architecture.roots:
                    if root + name.removeprefix(first) in weights:
                        return root
    return first


def _renamed(name: str, architecture: Architecture, root: str, left: Weights) -> str:
    first = architecture.roots[0]
    if first and name.startswith(first):
        return root + name.removeprefix(first)
    outer = f"language_model.{name}"
    return outer if name not in left and outer in left else name


def _missing(
    name: str, tensor: Tensor, architecture: Architecture, weights: Weights, root: str, where: str
) -> UserError:
    if contradiction := _layers(architecture, weights, root, where):
        return contradiction
    return UserError(
        f"{where}: tensor {shown(name)} is missing; the config of a {architecture.family} asks for it, of shape "
        f"{shape_text(tensor.shape)}. Fetch all files of the model again."
    )


def _layers(architecture: Architecture, weights: Weights, root: str, where: str) -> UserError | None:
    """The error that says how many layers were found, where that is what is wrong."""
    for piece in architecture.pieces:
        for tensor in piece.tensors:
            before, placed, _ = tensor.name.partition("{i}")
            if not placed:
                continue
            before = root + before.removeprefix(architecture.roots[0])
            asked = {
                number for other in architecture.pieces for number in other.layers
                if any(_under(tensor.name, before, architecture, root) for tensor in other.tensors)
            }  # fmt: skip
            pattern = re.compile(re.escape(before) + r"(\d{1,6})\.")
            found = {int(match[1]) for name in weights if (match := pattern.match(name))}
            aside = {int(match[1]) for prefix in architecture.aside
                     if (match := pattern.match(root + prefix.removeprefix(architecture.roots[0])))}  # fmt: skip
            if found - aside != asked:
                return UserError(
                    f"{where}: the config has {len(asked)} layers ({before}0 to {max(asked)}), the files hold "
                    f"{len(found)}. Config and weights are not of the same model, or files are missing."
                )
    return None


def _under(name: str, before: str, architecture: Architecture, root: str) -> bool:
    return (root + name.removeprefix(architecture.roots[0])).startswith(before) and "{i}" in name


def _leftover(
    architecture: Architecture, left: Weights, weights: Weights, root: str, notes: list[str], where: str
) -> dict[str, list[Weight]]:
    """What no piece took: repeated tensors, masks, modules beside the model. Anything else is an error.

    Returns the weights of each module beside.
    """
    first = architecture.roots[0]
    repeated = {_renamed(a, architecture, root, left): _renamed(b, architecture, root, weights)
                for a, b in architecture.duplicates.items()}  # fmt: skip
    ignored = [re.compile(pattern) for pattern in architecture.ignored]
    beside: dict[str, list[Weight]] = {}
    groups: dict[str, list[Weight]] = {}
    for name, weight in left.items():
        module = next((key for key in architecture.beside if name.startswith(key)), None)
        aside = next(
            (why for key, why in architecture.aside.items()
             if name.startswith((key, root + key.removeprefix(first)))), None,
        )  # fmt: skip
        if name in repeated:
            other = weights.get(repeated[name])
            if other is not None and other.parameters != weight.parameters:
                raise UserError(
                    f"{where}: tensor {shown(name)} is {weight.text()}; {repeated[name]}, which it repeats, is "
                    f"{other.text()}."
                )
            groups.setdefault(f"{name}, {repeated[name]} stored again", []).append(weight)
        elif any(pattern.fullmatch(name) for pattern in ignored):
            groups.setdefault("masks and constants, no parameters", []).append(weight)
        elif module is not None:
            label = architecture.beside[module].replace(" ", "_")
            beside.setdefault(label, []).append(weight)
        elif aside is not None:
            groups.setdefault(aside, []).append(weight)
        else:
            raise _layers(architecture, weights, root, where) or UserError(
                f"{where}: tensor {shown(name)} ({weight.dtype} {weight.text()}) belongs to no part of a "
                f"{architecture.family} with this config; {len(left)} tensors are left over."
            )
    for what, several in groups.items():
        size = sum(weight.bytes for weight in several)
        tensors = "1 tensor" if len(several) == 1 else f"{len(several)} tensors"
        notes.append(f"Not counted: {what} ({tensors}, {_numbers(several):,} numbers, {size:,} bytes).")
    for label, several in beside.items():
        notes.append(f"Counted, not modelled: {label.replace('_', ' ')} ({_numbers(several):,} parameters).")
    return beside


def shown(name: str) -> str:
    """A tensor's name in one line of a message."""
    return name if name.isprintable() and len(name) <= 200 else repr(name[:200])


def _numbers(weights: list[Weight]) -> int:
    return sum(weight.parameters for weight in weights)


def head_is_there(parts: tuple[Part, ...]) -> bool:
    """The model gives logits over its vocabulary."""
    return any(isinstance(part, Linear) and part.name == "head" for part in parts)
