"""Architecture and stored weights → ModelSpec."""

from __future__ import annotations

from collections.abc import Sequence

from nearpeak.models.architecture import Architecture
from nearpeak.models.config import Config
from nearpeak.records.model_spec import SCHEMA, ModelSpec, Part, Stored


def model_spec(
    name: str,
    architecture: Architecture,
    config: Config,
    parts: Sequence[Part],
    stored: dict[str, Stored],
    source: str,
    notes: Sequence[str] = (),
) -> ModelSpec:
    """One record. Keys of the config that nobody asked for, and defaults that were needed, become notes."""
    said = [*architecture.notes, *notes]
    if config.taken:
        taken = ", ".join(f"{key} {value}" for key, value in sorted(config.taken.items()))
        said.append(f"Not in the file, so the family's default was taken: {taken}.")
    if unknown := config.unknown():
        said.append(f"Keys that nearpeak does not know, passed over: {', '.join(unknown)}.")
    return ModelSpec(
        SCHEMA, name, architecture.family, architecture.task, tuple(parts), dict(architecture.streams),
        architecture.context, stored, source, dict(config.honoured), tuple(said),
    )  # fmt: skip


def parameters_of(parts: Sequence[Part]) -> int:
    """All of them."""
    return sum(part.count * part.parameters for part in parts)
