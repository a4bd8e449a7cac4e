"""Activations kept for the backward pass, against every tensor that autograd keeps in real models.

torch hands each saved tensor to a hook; their storages, without parameters, are what a forward pass leaves behind.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from nearpeak.limits.memory import memory_of
from nearpeak.models.read import read_model
from nearpeak.records.workload import Training, Workload

transformers = pytest.importorskip("transformers")
BATCH, TOKENS = 2, 128
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 512}
# keys and values for every head: whether a kernel wants grouped ones repeated is its own affair (ours: yes)
TEXT = {**SMALL, "num_key_value_heads": 8, "vocab_size": 320, "max_position_embeddings": 512}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MIXTURE = {"num_experts_per_tok": 3, "moe_intermediate_size": 128, "experts_implementation": "eager"}
ALL = ("q", "k", "v", "o", "gate", "up", "down")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors: several threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kept(model, run) -> int:
    """Bytes of the storages that autograd saves while `run` is called, each once."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    sizes, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(sizes.values())


def built(config, tmp_path, build):
    torch.manual_seed(0)
    model = build(config)
    model.save_pretrained(tmp_path)
    return model.train(), read_model(str(tmp_path))


def step(training: Training, weights: str = "bf16", compute: str = "bf16", tokens: int = TOKENS) -> Workload:
    return Workload("train", BATCH, tokens, weights=weights, compute=compute, training=training)


def text(model) -> torch.Tensor:
    ids = torch.randint(0, 320, (BATCH, TOKENS))
    return model(input_ids=ids, use_cache=False).logits


DECODERS = {
    "llama": (lambda: transformers.LlamaConfig(**TEXT), "attention", 0.01),
    "llama, scores kept": (lambda: transformers.LlamaConfig(**TEXT, attn_implementation="eager"), "none", 0.01),
    "qwen3, norms of queries and keys": (lambda: transformers.Qwen3Config(**TEXT, head_dim=32), "attention", 0.02),
    "qwen3 mixture": (
        lambda: transformers.Qwen3MoeConfig(**TEXT, **MIXTURE, num_experts=6, head_dim=32), "attention", 0.03,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_in_bf16(name, tmp_path):
    config, recompute, within = DECODERS[name]
    model, spec = built(config(), tmp_path, transformers.AutoModelForCausalLM.from_config)
    model.to(torch.bfloat16)
    found = memory_of(spec, step(Training(recompute=recompute)))["activations"]
    assert kept(model, lambda: text(model)) == pytest.approx(found, rel=within)


def test_fp32(tmp_path):
    model, spec = built(transformers.LlamaConfig(**TEXT), tmp_path, transformers.LlamaForCausalLM)
    found = memory_of(spec, step(Training(), "fp32", "fp32"))["activations"]
    assert kept(model, lambda: text(model)) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize("targets", [("q", "k", "v", "o"), ALL], ids=["attention", "all"])
def test_lora(targets, autocast, tmp_path):
    """peft's adapters: fp32, each with a copy of its input."""
    peft = pytest.importorskip("peft")
    model, spec = built(transformers.LlamaConfig(**TEXT), tmp_path, transformers.LlamaForCausalLM)
    if not autocast:
        model.to(torch.bfloat16)
    names = [f"{t}_proj" for t in targets]
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_dropout=0.0, target_modules=names))
    training = Training("lora", rank=2, targets=targets)
    parts = memory_of(spec, step(training, "fp32" if autocast else "bf16"))
    with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        seen = kept(model, lambda: text(model))
    # autocast's copies of weights are saved as well: ours are `temporary`
    assert seen == pytest.approx(parts["activations"] + parts["temporary"], rel=0.05)


def test_autocast(tmp_path):
    model, spec = built(transformers.LlamaConfig(**TEXT), tmp_path, transformers.LlamaForCausalLM)
    parts = memory_of(spec, step(Training(), "fp32"))
    with torch.autocast("cpu", torch.bfloat16):
        seen = kept(model, lambda: text(model))
    assert seen == pytest.approx(parts["activations"] + parts["temporary"], rel=0.02)


def test_bert(tmp_path):
    config = transformers.BertConfig(**SMALL, **NO_DROPOUT, vocab_size=320)
    model, spec = built(config, tmp_path, transformers.BertModel)
    model.to(torch.bfloat16)
    ids = torch.randint(0, 320, (BATCH, TOKENS))
    found = memory_of(spec, step(Training()))["activations"]
    assert kept(model, lambda: model(ids).pooler_output) == pytest.approx(found, rel=0.03)


def test_vit(tmp_path):
    config = transformers.ViTConfig(**SMALL, **NO_DROPOUT, image_size=64, patch_size=8)
    model, spec = built(config, tmp_path, transformers.ViTForImageClassification)
    model.to(torch.bfloat16)
    images = torch.randn(BATCH, 3, 64, 64, dtype=torch.bfloat16)
    found = memory_of(spec, step(Training(), tokens=1))["activations"]
    assert kept(model, lambda: model(images).logits) == pytest.approx(found, rel=0.03)


def test_a_convolution_keeps_what_goes_in_and_out_of_its_norm():
    """Each convolution as ResNets have it: its output, kept by the norm, and the activation function's output."""
    spec = read_model("resnet-50")
    # 22.2 million outputs of convolutions a 224 · 224 image (a tenth of that are the four shortcuts'), 2 · 4 bytes each
    outputs = sum(p.count * p.outputs * p.positions for p in spec.parts if hasattr(p, "positions"))
    work = Workload("train", 1, 1, weights="fp32", compute="fp32", training=Training())
    assert memory_of(spec, work)["activations"] == pytest.approx(2 * 4 * outputs, rel=1e-3)
