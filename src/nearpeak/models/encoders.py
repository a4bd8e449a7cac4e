"""BERT and its like, T5, Whisper."""

from __future__ import annotations

from nearpeak.models import pieces as build
from nearpeak.models.architecture import Architecture, Piece, Tensor
from nearpeak.models.config import Config
from nearpeak.records.model_spec import Linear

BERT_HEADS = {
    "BertForPreTraining": ("pooler", "mlm", "nsp"),
    "BertForMaskedLM": ("mlm",),
    "BertForSequenceClassification": ("pooler", "classifier"),
    "BertForTokenClassification": ("classifier",),
    "BertForQuestionAnswering": ("qa",),
}


def bert(config: Config) -> Architecture:
    """Encoder with learned positions; which heads there are, the file says, or `architectures` where there is none."""
    width, layers = config.size("hidden_size"), config.layers("num_hidden_layers")
    heads, hidden = config.size("num_attention_heads"), config.size("intermediate_size")
    vocab, positions = config.size("vocab_size"), config.size("max_position_embeddings", 512)
    config.divides("num_attention_heads", heads, "hidden_size", width)
    config.must_be("is_decoder", False, "BERT as a decoder is not read")
    config.must_be("position_embedding_type", "absolute", "only absolute positions are read")
    every, layer, start = build.every(layers), "bert.encoder.layer.{i}", "bert.embeddings"
    names = build.AttentionNames(f"{layer}.attention", q="self.query", k="self.key", v="self.value", o="output.dense")
    attention = build.attention(names, every, width, heads, heads, width // heads, bias="qkvo", causal=False)
    pieces = [
        build.table("embedding", f"{start}.word_embeddings.weight", vocab, width),
        build.table("positions", f"{start}.position_embeddings.weight", positions, width, "position_embd.weight"),
        build.table("segments", f"{start}.token_type_embeddings.weight", config.size("type_vocab_size", 2), width,
                    "token_types.weight"),
        build.norm("norm", f"{start}.LayerNorm", width, "token_embd_norm", bias=True),
        attention,
        build.norm("norm", f"{layer}.attention.output.LayerNorm", width, "blk.{i}.attn_output_norm", every, True),
        build.plain(f"{layer}.intermediate.dense", f"{layer}.output.dense", every, width, hidden),
        build.norm("norm", f"{layer}.output.LayerNorm", width, "blk.{i}.layer_output_norm", every, True),
        *_bert_heads(config, width, vocab),
    ]  # fmt: skip
    return Architecture(
        "bert", "encode", tuple(pieces), {"text": None}, positions, roots=("bert.", ""),
        duplicates={
            "cls.predictions.decoder.weight": f"{start}.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(r"(.*\.)?embeddings\.position_ids",),
    )  # fmt: skip


def _bert_heads(config: Config, width: int, vocab: int) -> list[Piece]:
    first, count = config.architecture() or "", config.labels()
    expected = BERT_HEADS.get(first, ("pooler",))
    transform = "cls.predictions.transform"
    pieces = [
        build.linear("pooler", "bert.pooler.dense", width, width, bias=True, once=True),
        build.linear("mlm_transform", f"{transform}.dense", width, width, bias=True),
        build.norm("mlm_norm", f"{transform}.LayerNorm", width, bias=True),
        Piece(
            Linear("head", 1, "text", inputs=width, outputs=vocab, bias=True, tied=True),
            (Tensor("cls.predictions.bias", (vocab,)),),
        ),
        build.linear("nsp", "cls.seq_relationship", width, 2, bias=True, once=True),
        build.linear(
            "classifier", "classifier", width, count, bias=True, once=first.endswith("SequenceClassification")
        ),
        build.linear("qa", "qa_outputs", width, 2, bias=True),
    ]
    kinds = ("pooler", "mlm", "mlm", "mlm", "nsp", "classifier", "qa")
    return [
        Piece(piece.part, piece.tensors, optional=True, expected=kind in expected)
        for piece, kind in zip(pieces, kinds, strict=True)
    ]


def t5(config: Config) -> Architecture:
    """Encoder and decoder with relative positions; norms before each block, no biases."""
    width, heads, head_dim = config.size("d_model"), config.size("num_heads"), config.size("d_kv")
    hidden, vocab = config.size("d_ff"), config.size("vocab_size")
    layers = config.layers("num_layers")
    decoder_layers = config.layers("num_decoder_layers", layers)
    buckets = config.size("relative_attention_num_buckets", 32)
    config.find("relative_attention_max_distance")
    gated = config.text("feed_forward_proj", "relu").startswith("gated-")
    config.must_be("is_decoder", False, "T5 without its encoder is not read")
    tied = config.flag("tie_word_embeddings", True)
    pieces = [build.table("embedding", "shared.weight", vocab, width)]
    for side, count, stream in (("encoder", layers, "source"), ("decoder", decoder_layers, "text")):
        every, block, gguf = build.every(count), f"{side}.block.{{i}}.layer", f"{side[:3]}.blk.{{i}}"
        own = build.AttentionNames(f"{block}.0.SelfAttention", q="q", k="k", v="v", o="o")
        pieces += [
            build.norm("norm", f"{block}.0.layer_norm", width, f"{gguf}.attn_norm", every, stream=stream),
            build.attention(own, every, width, heads, heads, head_dim, causal=side == "decoder", stream=stream,
                            gguf=f"{gguf}.attn"),
            build.vector("relative_positions", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                         (buckets, heads), f"{side[:3]}.blk.0.attn_rel_b.weight", stream=stream),
        ]  # fmt: skip
        feed_forward = 1
        if side == "decoder":
            feed_forward = 2
            cross = build.AttentionNames(f"{block}.1.EncDecAttention", q="q", k="k", v="v", o="o")
            pieces += [
                build.norm("norm", f"{block}.1.layer_norm", width, f"{gguf}.cross_attn_norm", every),
                build.attention(cross, every, width, heads, heads, head_dim, causal=False, reads="source",
                                name="cross_attention", gguf=f"{gguf}.cross_attn"),
            ]  # fmt: skip
        stem = f"{block}.{feed_forward}"
        pieces.append(build.norm("norm", f"{stem}.layer_norm", width, f"{gguf}.ffn_norm", every, stream=stream))
        dense = f"{stem}.DenseReluDense"
        if gated:
            pieces.append(
                build.gated(
                    dense, every, width, hidden, names=("wi_0", "wi_1", "wo"), stream=stream, gguf=f"{gguf}.ffn"
                )
            )
        else:
            pieces.append(build.plain(f"{dense}.wi", f"{dense}.wo", every, width, hidden, bias=False, stream=stream,
                                      gguf=f"{gguf}.ffn"))  # fmt: skip
        final = f"{side}.final_layer_norm"
        pieces.append(build.norm("final_norm", final, width, f"{side[:3]}.output_norm", stream=stream))
    pieces.append(build.head(width, vocab, tied))
    again = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] + (["lm_head.weight"] if tied else [])
    unused = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    return Architecture(
        "t5", "generate", tuple(pieces), {"source": None, "text": None}, config.optional_size("n_positions"),
        duplicates=dict.fromkeys(again, "shared.weight"), ignored=(unused,),
    )  # fmt: skip


def whisper(config: Config) -> Architecture:
    """Two convolutions and an encoder over frames of sound, a decoder that reads it."""
    width, vocab = config.size("d_model"), config.size("vocab_size")
    frames, positions = config.size("max_source_positions", 1500), config.size("max_target_positions", 448)
    pieces = [
        build.convolution("conv1", "model.encoder.conv1", config.size("num_mel_bins", 80), width, (3,), 2 * frames,
                          "audio"),
        build.convolution("conv2", "model.encoder.conv2", width, width, (3,), frames, "audio"),
        build.vector("positions", "model.encoder.embed_positions.weight", (frames, width), stream="audio"),
        *_whisper_side(config, "encoder", width, "audio"),
        build.table("embedding", "model.decoder.embed_tokens.weight", vocab, width),
        build.table("positions", "model.decoder.embed_positions.weight", positions, width),
        *_whisper_side(config, "decoder", width, "text"),
        build.head(width, vocab, True, "proj_out.weight"),
    ]  # fmt: skip
    again = {"proj_out.weight": "model.decoder.embed_tokens.weight"}
    return Architecture(
        "whisper", "transcribe", tuple(pieces), {"audio": frames, "text": None}, positions, roots=("model.", ""),
        duplicates=again,
    )  # fmt: skip


def _whisper_side(config: Config, side: str, width: int, stream: str) -> list[Piece]:
    layers, heads = config.layers(f"{side}_layers"), config.size(f"{side}_attention_heads")
    config.divides(f"{side}_attention_heads", heads, "d_model", width)
    hidden, every, layer = config.size(f"{side}_ffn_dim"), build.every(layers), f"model.{side}.layers.{{i}}"
    head_dim = width // heads
    own = build.AttentionNames(f"{layer}.self_attn", o="out_proj")
    pieces = [
        build.norm("norm", f"{layer}.self_attn_layer_norm", width, layers=every, bias=True, stream=stream),
        build.attention(own, every, width, heads, heads, head_dim, bias="qvo", causal=side == "decoder", stream=stream),
    ]
    if side == "decoder":
        cross = build.AttentionNames(f"{layer}.encoder_attn", o="out_proj")
        pieces += [
            build.norm("norm", f"{layer}.encoder_attn_layer_norm", width, layers=every, bias=True),
            build.attention(cross, every, width, heads, heads, head_dim, bias="qvo", causal=False, reads="audio",
                            name="cross_attention"),
        ]  # fmt: skip
    pieces += [
        build.norm("norm", f"{layer}.final_layer_norm", width, layers=every, bias=True, stream=stream),
        build.plain(f"{layer}.fc1", f"{layer}.fc2", every, width, hidden, stream=stream),
        build.norm("final_norm", f"model.{side}.layer_norm", width, bias=True, stream=stream),
    ]
    return pieces
