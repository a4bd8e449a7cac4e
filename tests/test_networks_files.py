"""config.json as it was published, or with keys left out: the same shape as from transformers' own reading of it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from nearpeak.networks.family_keys import WRAPPERS
from nearpeak.networks.shape_of_config import FAMILIES, shape_of_config
from nearpeak.records.errors import UserError
from networks import decoder_of, error, logits_of
from tiny_folders import CASES, tiny

FACTORS = {"short_factor": [1.0] * 48, "long_factor": [1.0 + i / 7 for i in range(48)]}
OLD_GPT2: dict[str, Any] = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
}  # fmt: skip
# The keys that files of these models carry or leave out; numbers that are long lists are made up.
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2 medium": {**OLD_GPT2, "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_special": 0,
                    "predict_special_tokens": True},
    "gpt2 xl": {**OLD_GPT2, "n_embd": 1600, "n_head": 25, "n_layer": 48, "output_past": True},
    "distilgpt2": {**OLD_GPT2, "n_embd": 768, "n_head": 12, "n_layer": 6, "_num_labels": 1,
                   "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    "Llama 1": {"architectures": ["LLaMAForCausalLM"], "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
                "hidden_size": 4096, "intermediate_size": 11008, "initializer_range": 0.02,
                "max_sequence_length": 2048, "model_type": "llama", "num_attention_heads": 32,
                "num_hidden_layers": 32, "pad_token_id": None, "rms_norm_eps": 1e-06, "torch_dtype": "float16",
                "transformers_version": "4.27.0.dev0", "use_cache": True, "vocab_size": 32000},
    "Llama 3.1": {"attention_bias": False, "hidden_size": 4096, "intermediate_size": 14336, "mlp_bias": False,
                  "max_position_embeddings": 131072, "model_type": "llama", "num_attention_heads": 32,
                  "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
                  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
                  "rope_theta": 500000.0, "tie_word_embeddings": False, "vocab_size": 128256},
    "SmolLM2": {"attention_bias": False, "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True,
                "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 9,
                "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
                "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
                "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "vocab_size": 49152},
    "Phi-4 mini": {"attention_bias": False, "embd_pdrop": 0.0, "full_attn_mod": 1, "hidden_act": "silu",
                   "hidden_size": 3072, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": False,
                   "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
                   "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
                   "original_max_position_embeddings": 4096, "pad_token_id": None, "partial_rotary_factor": 0.75,
                   "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": {**FACTORS, "type": "longrope"},
                   "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064},
    "Mistral 7B": {"hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "model_type": "mistral",
                   "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
                   "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
                   "tie_word_embeddings": False, "vocab_size": 32000},
    "Qwen2.5": {"hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 21,
                "max_position_embeddings": 32768, "model_type": "qwen2", "num_attention_heads": 14,
                "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
                "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False,
                "vocab_size": 151936},
}  # fmt: skip
# Of a model of text and images the files hold only what is not the default.
SPARSE: dict[str, dict[str, Any]] = {
    "Gemma 3 4B": {"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}},
    "Gemma 3 12B": {"model_type": "gemma3", "text_config": {
        "hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024}},
    "LLaVA 1.5": {"model_type": "llava", "text_config": {
        "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
        "rms_norm_eps": 1e-05, "vocab_size": 32064}},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_mean_what_transformers_reads_in_them(name: str) -> None:
    values = PUBLISHED[name]
    assert shape_of_config(values, name) == shape_of_config(_theirs(values), name)


@pytest.mark.parametrize("name", SPARSE)
def test_a_text_part_without_its_defaults_is_whole(name: str) -> None:
    values = SPARSE[name]
    inner = values["text_config"]
    assert shape_of_config(values, name) == shape_of_config(_theirs(inner), name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_of_nothing_is_the_familys_first_model(family: str) -> None:
    assert shape_of_config({"model_type": family}, "x") == shape_of_config(_theirs({"model_type": family}), "x")


@pytest.mark.parametrize("case", CASES)
def test_each_key_that_is_left_out_means_transformers_default(case: str) -> None:
    whole = _saved(case)
    compared = 0
    # one inside and none outside: transformers takes its default over what the file says; refused here, see below
    for key in sorted(set(whole) - {"model_type", "original_max_position_embeddings"}):
        values = {name: value for name, value in whole.items() if name != key}
        try:
            theirs = _theirs(values)
        except Exception:  # transformers does not take what is left
            continue
        try:
            ours = shape_of_config(values, "x")
        except UserError:
            with pytest.raises(UserError):  # sizes that no longer fit together; of both readings, then
                shape_of_config(theirs, "x")
            continue
        assert ours == shape_of_config(theirs, "x"), key
        compared += 1
    assert compared > 15


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "qwen3_moe", "smollm3"])
@pytest.mark.parametrize("first", [0, 2, 99])
@pytest.mark.parametrize("window", [4, None])
@pytest.mark.parametrize("used", [True, False])
def test_which_layers_have_a_window_is_told_by_the_logits(
    case: str, first: int, window: int | None, used: bool
) -> None:
    """Qwen2 and 3: the upper layers; Qwen3's mixtures: all; SmolLM3: those that do not rotate."""
    model = tiny(case, use_sliding_window=used, sliding_window=window, max_window_layers=first)
    decoder = decoder_of(model)
    written = {key: value for key, value in model.config.to_dict().items() if key != "layer_types"}
    assert shape_of_config(written, "x") == decoder.shape
    ids = torch.randint(0, 80, (1, 14))
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        truth = model(ids).logits
    assert error(logits_of(decoder, ids), truth) <= 3e-5
    has_one = used and window is not None and (case in ("smollm3", "qwen3_moe") or first < 3)
    assert any(layer.window == 4 for layer in decoder.shape.layers) == has_one


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "smollm3"])
def test_a_window_that_is_switched_off_and_listed_is_refused(case: str) -> None:
    values = {**_saved(case), "sliding_window": 4, "use_sliding_window": False}
    values["layer_types"] = ["sliding_attention"] * values["num_hidden_layers"]
    with pytest.raises(UserError, match="key use_sliding_window is off, but layer_types has sliding_attention"):
        shape_of_config(values, "x")


@pytest.mark.parametrize("key", ["full_attn_mod", "interpolate_factor"])
def test_what_phi_4s_own_code_would_compute_otherwise_is_refused(key: str) -> None:
    with pytest.raises(UserError, match=f"key {key} is 2"):
        shape_of_config({**PUBLISHED["Phi-4 mini"], key: 2}, "x")


def test_a_key_of_one_family_is_none_of_another() -> None:
    with pytest.raises(UserError, match="key output_past "):
        shape_of_config({**PUBLISHED["Llama 3.1"], "output_past": True}, "x")


def test_a_part_that_rotates_may_be_said_twice() -> None:
    """As transformers 5 writes an older Phi-4 again; the one inside counts."""
    written = _theirs(PUBLISHED["Phi-4 mini"])
    assert written["partial_rotary_factor"] == written["rope_parameters"]["partial_rotary_factor"] == 0.75
    rope = shape_of_config({**written, "partial_rotary_factor": 0.5}, "x").layers[0].rope
    assert rope is not None
    assert rope.rotary == 96


def test_two_original_lengths_are_refused() -> None:
    """transformers takes the one outside, or its default of that; a file that has two does not say which it means."""
    values = json.loads(json.dumps(PUBLISHED["Phi-4 mini"]))
    values["rope_scaling"]["original_max_position_embeddings"] = 8192
    for _ in range(2):
        with pytest.raises(UserError, match=r"original_max_position_embeddings is 8,192, but outside it is 4,096"):
            shape_of_config(values, "x")
        values.pop("original_max_position_embeddings", None)


def test_gemma_3s_scaling_in_the_old_place_is_of_its_full_layers() -> None:
    values = _saved("gemma3")
    full = {**values["rope_parameters"]["full_attention"], "rope_type": "default"}
    full.pop("factor")
    both = {**values, "rope_parameters": {**values["rope_parameters"], "full_attention": full},
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    assert shape_of_config(both, "x") == shape_of_config(values, "x")


@pytest.mark.parametrize("outer", ["paligemma", "an_invention", None, 5])
def test_a_text_part_in_a_model_that_is_not_known_to_be_causal_is_refused(outer: object) -> None:
    """PaliGemma's prompt is seen from both sides, though its text part is a Gemma like any other."""
    assert outer not in WRAPPERS
    with pytest.raises(UserError, match="model_type is "):
        shape_of_config({"model_type": outer, "text_config": _saved("gemma2")}, "x")


def _theirs(values: dict[str, Any]) -> dict[str, Any]:
    """What transformers makes of a config, every key written out."""
    kind = transformers.AutoConfig.for_model(values["model_type"]).__class__
    if values["model_type"] == "phi3" and "pad_token_id" not in values:
        values = {**values, "pad_token_id": None}  # the default lies outside small vocabularies
    read: dict[str, Any] = kind.from_dict(json.loads(json.dumps(values))).to_dict()
    return read


@cache
def _text_of(case: str) -> str:
    return json.dumps(tiny(case).config.to_dict())


def _saved(case: str) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(_text_of(case))
    return saved
