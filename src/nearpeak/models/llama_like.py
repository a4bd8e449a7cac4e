"""Dense decoders: how each family differs from Llama. Its own published code is the source of each line."""

from __future__ import annotations

from collections.abc import Callable

from nearpeak.models import pieces as build
from nearpeak.models.architecture import Piece
from nearpeak.models.config import Config
from nearpeak.models.decoder import GEMMA_NORMS, LAYER, Shape, Style

SLIDING, FULL = "sliding_attention", "full_attention"
OLMO_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def every_layer(config: Config, layers: int) -> list[str]:
    """Mistral: all layers slide where a window is given."""
    return [SLIDING if config.has("sliding_window") else FULL] * layers


def upper_layers(config: Config, layers: int) -> list[str]:
    """Qwen2: layers from max_window_layers on slide, if use_sliding_window says so."""
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return [FULL] * layers
    start = config.count("max_window_layers", layers)
    return [SLIDING if layer >= start else FULL for layer in range(layers)]


def every_second(config: Config, layers: int) -> list[str]:
    """Gemma 2 and gpt-oss: the first of each two layers slides."""
    return [FULL if layer % 2 else SLIDING for layer in range(layers)]


def one_in(key: str, default: int, other: str = SLIDING) -> Callable[[Config, int], list[str]]:
    """Gemma 3: one layer in `key` sees all positions, the last of each group."""

    def kinds(config: Config, layers: int) -> list[str]:
        step = config.size(key, default)
        return [other if (layer + 1) % step else FULL for layer in range(layers)]

    return kinds


def _phi3(config: Config, shape: Shape, layers: build.Layers, bias: bool) -> list[Piece]:
    hidden = config.size("intermediate_size")
    return [build.gated(f"{LAYER}.mlp", layers, shape.width, hidden, fused="gate_up_proj")]


def _starcoder2(config: Config, shape: Shape, layers: build.Layers, bias: bool) -> list[Piece]:
    stem, hidden = f"{LAYER}.mlp", config.size("intermediate_size")
    return [build.plain(f"{stem}.c_fc", f"{stem}.c_proj", layers, shape.width, hidden, bias=bias)]


def _gemma4(config: Config, shape: Shape, by_kind: dict[str, build.Layers]) -> list[Piece]:
    """Layers that see all positions have larger heads, and values that are their keys."""
    config.must_be("enable_moe_block", False, "Gemma 4 with experts is not read yet")
    config.must_be("num_kv_shared_layers", 0, "layers that share a cache are not read yet")
    if config.count("hidden_size_per_layer_input", 256):
        raise config.error("hidden_size_per_layer_input", "is not 0: embeddings of each layer are not read yet")
    same = config.flag("attention_k_eq_v", False)
    layers = by_kind.pop(FULL, ())
    kv_heads, head_dim = shape.kv_heads, config.size("global_head_dim", 512)
    if same and config.has("num_global_key_value_heads"):
        kv_heads = config.size("num_global_key_value_heads")
    if config.has("per_layer_config"):  # as transformers 5 writes both
        kv_heads, head_dim = _same_in_all(config.part("per_layer_config"), layers, shape.kv_heads)
    config.divides("num_global_key_value_heads", kv_heads, "num_attention_heads", shape.heads)
    names = build.AttentionNames(f"{LAYER}.self_attn")
    return [
        build.attention(
            names, layers, shape.width, shape.heads, kv_heads, head_dim, norm="head", keys_are_values=same,
            bias="qko" if config.flag("attention_bias", False) else "",
        )
    ]  # fmt: skip


def _same_in_all(config: Config, layers: build.Layers, kv_heads: int) -> tuple[int, int]:
    """KV heads and head_dim of the layers that are listed, which must be these, and all alike."""
    sizes = set()
    for layer in layers:
        one = config.part(str(layer))
        sizes.add((one.size("num_key_value_heads", kv_heads), one.size("head_dim")))
    if len(sizes) != 1 or len(config.values) != len(layers):
        raise config.error("…", f"lists other layers than the {len(layers)} of full attention, or unlike ones")
    return next(iter(sizes))


_GEMMA2 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}
_GEMMA3 = {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072}

STYLES: dict[str, Style] = {
    "llama": Style("llama", bias_key="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Style("mistral", kinds=every_layer),
    "qwen2": Style("qwen2", bias="qkv", kinds=upper_layers),
    "qwen3": Style("qwen3", bias_key="attention_bias", qk_norm="head", kinds=upper_layers, defaults={"head_dim": 128}),
    "gemma2": Style(
        "gemma2", tied=True, bias_key="attention_bias", norms=GEMMA_NORMS, kinds=every_second, defaults=_GEMMA2
    ),
    "gemma3_text": Style(
        "gemma3", tied=True, bias_key="attention_bias", qk_norm="head", norms=GEMMA_NORMS,
        kinds=one_in("sliding_window_pattern", 6), defaults=_GEMMA3,
        refused={"use_bidirectional_attention": (False, "Gemma 3 that is not causal is not read")},
    ),
    "gemma4_text": Style(
        "gemma4", tied=True, bias_key="attention_bias", qk_norm="head", norms=GEMMA_NORMS,
        kinds=one_in("sliding_window_pattern", 6), mixers=_gemma4, defaults={**_GEMMA3, "sliding_window": 512},
        ignored=(r".*layers\.\d+\.layer_scalar", r"blk\.\d+\.layer_output_scale\.weight"),
        refused={
            "use_bidirectional_attention": ("vision", "Gemma 4 that is not causal is not read"),
            "use_double_wide_mlp": (False, "feed-forwards of two widths are not read"),
        },
    ),
    "phi3": Style(
        "phi3", kinds=every_layer, feed_forward=_phi3,
        names=build.AttentionNames(f"{LAYER}.self_attn", fused="qkv_proj"),
    ),
    "smollm3": Style("smollm3", tied=True, bias_key="attention_bias", mlp_bias="mlp_bias", kinds=upper_layers),
    "olmo2": Style("olmo2", bias_key="attention_bias", qk_norm="width", norms=OLMO_NORMS),
    "starcoder2": Style(
        "starcoder2", tied=True, bias_key="use_bias", bias_default=True, mlp_bias="use_bias", mlp_bias_default=True,
        norm_bias=True, kinds=every_layer, feed_forward=_starcoder2,
    ),
}  # fmt: skip
