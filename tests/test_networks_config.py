"""config.json → shape: every key honoured, harmless or refused by name; rotary frequencies as transformers has them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.networks.decoder import Decoder
from nearpeak.networks.decoder_shape import DecoderShape
from nearpeak.networks.plain_attention import plain_attention
from nearpeak.networks.rope import Rope
from nearpeak.networks.shape_of_config import FAMILIES, shape_of_config
from nearpeak.records.errors import UserError
from networks import decoder_of, error, logits_of
from tiny_folders import CASES, tiny

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
SCALED: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "longrope": {"short_factor": [1.0 + i / 9 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
                 "original_max_position_embeddings": 512},
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "yarn, scales": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512, "mscale": 0.7,
                     "mscale_all_dim": 1.3, "beta_fast": 20, "beta_slow": 2},
    "yarn, attention": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128,
                        "attention_factor": 1.1, "truncate": False},
    "longrope, factor": {"rope_type": "longrope", "factor": 3.0, **SCALED["longrope"]},
    "half a head": {"rope_type": "default", "partial_rotary_factor": 0.5},
}  # fmt: skip


def shape(**changes: Any) -> DecoderShape:
    values = {**LLAMA, **changes}
    return shape_of_config({key: value for key, value in values.items() if value is not ...}, "config.json")


def rope(**changes: Any) -> Rope:
    found = shape(**changes).layers[0].rope
    assert found is not None
    return found


def theirs(parameters: dict[str, Any], length: int) -> tuple[torch.Tensor, float]:
    """transformers' inverse frequencies and attention factor."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(**LLAMA, rope_parameters={"rope_theta": 5000.0, **parameters})
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        rotary = int(16 * parameters.get("partial_rotary_factor", 1.0))
        return 1.0 / 5000.0 ** (torch.arange(0, rotary, 2).float() / rotary), 1.0
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    return frequencies, factor


@pytest.mark.parametrize("length", [100, 512, 513, 2048, 5000])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", SCALED)
def test_every_kind_turns_as_in_transformers(kind: str, spelling: str, inside: bool, length: int) -> None:
    word = "rope_type" if spelling == "rope_parameters" else "type"
    values = {word: kind, **SCALED[kind]}
    given = {spelling: {**values, "rope_theta": 5000.0}} if inside else {spelling: values, "rope_theta": 5000.0}
    frequencies, factor = theirs({"rope_type": kind, **SCALED[kind]}, length)
    found = rope(**given)
    assert torch.allclose(found.inverse_frequencies(length), frequencies, rtol=2e-6, atol=0)
    assert found.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", MORE)
def test_further_keys_of_a_kind_are_honoured(name: str) -> None:
    frequencies, factor = theirs(MORE[name], 2048)
    found = rope(rope_parameters={"rope_theta": 5000.0, **MORE[name]})
    assert torch.allclose(found.inverse_frequencies(2048), frequencies, rtol=2e-6, atol=0)
    assert found.attention_factor == pytest.approx(factor, rel=1e-12)


def test_theta_matters_far_from_the_start() -> None:
    """Short prompts look right with any theta; position 900 does not."""
    ids = torch.randint(0, 80, (1, 3))
    positions = torch.tensor([[0, 450, 900]])
    made = {}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).eval()
    for theta in (10_000.0, 500_000.0):
        config = transformers.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "default", "rope_theta": theta})
        other = transformers.LlamaForCausalLM(config).eval()
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            truth = other(ids, position_ids=positions).logits
        decoder = decoder_of(other)
        with torch.no_grad():
            made[theta] = decoder(ids, positions, plain_attention(decoder.shape, positions))
        assert error(made[theta], truth) <= 3e-5
    assert error(*made.values()) > 1e-3


@pytest.mark.parametrize("kind", ["mrope", "ntk", "", 7, "proportional", "LLAMA3"])
def test_an_unknown_kind_is_refused_by_its_key(kind: object) -> None:
    if kind == "":
        assert rope(rope_scaling={"rope_type": ""}).kind == "default"
        return
    with pytest.raises(UserError, match=r"config\.json: key rope_parameters\.rope_type is .*computed are default"):
        rope(rope_scaling={"rope_type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor"),
        ({"rope_type": "linear", "factor": "4"}, "factor"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3}, "beta_fast"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section"),
        ({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, "low_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 7, "long_factor": [1.0] * 8}, "short_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 9}, "long_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [-1.0] * 8}, "long_factor"),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": "no"}, "truncate"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}, "rope_theta"),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [1.0] * 8,
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings",
        ),
        ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.125}, "rope_type"),
    ],
)
def test_rotary_values_without_sense_are_refused_by_their_key(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=rf"key (rope_parameters\.)?{key} "):
        rope(rope_parameters=values)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 10**9}, "hidden_size"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"vocab_size": None}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"hidden_act": "relu2"}, "hidden_act"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"residual_multiplier": 0.5}, "residual_multiplier"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"an_invention": 1}, "an_invention"),
        ({"an_invention": 0}, "an_invention"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"is_causal": False}, "is_causal"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"sliding_window": 4096}, "sliding_window"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=rf"config\.json: key {key} "):
        shape(**changes)


def test_keys_that_are_off_or_harmless_pass() -> None:
    shape(
        an_invention=None, another=False, _model_name_or_path="x", dtype="bfloat16", pretraining_tp=2, pruned_heads={}
    )


@pytest.mark.parametrize("family", ["gemma3n", "llama4_text", "bert", None, 3])
def test_a_family_that_is_not_here_is_refused_with_those_that_are(family: object) -> None:
    with pytest.raises(UserError, match=r"model_type is .*nearpeak runs gemma2, gemma3, gemma3_text, gpt2, llama"):
        shape(model_type=family)


@pytest.mark.parametrize("case", CASES)
def test_a_config_without_its_defaults_means_the_same(case: str) -> None:
    """What transformers leaves out of a file when it equals the default must be the same default here."""
    model = tiny(case)
    whole = shape_of_config(model.config.to_dict(), "config.json")
    assert shape_of_config({**model.config.to_diff_dict(), "model_type": model.config.model_type}, "x") == whole


def test_a_model_of_text_and_images_is_its_text_part() -> None:
    text = tiny("gemma3").config.to_dict()
    both = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}
    assert shape_of_config(both, "x") == shape_of_config(text, "x")


def test_old_gemma_3_files_have_two_thetas() -> None:
    values = tiny("gemma3").config.to_dict()
    new = shape_of_config(values, "x")
    del values["rope_parameters"], values["layer_types"], values["_sliding_window_pattern"]
    old = {**values, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
           "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    assert shape_of_config(old, "x") == new


def test_old_phi_3_files_call_longrope_su() -> None:
    values = tiny("phi4").config.to_dict()
    new = shape_of_config(values, "x")
    factors = values.pop("rope_parameters")
    old = {**values, "rope_theta": factors["rope_theta"], "partial_rotary_factor": 0.75,
           "rope_scaling": {"type": "su", "short_factor": factors["short_factor"],
                            "long_factor": factors["long_factor"]}}  # fmt: skip
    assert shape_of_config(old, "x") == new


def test_a_window_that_qwen_does_not_use_is_no_window() -> None:
    values = {**tiny("qwen2").config.to_dict(), "sliding_window": 4, "use_sliding_window": False}
    values.pop("layer_types")
    assert {layer.window for layer in shape_of_config(values, "x").layers} == {None}
    values |= {"use_sliding_window": True, "max_window_layers": 2}
    assert [layer.window for layer in shape_of_config(values, "x").layers] == [None, None, 4]


def test_gpt2_variants_that_are_not_computed_are_refused() -> None:
    values = tiny("gpt2").config.to_dict()
    for key, value in (("scale_attn_by_inverse_layer_idx", True), ("reorder_and_upcast_attn", True),
                       ("scale_attn_weights", False), ("n_head", 5)):  # fmt: skip
        with pytest.raises(UserError, match=f"key {key} "):
            shape_of_config({**values, key: value}, "x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.data())
def test_damaged_configs_end_in_one_clear_error_or_a_shape(family: str, data: st.DataObject) -> None:
    case = {"gemma3_text": "gemma3"}.get(family, family)
    values = json.loads(json.dumps(SAVED[case]))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(values)) | st.text(max_size=12))
        values[key] = data.draw(JSON)
    found, refused = None, ""
    try:
        found = shape_of_config(values, "config.json")
    except UserError as error_:
        refused = str(error_)
    assert found or "config.json" in refused
    if found and len(found.layers) < 20 and found.experts is None:
        with torch.device("meta"):
            Decoder(found)


SAVED = {case: tiny(case).config.to_dict() for case in ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2",
         "gemma3", "phi3", "olmo2", "mixtral", "qwen3_moe", "gpt2")}  # fmt: skip


def test_the_logits_of_a_shape_follow_its_keys() -> None:
    """Each of these changes what is computed, so each must change the logits: none is read and dropped."""
    torch.manual_seed(5)
    values = {**SAVED["gemma2"], "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    plain = Decoder(shape_of_config(values, "x"))
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(0, 80, (1, 20))
    before = logits_of(plain, ids)
    for key, value in (("sliding_window", 3), ("attn_logit_softcapping", 1.0), ("final_logit_softcapping", 1.0),
                       ("query_pre_attn_scalar", 7), ("rms_norm_eps", 0.5), ("hidden_activation", "silu"),
                       ("rope_parameters", {"rope_type": "default", "rope_theta": 30.0})):  # fmt: skip
        other = Decoder(shape_of_config({**values, key: value}, "x"))
        other.load_state_dict(plain.state_dict())
        assert error(logits_of(other, ids), before) > 1e-4, key
