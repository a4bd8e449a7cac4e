"""Which bytes a token adds to the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache

from nearpeak.records.errors import UserError

Spelling = Callable[[str], bytes]
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: letter → byte. Bytes that print stand for themselves, the other 68 for U+0100 and what follows.

    Radford et al. 2019, https://github.com/openai/gpt-2/blob/master/src/encoder.py
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printing)]
    return {chr(byte): byte for byte in printing} | {chr(256 + n): byte for n, byte in enumerate(others)}


def lost_bytes(vocab: Collection[str]) -> frozenset[int]:
    """Bytes of UTF-8 that a byte-level vocabulary has no token for; SmolLM2's lacks 8 that hardly occur."""
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    return frozenset(byte for letter, byte in byte_letters().items() if letter not in vocab and byte not in never)


def byte_level(token: str) -> bytes:
    """Of a token of a byte-level vocabulary, a letter a byte. A token with any other letter is its own text."""
    letters = byte_letters()
    try:
        return bytes(letters[letter] for letter in token)
    except KeyError:
        return token.encode("utf-8", "replace")


def sentence_piece(token: str, space: str = "▁") -> bytes:
    """Of a SentencePiece token: <0xAB> is that byte, ▁ a space."""
    if match := BYTE.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(space, " ").encode("utf-8", "replace")


def spelling_of(decoder: object, where: str) -> Spelling:
    """How the decoder of a tokenizer.json spells tokens. Raises UserError, by name, for one that nearpeak cannot follow
    token by token. What a decoder does to the beginning of a text (Strip) is left out: an answer continues a prompt."""
    steps = list(_flat(decoder))
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level
    if kinds == ["WordPiece"]:
        prefix = str(steps[0].get("prefix", "##"))
        return lambda token: (token.removeprefix(prefix) if token.startswith(prefix) else " " + token).encode()
    replaced: list[tuple[str, str]] = []
    for step, kind in zip(steps, kinds, strict=True):
        if kind == "Metaspace":
            replaced.append((str(step.get("replacement", "▁")), " "))
        elif kind == "Replace":
            pattern, content = step.get("pattern"), step.get("content")
            old = pattern.get("String") if isinstance(pattern, Mapping) else None
            if not isinstance(old, str) or not old or not isinstance(content, str):
                raise UserError(
                    f"{where}: decoder Replace has the pattern {str(pattern)[:80]}, which is no plain text."
                )
            replaced.append((old, content))
        elif kind not in ("ByteFallback", "Fuse", "Strip", "ByteLevel"):
            raise UserError(f"{where}: decoder {kind[:60]!r} is none that nearpeak can follow token by token.")
    if not steps:
        raise UserError(f"{where}: decoder is missing, so nothing says what a token's text is.")
    fallback, letters = "ByteFallback" in kinds, "ByteLevel" in kinds

    def spelled(token: str) -> bytes:
        if fallback and (match := BYTE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in replaced:
            token = token.replace(old, new)
        return byte_level(token) if letters else token.encode("utf-8", "replace")

    return spelled


def _flat(decoder: object, depth: int = 0) -> list[Mapping[str, object]]:
    if not isinstance(decoder, Mapping) or depth > 8:
        return []
    if decoder.get("type") == "Sequence":
        inner = decoder.get("decoders")
        return [step for part in (inner if isinstance(inner, list) else []) for step in _flat(part, depth + 1)]
    return [decoder]
