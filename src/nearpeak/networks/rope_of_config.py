"""The rotary keys of a config.json, old and new spellings, → Rope."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from nearpeak.networks.config_keys import ConfigKeys
from nearpeak.networks.rope import Rope

# rope_type: keys that it reads beside those of every type
KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
             "mscale_all_dim", "truncate"),
    "longrope": ("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}  # fmt: skip
OF_ALL = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
# what files carry without an effect: scaled context lengths, marks of converters; a factor where nothing is scaled
IDLE = {"max_position_embeddings", "finetuned", "original_max_position_embeddings", "factor"}


def rope_of(keys: ConfigKeys, values: Mapping[str, object], head_dim: int, theta: float, old_su: bool = False) -> Rope:
    """values: of rope_parameters or rope_scaling, empty where there is neither. theta: where they do not say.

    old_su: this family once wrote "su" or "yarn" for longrope (Phi-3).
    """
    inner = ConfigKeys(values, keys.where, {})
    inner.error = lambda key, what: keys.error(f"rope_parameters.{key}", what)  # type: ignore[method-assign]
    kind = values.get("rope_type", values.get("type", "default")) or "default"
    if kind == "su" or (old_su and kind == "yarn"):
        kind = "longrope"
    if not isinstance(kind, str) or kind not in KEYS:
        raise inner.error("rope_type", f"is {kind!r}; computed are {', '.join(KEYS)}")
    for key, value in values.items():
        if key not in OF_ALL and key not in KEYS[kind] and key not in IDLE and value is not None:
            raise inner.error(key, f"is {value!r}, which rope_type {kind} does not read")
    outside = keys.number_or_none("partial_rotary_factor")  # transformers saves it in both places
    part = inner.number_or_none("partial_rotary_factor") or outside or 1.0
    rotary = int(head_dim * part)
    if rotary % 2 or not 2 <= rotary <= head_dim:
        raise keys.error("partial_rotary_factor", f"leaves {rotary} of {head_dim}; an even number of them is turned")
    rope = Rope(rotary, inner.number_or_none("rope_theta") or theta)
    return rope if kind == "default" else _scaled(rope, kind, inner, keys)


def _scaled(rope: Rope, kind: str, inner: ConfigKeys, keys: ConfigKeys) -> Rope:
    most = keys.size("max_position_embeddings")
    if kind == "linear":
        return replace(rope, kind="linear", factor=inner.number("factor"))
    if kind == "dynamic":
        if rope.rotary == 2:
            raise inner.error("rope_type", "is dynamic, which needs more than one pair of numbers in a head")
        return replace(rope, kind="dynamic", factor=inner.number("factor"), original=most)
    outside = keys.size_or("original_max_position_embeddings", None)
    original = inner.size_or("original_max_position_embeddings", outside or most) or most
    if outside not in (None, original):  # transformers takes the one outside, without a word
        raise inner.error("original_max_position_embeddings", f"is {original:,}, but outside it is {outside:,}")
    if original < 2 or rope.theta == 1:  # their logarithms divide
        key, value = ("original_max_position_embeddings", original) if original < 2 else ("rope_theta", 1)
        raise inner.error(key, f"is {value}; rope_type {kind} needs more")
    rope = replace(rope, original=original)
    if kind == "llama3":
        low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
        if not low < high:
            raise inner.error("low_freq_factor", f"is {low:g}, which is not below high_freq_factor {high:g}")
        return replace(rope, kind="llama3", factor=inner.number("factor"), low_freq_factor=low, high_freq_factor=high)
    factor = inner.number_or_none("factor") or most / original
    attention = inner.number_or_none("attention_factor")
    if kind == "longrope":
        return _longrope(rope, factor, attention, inner)
    if attention is None:
        attention = _yarn_attention(factor, inner.number_or_none("mscale"), inner.number_or_none("mscale_all_dim"))
    truncate = inner.find("truncate") is None or inner.flag("truncate")
    return replace(
        rope, kind="yarn", factor=factor, attention_factor=attention, truncate=truncate,
        beta_fast=inner.number_or_none("beta_fast") or 32.0, beta_slow=inner.number_or_none("beta_slow") or 1.0,
    )  # fmt: skip


def _yarn_attention(factor: float, mscale: float | None, all_dim: float | None) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)


def _longrope(rope: Rope, factor: float, attention: float | None, inner: ConfigKeys) -> Rope:
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(rope.original)) if factor > 1 else 1.0
    lists = []
    for key in ("short_factor", "long_factor"):
        found = inner.listed(key, rope.rotary // 2)
        numbers = [float(n) for n in found or () if isinstance(n, int | float) and 0 < n < math.inf]
        if len(numbers) != rope.rotary // 2 or len(inner.find(key)) != len(numbers):  # type: ignore[arg-type]
            raise inner.error(key, f"is no list of {rope.rotary // 2} numbers above 0")
        lists.append(tuple(numbers))
    return replace(rope, kind="longrope", attention_factor=attention, short_factors=lists[0], long_factors=lists[1])
