"""Counted FLOPs against torch's own counter, and attention's factors against masks counted one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nearpeak.limits.ops import model_flop, ops_of
from nearpeak.limits.pairs import pairs
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.workload import Training, Workload

transformers = pytest.importorskip("transformers")
SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 112}
TEXT = {**SMALL, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512}


def counted(run) -> float:
    """What torch counts; only the MATH backend's scores are seen by its counter."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return counter.get_total_flops()


def saved(config, tmp_path, build):
    torch.manual_seed(0)
    model = build(config)
    model.save_pretrained(tmp_path)
    return model, read_model(str(tmp_path))


def ours(spec, workload) -> float:
    return sum(op.count * sum(op.flop.values()) for op in ops_of(spec, workload))


DECODERS = {
    "llama, GQA": lambda: transformers.LlamaConfig(**TEXT),
    "llama, tied": lambda: transformers.LlamaConfig(**TEXT, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**TEXT, head_dim=24),
    "mistral": lambda: transformers.MistralConfig(**TEXT, sliding_window=None),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("backward", [False, True])
def test_decoders(name, backward, tmp_path):
    config = DECODERS[name]()
    model, spec = saved(config, tmp_path, transformers.AutoModelForCausalLM.from_config)
    batch, tokens = 2, 48
    ids = torch.randint(0, 320, (batch, tokens))

    def run():
        out = model(ids, use_cache=False).logits
        if backward:
            out.sum().backward()

    work = Workload("train", batch, tokens, compute="fp32", training=Training(recompute="none", master=False))
    each = {op.name: op.count * sum(op.flop.values()) for op in ops_of(spec, work)}
    found = sum(each.values())
    scores = each["attention scores"]
    found += scores * (tokens * tokens / pairs(tokens) - 1)  # the counter counts masked pairs as well
    if not backward:
        found /= 3  # forward, and twice as much backward
    assert counted(run) == pytest.approx(found, rel=0.01)


def test_bert(tmp_path):
    config = transformers.BertConfig(**SMALL, vocab_size=320, max_position_embeddings=64)
    model, spec = saved(config, tmp_path, transformers.BertModel)
    ids = torch.randint(0, 320, (2, 40))
    assert counted(lambda: model(ids)) == pytest.approx(ours(spec, Workload("encode", 2, 40, compute="fp32")), rel=0.01)


def test_vit(tmp_path):
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    model, spec = saved(config, tmp_path, transformers.ViTForImageClassification)
    found = ours(spec, Workload("encode", 2, 1, compute="fp32"))
    assert counted(lambda: model(torch.randn(2, 3, 32, 32))) == pytest.approx(found, rel=0.01)


def test_whisper(tmp_path):
    config = transformers.WhisperConfig(
        vocab_size=320, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=20,
        max_source_positions=60, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model, spec = saved(config, tmp_path, transformers.WhisperForConditionalGeneration)
    tokens = 20
    work = Workload("train", 1, tokens, compute="fp32", training=Training(recompute="none"))
    ops = ops_of(spec, work)
    found = sum(op.count * sum(op.flop.values()) for op in ops) / 3
    masked = 2 * 2.0 * 4 * 32 * (tokens * tokens - pairs(tokens))  # 2 layers, 4 heads of 16 + 16
    ids = torch.ones(1, tokens, dtype=torch.long)
    seen = counted(lambda: model(torch.randn(1, 20, 120), decoder_input_ids=ids, use_cache=False))
    assert seen == pytest.approx(found + masked, rel=0.01)


def test_the_plain_cnn():
    """Convolutions 1 → 20 and 20 → 50 of 5 × 5 on 28 × 28, then 800 → 500 → 10."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 20, 5), torch.nn.MaxPool2d(2), torch.nn.Conv2d(20, 50, 5), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(800, 500), torch.nn.Linear(500, 10),
    )  # fmt: skip
    found = ours(read_model("cnn-28x28"), Workload("encode", 64, 1, compute="fp32"))
    assert counted(lambda: layers(torch.randn(64, 1, 28, 28))) == pytest.approx(found, rel=0.01)


def test_mixture_reads_only_the_experts_that_are_hit():
    spec = read_model("mixtral-8x7b")
    [one] = [op for op in ops_of(spec, Workload("decode", 1, 1, 100)) if op.name == "experts"]
    [many] = [op for op in ops_of(spec, Workload("decode", 64, 1, 100)) if op.name == "experts"]
    # 2 of 8 experts of 3 · 4096 · 14336 parameters and the router, bf16
    assert one.flop["bf16"] == 2 * (2 * 3 * 4096 * 14336 + 4096 * 8)
    assert one.read == pytest.approx(2 * (2 * 3 * 4096 * 14336 + 4096 * 8), rel=1e-6)
    assert many.read == pytest.approx(2 * (8 * 3 * 4096 * 14336 + 4096 * 8), rel=1e-6)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.none() | st.integers(1, 60), st.booleans())
def test_pairs_against_a_mask(new, context, window, causal):
    query = torch.arange(context, context + new)[:, None]
    key = torch.arange(new + context)[None]
    mask = (key <= query) if causal else torch.ones(new, new + context, dtype=torch.bool)
    if window is not None:
        mask = mask & ((query - key).abs() < window)
    assert pairs(new, context, window, causal) == int(mask.sum())


def test_conventions_of_published_figures():
    """planning research, 2.3: pages' TFLOP/s from their tokens a second, each in its own convention."""
    llama = read_model("llama-3-8b")
    work = Workload("train", 1, 8192, training=Training())
    each = {name: model_flop(llama, work, name) / 8192 for name in ("full", "causal")}
    assert 13_812 * each["full"] == pytest.approx(800e12, rel=0.01)  # Megatron-LM's Llama example
    assert 14_451 * each["causal"] == pytest.approx(744e12, rel=0.01)  # Megatron-Bridge 25.11
    mpt = read_model("mpt-7b")
    work = Workload("train", 1, 2048, training=Training())
    assert 10_643 * model_flop(mpt, work, "all") / 2048 == pytest.approx(459e12, rel=0.01)  # llm-foundry


def test_an_encoder_does_not_decode():
    with pytest.raises(UserError, match="no decode"):
        ops_of(read_model("bert-base"), Workload("decode", 1, 1))
