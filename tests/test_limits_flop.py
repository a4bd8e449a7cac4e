"""Counted FLOPs against torch's own counter, and published TFLOP/s in their three conventions.

The counter sees attention's scores under the MATH backend alone, and there it counts masked pairs too: where attention
is causal, its pairs are counted in full here before the two are compared.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nearpeak.limits.model_flop import model_flop
from nearpeak.limits.ops import ops_of
from nearpeak.limits.pairs import pairs
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.limit import Op
from nearpeak.records.model_spec import ModelSpec
from nearpeak.records.workload import Training, Workload

transformers = pytest.importorskip("transformers")
VOCAB, BATCH, TOKENS = 320, 2, 48
SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 112}
TEXT = {**SMALL, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 512}
MIXTURE = {"num_experts_per_tok": 3, "moe_intermediate_size": 48}
KEPT = Training(recompute="none")  # scores kept, as the MATH backend does: their backward pass is twice the forward


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors: several threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def counted(run: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return float(counter.get_total_flops())


def ours(spec: ModelSpec, work: Workload) -> float:
    """With the masked pairs of causal scores."""
    ops = ops_of(spec, work)
    masked = {"attention scores", "text attention scores"} if spec.task != "encode" else set()
    factor = work.tokens**2 / pairs(work.tokens)
    return sum(total(op) * (factor if op.name.removesuffix(" (first)") in masked else 1.0) for op in ops)


def total(op: Op) -> float:
    return op.count * sum(op.flop.values())


def saved(config, tmp_path, build):
    """A random model, and the spec read from its files."""
    torch.manual_seed(0)
    model = build(config)
    model.save_pretrained(tmp_path)
    return model.train(), read_model(str(tmp_path))


def forward(tokens: int = TOKENS, batch: int = BATCH) -> Workload:
    return Workload("prefill", batch, tokens, compute="fp32", weights="fp32", logits="all")


def train(training: Training = KEPT, tokens: int = TOKENS, batch: int = BATCH) -> Workload:
    return Workload("train", batch, tokens, compute="fp32", weights="fp32", training=training)


DECODERS = {
    "llama, grouped queries": lambda: transformers.LlamaConfig(**TEXT),
    "llama, tied head": lambda: transformers.LlamaConfig(**TEXT, tie_word_embeddings=True),
    "qwen3, explicit head_dim": lambda: transformers.Qwen3Config(**TEXT, head_dim=24),
    "mistral": lambda: transformers.MistralConfig(**TEXT, sliding_window=None),
    "gpt2": lambda: transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=VOCAB, n_positions=64),
    # the loop over experts sees each position with its three experts: exactly the expected FLOPs, whatever it picks
    "qwen3 mixture": lambda: transformers.Qwen3MoeConfig(
        **TEXT, **MIXTURE, num_experts=6, head_dim=16, experts_implementation="eager"
    ),
    "deepseek-v3: latent attention, mixture, shared expert": lambda: transformers.DeepseekV3Config(
        **{**TEXT, "num_key_value_heads": 4}, **MIXTURE, n_routed_experts=8, n_group=2, topk_group=1,
        n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=24, q_lora_rank=40, qk_rope_head_dim=8,
        qk_nope_head_dim=16, v_head_dim=20, experts_implementation="eager",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name, tmp_path):
    model, spec = saved(DECODERS[name](), tmp_path, transformers.AutoModelForCausalLM.from_config)
    ids = torch.randint(0, VOCAB, (BATCH, TOKENS))
    ahead = counted(lambda: model(ids, use_cache=False))
    both = counted(lambda: model(ids, use_cache=False).logits.sum().backward())
    assert ahead == pytest.approx(ours(spec, forward()), rel=0.01)
    assert both == pytest.approx(ours(spec, train()), rel=0.01)


@pytest.mark.parametrize(
    "targets",
    [("q", "v"), ("down",), ("q", "k", "v", "o", "gate", "up", "down")],
    ids=["q and v", "down: no gradient below the first one", "all"],
)
def test_lora(targets, tmp_path):
    """peft's adapters. Frozen maps need no gradient of their weights, and none below the first adapter at all."""
    peft = pytest.importorskip("peft")
    model, spec = saved(transformers.LlamaConfig(**TEXT), tmp_path, transformers.LlamaForCausalLM)
    names = [f"{t}_proj" for t in targets]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_dropout=0.0, target_modules=names))
    ids = torch.randint(0, VOCAB, (BATCH, TOKENS))
    seen = counted(lambda: adapted(input_ids=ids, use_cache=False).logits.sum().backward())
    found = ours(spec, train(Training("lora", rank=8, targets=targets, recompute="none")))
    assert seen == pytest.approx(found, rel=0.01)


def test_full_recomputation_is_one_more_forward_pass_of_the_blocks(tmp_path):
    """torch's reentrant kind runs whole blocks again, as HFU counts them; the other kind stops before the last map."""
    model, spec = saved(transformers.LlamaConfig(**TEXT), tmp_path, transformers.LlamaForCausalLM)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    ids = torch.randint(0, VOCAB, (BATCH, TOKENS))
    seen = counted(lambda: model(ids, use_cache=False).logits.sum().backward())
    found = ours(spec, train(Training(recompute="full")))
    scores = sum(op.count * sum(op.flop.values()) for op in ops_of(spec, train()) if op.name == "attention scores")
    # ours takes flash attention with it, whose backward pass computes the scores once more: 4.5 forward passes, MATH 4
    masked = scores / 3 * TOKENS**2 / pairs(TOKENS)
    assert seen == pytest.approx(found - 0.5 * masked, rel=0.01)


def test_bert(tmp_path):
    config = transformers.BertConfig(**SMALL, vocab_size=VOCAB, max_position_embeddings=64)
    model, spec = saved(config, tmp_path, transformers.BertModel)
    ids = torch.randint(0, VOCAB, (BATCH, 40))
    encode = Workload("encode", BATCH, 40, compute="fp32", weights="fp32")
    assert counted(lambda: model(ids)) == pytest.approx(ours(spec, encode), rel=0.01)
    both = counted(lambda: model(ids).pooler_output.sum().backward())
    assert both == pytest.approx(ours(spec, train(tokens=40)), rel=0.01)


def test_vit(tmp_path):
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    model, spec = saved(config, tmp_path, transformers.ViTForImageClassification)
    images = torch.randn(BATCH, 3, 32, 32)
    encode = Workload("encode", BATCH, 1, compute="fp32", weights="fp32")
    assert counted(lambda: model(images)) == pytest.approx(ours(spec, encode), rel=0.01)
    both = counted(lambda: model(images).logits.sum().backward())
    assert both == pytest.approx(ours(spec, train(tokens=1)), rel=0.01)


def test_whisper(tmp_path):
    """The first convolution's input is sound: no gradient of it is needed."""
    config = transformers.WhisperConfig(
        vocab_size=VOCAB, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=20,
        max_source_positions=60, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model, spec = saved(config, tmp_path, transformers.WhisperForConditionalGeneration)
    tokens = 20
    ids, sound = torch.ones(BATCH, tokens, dtype=torch.long), torch.randn(BATCH, 20, 120)
    ahead = counted(lambda: model(sound, decoder_input_ids=ids, use_cache=False))
    assert ahead == pytest.approx(ours(spec, forward(tokens)), rel=0.01)
    both = counted(lambda: model(sound, decoder_input_ids=ids, use_cache=False).logits.sum().backward())
    assert both == pytest.approx(ours(spec, train(tokens=tokens)), rel=0.01)


def test_the_plain_cnn():
    """Convolutions 1 → 20 and 20 → 50 of 5 × 5 on 28 × 28, then 800 → 500 → 10; none of them after an embedding, so
    that the first one's input needs no gradient."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 20, 5), torch.nn.MaxPool2d(2), torch.nn.Conv2d(20, 50, 5), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(800, 500), torch.nn.Linear(500, 10),
    )  # fmt: skip
    spec, images = read_model("cnn-28x28"), torch.randn(64, 1, 28, 28)
    encode = Workload("encode", 64, 1, compute="fp32", weights="fp32")
    assert counted(lambda: layers(images)) == pytest.approx(ours(spec, encode), rel=0.01)
    assert counted(lambda: layers(images).sum().backward()) == pytest.approx(ours(spec, train(batch=64)), rel=0.01)


def test_logits_of_a_prefill_are_the_last_positions(tmp_path):
    spec = read_model("llama-3.1-8b")
    [last] = [op for op in ops_of(spec, Workload("prefill", 3, 100)) if op.name == "head"]
    [every] = [op for op in ops_of(spec, Workload("prefill", 3, 100, logits="all")) if op.name == "head"]
    assert total(last) == 2 * 3 * 4096 * 128_256
    assert total(every) == 100 * total(last)


def test_latents_are_absorbed_where_that_is_less_work():
    """DeepSeek-V3, one sequence of 10,000 earlier positions. Absorbed, a pair takes 128 heads · (2 · 512 + 64)
    multiply-adds; expanded, 128 · (192 + 128), and every latent runs through kv_up again."""
    spec = read_model("deepseek-v3")
    named = {op.name: op for op in ops_of(spec, Workload("decode", 1, 1, 10_000))}
    assert sum(named["attention scores"].flop.values()) == 2 * 128 * 1088 * 10_001
    assert named["attention scores"].read == 10_000 * 576 * 2
    shapes = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert sum(named["attention maps"].flop.values()) == 2 * shapes
    named = {op.name: op for op in ops_of(spec, Workload("prefill", 1, 4000))}
    assert sum(named["attention scores"].flop.values()) == 2 * 128 * 320 * pairs(4000)
    # a later chunk of a prompt: 4,000 more positions, for which 4,000 earlier latents are expanded once more
    named = {op.name: op for op in ops_of(spec, Workload("prefill", 1, 4000, 4000))}
    assert sum(named["attention maps"].flop.values()) == 2 * 4000 * (shapes + 512 * 128 * 256)


def test_mixture_reads_only_the_experts_that_are_hit():
    """Mixtral: 2 of 8 experts of 3 · 4096 · 14336 parameters and the router, bf16."""
    spec = read_model("mixtral-8x7b")
    [one] = [op for op in ops_of(spec, Workload("decode", 1, 1, 100)) if op.name == "experts"]
    [four] = [op for op in ops_of(spec, Workload("decode", 4, 1, 100)) if op.name == "experts"]
    [many] = [op for op in ops_of(spec, Workload("decode", 64, 1, 100)) if op.name == "experts"]
    expert, router = 3 * 4096 * 14336, 4096 * 8
    assert sum(one.flop.values()) == 2 * (2 * expert + router)
    assert one.read == pytest.approx(2 * (2 * expert + router), rel=1e-9)
    assert four.read == pytest.approx(2 * (8 * (1 - 0.75**4) * expert + router), rel=1e-9)
    assert many.read == pytest.approx(2 * (8 * expert + router), rel=1e-6)


def test_narrow_products_leave_scores_router_and_head_wide():
    work = Workload("prefill", 1, 512, weights="fp8", compute="fp8")
    for op in ops_of(read_model("mixtral-8x7b"), work):
        if op.name in ("head", "attention scores"):
            assert set(op.flop) == {"bf16"}
        elif op.name == "experts":
            assert op.flop == {"fp8": 2.0 * 512 * 2 * 3 * 4096 * 14336, "bf16": 2.0 * 512 * 4096 * 8}
        elif op.name == "attention maps":
            assert set(op.flop) == {"fp8"}


def test_cross_attention_reads_its_keys_after_making_them_once():
    """Whisper tiny: 4 layers of 2 · 6 · 64 numbers for 1,500 frames."""
    spec = read_model("whisper-tiny")
    named = {op.name: op for op in ops_of(spec, Workload("prefill", 1, 4))}
    assert named["text cross_attention scores"].written == 1500 * 768 * 2
    assert named["text cross_attention scores"].read == 0
    named = {op.name: op for op in ops_of(spec, Workload("decode", 1, 1, 4))}
    assert named["text cross_attention scores"].read == 1500 * 768 * 2
    assert named["text cross_attention scores"].written == 0
    # the key and value maps are not touched again: queries and output alone
    assert sum(named["text cross_attention maps"].flop.values()) == 2 * 2 * 384 * 384
    assert not any(name.startswith("audio") for name in named)


def test_conventions_of_published_figures():
    """Each page's TFLOP/s from its own tokens a second a GPU, in its own convention."""
    work = Workload("train", 1, 8192, training=Training())
    flop = {
        (name, c): model_flop(read_model(name), work, c) / 8192
        for name in ("llama-3-8b", "llama-3-70b", "llama-3.1-405b")
        for c in ("full", "causal")
    }
    # Megatron-LM's Llama example: 6 · (parameters without the input embedding) + 12 · layers · width · length
    assert 13_812 * flop["llama-3-8b", "full"] == pytest.approx(800e12, rel=0.01)
    assert 1_621 * flop["llama-3-70b", "full"] == pytest.approx(780e12, rel=0.01)
    assert 315 * flop["llama-3.1-405b", "full"] == pytest.approx(834e12, rel=0.01)
    # torchtitan: 33-39 % of an H100's 989 TFLOP/s, dense bf16 (sparse is 1,979; TF32 dense 494.5, sparse 989)
    assert 5_762 * flop["llama-3-8b", "full"] / 989e12 == pytest.approx(0.337, rel=0.01)
    assert 6_667 * flop["llama-3-8b", "full"] / 989e12 == pytest.approx(0.390, rel=0.01)
    # Megatron-Bridge 25.11: attention counted half
    assert 14_451 * flop["llama-3-8b", "causal"] == pytest.approx(744e12, rel=0.01)
    assert 1_602 * flop["llama-3-70b", "causal"] == pytest.approx(719e12, rel=0.01)
    assert 292 * flop["llama-3.1-405b", "causal"] == pytest.approx(737e12, rel=0.01)
    mpt = Workload("train", 1, 2048, training=Training())  # llm-foundry: all parameters, the tied embedding among them
    assert 10_643 * model_flop(read_model("mpt-7b"), mpt, "all") / 2048 == pytest.approx(459e12, rel=0.01)


def test_causal_convention_is_what_a_step_computes_without_recomputation():
    """The op count has pairs exactly, (s + 1)/2 a position in place of s/2, and flash attention's extra half."""
    spec = read_model("llama-3-8b")
    work = Workload("train", 1, 8192, training=KEPT)
    assert sum(map(total, ops_of(spec, work))) == pytest.approx(model_flop(spec, work), rel=2e-4)


def test_mfu_of_lora_is_counted_as_it_runs():
    """A frozen map costs 4 FLOPs a parameter, not 6: NeMo's page prints 402 TFLOP/s at 12,473 tokens/s for LoRA of
    Llama-3-8B at 4,096: 32.2 GFLOP a token. Ours, attention counted half, is 33.3 and the adapters'."""
    spec = read_model("llama-3-8b")
    work = Workload("train", 1, 4096, training=Training("lora", rank=8, targets=("q", "v")))
    frozen = 4 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096)
    adapters = 6 * 32 * 8 * (8192 + 5120)
    assert model_flop(spec, work) / 4096 == pytest.approx(frozen + 6 * 32 * 4096 * 4096 + adapters, rel=1e-6)
    assert model_flop(spec, work) / 4096 == pytest.approx(32.2e9, rel=0.04)


def test_what_a_workload_or_model_does_not_have_is_refused():
    with pytest.raises(UserError, match="no decode"):
        ops_of(read_model("bert-base"), Workload("decode", 1, 1))
    with pytest.raises(UserError, match="method"):
        ops_of(read_model("llama-3.1-8b"), Workload("train", 1, 1))
    with pytest.raises(UserError, match="no optimizer 'lion'"):
        ops_of(read_model("llama-3.1-8b"), train(Training(optimizer="lion")))
    with pytest.raises(UserError, match="no adapter fits"):
        ops_of(read_model("llama-3.1-8b"), train(Training("lora", targets=("query",))))
    with pytest.raises(UserError, match="q9_z"):
        ops_of(read_model("llama-3.1-8b"), Workload("decode", 1, 1, weights="q9_z"))
    with pytest.raises(UserError, match="convention"):
        model_flop(read_model("llama-3.1-8b"), train(), "half")
