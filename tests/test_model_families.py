"""Tiny random models, saved by transformers, read back from their headers: our count must be theirs, for each family.

transformers builds the network and names its tensors; nearpeak sees config.json and headers only. Each family is also
read without its weights, from config.json alone.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from nearpeak.models.read import read_model

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 12,
    "moe_intermediate_size": 20, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
OLD = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 64}
BLOCKS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
VISION = {"image_size": 32, "num_labels": 7}

# family → class, config. `kv_heads` and the like differ from `heads`, so that a mistaken size shows.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SMALL),
    "llama tied, biases, head_dim": (
        "LlamaForCausalLM",
        {**SMALL, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 12},
    ),
    "llama without head": ("LlamaModel", SMALL),
    "llama classifier": ("LlamaForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 0}),
    "mistral": ("MistralForCausalLM", {**SMALL, "sliding_window": 16}),
    "mixtral": ("MixtralForCausalLM", {**SMALL, **LOCAL}),
    "qwen2": ("Qwen2ForCausalLM", {**SMALL, "tie_word_embeddings": True}),
    "qwen2 upper layers slide": (
        "Qwen2ForCausalLM", {**SMALL, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
    ),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**SMALL, **MOE, "shared_expert_intermediate_size": 40}),
    "qwen3": ("Qwen3ForCausalLM", {**SMALL, "head_dim": 16}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**SMALL, **MOE, "head_dim": 16, "mlp_only_layers": [1]}),
    "qwen3_next": ("Qwen3NextForCausalLM", {**SMALL, **MOE, **DELTA, "shared_expert_intermediate_size": 40}),
    "qwen3_5": ("Qwen3_5ForCausalLM", {**SMALL, **DELTA}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", {**SMALL, **MOE, **DELTA, "shared_expert_intermediate_size": 40}),
    "gemma2": ("Gemma2ForCausalLM", {**SMALL, "head_dim": 12, "sliding_window": 8}),
    "gemma3": ("Gemma3ForCausalLM", {**SMALL, "head_dim": 12, "sliding_window": 8, "num_hidden_layers": 7}),
    "gemma4": (
        "Gemma4ForCausalLM",
        {**SMALL, "head_dim": 12, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
         "hidden_size_per_layer_input": 0, "sliding_window": 8, "num_hidden_layers": 7, "num_kv_shared_layers": 0},
    ),
    "phi3": ("Phi3ForCausalLM", {**SMALL, "pad_token_id": 0, "sliding_window": 8}),
    "gpt_oss": ("GptOssForCausalLM", {**SMALL, **LOCAL, "head_dim": 12, "sliding_window": 8}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**SMALL, **LATENT, "num_key_value_heads": 4}),
    "deepseek_v2 lite": ("DeepseekV2ForCausalLM", {**SMALL, **LATENT, "num_key_value_heads": 4, "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**SMALL, **LATENT, "num_key_value_heads": 4, "attention_bias": True}),
    "smollm3": ("SmolLM3ForCausalLM", {**SMALL, "pad_token_id": 0}),
    "olmo2": ("Olmo2ForCausalLM", SMALL),
    "starcoder2": ("Starcoder2ForCausalLM", {**SMALL, "sliding_window": None}),
    "minimax_m2": ("MiniMaxM2ForCausalLM", {**SMALL, **LOCAL, "head_dim": 12}),
    "lfm2": ("Lfm2ForCausalLM", {**SMALL, "full_attn_idxs": [1, 3], "block_multiple_of": 8}),
    "llama4": (
        "Llama4ForCausalLM",
        {**SMALL, **LOCAL, "num_experts_per_tok": 1, "head_dim": 12, "intermediate_size_mlp": 40,
         "interleave_moe_layer_step": 2, "attention_chunk_size": 16},
    ),
    "gpt2": ("GPT2LMHeadModel", OLD),
    "gptj": ("GPTJForCausalLM", {**OLD, "rotary_dim": 4}),
    "mpt": ("MptForCausalLM", {"d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": 96, "max_seq_len": 64}),
    "bert": ("BertModel", {**SMALL, "type_vocab_size": 2}),
    "bert pre-training": ("BertForPreTraining", {**SMALL, "type_vocab_size": 2}),
    "bert masked": ("BertForMaskedLM", {**SMALL, "type_vocab_size": 2}),
    "bert classifier": ("BertForSequenceClassification", {**SMALL, "num_labels": 5}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 12, "num_heads": 4, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2,
         "vocab_size": 96},
    ),
    "t5 gated, untied": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 12, "num_heads": 4, "d_ff": 48, "num_layers": 2, "vocab_size": 96,
         "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {"d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 64, "vocab_size": 96,
         "num_mel_bins": 20, "max_source_positions": 50, "max_target_positions": 16, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
    "vit": ("ViTForImageClassification", {**BLOCKS, **VISION, "patch_size": 8}),
    "vit without head": ("ViTModel", {**BLOCKS, "image_size": 32, "patch_size": 8}),
    "resnet bottleneck": (
        "ResNetForImageClassification",
        {"depths": [2, 3], "hidden_sizes": [16, 32], "embedding_size": 8, "layer_type": "bottleneck", "num_labels": 7},
    ),
    "resnet basic": (
        "ResNetForImageClassification",
        {"depths": [2, 2], "hidden_sizes": [8, 16], "embedding_size": 8, "layer_type": "basic", "num_labels": 7},
    ),
    "convnext": (
        "ConvNextForImageClassification", {"depths": [1, 2], "hidden_sizes": [8, 16], "num_stages": 2, **VISION},
    ),
    "efficientnet": (
        "EfficientNetForImageClassification",
        {"width_coefficient": 0.5, "depth_coefficient": 1.2, "image_size": 64, "hidden_dim": 640, "num_labels": 7},
    ),
}  # fmt: skip


def save(folder: Path, case: str) -> int:
    """A random model of this family in `folder`; how many parameters it has, tied ones once."""
    name, sizes = CASES[case]
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**sizes))
    model.save_pretrained(folder)
    total = sum({id(parameter): parameter.numel() for parameter in model.parameters()}.values())
    # the router's correction is a buffer to transformers; it is loaded, and counted, as the makers' own count does
    total += sum(b.numel() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias"))
    return total


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_is_counted_exactly(case: str, tmp_path: Path) -> None:
    total = save(tmp_path, case)
    spec = read_model(str(tmp_path))
    assert spec.parameters == total
    assert sum(stored.parameters for stored in spec.stored.values()) == total
    assert set(spec.stored) == {"fp32"}
    assert spec.weight_bytes == 4 * total
    assert not [note for note in spec.notes if "does not know" in note], spec.notes
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    bare = read_model(str(tmp_path))
    assert bare.parameters == total
    assert bare.parts == spec.parts


def test_a_model_of_text_and_images_counts_its_tower(tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 16, "patch_size": 8}  # fmt: skip
    text = {**SMALL, "head_dim": 12, "sliding_window": 8}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    total = sum({id(parameter): parameter.numel() for parameter in model.parameters()}.values())
    spec = read_model(str(tmp_path))
    assert spec.parameters == total
    assert spec.family == "gemma3"
    tower = sum(part.parameters for part in spec.parts if part.name == "image_tower")
    assert tower == sum(parameter.numel() for parameter in model.model.vision_tower.parameters())
    assert any("image tower" in note for note in spec.notes)


@pytest.mark.parametrize("case", ["qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss", "mixtral"])
def test_active_parameters_are_those_of_the_chosen_experts(case: str, tmp_path: Path) -> None:
    """Against a sum over tensors: all that is no expert's, and of the experts' the share that is chosen."""
    save(tmp_path, case)
    spec = read_model(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    experts = config.get("num_experts") or config.get("num_local_experts") or config["n_routed_experts"]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    names = {name: parameter.numel() for name, parameter in model.named_parameters()}
    theirs = sum(size for name, size in names.items() if ".experts." in name)
    assert theirs
    idle = theirs - theirs // experts * config["num_experts_per_tok"]
    assert spec.active_parameters == spec.parameters - idle
