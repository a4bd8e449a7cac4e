"""A tokenizer.json, checked, and rewritten so that special tokens bear private names.

Format: https://github.com/huggingface/tokenizers; it is what Tokenizer.save writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearpeak.models.json_file import read_json
from nearpeak.models.special_tokens import SpecialTokens, check_ids
from nearpeak.models.tokenizer_parts import MAX_TOKENS
from nearpeak.records.errors import UserError

MAX_BYTES = 128 << 20  # the largest that we know of (262,144 tokens, Gemma 3) has 33 MB
MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")


@dataclass
class Added:
    """One entry of added_tokens. flags: lstrip, rstrip, single_word, normalized."""

    text: str
    token: int
    special: bool
    flags: dict[str, bool]


@dataclass
class TokenizerJson:
    """content: the file; ids: text → token, of the vocabulary and the added tokens."""

    where: str
    content: dict[str, Any]
    ids: dict[str, int]
    added: list[Added]

    def make_special(self, text: str) -> None:
        """Another file calls this token special."""
        for entry in self.added:
            if entry.text == text:
                entry.special = True

    def add(self, text: str, token: int, values: Mapping[str, object], where: str) -> None:
        """One more token. Raises UserError where its id is not the next one."""
        if token != max(self.ids.values(), default=-1) + 1 or not text:
            raise UserError(f"{where} has {text[:60]!r} with id {token}, which tokenizer.json lacks. Fetch both again.")
        self.ids[text] = token
        self.added.append(Added(text, token, values.get("special") is True, _flags(values, where)))


def read_tokenizer_json(path: Path) -> TokenizerJson:
    """Raises UserError, with the key, for what does not add up; and for dropout, which is for training only."""
    where = str(path)
    content: dict[str, Any] = read_json(path, MAX_BYTES)
    model = content.get("model")
    if not isinstance(model, dict):
        raise UserError(f"{where}: model is missing. Fetch the file again.")
    kind = model.get("type") or ("BPE" if "merges" in model else None)
    if kind not in MODELS:
        raise UserError(f"{where}: model.type is {str(kind)[:60]!r}; {', '.join(MODELS)} are supported.")
    if model.get("dropout"):
        raise UserError(
            f"{where}: model.dropout is {str(model['dropout'])[:40]}: tokens would be drawn. Set it to null."
        )
    ids = _vocabulary(model, where)
    added = _added(content.get("added_tokens"), where)
    for entry in added:
        if ids.setdefault(entry.text, entry.token) != entry.token:
            raise UserError(
                f"{where}: {entry.text[:60]!r} has the id {entry.token} among added_tokens, {ids[entry.text]} in the "
                "vocabulary. Fetch the file again."
            )
    if not ids:
        raise UserError(f"{where}: model.vocab is empty. Fetch the file again.")
    if len(set(ids.values())) != len(ids):
        texts: dict[int, str] = {}
        twice = next(text for text, token in ids.items() if texts.setdefault(token, text) != text)
        raise UserError(f"{where}: {twice[:60]!r} and another token have the id {ids[twice]}. Fetch the file again.")
    return TokenizerJson(where, content, ids, added)


def renamed(read: TokenizerJson, special: SpecialTokens) -> dict[str, object]:
    """The content for the encoder: special tokens under their private names, nothing that cuts or pads or adds."""
    names = special.names
    model = {**read.content["model"]}
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): token for text, token in vocab.items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if isinstance(model.get("merges"), list) and any(text in names for text in vocab):
        model["merges"] = [merge for merge in model["merges"] if not _makes_special(merge, names)]
    # private names are found before anything is normalised: no normaliser can keep a placed token from being one
    added = [
        {"id": e.token, "content": names.get(e.text, e.text), **e.flags, "special": False}
        | ({"normalized": False} if e.text in names else {})
        for e in sorted(read.added, key=lambda e: e.token)
    ]
    # a special token that only the vocabulary has: a template may still place it
    listed = {entry.text for entry in read.added}
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False}
    added += [{"id": read.ids[t], "content": names[t], **plain} for t in names if t not in listed]
    return {
        **read.content, "model": model, "added_tokens": added, "truncation": None, "padding": None,
        "post_processor": None,
    }  # fmt: skip


def begin_of(read: TokenizerJson) -> tuple[int, ...]:
    """The tokens that the post-processor puts in front of one text. Raises UserError for one that is damaged."""
    ids = tuple(_begin(read.content.get("post_processor"), f"{read.where}: post_processor"))
    check_ids(ids, max(read.ids.values()) + 1, f"{read.where}: a token of post_processor")
    return ids


def _begin(step: object, where: str, depth: int = 0) -> list[int]:
    if step is None:
        return []
    if not isinstance(step, Mapping) or depth > 8:
        raise UserError(f"{where} is {str(step)[:60]}. Fetch the file again.")
    kind = step.get("type")
    try:
        if kind == "Sequence":
            front: list[int] = []
            for part in step["processors"]:
                front = _begin(part, where, depth + 1) + front  # each wraps what the one before it made
            return front
        if kind in ("BertProcessing", "RobertaProcessing"):
            return [int(step["cls"][1])]
        if kind == "TemplateProcessing":
            return _template(step["single"], step["special_tokens"])
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UserError(
            f"{where}: {str(kind)[:60]} lacks or misses {str(error)[:80]}. Fetch the file again."
        ) from error
    if kind != "ByteLevel":
        raise UserError(f"{where}: type {str(kind)[:60]!r} is none that nearpeak knows.")
    return []


def _template(single: Iterable[Mapping[str, Any]], special: Mapping[str, Mapping[str, Any]]) -> list[int]:
    front: list[int] = []
    for part in single:
        if "Sequence" in part:
            break
        front += [int(token) for token in special[part["SpecialToken"]["id"]]["ids"]]
    return front


def _makes_special(merge: object, names: Mapping[str, str]) -> bool:
    parts = merge.split(" ", 1) if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        return False  # the library says what is wrong with it
    return parts[0] in names or parts[1] in names or parts[0] + parts[1] in names


def _vocabulary(model: dict[str, Any], where: str) -> dict[str, int]:
    vocab = model.get("vocab")
    if isinstance(vocab, list) and len(vocab) <= MAX_TOKENS:
        ids: dict[str, int] = {}
        for number, entry in enumerate(vocab):
            whole = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
            if not whole or isinstance(entry[1], bool) or not isinstance(entry[1], (int, float)):
                raise UserError(
                    f"{where}: model.vocab[{number}] is {str(entry)[:60]}; a text and a score are expected."
                )
            if ids.setdefault(entry[0], number) != number:
                raise UserError(f"{where}: model.vocab has {entry[0][:60]!r} twice. Fetch the file again.")
        return ids
    if not isinstance(vocab, dict) or len(vocab) > MAX_TOKENS:
        raise UserError(f"{where}: model.vocab is no table of up to {MAX_TOKENS:,} tokens. Fetch the file again.")
    check_ids(vocab.values(), MAX_TOKENS, f"{where}: an id in model.vocab")
    return dict(vocab)


def _added(entries: object, where: str) -> list[Added]:
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > MAX_TOKENS:
        raise UserError(f"{where}: added_tokens is no list. Fetch the file again.")
    found = []
    for number, entry in enumerate(entries):
        place = f"{where}: added_tokens[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not entry["content"]:
            raise UserError(f"{place} has no content. Fetch the file again.")
        check_ids([entry.get("id")], MAX_TOKENS, f"{place}.id")
        if not isinstance(entry.get("special", False), bool):
            raise UserError(f"{place}.special is no truth value. Fetch the file again.")
        found.append(Added(entry["content"], entry["id"], entry.get("special", False), _flags(entry, place)))
    if len({entry.text for entry in found}) != len(found):
        raise UserError(f"{where}: added_tokens has a token twice. Fetch the file again.")
    return found


def _flags(entry: Mapping[str, object], where: str) -> dict[str, bool]:
    flags = {}
    for key in ("lstrip", "rstrip", "single_word", "normalized"):
        value = entry.get(key, key == "normalized" and not entry.get("special", False))
        if not isinstance(value, bool):
            raise UserError(f"{where}: {key} is {str(value)[:40]}; a truth value is expected. Fetch the file again.")
        flags[key] = value
    return flags
