"""Keys of a GGUF file → keys of a config.json, for each architecture that nearpeak reads."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from nearpeak.models.config import MAX_LAYERS
from nearpeak.models.gguf_header import GgufHeader
from nearpeak.records.errors import UserError

Values = dict[str, object]


class Keys:
    """The keys below one architecture's name, with type checks."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.header, self.architecture = header, architecture

    def find(self, key: str) -> object:
        """What stands there; None where nothing does."""
        return self.header.metadata.get(f"{self.architecture}.{key}")

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number. An array counts as one where all its entries are equal."""
        value = self.find(key)
        if isinstance(value, tuple) and value and len(set(value)) == 1:
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "is missing" if value is None else "is no whole number, the same for all layers")
        return value

    def sizes(self, key: str, layers: int) -> tuple[int, ...]:
        """One whole number a layer."""
        value = self.find(key)
        several = value if isinstance(value, tuple) else (value,) * layers
        numbers = tuple(item for item in several if isinstance(item, int))
        if len(several) < layers or len(numbers) < len(several):
            raise self.error(key, f"is not one whole number for each of {layers} layers")
        return numbers[:layers]

    def layers(self) -> int:
        """block_count, bounded by what can be listed one by one."""
        value = self.size("block_count")
        if not 1 <= value <= MAX_LAYERS:
            raise self.error("block_count", f"is {value:,}: from 1 to {MAX_LAYERS:,} is possible")
        return value

    def rows(self, tensor: str, axis: int = 0) -> int:
        """One size of a tensor."""
        weight = self.header.tensors.get(tensor)
        if weight is None or weight.shape is None or len(weight.shape) <= axis:
            raise UserError(f"{self.header.path}: tensor {tensor} is missing. Fetch the file again.")
        return weight.shape[axis]

    def has(self, tensor: str) -> bool:
        """The tensor is there."""
        return tensor in self.header.tensors

    def error(self, key: str, what: str) -> UserError:
        """An error that names file and key."""
        return UserError(f"{self.header.path}: key {self.architecture}.{key} {what}. Fetch the file again.")


def config_of(header: GgufHeader) -> Values:
    """What config.json would say. Raises UserError: an architecture that is not known, a key missing or wrong."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise UserError(f"{header.path}: key general.architecture is missing. It is no model's file.")
    if name not in ARCHITECTURES:
        near = get_close_matches(name, ARCHITECTURES, 3)
        hint = f"Nearest: {', '.join(near)}." if near else f"Known: {', '.join(sorted(ARCHITECTURES))}."
        raise UserError(f"{header.path}: general.architecture {name[:60]!r} is none that nearpeak can read. {hint}")
    return ARCHITECTURES[name](Keys(header, name))


def _common(keys: Keys, model_type: str) -> Values:
    """What nearly all of them have."""
    layers = keys.layers() - keys.size("nextn_predict_layers", 0)
    values: Values = {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": keys.size("embedding_length"),
        "vocab_size": keys.rows("token_embd.weight"), "max_position_embeddings": keys.size("context_length"),
        "tie_word_embeddings": not keys.has("output.weight"),
    }  # fmt: skip
    heads = keys.size("attention.head_count")
    values["num_attention_heads"] = heads
    if isinstance(keys.find("attention.head_count_kv"), int):
        values["num_key_value_heads"] = keys.size("attention.head_count_kv")
    if keys.find("attention.key_length") is not None:
        values["head_dim"] = keys.size("attention.key_length")
        if keys.size("attention.value_length", keys.size("attention.key_length")) != values["head_dim"] and (
            keys.find("attention.kv_lora_rank") is None
        ):
            raise keys.error("attention.value_length", "differs from key_length, which only DeepSeek's may")
    if keys.find("feed_forward_length") is not None and not isinstance(keys.find("feed_forward_length"), tuple):
        values["intermediate_size"] = keys.size("feed_forward_length")
    return values


def _plain(model_type: str, bias_key: str = "") -> Callable[[Keys], Values]:
    def read(keys: Keys) -> Values:
        values = _common(keys, model_type)
        values["intermediate_size"] = keys.size("feed_forward_length")
        if bias_key:
            values[bias_key] = keys.has("blk.0.attn_q.bias")
        if keys.size("attention.sliding_window", 0):
            values["sliding_window"] = keys.size("attention.sliding_window")
        return values

    return read


def _llama(keys: Keys) -> Values:
    """Llama, Mistral and Mixtral share a name."""
    values = _plain("llama", "attention_bias")(keys)
    values.pop("sliding_window", None)
    values["mlp_bias"] = keys.has("blk.0.ffn_down.bias")
    if keys.size("expert_count", 0):
        values.update(model_type="mixtral", num_local_experts=keys.size("expert_count"),
                      num_experts_per_tok=keys.size("expert_used_count"))  # fmt: skip
        del values["attention_bias"], values["mlp_bias"]
    return values


def _experts(keys: Keys, values: Values) -> Values:
    values["num_experts"] = keys.size("expert_count")
    values["num_experts_per_tok"] = keys.size("expert_used_count")
    values["moe_intermediate_size"] = keys.size("expert_feed_forward_length")
    return values


def _qwen2_moe(keys: Keys) -> Values:
    values = _experts(keys, _common(keys, "qwen2_moe"))
    values["qkv_bias"] = keys.has("blk.0.attn_q.bias")
    values["shared_expert_intermediate_size"] = keys.size("expert_shared_feed_forward_length")
    return values


def _qwen3_moe(keys: Keys) -> Values:
    return _experts(keys, _common(keys, "qwen3_moe"))


def _gpt_oss(keys: Keys) -> Values:
    values = _common(keys, "gpt_oss")
    values.update(
        intermediate_size=keys.size("expert_feed_forward_length"), num_local_experts=keys.size("expert_count"),
        num_experts_per_tok=keys.size("expert_used_count"), sliding_window=keys.size("attention.sliding_window"),
    )  # fmt: skip
    return values


def _minimax(keys: Keys) -> Values:
    values = _common(keys, "minimax_m2")
    values.update(
        intermediate_size=keys.size("expert_feed_forward_length"), num_local_experts=keys.size("expert_count"),
        num_experts_per_tok=keys.size("expert_used_count"),
    )  # fmt: skip
    return values


def _gemma3(keys: Keys) -> Values:
    values = _plain("gemma3_text")(keys)
    values["sliding_window"] = keys.size("attention.sliding_window")
    return values


def _gemma4(keys: Keys) -> Values:
    values = _plain("gemma4_text")(keys)
    layers = keys.layers()
    local = keys.find("attention.sliding_window_pattern")
    if not isinstance(local, tuple) or len(local) != layers:
        raise keys.error("attention.sliding_window_pattern", f"is no list of {layers} truth values")
    heads = keys.sizes("attention.head_count_kv", layers)
    by_kind = {bool(kind): count for kind, count in zip(local, heads, strict=True)}
    first_full = next((number for number, kind in enumerate(local) if not kind), 0)
    values.update(
        layer_types=["sliding_attention" if kind else "full_attention" for kind in local],
        num_key_value_heads=by_kind.get(True, heads[0]), num_global_key_value_heads=by_kind.get(False, heads[0]),
        head_dim=keys.size("attention.key_length_swa"), global_head_dim=keys.size("attention.key_length"),
        attention_k_eq_v=not keys.has(f"blk.{first_full}.attn_v.weight"),
        hidden_size_per_layer_input=keys.size("embedding_length_per_layer_input", 0),
        num_kv_shared_layers=keys.size("attention.shared_kv_layers", 0),
        enable_moe_block=bool(keys.size("expert_count", 0)), sliding_window=keys.size("attention.sliding_window"),
    )  # fmt: skip
    return values


def _deepseek2(keys: Keys) -> Values:
    """V2 and V3; keys of newer files speak of the compressed cache and keep the real sizes under …_mla."""
    corrected = any(name.endswith("exp_probs_b.bias") for name in keys.header.tensors)
    values = _common(keys, "deepseek_v3" if corrected else "deepseek_v2")
    for key in ("head_dim", "num_key_value_heads"):
        values.pop(key, None)
    rotary = keys.size("rope.dimension_count")
    key_length = keys.size("attention.key_length_mla", keys.size("attention.key_length"))
    values.update(
        kv_lora_rank=keys.size("attention.kv_lora_rank"), qk_rope_head_dim=rotary,
        qk_nope_head_dim=key_length - rotary,
        v_head_dim=keys.size("attention.value_length_mla", keys.size("attention.value_length")),
        intermediate_size=keys.size("feed_forward_length"),
        moe_intermediate_size=keys.size("expert_feed_forward_length"),
        n_routed_experts=keys.size("expert_count"), n_shared_experts=keys.size("expert_shared_count", 0),
        num_experts_per_tok=keys.size("expert_used_count"),
        first_k_dense_replace=keys.size("leading_dense_block_count", 0),
        attention_bias=keys.has("blk.0.attn_kv_a_mqa.bias"),
    )  # fmt: skip
    if keys.size("attention.q_lora_rank", 0):
        values["q_lora_rank"] = keys.size("attention.q_lora_rank")
    return values


def _delta(model_type: str, experts: bool) -> Callable[[Keys], Values]:
    def read(keys: Keys) -> Values:
        values = _common(keys, model_type)
        heads, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
        if not heads or inner % heads:
            raise keys.error("ssm.inner_size", f"is {inner:,}, which ssm.time_step_rank {heads:,} does not divide")
        values.update(
            linear_conv_kernel_dim=keys.size("ssm.conv_kernel"), linear_num_key_heads=keys.size("ssm.group_count"),
            linear_key_head_dim=keys.size("ssm.state_size"), linear_num_value_heads=heads,
            linear_value_head_dim=inner // heads,
            full_attention_interval=keys.size("full_attention_interval", 4),
        )  # fmt: skip
        if experts:
            _experts(keys, values)
            values["shared_expert_intermediate_size"] = keys.size("expert_shared_feed_forward_length")
        return values

    return read


def _lfm2(keys: Keys) -> Values:
    values = _common(keys, "lfm2")
    heads = keys.sizes("attention.head_count_kv", keys.layers())
    values.update(
        layer_types=["full_attention" if count else "conv" for count in heads], num_key_value_heads=max(heads),
        conv_L_cache=keys.size("shortconv.l_cache"), intermediate_size=keys.size("feed_forward_length"),
        block_auto_adjust_ff_dim=False,
    )  # fmt: skip
    return values


def _llama4(keys: Keys) -> Values:
    values = _common(keys, "llama4_text")
    values.update(
        intermediate_size=keys.size("expert_feed_forward_length"),
        intermediate_size_mlp=keys.size("feed_forward_length"),
        num_local_experts=keys.size("expert_count"), num_experts_per_tok=keys.size("expert_used_count"),
        interleave_moe_layer_step=keys.size("interleave_moe_layer_step", 1),
        attention_chunk_size=keys.size("attention.chunk_size", 8192),
    )  # fmt: skip
    return values


def _gpt2(keys: Keys) -> Values:
    return {
        "model_type": "gpt2", "n_layer": keys.size("block_count"), "n_embd": keys.size("embedding_length"),
        "n_head": keys.size("attention.head_count"), "n_inner": keys.size("feed_forward_length"),
        "vocab_size": keys.rows("token_embd.weight"), "n_positions": keys.rows("position_embd.weight"),
        "tie_word_embeddings": not keys.has("output.weight"),
    }  # fmt: skip


def _qwen(keys: Keys) -> Values:
    values = _common(keys, "qwen")
    values["intermediate_size"] = keys.size("feed_forward_length")
    inner = keys.rows("blk.0.ffn_up.weight")
    values["intermediate_size"] = 2 * inner  # the key holds either, by the age of the converter
    return values


def _bert(keys: Keys) -> Values:
    values = _plain("bert")(keys)
    values["max_position_embeddings"] = keys.rows("position_embd.weight")
    segments = keys.header.tensors.get("token_types.weight")
    values["type_vocab_size"] = segments.shape[0] if segments and segments.shape and len(segments.shape) > 1 else 1
    return values


def _starcoder2(keys: Keys) -> Values:
    values = _plain("starcoder2")(keys)
    values["use_bias"] = keys.has("blk.0.attn_q.bias")
    return values


ARCHITECTURES: dict[str, Callable[[Keys], Values]] = {
    "llama": _llama,
    "qwen": _qwen,
    "qwen2": _plain("qwen2"),
    "qwen2moe": _qwen2_moe,
    "qwen3": _plain("qwen3"),
    "qwen3moe": _qwen3_moe,
    "qwen3next": _delta("qwen3_next", experts=True),
    "qwen35": _delta("qwen3_5_text", experts=False),
    "qwen35moe": _delta("qwen3_5_moe_text", experts=True),
    "gemma2": _plain("gemma2"),
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "phi3": _plain("phi3"),
    "gpt2": _gpt2,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
    "smollm3": _plain("smollm3", "attention_bias"),
    "olmo2": _plain("olmo2"),
    "starcoder2": _starcoder2,
    "minimax-m2": _minimax,
    "lfm2": _lfm2,
    "llama4": _llama4,
    "bert": _bert,
}
