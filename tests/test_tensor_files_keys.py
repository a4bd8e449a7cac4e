"""Keys of GGUF files that change what is computed: honoured, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import write_gguf
from nearpeak.models.gguf_maths import ARCHITECTURES, NEUTRAL
from nearpeak.models.tensor_files import open_tensors
from nearpeak.records.errors import UserError
from tiny_folders import save_tiny

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder for each case, made once."""
    made: dict[str, Path] = {}

    def folder(case: str) -> Path:
        if case not in made:
            made[case] = tmp_path_factory.mktemp("folder") / "folder"
            save_tiny(made[case], case)
        return made[case]

    return folder


def config(folder: Path, path: Path, **extra: Any) -> dict[str, Any]:
    keys = {name.replace("__", "."): value for name, value in extra.items()}
    return open_tensors(write_gguf(folder, path, extra=keys)).config


@pytest.mark.parametrize(
    ("case", "extra", "words"),
    [
        ("llama", {"a_new_key": 3}, ["llama.a_new_key", "may change"]),
        ("llama", {"attention__clamp_kqv": 8.0}, ["attention.clamp_kqv", "8"]),
        ("llama", {"logit_scale": 0.25}, ["logit_scale"]),
        ("llama", {"attention__scale": 0.5}, ["attention.scale", "0.25"]),
        ("llama", {"attention__causal": False}, ["attention.causal"]),
        ("llama", {"rope__dimension_count": 8}, ["rope.dimension_count", "8 of 16"]),
        ("llama", {"rope__dimension_count": 3}, ["rope.dimension_count"]),
        ("llama", {"rope__freq_base": 0.0}, ["rope.freq_base"]),
        ("llama", {"rope__freq_base": float("nan")}, ["rope.freq_base"]),
        ("llama", {"rope__scaling__type": "dynamic", "rope__scaling__factor": 2.0}, ["rope.scaling.type", "dynamic"]),
        ("llama", {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0}, ["original_context_length"]),
        ("llama", {"rope__scaling__type": "longrope"}, ["original_context_length"]),
        ("llama", {"rope__scaling__attn_factor": 1.5}, ["rope.scaling.attn_factor"]),
        ("llama", {"rope__scaling__yarn_log_multiplier": 0.1}, ["yarn_log_multiplier"]),
        ("llama", {"rope__scaling__yarn_ext_factor": 0.5}, ["yarn_ext_factor"]),
        ("llama", {"attention__layer_norm_rms_epsilon": -1e-5}, ["layer_norm_rms_epsilon"]),
        ("llama biases", {"attention__sliding_window": 8}, ["attention.sliding_window", "biases"]),
        ("llama 3", {"rope__scaling__factor": 2.0}, ["rope.scaling.factor", "tensor"]),
        ("mixtral", {"expert_gating_func": 2}, ["expert_gating_func"]),
        ("mixtral", {"expert_weights_scale": 2.5}, ["expert_weights_scale"]),
        ("mixtral", {"expert_shared_count": 1}, ["expert_shared_count"]),
        ("qwen2", {"attention__sliding_window": 8}, ["attention.sliding_window"]),
        ("qwen2", {"rope__dimension_sections": [4, 4, 0, 0]}, ["rope.dimension_sections"]),
        ("qwen3_moe", {"expert_weights_norm": False}, ["expert_weights_norm"]),
        ("gemma3", {"attention__sliding_window_pattern": 0}, ["sliding_window_pattern"]),
        ("gemma3", {"attention__sliding_window_pattern": [True, False]}, ["sliding_window_pattern", "7"]),
        ("gemma2", {"attn_logit_softcapping": 0.0}, ["attn_logit_softcapping"]),
        ("gemma3", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"]),
        ("olmo2", {"attention__sliding_window": 8}, ["OLMo 3"]),
        ("phi4", {"rope__scaling__original_context_length": 0}, ["original_context_length"]),
        ("gpt2", {"rope__freq_base": 1e4}, ["gpt2.rope.freq_base"]),
        ("gpt2", {"attention__layer_norm_epsilon": 2.0}, ["layer_norm_epsilon"]),
    ],
)  # fmt: skip
def test_refused_by_name(tmp_path: Path, folders: Any, case: str, extra: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        config(folders(case), tmp_path / "x.gguf", **extra)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def test_settings_that_say_what_is_done_anyway(tmp_path: Path, folders: Any) -> None:
    plain = config(folders("llama"), tmp_path / "x.gguf")
    neutral = {key.replace(".", "__"): values[0] for key, values in NEUTRAL.items()}
    assert config(folders("llama"), tmp_path / "y.gguf", **neutral) == plain


def test_numbers_are_those_of_config_json(tmp_path: Path, folders: Any) -> None:
    """A file has fp32: 1e-05 comes back as 1e-05, not as 9.999999747378752e-06."""
    found = config(folders("llama"), tmp_path / "x.gguf", attention__layer_norm_rms_epsilon=1e-5)
    assert found["rms_norm_eps"] == 1e-5
    for value in np.random.default_rng().uniform(1e-7, 1e-3, 50).astype(np.float32):
        found = config(folders("gpt2"), tmp_path / "x.gguf", attention__layer_norm_epsilon=float(value))
        assert np.float32(found["layer_norm_epsilon"]) == value


def test_older_linear_scaling(tmp_path: Path, folders: Any) -> None:
    found = config(folders("llama"), tmp_path / "x.gguf", rope__scale_linear=4.0)
    assert found["rope_parameters"] == {"rope_theta": 5000.0, "rope_type": "linear", "factor": 4.0}
    found = config(folders("llama"), tmp_path / "x.gguf", rope__scaling__type="none", rope__scaling__factor=4.0)
    assert found["rope_parameters"]["rope_type"] == "default"


@pytest.mark.parametrize(
    ("pattern", "full"), [(3, [2, 5]), (1, list(range(7))), ([True, False] * 3 + [True], [1, 3, 5])]
)
def test_patterns_of_windows(tmp_path: Path, folders: Any, pattern: Any, full: list[int]) -> None:
    found = config(folders("gemma3"), tmp_path / "x.gguf", attention__sliding_window_pattern=pattern)
    assert [layer for layer, kind in enumerate(found["layer_types"]) if kind == "full_attention"] == full


@pytest.mark.parametrize(("case", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_divide_scores_otherwise(tmp_path: Path, case: str, layers: int) -> None:
    """By √(width ÷ heads), not by √head_dim: llama.cpp knows them by their number of layers alone."""
    import transformers

    from tiny_folders import _SHAPE, CASES

    name, changes = CASES[case]
    kind = "Gemma3Text" if name == "Gemma3" else name
    made = getattr(transformers, f"{kind}Config")(
        **{**_SHAPE, **changes, "num_hidden_layers": layers, "hidden_size": 32, "intermediate_size": 32}
    )
    getattr(transformers, f"{name}ForCausalLM")(made).save_pretrained(tmp_path / "folder")
    found = open_tensors(write_gguf(tmp_path / "folder", tmp_path / "x.gguf")).config
    assert found["query_pre_attn_scalar"] == 8
    assert len(found["layer_types"]) == layers


def test_wrong_factors_of_rotary_positions(tmp_path: Path, folders: Any) -> None:
    path = write_gguf(folders("llama 3"), tmp_path / "x.gguf")
    whole = path.read_bytes()
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "rope_freqs.weight")
    start = int(tensor.data_offset)
    for value in (0.0, -1.0, float("inf"), float("nan")):
        path.write_bytes(whole[: start + 4] + np.float32(value).tobytes() + whole[start + 8 :])
        with pytest.raises(UserError, match=r"rope_freqs\.weight"):
            open_tensors(path)


def test_an_architecture_that_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    from model_files import gguf_bytes, gguf_string

    path.write_bytes(gguf_bytes([("general.architecture", 8, gguf_string("starcoder2"))], [], 0))
    with pytest.raises(UserError, match="'starcoder2' is not run"):
        open_tensors(path)
    assert "starcoder2" not in ARCHITECTURES
