"""What the families' config.json files leave out, and what they carry that no mathematics depends on. Data alone.

Sources: DEFAULTS are those of transformers 5's config classes, which is what a key that is not there means: files leave
out what equals them (Gemma 3's even the number of heads). HARMLESS_OF are keys of published files.
"""

from __future__ import annotations

_USUAL: dict[str, object] = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA: dict[str, object] = {**_USUAL, "vocab_size": 32000, "intermediate_size": 11008}
_MISTRAL: dict[str, object] = {
    **_USUAL, "vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}  # fmt: skip
_QWEN: dict[str, object] = {
    **_USUAL, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
    "max_position_embeddings": 32768, "sliding_window": 4096,
}  # fmt: skip
_GEMMA: dict[str, object] = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip

DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {**_LLAMA, "max_position_embeddings": 2048},
    "mistral": {**_MISTRAL, "sliding_window": 4096},
    "qwen2": {**_QWEN, "max_window_layers": 28},
    "qwen3": {**_QWEN, "max_window_layers": 28, "head_dim": 128},
    "smollm3": {
        **_LLAMA, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True,
        "no_rope_layer_interval": 4, "rope_theta": 2_000_000.0,
    },
    "gemma2": {
        **_GEMMA, "vocab_size": 256000, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        **_GEMMA, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0,
    },
    "phi3": {
        **_USUAL, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
    },
    "olmo2": {**_LLAMA, "vocab_size": 50304, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    "mixtral": {
        **_MISTRAL, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_local_experts": 8, "rope_theta": 1_000_000.0,
    },
    "qwen3_moe": {
        **_QWEN, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
        "decoder_sparse_step": 1, "num_experts_per_tok": 8, "num_experts": 128, "moe_intermediate_size": 768,
    },
    "gpt2": {
        "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    },
}  # fmt: skip

HARMLESS_OF: dict[str, frozenset[str]] = {
    "llama": frozenset({"max_sequence_length"}),  # Llama 1 and Vicuna
    "gpt2": frozenset({"n_special", "predict_special_tokens", "output_past", "_num_labels"}),  # of its first converters
}

# Models of text and images, sound or video whose text part reads a prompt without them as any causal decoder does.
# Others, PaliGemma for one, let a prompt's tokens see later ones.
WRAPPERS = frozenset({
    "gemma3", "mistral3", "llava", "llava_next", "llava_onevision", "vipllava", "idefics3", "smolvlm", "internvl",
})  # fmt: skip
