"""Which function reads which `model_type` of config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from nearpeak.models import encoders, hybrid, latent, llama_like, mixtures, older_decoders, vision
from nearpeak.models.architecture import Architecture
from nearpeak.models.config import Config
from nearpeak.models.decoder import Style, decoder
from nearpeak.records.errors import UserError

Family = Callable[[Config], Architecture]


def _of(style: Style) -> Family:
    return lambda config: decoder(config, style)


TOWERS = {
    "vision_tower.": "image tower",
    "vision_model.": "image tower",
    "visual.": "image tower",
    "multi_modal_projector.": "projector from images",
    "embed_vision.": "projector from images",
    "audio_tower.": "audio tower",
    "embed_audio.": "projector from audio",
}


def _text_of(family: Family) -> Family:
    """A model of text and images: its text part is modelled, what else lies in the file is counted."""

    def read(config: Config) -> Architecture:
        inner = config.part("text_config") if "text_config" in config.values else config
        if config.has("tie_word_embeddings") and inner is not config:
            inner.defaults["tie_word_embeddings"] = config.find("tie_word_embeddings")
        for key in ("vision_config", "audio_config"):
            if config.has(key):
                config.part(key)
        architecture = family(inner)
        beside = {root + name: what for name, what in TOWERS.items() for root in ("", "model.")}
        note = "The text model; towers for images or sound are counted only where a file holds them."
        return replace(architecture, beside=beside, notes=(*architecture.notes, note))

    return read


FAMILIES: dict[str, Family] = {
    **{name: _of(style) for name, style in llama_like.STYLES.items()},
    **{name: _of(style) for name, style in mixtures.STYLES.items()},
    **{name: _of(style) for name, style in hybrid.STYLES.items()},
    "deepseek_v2": latent.deepseek_v2,
    "deepseek_v3": latent.deepseek_v3,
    "gpt2": older_decoders.gpt2,
    "gptj": older_decoders.gptj,
    "mpt": older_decoders.mpt,
    "qwen": older_decoders.qwen,
    "bert": encoders.bert,
    "t5": encoders.t5,
    "whisper": encoders.whisper,
    "vit": vision.vit,
    "resnet": vision.resnet,
    "convnext": vision.convnext,
    "efficientnet": vision.efficientnet,
    "cnn": vision.cnn,
}
for _name in ("gemma3", "gemma4", "qwen3_5", "qwen3_5_moe", "llama4"):
    FAMILIES[_name] = _text_of(FAMILIES[f"{_name}_text"])


def architecture_of(config: Config) -> Architecture:
    """The pieces of the model that a config.json describes. Raises UserError where its family is not known."""
    kind = config.text("model_type")
    if kind not in FAMILIES:
        near = get_close_matches(kind, FAMILIES, 3)
        hint = f"Nearest: {', '.join(near)}." if near else f"Known: {', '.join(sorted(FAMILIES))}."
        raise UserError(f"{config.where}: model_type {kind[:60]!r} is none that nearpeak can read. {hint}")
    return FAMILIES[kind](config)
