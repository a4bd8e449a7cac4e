"""The tokenizer of a model's folder: tokenizer.json, and what the files beside it say of special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearpeak.models.json_file import read_bytes, read_json
from nearpeak.models.special_tokens import SpecialTokens, check_ids, looks_special
from nearpeak.models.tokenizer_bytes import byte_level, lost_bytes, spelling_of
from nearpeak.models.tokenizer_json import (
    TokenizerJson,
    begin_of,
    read_tokenizer_json,
    renamed,
)
from nearpeak.models.tokenizer_parts import TokenizerParts, guarded
from nearpeak.records.errors import UserError

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OTHERS = {
    "tokenizer.model": "SentencePiece's", "tekken.json": "Mistral's", "vocab.json": "GPT-2's older",
    "vocab.txt": "BERT's older", "spiece.model": "SentencePiece's", "qwen.tiktoken": "tiktoken's",
}  # fmt: skip
MAX_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class _Files:
    """What stands beside tokenizer.json; an empty object where a file is missing."""

    folder: Path
    tokenizer: dict[str, object]
    special: dict[str, object]
    generation: dict[str, object]
    config: dict[str, object]

    def named(self) -> dict[str, tuple[str, str]]:
        """bos_token and the like → its text, and where that stands. tokenizer_config.json rules."""
        found = {}
        for file, values in (("tokenizer_config.json", self.tokenizer), ("special_tokens_map.json", self.special)):
            for key, value in values.items():
                text = value.get("content") if isinstance(value, Mapping) else value
                if (key in NAMED or key.endswith("_token")) and isinstance(text, str) and text and key not in found:
                    found[key] = text, f"{self.folder / file}: {key}"
                elif key in NAMED and text is not None and not isinstance(text, str):
                    raise UserError(f"{self.folder / file}: {key} is {str(value)[:60]}; a text is expected.")
        return found

    def ids(self, key: str) -> list[tuple[int, str]]:
        """bos_token_id or eos_token_id in generation_config.json and config.json, with where each stands."""
        found = []
        sources = [("generation_config.json", self.generation), ("config.json", self.config)]
        if isinstance(inner := self.config.get("text_config"), dict):
            sources.append(("config.json: text_config", inner))
        for file, values in sources:
            value = values.get(key)
            for item in value if isinstance(value, list) else [] if value is None else [value]:
                where = f"{self.folder / file}: {key}"
                if isinstance(item, bool) or not isinstance(item, int):
                    raise UserError(f"{where} is {str(item)[:60]}; a whole number or a list of them is expected.")
                found.append((item, where))
        return found


def read_folder_tokenizer(folder: Path) -> TokenizerParts:
    """Raises UserError: no tokenizer.json; a kind that is not supported; anything in the files that does not add up."""
    where = folder / "tokenizer.json"
    if not where.is_file():
        raise _missing(folder)
    files = _Files(folder, *(_beside(folder, name) for name in (
        "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")))  # fmt: skip
    read = read_tokenizer_json(where)
    spelling = spelling_of(read.content.get("decoder"), str(where))
    named = files.named()
    _add_missing(read, files)
    special_texts = _special_texts(read, files, named)
    special = SpecialTokens(special_texts)
    content = renamed(read, special)
    encoder = _build(content, str(where))
    special_ids = frozenset(read.ids[text] for text in special_texts)
    _check(read, special, encoder)
    texts = {token: text for text, token in read.ids.items()}
    whole = frozenset(entry.token for entry in read.added)
    notes = _ordinary_ends(read, special_ids, files)
    bos = _one(read, named, "bos_token", files)
    begin = _begin(read, files, bos, notes)
    template, template_where = _template(folder, files.tokenizer)
    return TokenizerParts(
        where=str(where),
        encoder=encoder,
        special=special,
        special_ids=special_ids,
        texts=texts,
        whole=whole,
        spelling=spelling,
        bos=bos,
        begin=begin,
        ends=_ends(read, files, named),
        lost=lost_bytes(read.ids)
        if spelling is byte_level and not read.content["model"].get("unk_token")
        else frozenset(),
        chat_template=template,
        template_where=template_where,
        variables={key: text for key, (text, _) in named.items()},
        notes=tuple(notes),
    )


def _missing(folder: Path) -> UserError:
    other = next((name for name in OTHERS if (folder / name).is_file()), None)
    if other is None:
        return UserError(f"{folder} has no tokenizer.json. Fetch it too.")
    return UserError(
        f"{folder} has no tokenizer.json, only {other} ({OTHERS[other]} format), which nearpeak does not read. Make "
        "one, where transformers and sentencepiece are: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
    )


def _beside(folder: Path, name: str) -> dict[str, object]:
    return read_json(folder / name) if (folder / name).exists() else {}


def _add_missing(read: TokenizerJson, files: _Files) -> None:
    """Tokens that tokenizer_config.json alone knows, as transformers adds them."""
    table = files.tokenizer.get("added_tokens_decoder")
    if not isinstance(table, dict):
        return
    where = f"{files.folder / 'tokenizer_config.json'}: added_tokens_decoder"
    for key, value in table.items():
        if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not key.isdecimal():
            raise UserError(f"{where}: entry {key[:40]!r} is none of a token. Fetch the file again.")
        text = value["content"]
        if text in read.ids:
            if read.ids[text] != int(key[:12]):
                raise UserError(
                    f"{where} gives {text[:60]!r} the id {key[:12]}, tokenizer.json {read.ids[text]}. Fetch both again."
                )
            if value.get("special") is True:
                read.make_special(text)
        else:
            read.add(text, int(key[:12]), value, where)


def _special_texts(read: TokenizerJson, files: _Files, named: Mapping[str, tuple[str, str]]) -> set[str]:
    """What the files call special, and what looks so. An ordinary token that a file names, "!" for padding or id 2 for
    the end, stays ordinary: texts have it."""
    found = {entry.text for entry in read.added if entry.special or looks_special(entry.text)}
    more = [text for text, _ in named.values()]
    for values in (files.tokenizer, files.special):
        extra = values.get("additional_special_tokens")
        for value in extra if isinstance(extra, list) else ():
            text = value.get("content") if isinstance(value, Mapping) else value
            more += [text] if isinstance(text, str) else []
    by_id = {token: text for text, token in read.ids.items()}
    more += [by_id[token] for token, _ in files.ids("eos_token_id") if token in by_id]
    added = {entry.text for entry in read.added}
    return found | {text for text in more if text in added or (text in read.ids and looks_special(text))}


def _ordinary_ends(read: TokenizerJson, special: frozenset[int], files: _Files) -> list[str]:
    by_id = {token: text for text, token in read.ids.items()}
    return [
        f"{where} is {token}, the ordinary token {by_id[token][:40]!r}: answers end wherever it comes."
        for token, where in files.ids("eos_token_id")
        if token in by_id and token not in special
    ]


def _build(content: dict[str, object], where: str) -> Any:
    from tokenizers import Tokenizer

    text = guarded(where, lambda: json.dumps(content, ensure_ascii=False).encode("utf-8"))
    return guarded(where, lambda: Tokenizer.from_buffer(text))


def _check(read: TokenizerJson, special: SpecialTokens, encoder: Any) -> None:
    """The library numbers added tokens itself: as the file says?"""
    for entry in read.added:
        name = special.names.get(entry.text, entry.text)
        given = encoder.token_to_id(name)
        if given != entry.token:
            raise UserError(
                f"{read.where}: added_tokens gives {entry.text[:60]!r} the id {entry.token}, its place in the "
                f"vocabulary {given}. Fetch the file again."
            )


def _one(read: TokenizerJson, named: Mapping[str, tuple[str, str]], key: str, files: _Files) -> int | None:
    """The token that the files name, by text where one stands there."""
    if key in named:
        text, where = named[key]
        if text not in read.ids:
            raise UserError(f"{where} is {text[:60]!r}, which tokenizer.json does not have. Fetch both again.")
        return read.ids[text]
    vocab = max(read.ids.values()) + 1
    for token, where in files.ids(f"{key}_id"):
        check_ids([token], max(vocab, _rows(files)), where)
        if token < vocab and not files.tokenizer:
            return token
    return None


def _rows(files: _Files) -> int:
    """Rows of the model's embedding, which may be padded beyond the tokenizer's vocabulary."""
    inner = files.config.get("text_config")
    sizes = [values.get("vocab_size") for values in (files.config, inner if isinstance(inner, dict) else {})]
    return max((size for size in sizes if isinstance(size, int) and not isinstance(size, bool)), default=0)


def _ends(read: TokenizerJson, files: _Files, named: Mapping[str, tuple[str, str]]) -> frozenset[int]:
    """Union of all sources: a config.json that names <|end_of_text|> beside a generation_config.json with <|eot_id|> is
    usual."""
    rows = max(max(read.ids.values()) + 1, _rows(files))
    found = set()
    for token, where in files.ids("eos_token_id"):
        check_ids([token], rows, where)
        found.add(token)
    by_text = _one(read, named, "eos_token", files) if "eos_token" in named else None
    return frozenset(found if by_text is None else found | {by_text})


def _begin(read: TokenizerJson, files: _Files, bos: int | None, notes: list[str]) -> tuple[int, ...]:
    """What the post-processor puts in front, unless add_bos_token says otherwise of BOS."""
    begin = begin_of(read)
    wanted = files.tokenizer.get("add_bos_token")
    if isinstance(wanted, bool) and bos is not None and wanted != (bos in begin):
        does = "does" if bos in begin else "does not"
        notes.append(
            f"tokenizer_config.json says add_bos_token is {str(wanted).lower()}, tokenizer.json {does} add one: the "
            "former counts."
        )
        begin = (bos, *begin) if wanted else tuple(token for token in begin if token != bos)
    return begin


def _template(folder: Path, config: Mapping[str, object]) -> tuple[str | None, str]:
    """The default template and where it stands: chat_template.jinja, else the key of tokenizer_config.json, which may
    hold several by name ("default", "tool_use", "rag", …)."""
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return read_bytes(file, MAX_TEMPLATE).decode("utf-8"), str(file)
        except UnicodeDecodeError as error:
            raise UserError(f"{file} is no UTF-8 at byte {error.start}. Fetch it again.") from error
    where = f"{folder / 'tokenizer_config.json'}: chat_template"
    value = config.get("chat_template")
    if value is None:
        other = folder / "chat_template.json"
        if not other.exists():
            return None, ""
        where, value = f"{other}: chat_template", read_json(other).get("chat_template")
    if isinstance(value, str):
        return value, where
    return _default(value, where), where


def _default(value: object, where: str) -> str:
    entries: Iterable[object] = value.items() if isinstance(value, dict) else value if isinstance(value, list) else ()
    templates: dict[str, str] = {}
    for entry in entries:
        name, text = entry if isinstance(entry, tuple) else _named(entry)
        if not isinstance(name, str) or not isinstance(text, str):
            raise UserError(f"{where} holds {str(entry)[:60]}; a name and a template are expected. Fetch it again.")
        templates[name] = text
    if len(templates) == 1 or "default" in templates:
        return templates.get("default", next(iter(templates.values())))
    raise UserError(f"{where} holds no template named default, but {', '.join(templates)[:200] or 'none'}.")


def _named(entry: object) -> tuple[object, object]:
    return (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
