"""Keys of a GGUF file that change what is computed → keys of a config.json. gguf_config.py has those of the sizes.

Sources: llama.cpp's converter (conversion/*.py, 2026), which says what each key was made from, and src/models/*.cpp
there, which say what is taken where a key is missing. A key of the architecture that is not listed here is refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from nearpeak.models import gguf_config
from nearpeak.models.gguf_config import Keys, Values
from nearpeak.models.gguf_header import GgufHeader
from nearpeak.records.errors import UserError

Constants = Callable[[str], list[float]]  # name of a small tensor → its numbers

# read by gguf_config.py, or without effect on what is computed
SIZES = frozenset({
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "expert_count", "expert_used_count",
    "expert_feed_forward_length", "tensor_data_layout", "pooling_type", "rope.scaling.finetuned",
})  # fmt: skip
# value that means: as if the key were not there
NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,), "attention.max_alibi_bias": (0,), "attention.clamp_kqv": (0,), "logit_scale": (0, 1),
    "residual_scale": (0, 1), "embedding_scale": (0, 1), "expert_weights_scale": (0, 1), "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1), "expert_group_used_count": (0, 1), "expert_shared_count": (0,),
    "leading_dense_block_count": (0,), "use_parallel_residual": (False,), "attention.temperature_scale": (0,),
    "attention.q_lora_rank": (0,), "attention.kv_lora_rank": (0,), "attention.shared_kv_layers": (0,),
    "rope.scaling.yarn_log_multiplier": (0,), "rope.scaling.yarn_ext_factor": (1, -1),
    "attention.sliding_window": (0,), "rope.scaling.yarn_attn_factor": (1,), "rope.scaling.alpha": (0, 1),
    "nextn_predict_layers": (0,),
}  # fmt: skip
ROPE = frozenset({
    "rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "attention.scale", "attention.layer_norm_rms_epsilon",
})  # fmt: skip


class Maths(NamedTuple):
    """One architecture: what else it computes, and which more of its keys that reads."""

    read: Callable[[Keys, Values], Values]
    keys: frozenset[str] = frozenset()


def full_config_of(header: GgufHeader, constants: Constants) -> Values:
    """What config.json would say, with everything that a network needs. constants: gives the numbers of a tensor.

    Raises UserError: an architecture that is not run, a key whose meaning is not known here, a value out of bounds.
    """
    architecture = header.metadata.get("general.architecture")
    if architecture in gguf_config.ARCHITECTURES and architecture not in ARCHITECTURES:
        raise UserError(
            f"{header.path}: general.architecture {architecture!r} is not run from GGUF files; these are: "
            f"{', '.join(sorted(ARCHITECTURES))}. Fetch the model as a folder of safetensors."
        )
    values = gguf_config.config_of(header)
    assert isinstance(architecture, str)
    maths, keys = ARCHITECTURES[architecture], gguf_config.Keys(header, architecture)
    _nothing_unknown(keys, maths.keys)
    values = {**values, **maths.read(keys, values)}
    if architecture != "gpt2":
        values = {**values, "rms_norm_eps": _number(keys, "attention.layer_norm_rms_epsilon", None, 0, 1)}
        values |= _rope(keys, values, constants)
    return values


def _nothing_unknown(keys: Keys, more: frozenset[str]) -> None:
    before = f"{keys.architecture}."
    for name, value in keys.header.metadata.items():
        if not name.startswith(before):
            continue
        key = name.removeprefix(before)
        if key in SIZES or key in more or (key in ROPE and keys.architecture != "gpt2"):
            continue
        if key not in NEUTRAL or value not in NEUTRAL[key]:
            known = f"; {NEUTRAL[key][-1]} is computed" if key in NEUTRAL else ", which may change what is computed"
            raise UserError(
                f"{keys.header.path}: key {name[:200]} is {str(value)[:60]}{known}. nearpeak does not run this file."
            )


def _number(keys: Keys, key: str, default: float | None, least: float, most: float) -> float:
    """A finite number between these, `least` excluded."""
    value = keys.find(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise keys.error(key, "is missing" if value is None else "is no number")
    if not math.isfinite(value) or not least < value <= most:
        raise keys.error(key, f"is {value:g}: a number above {least:g}, at most {most:g}, is expected")
    return _shortest(float(value))


def _shortest(value: float) -> float:
    """A file has fp32: 9.999999747378752e-06 there was 1e-05 in config.json. The shortest decimal with that fp32."""
    for digits in range(1, 10):  # nine digits are enough for any fp32
        text = float(f"{value:.{digits}g}")
        if struct.pack("<f", text) == struct.pack("<f", value):
            return text
    return value


def _head_dim(keys: Keys, values: Values) -> int:
    found = values.get("head_dim")
    width, heads = values["hidden_size"], values["num_attention_heads"]
    assert isinstance(width, int)
    assert isinstance(heads, int)
    if isinstance(found, int) and found > 0:
        return found
    if heads < 1 or width % heads:
        raise keys.error("attention.head_count", f"is {heads:,}, which does not divide embedding_length {width:,}")
    return width // heads


# Rotary positions


def _rope(keys: Keys, values: Values, constants: Constants) -> Values:
    """rope_parameters of one kind for all layers, and a second kind where a family has one for its windows."""
    head_dim = _head_dim(keys, values)
    theta = _number(keys, "rope.freq_base", 10_000.0, 0, 1e12)
    rotary = keys.size("rope.dimension_count", head_dim)
    if not 2 <= rotary <= head_dim or rotary % 2:
        raise keys.error("rope.dimension_count", f"is {rotary}: an even number from 2 to {head_dim} is expected")
    found: Values = {}
    if rotary < head_dim:
        if keys.architecture not in PARTIAL:
            raise keys.error("rope.dimension_count", f"is {rotary} of {head_dim}: this family turns all of them")
        part = rotary / head_dim
        found["partial_rotary_factor"] = part if int(part * head_dim) == rotary else math.nextafter(part, 1)
    scale = _number(keys, "attention.scale", head_dim**-0.5, 0, 1e6)
    if not math.isclose(scale, head_dim**-0.5, rel_tol=1e-5):
        raise keys.error("attention.scale", f"is {scale:g}; {head_dim**-0.5:g} is computed")
    rope = {"rope_theta": theta, **found, **_scaling(keys, values, rotary, constants)}
    if values["model_type"] == "gemma3_text":
        local = _number(keys, "rope.freq_base_swa", 10_000.0, 0, 1e12)
        both = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": local}}
        return {"rope_parameters": both}
    return {"rope_theta": theta, "rope_parameters": rope}


def _scaling(keys: Keys, values: Values, rotary: int, constants: Constants) -> Values:
    """rope_type and what it takes. Tensors of factors say themselves how each frequency is slowed down."""
    kind = keys.find("rope.scaling.type")
    if kind not in (None, "none", "linear", "yarn", "longrope"):
        raise keys.error("rope.scaling.type", f"is {str(kind)[:40]!r}: none, linear, yarn and longrope are computed")
    original = keys.size("rope.scaling.original_context_length", 0)
    if keys.has("rope_factors_long.weight") or keys.has("rope_factors_short.weight") or kind == "longrope":
        if not original:
            raise keys.error("rope.scaling.original_context_length", "is missing, beside rope_factors_long.weight")
        _no_factor(keys, kind)
        factor = _number(keys, "rope.scaling.attn_factor", 1.0, 0, 1e6)
        long, short = (_factors(keys, f"rope_factors_{one}.weight", rotary, constants) for one in ("long", "short"))
        return {
            "rope_type": "longrope", "long_factor": long, "short_factor": short, "attention_factor": factor,
            "original_max_position_embeddings": original,
        }  # fmt: skip
    if _number(keys, "rope.scaling.attn_factor", 1.0, 0, 1e6) != 1:
        raise keys.error("rope.scaling.attn_factor", "is not 1, which only longrope may have here")
    if keys.has("rope_freqs.weight"):
        # Llama 3's scaling, written out: the same factor for each frequency at every length
        _no_factor(keys, kind)
        factors = _factors(keys, "rope_freqs.weight", rotary, constants)
        return {
            "rope_type": "longrope", "long_factor": factors, "short_factor": factors, "attention_factor": 1.0,
            "original_max_position_embeddings": original or values["max_position_embeddings"],
        }  # fmt: skip
    factor = _factor(keys)
    if kind == "yarn":
        if not original:
            raise keys.error("rope.scaling.original_context_length", "is missing, which yarn needs")
        if factor < 1:
            raise keys.error("rope.scaling.factor", f"is {factor:g}: yarn lengthens")
        return {
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            "beta_fast": _number(keys, "rope.scaling.yarn_beta_fast", 32.0, 0, 1e6),
            "beta_slow": _number(keys, "rope.scaling.yarn_beta_slow", 1.0, 0, 1e6),
        }  # fmt: skip
    if kind == "none" or factor == 1:
        return {"rope_type": "default"}
    return {"rope_type": "linear", "factor": factor}


def _factor(keys: Keys) -> float:
    """Older files have rope.scale_linear; 0 is none."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if keys.find(key) not in (None, 0):
            return _number(keys, key, None, 0, 1e6)
    return 1.0


def _no_factor(keys: Keys, kind: object) -> None:
    if kind == "yarn" or _factor(keys) != 1:
        raise keys.error(
            "rope.scaling.factor", "stands beside a tensor of rotary factors; only one of both is computed"
        )


def _factors(keys: Keys, tensor: str, rotary: int, constants: Constants) -> list[float]:
    weight = keys.header.tensors.get(tensor)
    if weight is None or weight.parameters != rotary // 2 or len(weight.shape or ()) != 1:
        said = "missing" if weight is None else weight.text()
        raise UserError(f"{keys.header.path}: tensor {tensor} is {said}; by the keys it has shape [{rotary // 2}].")
    numbers = constants(tensor)
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise UserError(f"{keys.header.path}: tensor {tensor} has a factor that is not above 0. Fetch the file again.")
    return numbers


# One function an architecture


def _llama(keys: Keys, values: Values) -> Values:
    """Llama, Mixtral, and Mistral, which is a Llama with a window."""
    found: Values = {"hidden_act": "silu"}
    window = keys.size("attention.sliding_window", 0)
    if window and values["model_type"] == "llama":
        if values.get("attention_bias") or values.get("mlp_bias"):
            raise keys.error("attention.sliding_window", "is there beside biases, which no Mistral has")
        found["model_type"] = "mistral"
    if window or values["model_type"] == "mixtral":
        found["sliding_window"] = window or None
    return found


def _qwen(keys: Keys, values: Values) -> Values:
    return {"hidden_act": "silu", "use_sliding_window": False}


def _qwen3_moe(keys: Keys, values: Values) -> Values:
    """llama.cpp makes the chosen experts' weights sum to 1 whatever the file says."""
    norm = keys.find("expert_weights_norm")
    if norm not in (None, True):
        raise keys.error("expert_weights_norm", "is not true, which this family is")
    return {**_qwen(keys, values), "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def _gemma2(keys: Keys, values: Values) -> Values:
    """Scores are divided by √head_dim, but in the 27B (46 layers) by √(width ÷ heads)."""
    return {
        **_gemma(keys, values, 2, large=46),
        "attn_logit_softcapping": _number(keys, "attn_logit_softcapping", 50.0, 0, 1e6),
        "final_logit_softcapping": _number(keys, "final_logit_softcapping", 30.0, 0, 1e6),
    }


def _gemma3(keys: Keys, values: Values) -> Values:
    """As Gemma 2, the larger one has 62 layers; no cap of the scores."""
    cap = None
    if keys.find("final_logit_softcapping") is not None:
        cap = _number(keys, "final_logit_softcapping", None, 0, 1e6)
    return {**_gemma(keys, values, 6, large=62), "final_logit_softcapping": cap, "attn_logit_softcapping": None}


def _gemma(keys: Keys, values: Values, period: int, large: int) -> Values:
    layers, heads, width = keys.layers(), keys.size("attention.head_count"), keys.size("embedding_length")
    scalar = width // max(1, heads) if layers == large else _head_dim(keys, values)
    return {
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar,
        "layer_types": _sliding(keys, layers, period), "sliding_window": keys.size("attention.sliding_window", 4096),
    }  # fmt: skip


def _sliding(keys: Keys, layers: int, period: int) -> list[str]:
    """Which layers have a window: a truth value each, or one layer in so many has none."""
    pattern = keys.find("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        if len(pattern) != layers or not all(isinstance(one, bool) for one in pattern):
            raise keys.error("attention.sliding_window_pattern", f"is no list of {layers} truth values")
        kinds = list(pattern)
    else:
        period = keys.size("attention.sliding_window_pattern", period)
        if period < 1:
            raise keys.error("attention.sliding_window_pattern", f"is {period}: at least 1 is expected")
        kinds = [bool((layer + 1) % period) for layer in range(layers)]
    return ["sliding_attention" if kind else "full_attention" for kind in kinds]


def _phi3(keys: Keys, values: Values) -> Values:
    """A window of 0 is none."""
    window = keys.size("attention.sliding_window", 0)
    original = keys.size("rope.scaling.original_context_length", 0) or values["max_position_embeddings"]
    return {"hidden_act": "silu", "sliding_window": window or None, "original_max_position_embeddings": original}


def _olmo2(keys: Keys, values: Values) -> Values:
    """OLMo 3 goes by the same name, with windows."""
    if keys.size("attention.sliding_window", 0):
        raise keys.error("attention.sliding_window", "is not 0: this is an OLMo 3, which is not run yet")
    return {"hidden_act": "silu"}


def _smollm3(keys: Keys, values: Values) -> Values:
    """Each fourth layer has no positions: llama.cpp has that in its code, not in the file."""
    rotary = [int((layer + 1) % 4 != 0) for layer in range(keys.layers())]
    return {"hidden_act": "silu", "use_sliding_window": False, "no_rope_layer_interval": 4, "no_rope_layers": rotary}


def _gpt2(keys: Keys, values: Values) -> Values:
    epsilon = _number(keys, "attention.layer_norm_epsilon", None, 0, 1)
    return {"activation_function": "gelu_new", "layer_norm_epsilon": epsilon}


_WINDOW = frozenset({"attention.sliding_window"})
_GEMMA = _WINDOW | {"attention.sliding_window_pattern", "final_logit_softcapping"}

ARCHITECTURES: dict[str, Maths] = {
    "llama": Maths(_llama, _WINDOW),
    "qwen2": Maths(_qwen),
    "qwen3": Maths(_qwen),
    "qwen3moe": Maths(_qwen3_moe, frozenset({"expert_weights_norm"})),
    "gemma2": Maths(_gemma2, _GEMMA | {"attn_logit_softcapping"}),
    "gemma3": Maths(_gemma3, _GEMMA | {"rope.freq_base_swa"}),
    "phi3": Maths(_phi3, _WINDOW),
    "olmo2": Maths(_olmo2, _WINDOW | {"attention.sliding_window_pattern"}),
    "smollm3": Maths(_smollm3),
    "gpt2": Maths(_gpt2, frozenset({"attention.layer_norm_epsilon"})),
}
PARTIAL = frozenset({"phi3"})  # whose maps are not permuted: part of a head may be turned
PERMUTED = frozenset({"llama", "smollm3"})  # llama.cpp turns neighbours, so its converter reorders rows of q and k
