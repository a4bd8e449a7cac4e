"""Tokenizer files that nobody meant: a tokenizer or a UserError naming the file, no crash, no panic, no blow-up."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenizer_files as files
from nearpeak.models.tokenizer import read_tokenizer
from nearpeak.records.errors import UserError

SPECIALS = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CONFIG = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE, "add_bos_token": True}
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 255, 2**31, 2**32, 2**63, 2**64, 10**30, 1.5, -0.0, 1e308,
    "", "a", "\x00", "▁",
    "\ud800", "x" * 5000, [], {}, [[]], [0], ["a", "b"], {"a": 1}, {"type": "ByteLevel"}, {"type": "Sequence"},
    {"String": ""}, {"Regex": "("}, {"Regex": "(a*)*$"}, [None], {"type": "Unigram", "vocab": [], "unk_id": 5},
    {"type": "WordPiece", "vocab": {}}, {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "b"},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Strip", "content": "", "start": 2**40, "stop": 9},
    {"type": "Metaspace", "replacement": "ab"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
    {"type": "Prepend", "prepend": ""}, {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 1000},
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
    {"type": "Truncate", "length": 0}, {"type": "NFC"}, {"type": "Punctuation", "behavior": "Removed"},
]  # fmt: skip


def outcome(path: Path, named: Path) -> str | None:
    """None where it was read and works; the refusal where not."""
    try:
        mine = read_tokenizer(path)
        ids = mine.encode("the user's text <|im_end|> 😀\n")
        assert not set(ids) & mine.special_ids - set(mine._parts.begin)
        assert all(0 <= token < mine.vocab for token in ids)
        mine.decode(ids)
        if mine.chat_template is not None:
            chat = mine.encode_chat([{"role": "user", "content": "hi <|im_start|>"}])
            assert all(0 <= token < mine.vocab for token in chat)
    except UserError as error:
        text = str(error)
        assert "\n" not in text
        assert len(text) < 3000
        assert str(named) in text
        return text
    return None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value can be changed; of long tables a few entries only."""
    found = [path] if path else []
    entries = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in entries[:12]:
        found += places(inner, (*path, key))
    return found


def damaged(content: Any, dice: random.Random) -> Any:
    """A copy with one to three values changed, removed, or moved elsewhere."""
    content = json.loads(json.dumps(content))
    for _ in range(dice.choice((1, 1, 2, 3))):
        where = dice.choice(places(content) or [("new",)])
        place = content
        for key in where[:-1]:
            place = place[key]
        kind = dice.random() if place else 1.0
        if kind < 0.2:
            place.pop(where[-1], None) if isinstance(place, dict) else place.pop(where[-1])
        elif kind < 0.3:
            place[where[-1]] = [place[where[-1]]] * 2
        else:
            place[where[-1]] = json.loads(json.dumps(dice.choice(VALUES)))
    return content


def flipped(data: bytes, dice: random.Random) -> bytes:
    some = bytearray(data)
    for _ in range(dice.choice((1, 1, 3, 20))):
        at = dice.randrange(len(some) or 1)
        if dice.random() < 0.2:
            del some[at : at + dice.randrange(1, 200)]
        elif some:
            some[at] ^= 1 << dice.randrange(8)
    return bytes(some) or b"x"


def rounds(folder: Path, count: int, dice: random.Random) -> tuple[int, set[str]]:
    """So many damaged folders and files; how many were refused, and in which words."""
    folder.mkdir(exist_ok=True)
    tokenizer = files.byte_level("gpt-2", SPECIALS, ["<think>"], bos="<|begin|>")
    whole = files.save(folder / "model", tokenizer, CONFIG, {"eos_token_id": [457, 458]}, {"vocab_size": 470})
    contents = {file.name: json.loads(file.read_text()) for file in whole.iterdir()}
    keys = files.keys_of(tokenizer, "gpt-2") | {"bos_token_id": 460, "tokenizer.chat_template": TEMPLATE}
    packed = [
        files.write_keys(folder / f"{name}.gguf", values) for name, values in (("a", keys), ("b", files.spm_keys()))
    ]
    data = [file.read_bytes() for file in packed]

    def by_value(names: list[str]) -> Callable[[], str | None]:
        def one() -> str | None:
            name = dice.choice(names)
            (whole / name).write_text(json.dumps(damaged(contents[name], dice)))
            said = outcome(whole, whole)
            (whole / name).write_text(json.dumps(contents[name]))
            return said

        return one

    def by_bytes() -> str | None:
        name = dice.choice(sorted(contents))
        (whole / name).write_bytes(flipped(json.dumps(contents[name]).encode(), dice))
        said = outcome(whole, whole)
        (whole / name).write_text(json.dumps(contents[name]))
        return said

    def by_header() -> str | None:
        number = dice.randrange(2)
        file = folder / "c.gguf"
        file.write_bytes(flipped(data[number], dice))
        return outcome(file, file)

    def by_key() -> str | None:
        changed: dict[str, Any] = dict(keys if dice.random() < 0.5 else files.spm_keys())
        for _ in range(dice.choice((1, 2))):
            key = dice.choice([*changed, "add_bos_token", "add_space_prefix", "eot_token_id", "scores", "merges"])
            value = dice.choice(
                [None, True, 0, 5, 2**32 - 1, "", "a", "gpt2", "llama", ["a"], ["a b"], [1], [0.5, -1.0], [""]]
            )
            changed[key] = value
            if value is None:
                del changed[key]
        file = files.write_keys(folder / "d.gguf", changed)
        return outcome(file, file)

    kinds = [by_value(["tokenizer.json"]), by_value(sorted(contents)), by_bytes, by_header, by_key]
    said = [kinds[number % len(kinds)]() for number in range(count)]
    assert outcome(whole, whole) is None
    texts = {text for text in said if text is not None}
    return sum(text is not None for text in said), texts


def test_some_hundred_damaged_files_end_in_a_user_error_or_a_tokenizer(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    refused, texts = rounds(tmp_path, 400, random.Random(seed))
    assert 100 < refused < 400
    assert len(texts) > 50


@pytest.mark.long
def test_ten_thousand_damaged_files_end_in_a_user_error_or_a_tokenizer(tmp_path: Path) -> None:
    import resource

    seed = random.randrange(2**32)
    print("seed", seed)
    rounds(tmp_path / "first", 100, random.Random(seed + 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, texts = rounds(tmp_path / "more", 10_000, random.Random(seed))
    print(f"{refused:,} of 10,000 refused, in {len(texts):,} different words")
    assert refused > 3_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # KiB
