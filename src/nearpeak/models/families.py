"""Which function reads which `model_type` of config.json."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from nearpeak.models import llama_like, mixtures
from nearpeak.models.architecture import Architecture
from nearpeak.models.config import Config
from nearpeak.models.decoder import Style, decoder
from nearpeak.records.errors import UserError

Family = Callable[[Config], Architecture]


def _of(style: Style) -> Family:
    return lambda config: decoder(config, style)


FAMILIES: dict[str, Family] = {
    **{name: _of(style) for name, style in llama_like.STYLES.items()},
    **{name: _of(style) for name, style in mixtures.STYLES.items()},
}


def architecture_of(config: Config) -> Architecture:
    """The pieces of the model that a config.json describes. Raises UserError where its family is not known."""
    kind = config.text("model_type")
    if kind not in FAMILIES:
        near = get_close_matches(kind, FAMILIES, 3)
        hint = f"Nearest: {', '.join(near)}." if near else f"Known: {', '.join(sorted(FAMILIES))}."
        raise UserError(f"{config.where}: model_type {kind[:60]!r} is none that nearpeak can read. {hint}")
    return FAMILIES[kind](config)
