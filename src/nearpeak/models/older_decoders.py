"""Decoders from before Llama: GPT-2 and GPT-3, GPT-J, MPT, the first Qwen."""

from __future__ import annotations

from nearpeak.models import pieces as build
from nearpeak.models.architecture import Architecture, Piece
from nearpeak.models.config import Config
from nearpeak.models.decoder import heads

ROOTS = ("transformer.", "")
MASKS = (r"(.*\.)?attn\.(bias|masked_bias)", r"(.*\.)?rotary_emb\.inv_freq", r"rope_freqs\.weight")


def gpt2(config: Config) -> Architecture:
    """Learned positions, biases everywhere, head tied; maps are stored (inputs, outputs)."""
    config.must_be("add_cross_attention", False, "GPT-2 with cross-attention is not read")
    width, layers, heads = config.size("n_embd"), config.layers("n_layer"), config.size("n_head")
    config.divides("n_head", heads, "n_embd", width)
    hidden = config.size("n_inner", 4 * width)
    positions, every = config.size("n_positions"), build.every(layers)
    layer = "transformer.h.{i}"
    names = build.AttentionNames(f"{layer}.attn", fused="c_attn", o="c_proj", transposed=True)
    pieces = [
        build.table("embedding", "transformer.wte.weight", config.size("vocab_size"), width),
        build.table("positions", "transformer.wpe.weight", positions, width, "position_embd.weight"),
        build.norm("norm", f"{layer}.ln_1", width, "blk.{i}.attn_norm", every, bias=True),
        build.attention(names, every, width, heads, heads, width // heads, bias="qkvo"),
        build.norm("norm", f"{layer}.ln_2", width, "blk.{i}.ffn_norm", every, bias=True),
        build.plain(f"{layer}.mlp.c_fc", f"{layer}.mlp.c_proj", every, width, hidden, transposed=True),
        build.norm("final_norm", "transformer.ln_f", width, "output_norm", bias=True),
    ]
    return _decoder("gpt2", config, pieces, width, positions, tied=True)


def gptj(config: Config) -> Architecture:
    """Attention and feed-forward side by side behind one norm; a head with a bias."""
    width, layers, heads = config.size("n_embd"), config.layers("n_layer"), config.size("n_head")
    config.divides("n_head", heads, "n_embd", width)
    config.find("rotary_dim")
    hidden, every = config.size("n_inner", 4 * width), build.every(layers)
    layer = "transformer.h.{i}"
    pieces = [
        build.table("embedding", "transformer.wte.weight", config.size("vocab_size"), width),
        build.norm("norm", f"{layer}.ln_1", width, "blk.{i}.attn_norm", every, bias=True),
        build.attention(
            build.AttentionNames(f"{layer}.attn", o="out_proj"), every, width, heads, heads, width // heads
        ),
        build.plain(f"{layer}.mlp.fc_in", f"{layer}.mlp.fc_out", every, width, hidden),
        build.norm("final_norm", "transformer.ln_f", width, "output_norm", bias=True),
    ]
    return _decoder("gptj", config, pieces, width, config.size("n_positions"), tied=False, head_bias=True)


def mpt(config: Config) -> Architecture:
    """llm-foundry's: learned positions or ALiBi, biases unless no_bias."""
    width, layers, heads = config.size("d_model"), config.layers("n_layers"), config.size("n_heads")
    config.divides("n_heads", heads, "d_model", width)
    hidden = int(config.number("expansion_ratio", 4) * width)
    if hidden < 1:
        raise config.error("expansion_ratio", f"leaves no width of {width:,}")
    vocab, positions, bias = config.size("vocab_size"), config.size("max_seq_len"), not config.flag("no_bias", True)
    inner = config.part("attn_config") if config.has("attn_config") else Config({}, config.where)
    for key, value in (("attn_type", "multihead_attention"), ("qk_ln", False), ("clip_qkv", None)):
        if value is not None:
            inner.must_be(key, value, f"only {value} is read")
    alibi = inner.flag("alibi", False)
    every, layer = build.every(layers), "transformer.blocks.{i}"
    names = build.AttentionNames(f"{layer}.attn", fused="Wqkv", o="out_proj")
    pieces = [build.table("embedding", "transformer.wte.weight", vocab, width)]
    if config.flag("learned_pos_emb", True) and not alibi:
        pieces.append(build.table("positions", "transformer.wpe.weight", positions, width, "position_embd.weight"))
    pieces += [
        build.norm("norm", f"{layer}.norm_1", width, "blk.{i}.attn_norm", every, bias=bias),
        build.attention(names, every, width, heads, heads, width // heads, bias="qkvo" if bias else ""),
        build.norm("norm", f"{layer}.norm_2", width, "blk.{i}.ffn_norm", every, bias=bias),
        build.plain(f"{layer}.ffn.up_proj", f"{layer}.ffn.down_proj", every, width, hidden, bias=bias),
        build.norm("final_norm", "transformer.norm_f", width, "output_norm", bias=bias),
    ]
    return _decoder("mpt", config, pieces, width, positions, tied=True)


def qwen(config: Config) -> Architecture:
    """The first Qwen; its intermediate_size is that of gate and up together."""
    width, layers = config.size("hidden_size"), config.layers("num_hidden_layers")
    heads = config.size("num_attention_heads")
    config.divides("num_attention_heads", heads, "hidden_size", width)
    head_dim = config.size("kv_channels", width // heads)
    config.must_be("no_bias", True, "biases beside that of q, k and v are not read")
    both = config.size("intermediate_size")
    config.divides("2 (gate and up)", 2, "intermediate_size", both)
    every, layer = build.every(layers), "transformer.h.{i}"
    names = build.AttentionNames(f"{layer}.attn", fused="c_attn", o="c_proj")
    pieces = [
        build.table("embedding", "transformer.wte.weight", config.size("vocab_size"), width),
        build.norm("norm", f"{layer}.ln_1", width, "blk.{i}.attn_norm", every),
        build.attention(names, every, width, heads, heads, head_dim, bias="qkv"),
        build.norm("norm", f"{layer}.ln_2", width, "blk.{i}.ffn_norm", every),
        build.gated(f"{layer}.mlp", every, width, both // 2, names=("w2", "w1", "c_proj")),
        build.norm("final_norm", "transformer.ln_f", width, "output_norm"),
    ]
    context = config.size("seq_length", config.size("max_position_embeddings", 8192))
    return _decoder("qwen", config, pieces, width, context, tied=False)


def _decoder(
    family: str,
    config: Config,
    pieces: list[Piece],
    width: int,
    context: int,
    tied: bool,
    head_bias: bool = False,
) -> Architecture:
    tied = config.flag("tie_word_embeddings", tied)
    pieces += heads(config, width, config.size("vocab_size"), tied, bias=head_bias)
    return Architecture(
        family, "generate", tuple(pieces), {"text": None}, context, roots=ROOTS,
        duplicates={"lm_head.weight": "transformer.wte.weight"} if tied else {}, ignored=MASKS,
    )  # fmt: skip
