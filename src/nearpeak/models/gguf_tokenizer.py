"""The tokenizer in a GGUF file's header. Its keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer;
what they leave open (which defaults, which names end an answer) is as llama.cpp does it, src/llama-vocab.cpp, 2026."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearpeak.models.gguf_header import read_gguf_header
from nearpeak.models.gguf_model import all_parts
from nearpeak.models.pre_tokenizers import build, pre_tokenizer_of
from nearpeak.models.special_tokens import SpecialTokens, check_ids, looks_special
from nearpeak.models.tokenizer_arrays import read_tokenizer_keys
from nearpeak.models.tokenizer_bytes import byte_level, lost_bytes, sentence_piece
from nearpeak.models.tokenizer_parts import TokenizerParts, guarded
from nearpeak.records.errors import UserError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTES = 1, 2, 3, 4, 5, 6
GGML = "tokenizer.ggml."
ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<｜end▁of▁sentence｜>",
})  # fmt: skip
"""Tokens that end an answer whatever the keys say: many files name one of several only."""
SPLITS = 50_000_000  # characters looked at to find the merges of a SentencePiece vocabulary; Gemma's take 30 million
OTHER_MODELS = {
    "t5": "T5's unigrams", "bert": "BERT's word pieces", "rwkv": "RWKV's trie", "none": "no tokenizer",
    "no_vocab": "no tokenizer", "plamo2": "PLaMo 2's", "gemma4": "Gemma 4's",
}  # fmt: skip


class Keys:
    """The keys below tokenizer.ggml, with type checks."""

    def __init__(self, path: Path, values: Mapping[str, object]) -> None:
        self.path, self.values = path, values

    def find(self, key: str) -> object:
        """What stands there; None where nothing does."""
        return self.values.get(GGML + key)

    def where(self, key: str) -> str:
        """File and key, for errors."""
        return f"{self.path}: key {GGML}{key}"

    def texts(self, key: str) -> list[str]:
        """A list of texts. Raises UserError where there is none."""
        value = self.find(key)
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            raise UserError(
                f"{self.where(key)} is {'missing' if value is None else 'no list of texts'}. Fetch it again."
            )
        return value

    def numbers(self, key: str, count: int, kinds: type | tuple[type, ...]) -> list[Any] | None:
        """One number a token; None where there is no such key."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < count or not all(isinstance(item, kinds) for item in value[:1]):
            size = f"{len(value):,} entries" if isinstance(value, list) else "no list"
            raise UserError(f"{self.where(key)} has {size} for {count:,} tokens. Fetch the file again.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self.find(key)
        if value is not None and not isinstance(value, bool):
            raise UserError(f"{self.where(key)} is {str(value)[:40]}; a truth value is expected. Fetch the file again.")
        return default if value is None else value

    def token(self, key: str, vocab: int, default: int | None = None) -> int | None:
        """A token, in the vocabulary."""
        value = self.find(key)
        if value is None:
            return default if default is not None and default < vocab else None
        check_ids([value], vocab, self.where(key))
        return value  # type: ignore[return-value]


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Raises UserError naming file and key: a kind that is not supported, or what does not add up."""
    header = all_parts(read_gguf_header(path))
    keys = Keys(header.path, read_tokenizer_keys(header.path))
    kind = keys.find("model")
    if kind not in ("gpt2", "llama"):
        what = OTHER_MODELS.get(str(kind))
        said = "is missing" if kind is None else f"is {str(kind)[:60]!r}" + (f" ({what})" if what else "")
        raise UserError(f"{keys.where('model')} {said}; gpt2 (byte-level BPE) and llama (SentencePiece) are supported.")
    texts = _texts(keys)
    types = _types(keys, texts)
    sentence = kind == "llama"
    ids = {name: keys.token(f"{name}_token_id", len(texts), default if sentence else None) for name, default in (
        ("bos", 1), ("eos", 2), ("unknown", 0), ("padding", None), ("eot", None), ("eom", None))}  # fmt: skip
    ends = _ends(texts, ids)
    control = {token for token, its in enumerate(types) if its == CONTROL or (its == UNKNOWN and not sentence)}
    control |= {token for token, its in enumerate(types) if its == USER_DEFINED and looks_special(texts[token])}
    named = ends | {token for token in (ids["bos"], ids["padding"]) if token is not None}
    control |= {token for token in named if types[token] != NORMAL or looks_special(texts[token])}
    special = SpecialTokens(texts[token] for token in control)
    # Phi-3's turn marks swallow the white space behind them, which no key says
    swallow = control - {t for t in control if texts[t] in ("<unk>", "<s>", "<|endoftext|>")}
    swallow = swallow if sentence and header.metadata.get("general.architecture") == "phi3" else set()
    user = [token for token, its in enumerate(types) if its == USER_DEFINED and token not in control]
    build_encoder = _sentence_piece if sentence else _byte_level
    encoder, begins, lost = build_encoder(keys, texts, types, special, ids["unknown"])
    _add(encoder, [(special.names[texts[token]], token in swallow) for token in sorted(control)], str(header.path))
    _add(encoder, [(texts[token], False) for token in user], str(header.path))
    begins = keys.flag("add_bos_token", begins)
    if begins and ids["bos"] is None:
        raise UserError(
            f"{keys.where('bos_token_id')} is missing, and add_bos_token asks for it. Fetch the file again."
        )
    template = keys.values.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise UserError(f"{header.path}: key tokenizer.chat_template is no text. Fetch the file again.")
    variables = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return TokenizerParts(
        where=str(header.path),
        encoder=encoder,
        special=special,
        special_ids=frozenset(control),
        texts={token: text if keys.texts("tokens")[token] else "" for token, text in enumerate(texts)},
        whole=frozenset(user if not sentence else ()),
        spelling=sentence_piece if sentence else byte_level,
        bos=ids["bos"],
        begin=(ids["bos"],) if begins and ids["bos"] is not None else (),
        ends=ends,
        chat_template=template,
        template_where=f"{header.path}: key tokenizer.chat_template",
        variables={key: texts[token] for key, name in variables.items() if (token := ids[name]) is not None},
        lost=lost,
    )


def _texts(keys: Keys) -> list[str]:
    """The vocabulary. Raises UserError for a text that two tokens have. An empty one gets a name of its own."""
    texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(keys.texts("tokens"))]
    if len(set(texts)) != len(texts):
        first: dict[str, int] = {}
        number = next(number for number, text in enumerate(texts) if first.setdefault(text, number) != number)
        text = texts[number]
        raise UserError(f"{keys.where('tokens')}: {text[:60]!r} is token {first[text]} and {number}. Fetch it again.")
    return texts


def _types(keys: Keys, texts: list[str]) -> list[int]:
    types = keys.numbers("token_type", len(texts), int) or [NORMAL] * len(texts)
    wrong = next((number for number, its in enumerate(types) if not 0 <= its <= BYTES), None)
    if wrong is not None:
        raise UserError(f"{keys.where('token_type')}[{wrong}] is {types[wrong]}; 0 to {BYTES} are known.")
    return types[: len(texts)]


def _ends(texts: list[str], ids: Mapping[str, int | None]) -> frozenset[int]:
    """What the keys name, and what bears a name that always ends an answer; but in gpt-oss's vocabulary <|end|> ends
    one of several parts of an answer."""
    found = {token for name in ("eos", "eot", "eom") if (token := ids[name]) is not None}
    named = {texts[token]: token for token in range(len(texts)) if texts[token] in ENDS}
    if {"<|return|>", "<|call|>"} <= named.keys():
        named.pop("<|end|>", None)
    return frozenset(found | set(named.values()))


def _byte_level(
    keys: Keys, texts: list[str], types: list[int], special: SpecialTokens, unknown: int | None
) -> tuple[Any, bool, frozenset[int]]:
    """Encoder; whether BOS goes in front where no key says so; bytes that no token has."""
    from tokenizers import Tokenizer, models

    where = keys.where("merges")
    vocab = {special.names.get(text, text): token for token, text in enumerate(texts)}
    merges = []
    for number, merge in enumerate(keys.texts("merges")):
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at < 0 or left not in vocab or right not in vocab or left + right not in vocab:
            if at >= 0 and {left, right, left + right} & special.names.keys():
                continue
            raise UserError(f"{where}[{number}] is {merge[:60]!r}, no two tokens that make a third. Fetch it again.")
        merges.append((left, right))
    kind = pre_tokenizer_of(keys.find("pre"), keys.where("pre"))
    model = guarded(where, lambda: models.BPE(vocab=vocab, merges=merges, ignore_merges=kind.whole_words))
    encoder = Tokenizer(model)
    normalizer, encoder.pre_tokenizer = build(kind, keys.flag("add_space_prefix", False))
    if normalizer is not None:
        encoder.normalizer = normalizer
    return encoder, kind.begins, lost_bytes(vocab)


def _sentence_piece(
    keys: Keys, texts: list[str], types: list[int], special: SpecialTokens, unknown: int | None
) -> tuple[Any, bool, frozenset[int]]:
    from tokenizers import Tokenizer, models, normalizers

    scores = keys.numbers("scores", len(texts), (int, float))
    if scores is None:
        raise UserError(f"{keys.where('scores')} is missing. Fetch the file again.")
    if any(score != score for score in scores):
        raise UserError(f"{keys.where('scores')} holds NaN. Fetch the file again.")
    vocab = {special.names.get(text, text): token for token, text in enumerate(texts)}
    merges = _merges(keys, texts, types, scores, special)
    unknown_text = None if unknown is None else special.names.get(texts[unknown], texts[unknown])
    encoder = guarded(keys.where("tokens"), lambda: Tokenizer(models.BPE(
        vocab=vocab, merges=merges, unk_token=unknown_text, fuse_unk=True, byte_fallback=True)))  # fmt: skip
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    if keys.flag("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
    encoder.normalizer = normalizers.Sequence(spaces)
    return encoder, True, frozenset()  # a character without tokens becomes <unk>, which the model has seen


def _merges(
    keys: Keys, texts: list[str], types: list[int], scores: list[float], special: SpecialTokens
) -> list[tuple[str, str]]:
    """The pairs that SentencePiece would join, the highest score of what they make first.

    Only ordinary tokens are made. Of several pairs that make one token the one whose first part is longest comes first,
    as in transformers' conversion.
    """
    some = [token for token, its in enumerate(types) if its in (0, NORMAL) and texts[token] not in special.names]
    if sum(len(texts[token]) ** 2 for token in some) > SPLITS:
        raise UserError(f"{keys.where('tokens')} holds texts of thousands of characters. Fetch the file again.")
    some.sort(key=lambda token: -scores[token])
    there = {texts[token] for token in some}
    pairs = []
    for token in some:
        text = texts[token]
        for cut in range(len(text) - 1, 0, -1):
            if (right := text[cut:]) in there and (left := text[:cut]) in there:
                pairs.append((left, right))
    return pairs


def _add(encoder: Any, tokens: list[tuple[str, bool]], where: str) -> None:
    from tokenizers import AddedToken

    some = [AddedToken(text, normalized=False, special=False, rstrip=strip) for text, strip in tokens]
    guarded(where, lambda: encoder.add_tokens(some))
