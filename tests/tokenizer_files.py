"""Small tokenizers for the tests: trained in memory, saved as a folder and as the keys of a GGUF file. What llama.cpp's
converter writes is spelled out here once more, and not by the code that is tested."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what they've said: we'll see, I'm sure, don't you think?",
    "the end of the user's text, the assistant's answer and the system's message; the tool the model the token",
    "def f(x):\n    return x + 1\n\n\nfor i in range(10):\n\tprint(i, 2023, 12345)\n",
    "Größe, Äpfel und Übermut; à côté d'un café; señor, mañana; Ελλάδα, Россия и мир; 東京都 の 天気; 😀😀 🎉",
    "HelloWorld HTTPServer camelCase snake_case [INST] [/INST] <think> im_start im_end system user assistant",
]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def cuts(pre: str) -> Any:
    """The pre-tokenizer of a model family's own tokenizer.json."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    pattern = LLAMA3 if pre == "llama-bpe" else LLAMA3.replace("{1,3}", "")
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), letters])


@cache
def _trained(pre: str) -> str:
    """Byte-level BPE without any special tokens: 256 bytes and about 200 merges."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = cuts(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=460,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return str(tokenizer.to_str())


def byte_level(
    pre: str = "gpt-2", specials: Sequence[str | AddedToken] = (), others: Sequence[str] = (), bos: str | None = None
) -> Tokenizer:
    """specials, others: added tokens; bos: the post-processor puts it in front."""
    tokenizer = Tokenizer.from_str(_trained(pre))
    tokenizer.add_special_tokens(list(specials))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in others])
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def save(
    folder: Path,
    tokenizer: Tokenizer,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
) -> Path:
    """A folder as transformers reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **(config or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **(model or {})}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def write_keys(path: Path, values: Mapping[str, Any], architecture: str = "llama") -> Path:
    """A GGUF file without tensors. Keys without a dot stand below tokenizer.ggml."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def keys_of(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    """What the converter makes of a byte-level tokenizer: every token in order, its type, the merges."""
    content = json.loads(tokenizer.to_str())
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    types = [1] * len(tokens)
    for entry in content["added_tokens"]:
        types[entry["id"]] = 3 if entry["special"] else 4
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in content["model"]["merges"]]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}


# ---- SentencePiece ----


@cache
def pieces() -> tuple[tuple[str, float, int], ...]:
    """(piece, score, type) as a SentencePiece model with byte fallback has them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, limit_alphabet=90)
    tokenizer.train_from_iterator(CORPUS, trainer)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merged = [text for text, _ in vocab if len(text) > 1]
    letters = [text for text, _ in vocab if len(text) == 1]
    found: list[tuple[str, float, int]] = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    found += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    found += [(text, -float(rank), 1) for rank, text in enumerate([*merged, *letters])]
    return tuple(found)


def spm_keys(extra: Sequence[tuple[str, int]] = ()) -> dict[str, Any]:
    """extra: more tokens with their types, behind the others."""
    every = [*pieces(), *((text, -1000.0, its) for text, its in extra)]
    return {
        "model": "llama", "pre": "default", "tokens": [text for text, _, _ in every],
        "scores": [score for _, score, _ in every], "token_type": [its for _, _, its in every],
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip


def spm_encode(text: str, space: bool = True) -> list[int]:
    """SentencePiece's own way, slowly: join the neighbours whose joint piece scores highest, the leftmost of equals."""
    if not text:
        return []
    table = {piece: (score, number) for number, (piece, score, its) in enumerate(pieces()) if its == 1}
    parts = list(("▁" if space else "") + text.replace(" ", "▁"))
    while True:
        joint = [(table[a + b][0], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in table]
        if not joint:
            break
        at = -max(joint)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [table[part][1]] if part in table else [3 + byte for byte in part.encode()]
    return ids
