"""Adapters: what peft itself makes of them, and each setting that would make something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gguf_files import write_gguf
from nearpeak.inference.lora import Adapter, read_adapter, transposed
from nearpeak.models.checkpoint import open_checkpoint
from nearpeak.records.errors import UserError
from tiny_folders import save_tiny

peft = pytest.importorskip("peft")

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {"r": 4, "lora_alpha": 12, "target_modules": ALL}),
    "rslora": ("qwen2", {"r": 4, "lora_alpha": 3, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]}),
    "patterns": ("llama", {"r": 4, "target_modules": ALL, "rank_pattern": {"down_proj": 6, "1.self_attn.q_proj": 2},
                           "alpha_pattern": {"up_proj": 30, "^model.layers.2.mlp.up_proj": 5}}),
    "gpt2": ("gpt2", {"r": 3, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "gpt2, said wrongly": ("gpt2", {"r": 3, "target_modules": ["c_attn"], "fan_in_fan_out": False}),
    "phi3": ("phi3", {"r": 3, "target_modules": "all-linear"}),
    "gemma3": ("gemma3", {"r": 3, "target_modules": ALL, "lora_dropout": 0.3}),
    "some layers": ("llama", {"r": 3, "target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "head": ("llama", {"r": 3, "target_modules": ["q_proj", "lm_head"]}),
    "whole modules": ("llama", {"r": 3, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
    "gaussian": ("llama", {"r": 3, "target_modules": ["q_proj"], "init_lora_weights": "gaussian"}),
    "fp16 adapter": ("llama", {"r": 3, "target_modules": ["q_proj"]}),
}  # fmt: skip


def adapted(folder: Path, case: str, **settings: Any) -> Any:
    """folder/base and folder/adapter, trained as far as random numbers are training; peft's model."""
    model = save_tiny(folder / "base", case)
    with pytest.warns() if settings.get("fan_in_fan_out") is False else _nothing():
        model = peft.get_peft_model(model, peft.LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder / "adapter")
    return model


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def merged(adapter: Adapter, base: Any) -> dict[str, torch.Tensor]:
    return {name: adapter.merged(name, base.read(name), transposed(base, name)) for name in base.held}


@pytest.mark.parametrize("setting", SETTINGS)
def test_merged_as_peft_merges(tmp_path: Path, setting: str) -> None:
    case, settings = SETTINGS[setting]
    adapted(tmp_path, case, **settings)
    if setting == "fp16 adapter":
        change(tmp_path, lambda tensors: {name: tensor.half() for name, tensor in tensors.items()})
    model = peft.PeftModel.from_pretrained(of_base(tmp_path), tmp_path / "adapter")  # as it reads its own file
    base = open_checkpoint(tmp_path / "base")
    adapter = read_adapter(tmp_path / "adapter", base)
    before = {name: base.read(name).clone() for name in base.held}
    wanted = model.merge_and_unload().state_dict()
    changed = 0
    for name, tensor in merged(adapter, base).items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-6, atol=2e-6 if setting != "fp16 adapter" else 1e-3)
        assert adapter.touches(name) is not torch.equal(tensor, before[name])
        assert torch.equal(base.read(name), before[name])  # the file's own pages are not written to
        changed += adapter.touches(name)
    assert changed == len(adapter.updates) + len(adapter.replaced) > 0
    assert len(adapter.replaced) == (2 if setting == "whole modules" else 0)
    assert str(changed if not adapter.replaced else len(adapter.updates)) in adapter.note
    assert adapter.bytes > 0


def of_base(folder: Path) -> Any:
    """The model without its adapter, read by transformers."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder / "base")


def test_merged_into_a_gguf_file(tmp_path: Path) -> None:
    """Rows of q and k are put back in order before the adapter is added."""
    model = adapted(tmp_path, "llama", r=4, target_modules=ALL)
    base = open_checkpoint(write_gguf(tmp_path / "base", tmp_path / "x.gguf"))
    wanted = model.merge_and_unload().state_dict()
    for name, tensor in merged(read_adapter(tmp_path / "adapter", base), base).items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-6, atol=2e-6)


def change(folder: Path, tensors: Any = None, **config: Any) -> None:
    path = folder / "adapter/adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    if tensors:
        file = folder / "adapter/adapter_model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors(load_file(file)).items()}, file)


def refused(folder: Path, *words: str) -> None:
    base = open_checkpoint(folder / "base")
    with pytest.raises(UserError) as caught:
        read_adapter(folder / "adapter", base)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_dora": True}, ["use_dora", "DoRA"]),
        ({"peft_type": "IA3"}, ["peft_type", "IA3"]),
        ({"peft_type": None}, ["peft_type"]),
        ({"bias": "all"}, ["bias"]),
        ({"init_lora_weights": "pissa"}, ["pissa"]),
        ({"init_lora_weights": "pissa_niter_4"}, ["pissa_niter_4"]),
        ({"init_lora_weights": "olora"}, ["olora"]),
        ({"layer_replication": [[0, 2], [1, 3]]}, ["layer_replication"]),
        ({"alora_invocation_tokens": [5, 6]}, ["alora_invocation_tokens"]),
        ({"trainable_token_indices": [5]}, ["trainable_token_indices"]),
        ({"target_parameters": ["mlp.experts.down_proj"]}, ["target_parameters"]),
        ({"use_qalora": True}, ["use_qalora"]),
        ({"lora_bias": True}, ["lora_bias"]),
        ({"use_something_new": 3}, ["use_something_new"]),
        ({"rank_pattern": {"(q|k)_proj": 2}}, ["rank_pattern", "regular expression"]),
        ({"alpha_pattern": {"q_proj": "many"}}, ["alpha_pattern"]),
        ({"alpha_pattern": [1]}, ["alpha_pattern"]),
        ({"r": 5}, ["lora_A", "[4, 64]", "[5, 64]"]),
        ({"r": 0}, ["r "]),
        ({"lora_alpha": "x"}, ["lora_alpha"]),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(tmp_path: Path, config: Any, words: list[str]) -> None:
    adapted(tmp_path, "llama", r=4, target_modules=["q_proj"])
    read_adapter(tmp_path / "adapter", open_checkpoint(tmp_path / "base"))
    change(tmp_path, **config)
    refused(tmp_path, *words)


def test_new_settings_that_are_off_do_no_harm(tmp_path: Path) -> None:
    adapted(tmp_path, "llama", r=4, target_modules=["q_proj"])
    change(tmp_path, use_something_new=False, something_config=None, another={})
    assert len(read_adapter(tmp_path / "adapter", open_checkpoint(tmp_path / "base")).updates) == 3


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    adapted(tmp_path, "llama", r=4, target_modules=["q_proj"])
    path = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
    file = tmp_path / "adapter/adapter_model.safetensors"
    whole = file.read_bytes()

    def damaged(tensors: Any, *words: str) -> None:
        file.write_bytes(whole)
        change(tmp_path, tensors)
        refused(tmp_path, *words)

    damaged(lambda t: {name: x for name, x in t.items() if name != f"{path}B.weight"}, f"{path}A.weight", "other half")
    damaged(lambda t: {**t, f"{path}B.weight": torch.zeros(65, 4)}, f"{path}B.weight", "[65, 4]", "[64, 4]")
    damaged(lambda t: {name.replace("layers.1", "layers.7"): x for name, x in t.items()}, "layers.7", "another model")
    damaged(lambda t: {**t, f"{path}magnitude_vector": torch.zeros(64)}, "magnitude_vector")
    damaged(lambda t: {**t, "base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(4, 80)}, "embedding_A")
    damaged(lambda t: {**t, "something": torch.zeros(4)}, "something", "base_model.model.")
    damaged(lambda t: {**t, f"{path}A.weight": t[f"{path}A.weight"].double()}, f"{path}A.weight", "fp64")
    damaged(lambda t: {**t, "base_model.model.model.norm.weight": torch.zeros(65)}, "norm.weight", "[65]")
    file.write_bytes(whole[:-5])
    refused(tmp_path, "adapter_model.safetensors", "cut off")
    file.unlink()
    refused(tmp_path, "adapter_model.safetensors")


def test_a_tied_head_has_no_adapter_of_its_own(tmp_path: Path) -> None:
    adapted(tmp_path, "llama tied", r=4, target_modules=["q_proj"])
    change(tmp_path, lambda t: {**t, "base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64),
                                "base_model.model.lm_head.lora_B.weight": torch.zeros(80, 4)})  # fmt: skip
    refused(tmp_path, "lm_head")
    change(tmp_path, lambda t: {"base_model.model.model.embed_tokens.weight": torch.zeros(80, 64)})
    refused(tmp_path, "embed_tokens", "head")


def test_a_head_that_was_replaced_and_has_an_adapter(tmp_path: Path) -> None:
    adapted(tmp_path, "llama", r=4, target_modules=["q_proj", "lm_head"])
    head = torch.randn(80, 64)
    change(tmp_path, lambda t: {**t, "base_model.model.lm_head.base_layer.weight": head})
    base = open_checkpoint(tmp_path / "base")
    adapter = read_adapter(tmp_path / "adapter", base)
    update = adapter.updates["lm_head.weight"]
    wanted = head + update.scale * update.b @ update.a
    torch.testing.assert_close(adapter.merged("lm_head.weight", base.read("lm_head.weight")), wanted)


def test_an_adapter_for_another_model(tmp_path: Path) -> None:
    adapted(tmp_path, "llama", r=4, target_modules=["q_proj"])
    save_tiny(tmp_path / "base", "gpt2")
    refused(tmp_path, "q_proj", "another model")
    refused_folder = tmp_path / "none"
    refused_folder.mkdir()
    with pytest.raises(UserError, match="adapter_config"):
        read_adapter(refused_folder, open_checkpoint(tmp_path / "base"))
