"""Memory by part against cases with a known answer; each number's derivation stands beside it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.limits.maps import trained_parameters
from nearpeak.limits.memory import PARTS, cache_bytes, memory_of
from nearpeak.limits.precision import bits, product_precision
from nearpeak.limits.weights import weight_bytes
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Convolution, FeedForward, Linear, ModelSpec, Stored, Table
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training, Workload

GIB, MIB = 2**30, 2**20
PLAIN = ("cnn-28x28", "resnet-50")  # no maps that LoRA is made for


def cache(name: str, tokens: int, batch: int = 1) -> float:
    return cache_bytes(read_model(name), Workload("decode", batch, 1, tokens - 1))


def total(parts: dict[str, int]) -> int:
    return sum(parts.values())


# --- KV cache and other state ---


@pytest.mark.parametrize(
    ("name", "tokens", "gib"),
    [
        ("llama-3.1-8b", 8_192, 1.000),  # grouped queries: 2 · 32 layers · 8 heads · 128 · 2 bytes a token
        ("deepseek-r1", 32_768, 2.145),  # 61 · (512 + 64) · 2 bytes: one latent, not keys and values of 128 heads
        ("deepseek-v3", 163_840, 10.72),  # the same
        ("gemma-3-27b", 131_072, 10.41),  # 10 layers whole, 52 of a window of 1,024; 2 · 16 · 128 · 2 bytes a layer
        # a mixture's cache follows from layers · heads · head_dim as any other's: 48 · 2 · 4 · 128 · 2, of 30B as of 8B
        ("qwen3-30b-a3b", 32_768, 3.0),
    ],
)
def test_cache(name, tokens, gib):
    assert cache(name, tokens) / GIB == pytest.approx(gib, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("llama-3.1-8b", 131_072),
        ("gpt-oss-120b", 73_728),  # 36 layers · 2 · 8 · 64 · 2
        # 50 window layers · 2 · 16 · 256 · 2 and 10 whole ones · 2 · 4 · 512 · 2. vLLM's log says 983,040: as if all 60
        # had the window's shape
        ("gemma-4-31b", 901_120),
        ("deepseek-v3", 70_272),
    ],
)
def test_bytes_a_token_as_engines_log_them(name, each):
    assert cache(name, 100) == 100 * each


def test_windows_are_kept_no_longer_than_they_see():
    """gpt-oss-20b, 32 sequences of 8,192: 24 layers · 2 · 8 · 64 · 2 bytes would be 12.0 GiB; 12 layers keep 128."""
    full, windowed = 12 * 2048 * 8192, 12 * 2048 * 128
    assert cache("gpt-oss-20b", 8192, 32) == 32 * (full + windowed)
    assert cache("gpt-oss-20b", 8192, 32) / GIB == pytest.approx(6.09, abs=0.01)


def test_hybrid_layers_keep_a_state_in_place_of_a_cache():
    """Qwen3.5-27B (the shape of 3.6), 262,144 positions: 16 of 64 layers · 4 · 256 · 2 · 2 bytes = 16,384 MiB. Each
    other layer keeps 48 · 128 · 128 + 3 · 10,240 numbers in fp32: 598.5 MiB for four sequences (llama.cpp's log)."""
    whole = cache("qwen3.5-27b", 262_144)
    states = cache("qwen3.5-27b", 1, 4) - 4 * 65_536
    assert states / MIB == pytest.approx(598.5, rel=1e-3)
    assert (whole - states / 4) / MIB == pytest.approx(16_384, rel=1e-6)


def test_cache_is_split_over_key_value_heads_only():
    spec, work = read_model("llama-3.1-8b"), Workload("decode", 1, 1, 8191)
    assert cache_bytes(spec, work, Layout(tensor=8)) == cache_bytes(spec, work) / 8
    assert cache_bytes(spec, work, Layout(tensor=16)) == cache_bytes(spec, work) / 8
    latent = read_model("deepseek-v3")
    assert cache_bytes(latent, work, Layout(tensor=8)) == cache_bytes(latent, work)
    assert cache_bytes(spec, work, Layout(pipeline=3)) == cache_bytes(spec, work) * 11 / 32  # the fullest stage


# --- weights ---


def test_tied_embeddings_are_counted_once():
    """Llama-3.2-1B: 1,235,814,400, not 128,256 · 2,048 more."""
    spec = read_model("llama-3.2-1b")
    assert spec.parameters == 1_235_814_400
    assert sum(weight_bytes(spec, "bf16").values()) == 2 * 1_235_814_400


def test_a_mixture_needs_room_for_all_of_its_experts():
    """Qwen3.5-122B-A10B in q4_k_m: 125.1e9 · 0.58 to 0.606 bytes, though 10B are active: no fit in 48 GB."""
    size = memory_of(read_model("qwen3.5-122b-a10b"), Workload("decode", 1, 1, 4096, weights="q4_k_m"))["weights"]
    assert 73e9 <= size <= 76.5e9


@pytest.mark.parametrize(
    ("name", "precision", "size"),
    [
        ("llama-3.1-70b", "q4_k_m", 42.52e9),  # the file: 4.82 bits a weight
        ("llama-3.1-8b", "q4_k_m", 4.58 * GIB),  # 4.90
    ],
)
def test_mixes_of_gguf_files(name, precision, size):
    assert sum(weight_bytes(read_model(name), precision).values()) == pytest.approx(size, rel=0.015)


def test_four_bits_leave_embeddings_head_and_norms_alone():
    """Llama-3.1-8B: 2 · 128256 · 4096 parameters and 65 norms of 4096 at 16 bits, the other matrices at 4 + 16/128."""
    spec = read_model("llama-3.1-8b")
    outer, vectors = 2 * 128_256 * 4096, 65 * 4096
    found = weight_bytes(spec, "int4")
    assert sum(found.values()) == (outer + vectors) * 2 + (spec.parameters - outer - vectors) * 4.125 / 8
    assert found["embedding"] == found["head"] == 128_256 * 4096 * 2


def test_stored_weights_are_the_files():
    for name in ("deepseek-v3", "gpt-oss-20b", "llama-3.1-8b", "whisper-tiny"):
        spec = read_model(name)
        assert sum(weight_bytes(spec, "stored").values()) == pytest.approx(spec.weight_bytes, abs=10)
    # gpt-oss: experts in MXFP4 (a few of the 16-bit numbers, their biases, beside them), all else in bf16
    found = weight_bytes(read_model("gpt-oss-20b"), "stored")
    assert found["head"] == 201_088 * 2880 * 2
    assert found["experts"] == pytest.approx(24 * 32 * 3 * 2880 * 2880 * 4.25 / 8, rel=3e-3)


def test_stored_needs_files():
    spec = dataclasses.replace(read_model("llama-3.1-8b"), stored={})
    with pytest.raises(UserError, match="no files"):
        weight_bytes(spec, "stored")


def test_bits_and_what_multiplies_them():
    assert bits("nf4") == pytest.approx(4 + 8 / 64 + 32 / (64 * 256), abs=1e-3)
    assert bits("q6_k") == 210 * 8 / 256  # 128 + 64 bytes of six bits, 16 scales, one 16-bit factor, for 256 weights
    assert [product_precision(p) for p in ("nf4", "q4_k_m", "fp8", "mxfp4", "int4")] == [
        "bf16", "bf16", "fp8", "fp4", "bf16",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"q9_z.*q4_k_m"):
        bits("q9_z")


# --- training ---


def test_states_of_a_full_fine_tune():
    """Llama-3.1-70B: 16 bytes a parameter in mixed precision (1,130 GB), 8 in pure bf16 (565 GB)."""
    spec = read_model("llama-3.1-70b")
    states = ("weights", "gradients", "optimizer")
    kept = Training(gradient="bf16")
    pure = Training(master=False, gradient="bf16", optimizer="adamw_bf16")
    mixed_parts = memory_of(spec, Workload("train", 1, 128, training=kept))
    pure_parts = memory_of(spec, Workload("train", 1, 128, training=pure))
    assert sum(mixed_parts[s] for s in states) == 70_553_706_496 * 16
    assert sum(pure_parts[s] for s in states) == 70_553_706_496 * 8
    assert total(pure_parts) > 70_553_706_496 * 8  # activations and logits come on top
    # autocast: fp32 weights, gradients and two numbers, and bf16 copies of what is multiplied
    cast = memory_of(spec, Workload("train", 1, 128, weights="fp32", training=Training()))
    assert sum(cast[s] for s in states) == 70_553_706_496 * 16
    assert cast["temporary"] == 2 * (70_553_706_496 - 128_256 * 8192 - 161 * 8192)


def test_logits_are_counted():
    """11,600 positions · 248,320: 10.7 GiB for one fp32 copy; at the peak of the plain loss 14 bytes each."""
    spec, work = read_model("qwen3.5-9b"), Workload("train", 1, 11_600, training=Training())
    logits = memory_of(spec, work)["logits"]
    assert logits == 14 * 11_600 * 248_320
    assert logits * 4 / 14 / GIB == pytest.approx(10.7, abs=0.05)
    chunked = memory_of(spec, dataclasses.replace(work, training=Training(loss="chunked")))
    assert chunked["logits"] == 14 * 1024 * 248_320


def test_an_estimate_of_states_alone_is_not_the_need():
    """Llama 7B, ZeRO-3 on four cards, 4 sequences of 2,048: each holds a quarter of the states, and beside them its own
    activations and logits (14 · 2,048 · 32,000 bytes), and gathered weights: embedding, head and one block in bf16."""
    spec = read_model("llama-7b")
    parts = memory_of(spec, Workload("train", 4, 2048, training=Training(gradient="bf16")), Layout(data=4, sharded=4))
    states = sum(parts[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(16 * spec.parameters / 4, abs=4)
    assert parts["logits"] == 14 * 2048 * 32_000
    assert parts["temporary"] == 2 * (2 * 32_000 * 4096 + 4 * 4096**2 + 3 * 4096 * 11_008)
    # a block: 24 · 4096 + 8 · 11008 bytes a position, keys and values whole in any case; the last norm 6 · 4096, the
    # softmax's sums 4 · 32, the head's input 2 · 4096
    assert parts["activations"] == 2048 * (32 * (24 * 4096 + 8 * 11_008 + 4 * 32) + 6 * 4096 + 2 * 4096)


def test_an_adapter_is_small_and_frozen_weights_have_no_states():
    """32 layers: q 8192, k and v 5120 each, o 8192, gate, up and down 18432 each, · rank 16."""
    spec, training = read_model("llama-3.1-8b"), Training("lora", rank=16)
    count = 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert trained_parameters(spec, training) == count
    found = memory_of(spec, Workload("train", 1, 2048, training=training))
    assert found["optimizer"] == count * 8  # peft's adapters are fp32: no copies of them
    assert found["weights"] == 2 * spec.parameters + 4 * count
    fused = memory_of(spec, Workload("train", 1, 2048, training=dataclasses.replace(training, fused=True)))
    assert fused["optimizer"] == count * 12
    packed = memory_of(spec, Workload("train", 1, 2048, training=Training("qlora", rank=16)))
    outer = 2 * 128_256 * 4096 + 65 * 4096
    assert packed["weights"] == pytest.approx(outer * 2 + (spec.parameters - outer) * 4.127 / 8 + 4 * count, abs=1)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"recompute": "full"}, {"recompute": "selective"}),
        ({"recompute": "selective"}, {"recompute": "attention"}),
        ({"recompute": "attention"}, {"recompute": "none"}),
        ({"loss": "chunked"}, {"loss": "upcast_in_chunks"}),
        ({"loss": "upcast_in_chunks"}, {"loss": "plain"}),
        ({"fused": True}, {}),
        ({"keep_gradients": "never"}, {"keep_gradients": "always"}),
        ({"optimizer": "adamw_8bit"}, {"optimizer": "adamw"}),
        ({"method": "lora"}, {}),
        ({"method": "qlora"}, {"method": "lora"}),
    ],
)
def test_what_saves_memory(less, more):
    spec = read_model("llama-3.2-3b")
    sizes = [total(memory_of(spec, Workload("train", 2, 4096, training=Training(**o)))) for o in (less, more)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("batch", [1, 256])
def test_an_image_models_positions_are_counted_once(batch):
    """ViT-B/16: 197 positions an image in its blocks, 196 patches of its one convolution. A block's widest: the
    feed-forward's input twice and 3,072 hidden units. The convolution by itself: its outputs twice. ResNet-50: the 64
    maps of 112 × 112 that its first convolution gives, twice."""
    vit, work = read_model("vit-base-16"), Workload("encode", batch, 1)
    assert memory_of(vit, work)["activations"] == batch * 197 * 2 * (2 * 768 + 2 * 3072)
    stem = dataclasses.replace(vit, parts=tuple(p for p in vit.parts if isinstance(p, Convolution)))
    assert memory_of(stem, work)["activations"] == batch * 196 * 2 * (2 * 768)
    assert memory_of(read_model("resnet-50"), work)["activations"] == batch * 2 * (2 * 64 * 112 * 112)


def test_scores_are_kept_without_flash_attention():
    """Llama-3.2-1B, 16 layers of 32 heads: a softmax in fp32 and its 16-bit copy, 6 bytes a pair."""
    spec = read_model("llama-3.2-1b")
    kept = memory_of(spec, Workload("train", 1, 2048, training=Training(recompute="none")))["activations"]
    flash = memory_of(spec, Workload("train", 1, 2048, training=Training()))["activations"]
    assert kept - flash == 6 * 16 * 32 * 2048**2


# --- layouts ---


def test_each_device_holds_its_own_activations():
    """Tensor parallelism of 4 splits heads and hidden units; norms, inputs of maps and the residual stream are on every
    device, unless sequence parallelism splits those too."""
    spec = read_model("llama-3.1-8b")
    work = Workload("train", 1, 4096, training=Training())
    one = memory_of(spec, work)["activations"]
    four = memory_of(spec, work, Layout(tensor=4))["activations"]
    split = dataclasses.replace(work, training=Training(sequence_parallel=True))
    all_split = memory_of(spec, split, Layout(tensor=4))["activations"]
    # replicated a position: two norms of 6 · 4096 and two inputs of 2 · 4096, the last norm and the head's input
    replicated = 4096 * (32 * 16 * 4096 + 6 * 4096 + 2 * 4096)
    assert four == pytest.approx((one - replicated) / 4 + replicated, abs=2)
    head = 4096 * 2 * 4096
    assert all_split == pytest.approx((one - head) / 4 + head, abs=2)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["llama-3.1-8b", "llama-3.2-1b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b"]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from(["bf16", "fp8", "nf4", "stored"]),
)
def test_tensor_parts_together_cover_all_weights(name, tensor, precision):
    spec = read_model(name)
    whole = sum(weight_bytes(spec, precision).values())
    each = memory_of(spec, Workload("decode", 1, 1, 10, weights=precision), Layout(tensor=tensor))["weights"]
    assert whole <= each * tensor * (1 + 1e-9)
    assert each <= whole + 1
    if tensor <= 2 and name.startswith("llama"):
        assert each * tensor < whole * 1.001  # norms alone are on both


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["llama-3.1-8b", "llama-3.2-1b", "deepseek-v3"]), st.sampled_from([2, 3, 4, 8]))
def test_the_fullest_stage_has_no_less_than_its_share(name, pipeline):
    spec = read_model(name)
    whole = sum(weight_bytes(spec, "bf16").values())
    each = memory_of(spec, Workload("decode", 1, 1, 10), Layout(pipeline=pipeline))["weights"]
    assert whole / pipeline <= each < whole


def test_experts_are_spread():
    """Mixtral over 8 devices of which each keeps its own attention: 1 of 8 experts each."""
    spec = read_model("mixtral-8x7b")
    each = memory_of(spec, Workload("decode", 8, 1, 10), Layout(data=8, expert=8))["weights"]
    experts = 32 * 8 * 3 * 4096 * 14336
    assert each == 2 * (spec.parameters - experts + experts / 8)


def test_shards_divide_states_and_gather_what_they_use():
    """Llama-3.1-8B in mixed precision over 8: an eighth of 16 bytes a parameter; as the loss's backward pass begins,
    embedding and head and one block are whole in bf16."""
    spec = read_model("llama-3.1-8b")
    work = Workload("train", 8, 512, training=Training(gradient="bf16"))
    parts = memory_of(spec, work, Layout(data=8, sharded=8))
    assert sum(parts[s] for s in ("weights", "gradients", "optimizer")) == pytest.approx(2 * spec.parameters, abs=4)
    block = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert parts["temporary"] == 2 * (2 * 128_256 * 4096 + block)


def test_a_pipelines_first_stage_has_many_micro_batches_in_flight():
    """1F1B: as many as there are stages; the last stage has one, and the logits."""
    spec = read_model("llama-3.1-8b")
    training = Training(recompute="full", fused=True, loss="chunked")
    work = Workload("train", 64, 8192, training=training)
    parts = memory_of(spec, work, Layout(pipeline=4, micro_batch=4, micro_batches=16))
    assert parts["logits"] == 0  # the first stage is the fuller
    # in flight · sequences at once · blocks · positions · bytes of a block's input
    assert parts["activations"] == 4 * 4 * 8 * 8192 * 2 * 4096
    few = memory_of(spec, dataclasses.replace(work, batch=4), Layout(pipeline=4, micro_batches=1))
    assert few["logits"] == 14 * 1024 * 128_256  # with one micro-batch the last stage is


def test_sequences_at_once_are_the_micro_batch():
    """Of 8 sequences: all at once where a layout says nothing, else as many as its micro-batch."""
    spec, work = read_model("llama-3.2-1b"), Workload("train", 8, 512, training=Training())
    found = {
        layout: memory_of(spec, work, layout)["logits"]
        for layout in (Layout(), Layout(data=4), Layout(micro_batch=2, micro_batches=4), Layout(micro_batches=8))
    }
    assert [size // (14 * 512 * 128_256) for size in found.values()] == [8, 2, 2, 1]


def test_context_parallelism_divides_positions():
    spec, work = read_model("llama-3.1-8b"), Workload("train", 1, 8192, training=Training())
    one, two = memory_of(spec, work), memory_of(spec, work, Layout(context=2))
    assert two["logits"] * 2 == one["logits"]
    assert two["activations"] * 2 == pytest.approx(one["activations"], abs=2)
    assert two["weights"] == one["weights"]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["llama-3.2-1b", "gemma-3-27b", "deepseek-v3", "bert-base", "whisper-tiny", *PLAIN]),
    st.integers(1, 8),
    st.integers(1, 300),
    st.sampled_from(["inference", "full", "lora"]),
)  # fmt: skip
def test_more_sequences_or_positions_never_take_less(name, batch, tokens, what):
    spec = read_model(name)
    if what == "inference":
        phase = "encode" if spec.task == "encode" else "prefill"
        works = [Workload(phase, b, t) for b, t in ((batch, tokens), (batch + 1, tokens), (batch, tokens + 1))]
    else:
        if what == "lora" and name in PLAIN:
            return
        training = Training("full" if what == "full" else "lora", recompute="full")
        works = [
            Workload("train", b, t, training=training)
            for b, t in ((batch, tokens), (batch + 1, tokens), (batch, tokens + 1))
        ]
    sizes = [memory_of(spec, work) for work in works]
    assert all(set(s) == set(PARTS) and min(s.values()) >= 0 for s in sizes)
    assert total(sizes[0]) <= total(sizes[1])
    assert total(sizes[0]) <= total(sizes[2])


def test_a_model_by_hand():
    """Embedding 10 · 4, one feed-forward 4 → 8 → 4, tied head; 3 positions, fp32, SGD: all by counting."""
    parts = (
        Table("embedding", 1, "text", 10, 4),
        FeedForward("feed_forward", 1, "text", 4, 8, gated=False),
        Linear("head", 1, "text", 4, 10, tied=True),
    )
    spec = ModelSpec(
        schema="nearpeak.model-spec/1", name="hand", family="hand", task="generate", parts=parts,
        streams={"text": None}, context=None, stored={"fp32": Stored(104, 416)}, source="by hand",
    )  # fmt: skip
    training = Training(optimizer="sgd", master=False)
    found = memory_of(spec, Workload("train", 1, 3, weights="fp32", compute="fp32", training=training))
    assert found["weights"] == found["gradients"] == 104 * 4
    assert found["optimizer"] == found["kv"] == found["temporary"] == 0
    # inputs of up 4, before and after the activation function 8 + 8, the head's input 4
    assert found["activations"] == 3 * 4 * (4 + 8 + 8 + 4)
    assert found["logits"] == 3 * 10 * 16  # logits, log-softmax, its gradient before and after


def test_unknown_optimizers_are_refused():
    with pytest.raises(UserError, match="adamw_8bit"):
        memory_of(read_model("llama-3.2-1b"), Workload("train", 1, 8, training=Training(optimizer="adam")))
    with pytest.raises(UserError, match="method"):
        memory_of(read_model("llama-3.2-1b"), Workload("train", 1, 8))
