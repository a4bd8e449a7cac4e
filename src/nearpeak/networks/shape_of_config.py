"""config.json → DecoderShape. How each family differs from Llama stands here, one function each.

Source: the families' own code as transformers 5 has it. What a key that is not there means stands in family_keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from nearpeak.networks.config_keys import ConfigKeys
from nearpeak.networks.decoder_shape import DecoderShape, ExpertsShape, LayerShape
from nearpeak.networks.family_keys import DEFAULTS, HARMLESS_OF, WRAPPERS
from nearpeak.networks.rope import Rope
from nearpeak.networks.rope_of_config import rope_of
from nearpeak.records.errors import UserError

MAX_LAYERS = 2000
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
FULL, SLIDING = "full_attention", "sliding_attention"
Kinds = list[str]


def shape_of_config(config: Mapping[str, object], where: str) -> DecoderShape:
    """The decoder that a config describes. where: the file, for messages.

    Raises UserError naming the key: a family that is not here, a value that makes no sense or is not computed, a key
    that nobody knows.
    """
    values = _text_part(config)
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UserError(f"{where}: model_type is {str(family)[:60]!r}; nearpeak runs {', '.join(SUPPORTED)}.")
    keys = ConfigKeys(values, where, DEFAULTS[family], HARMLESS_OF.get(family, frozenset()))
    shape = FAMILIES[family](keys)
    keys.must_be("is_causal", True)
    keys.nothing_left()
    return shape


def _text_part(config: Mapping[str, object]) -> dict[str, object]:
    """Of a model of text and images that which reads text; any other model as it is."""
    outer, inner = config.get("model_type"), config.get("text_config")
    if not isinstance(outer, str) or outer not in WRAPPERS or not isinstance(inner, dict):
        return dict(config)
    tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {"model_type": f"{outer}_text", **tied, **inner}


def _base(keys: ConfigKeys, family: str) -> DecoderShape:
    """What all but GPT-2 share; one layer stands for all until a family says more."""
    width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads = keys.size_or("num_key_value_heads", heads) or heads
    if heads % kv_heads:
        raise keys.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} heads")
    head_dim = keys.size_or("head_dim", width // heads if width % heads == 0 else None)
    if head_dim is None:
        raise keys.error("num_attention_heads", f"is {heads}, which does not divide hidden_size {width}")
    layers = keys.size("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise keys.error("num_hidden_layers", f"is {layers:,}; at most {MAX_LAYERS:,} are run")
    activation = "hidden_activation" if keys.find("hidden_activation") is not None else "hidden_act"
    keys.asked.add("hidden_act")
    return DecoderShape(
        family=family, vocab=keys.size("vocab_size"), width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        hidden=keys.size("intermediate_size"), context=keys.size("max_position_embeddings"),
        layers=(LayerShape(),) * layers, activation=_activation(keys, activation),  # type: ignore[arg-type]
        norm_eps=keys.number("rms_norm_eps"), score_scale=head_dim**-0.5, tied=keys.flag("tie_word_embeddings"),
    )  # fmt: skip


def _activation(keys: ConfigKeys, key: str) -> str:
    name = keys.text(key)
    if name not in ACTIVATIONS:
        raise keys.error(key, f"is {name!r}; computed are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _rope(keys: ConfigKeys, shape: DecoderShape, old_su: bool = False) -> Rope:
    """One kind for all layers, from `rope_parameters`, or `rope_scaling` and `rope_theta` as older files have it."""
    old, new = keys.part("rope_scaling"), keys.part("rope_parameters")
    theta = keys.number_or_none("rope_theta") or 10_000.0
    return rope_of(keys, old or new or {}, shape.head_dim, theta, old_su)


def _layered(
    keys: ConfigKeys, shape: DecoderShape, rope: Rope | None, kinds: Kinds, ropes: dict[str, Rope] | None = None
) -> DecoderShape:
    """Layers by their kinds; `layer_types` of the file goes before `kinds`."""
    listed = keys.listed("layer_types", len(shape.layers)) or kinds
    window = keys.size_or("sliding_window", None) if SLIDING in listed else None
    layers = []
    for kind in listed:
        if kind not in (FULL, SLIDING):
            raise keys.error("layer_types", f"has {str(kind)[:40]!r}; {FULL} and {SLIDING} are computed")
        if kind == SLIDING and window is None:
            raise keys.error("sliding_window", "is missing, but some layers have one")
        layers.append(LayerShape(window if kind == SLIDING else None, (ropes or {}).get(str(kind), rope)))
    return replace(shape, layers=tuple(layers))


def _llama(keys: ConfigKeys) -> DecoderShape:
    shape = _base(keys, "llama")
    bias = keys.flag("attention_bias")
    shape = replace(shape, qkv_bias=bias, o_bias=bias, mlp_bias=keys.flag("mlp_bias"))
    return _layered(keys, shape, _rope(keys, shape), [FULL] * len(shape.layers))


def _mistral(keys: ConfigKeys) -> DecoderShape:
    shape = _base(keys, "mistral")
    kind = FULL if keys.find("sliding_window") is None else SLIDING
    return _layered(keys, shape, _rope(keys, shape), [kind] * len(shape.layers))


def _slides(keys: ConfigKeys) -> bool:
    """Qwen's and SmolLM3's switch: without it there is no window, whatever sliding_window says."""
    slides, window, listed = keys.flag("use_sliding_window"), keys.find("sliding_window"), keys.find("layer_types")
    if not slides and isinstance(listed, list | tuple) and SLIDING in listed:
        raise keys.error("use_sliding_window", f"is off, but layer_types has {SLIDING}; only one of both can hold")
    return slides and window is not None


def _upper_layers(keys: ConfigKeys, layers: int) -> Kinds:
    """Qwen's: layers from max_window_layers on slide."""
    if not _slides(keys):
        return [FULL] * layers
    first = keys.find("max_window_layers")
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise keys.error("max_window_layers", f"is {first!r}; the number of a layer is expected")
    return [SLIDING if layer >= first else FULL for layer in range(layers)]


def _qwen2(keys: ConfigKeys) -> DecoderShape:
    shape = replace(_base(keys, "qwen2"), qkv_bias=True)
    return _layered(keys, shape, _rope(keys, shape), _upper_layers(keys, len(shape.layers)))


def _qwen3(keys: ConfigKeys) -> DecoderShape:
    bias = keys.flag("attention_bias")
    shape = replace(_base(keys, "qwen3"), qk_norm="head", qkv_bias=bias, o_bias=bias)
    return _layered(keys, shape, _rope(keys, shape), _upper_layers(keys, len(shape.layers)))


def _smollm3(keys: ConfigKeys) -> DecoderShape:
    """Every fourth layer rotates nothing (no_rope_layers has a 0 there); where any layers slide, it is these."""
    shape = _base(keys, "smollm3")
    bias = keys.flag("attention_bias")
    shape = replace(shape, qkv_bias=bias, o_bias=bias, mlp_bias=keys.flag("mlp_bias"))
    count = len(shape.layers)
    step = keys.size("no_rope_layer_interval")
    turning = keys.listed("no_rope_layers", count) or [int((layer + 1) % step != 0) for layer in range(count)]
    if any(turn not in (0, 1) for turn in turning):
        raise keys.error("no_rope_layers", "has an entry other than 0 and 1")
    slides = _slides(keys)
    kinds = [SLIDING if slides and not turn else FULL for turn in turning]
    shape = _layered(keys, shape, _rope(keys, shape), kinds)
    layers = (layer if turn else replace(layer, rope=None) for layer, turn in zip(shape.layers, turning, strict=True))
    return replace(shape, layers=tuple(layers))


def _gemma(keys: ConfigKeys, family: str) -> DecoderShape:
    keys.must_be("use_bidirectional_attention", False)
    shape = _base(keys, family)
    bias = keys.flag("attention_bias")
    return replace(
        shape, norm_offset=True, norm_wide=True, norm_order="both", qkv_bias=bias, o_bias=bias,
        embed_scale=shape.width**0.5, score_scale=keys.number("query_pre_attn_scalar") ** -0.5,
        score_cap=keys.number_or_none("attn_logit_softcapping"),
        logit_cap=keys.number_or_none("final_logit_softcapping"),
    )  # fmt: skip


def _gemma2(keys: ConfigKeys) -> DecoderShape:
    shape = _gemma(keys, "gemma2")
    kinds = [FULL if layer % 2 else SLIDING for layer in range(len(shape.layers))]
    return _layered(keys, shape, _rope(keys, shape), kinds)


def _gemma3(keys: ConfigKeys) -> DecoderShape:
    """Layers with a window turn with a theta of their own; scaling is of the others."""
    shape = replace(_gemma(keys, "gemma3"), qk_norm="head")
    saved = "_sliding_window_pattern"  # so transformers writes it
    step = keys.size(saved if saved in keys.values and "sliding_window_pattern" not in keys.values else saved[1:])
    keys.asked.add(saved)
    kinds = [SLIDING if (layer + 1) % step else FULL for layer in range(len(shape.layers))]
    theta, local = keys.number("rope_theta"), keys.number("rope_local_base_freq")
    given = keys.part("rope_parameters") or {}
    by_kind = given if FULL in given or SLIDING in given else {FULL: given}
    full, sliding = (by_kind.get(kind) or {} for kind in (FULL, SLIDING))
    if not isinstance(full, Mapping) or not isinstance(sliding, Mapping) or set(by_kind) - {FULL, SLIDING}:
        raise keys.error("rope_parameters", f"has other than an object for {FULL} and one for {SLIDING}")
    full = {**full, **(keys.part("rope_scaling") or {})}
    ropes = {FULL: rope_of(keys, full, shape.head_dim, theta), SLIDING: rope_of(keys, sliding, shape.head_dim, local)}
    return _layered(keys, shape, None, kinds, ropes)


def _phi3(keys: ConfigKeys) -> DecoderShape:
    shape = _base(keys, "phi3")
    keys.asked.add("original_max_position_embeddings")  # also where no kind of rotation reads it
    keys.must_be("full_attn_mod", 1)  # of Phi-4 mini's own code: every layer attends to all, positions are not squeezed
    keys.must_be("interpolate_factor", 1)
    kind = FULL if keys.find("sliding_window") is None else SLIDING
    return _layered(keys, shape, _rope(keys, shape, old_su=True), [kind] * len(shape.layers))


def _olmo2(keys: ConfigKeys) -> DecoderShape:
    bias = keys.flag("attention_bias")
    shape = replace(_base(keys, "olmo2"), qk_norm="width", qkv_bias=bias, o_bias=bias)
    shape = replace(shape, norm_order="after", norm_wide=True)
    return _layered(keys, shape, replace(_rope(keys, shape), wide=True), [FULL] * len(shape.layers))


def _mixtral(keys: ConfigKeys) -> DecoderShape:
    shape = _base(keys, "mixtral")
    experts = _experts(keys, "num_local_experts", shape.hidden, renormalise=True, wide=True)
    kind = FULL if keys.find("sliding_window") is None else SLIDING
    shape = _layered(keys, replace(shape, experts=experts), _rope(keys, shape), [kind] * len(shape.layers))
    return replace(shape, layers=tuple(replace(layer, sparse=True) for layer in shape.layers))


def _qwen3_moe(keys: ConfigKeys) -> DecoderShape:
    """Layers that mlp_only_layers lists, or decoder_sparse_step passes over, are dense. Where one slides, all do."""
    bias = keys.flag("attention_bias")
    shape = replace(_base(keys, "qwen3_moe"), qk_norm="head", qkv_bias=bias, o_bias=bias)
    count = "num_local_experts" if "num_local_experts" in keys.values else "num_experts"
    experts = _experts(keys, count, keys.size("moe_intermediate_size"), keys.flag("norm_topk_prob"), wide=False)
    shape = replace(shape, experts=experts)
    kind = SLIDING if _slides(keys) else FULL
    shape = _layered(keys, shape, _rope(keys, shape), [kind] * len(shape.layers))
    step, dense = keys.size("decoder_sparse_step"), keys.find("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple) or not all(isinstance(layer, int) for layer in dense):
        raise keys.error("mlp_only_layers", f"is {dense!r}; a list of layers is expected")
    layers = [
        replace(layer, sparse=number not in dense and (number + 1) % step == 0)
        for number, layer in enumerate(shape.layers)
    ]
    return replace(shape, layers=tuple(layers))


def _experts(keys: ConfigKeys, count: str, hidden: int, renormalise: bool, wide: bool) -> ExpertsShape:
    experts, chosen = keys.size(count), keys.size("num_experts_per_tok")
    if chosen > experts:
        raise keys.error("num_experts_per_tok", f"is {chosen}, and there are {experts} experts")
    return ExpertsShape(experts, chosen, hidden, renormalise, wide)


def _gpt2(keys: ConfigKeys) -> DecoderShape:
    width, heads, layers = keys.size("n_embd"), keys.size("n_head"), keys.size("n_layer")
    if width % heads:
        raise keys.error("n_head", f"is {heads}, which does not divide n_embd {width}")
    if layers > MAX_LAYERS:
        raise keys.error("n_layer", f"is {layers:,}; at most {MAX_LAYERS:,} are run")
    keys.must_be("scale_attn_weights", True)
    keys.must_be("scale_attn_by_inverse_layer_idx", False)
    keys.must_be("add_cross_attention", False)
    keys.must_be("reorder_and_upcast_attn", False)
    positions = keys.size("n_positions")
    return DecoderShape(
        family="gpt2", vocab=keys.size("vocab_size"), width=width, heads=heads, kv_heads=heads, head_dim=width // heads,
        hidden=keys.size_or("n_inner", 4 * width) or 4 * width, context=positions, layers=(LayerShape(),) * layers,
        activation=_activation(keys, "activation_function"), gated=False,  # type: ignore[arg-type]
        norm="layer", norm_eps=keys.number("layer_norm_epsilon"), qkv_bias=True, o_bias=True, mlp_bias=True,
        learned_positions=positions, score_scale=(width // heads) ** -0.5, tied=keys.flag("tie_word_embeddings"),
    )  # fmt: skip


FAMILIES: dict[str, Callable[[ConfigKeys], DecoderShape]] = {
    "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "qwen3": _qwen3, "smollm3": _smollm3, "gemma2": _gemma2,
    "gemma3_text": _gemma3, "phi3": _phi3, "olmo2": _olmo2, "mixtral": _mixtral, "qwen3_moe": _qwen3_moe, "gpt2": _gpt2,
}  # fmt: skip
SUPPORTED = tuple(sorted({*FAMILIES, "gemma3"}))
"""model_types that a config may have: the families', and the one whose text part is always one of them."""
