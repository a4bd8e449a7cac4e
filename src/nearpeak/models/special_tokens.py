"""Tokens that mark turns and ends, kept out of reach of what people write.

The tokenizer that encodes does not know these strings at all: each special token bears a private name there, drawn
when the model is opened, that nobody can type. So <|im_start|> in a user's text is split like any other text. In a
rendered conversation the strings that the template placed are turned into private names, and only those: the ones
inside messages were marked before rendering.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nearpeak.records.errors import UserError

PRIVATE = 0xF0000  # the first of 65,534 characters for private use
DEPTH = 64
ROLE = re.compile(r"[\w][\w .:/-]{0,63}")
MARKS = (*range(0xE000, 0xF900), *range(0x100000, 0x10FFFE))
CONTROL = frozenset({
    "<pad>", "<mask>", "<s>", "</s>", "<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<EOT>", "[INST]",
    "[/INST]", "[EOT]", "[EOS]", "[BOS]", "[gMASK]", "<sop>", "<eop>", "[CLS]",
    "[SEP]", "[PAD]", "[MASK]", "[UNK]", "<end_of_utterance>", "<turn|>", "<|turn>",
})  # fmt: skip
"""Added tokens that some models' files call ordinary, though only a template places them."""


def looks_special(text: str) -> bool:
    """An added token that marks a turn or an end, whatever the file calls it: <|…|>, <｜…｜> (DeepSeek's), <unused…>,
    or one of a few words. <think> and <tool_call> do not: models write these themselves."""
    pairs = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return text in CONTROL or any(text.startswith(a) and text.endswith(b) and len(text) > 4 for a, b in pairs)


class SpecialTokens:
    """names: special string → the private name that its token has in the encoder. Raises UserError: an empty one."""

    def __init__(self, texts: Iterable[str]) -> None:
        ordered = sorted(set(texts))
        if "" in ordered:
            raise UserError("a special token is an empty text. The tokenizer's files are damaged: fetch them again.")
        nonce = "".join(chr(PRIVATE + secrets.randbelow(60_000)) for _ in range(5))
        self.names = {
            text: nonce + chr(PRIVATE + number // 60_000) + chr(PRIVATE + number % 60_000)
            for number, text in enumerate(ordered)
        }
        self._lengths = sorted({len(text) for text in ordered}, reverse=True)
        firsts = {text[0] for text in ordered}
        self._first = re.compile("[" + re.escape("".join(sorted(firsts))) + "]") if firsts else None

    def starts(self, text: str) -> Iterator[tuple[int, str]]:
        """Each place at which a special string begins, and the longest that does. They may overlap."""
        for match in self._first.finditer(text) if self._first else ():
            at = match.start()
            for length in self._lengths:
                if (found := text[at : at + length]) in self.names and len(found) == length:
                    yield at, found
                    break

    def mark(self, value: object, mark: str, depth: int = 0) -> object:
        """A copy of a message's value with `mark` behind the first character of each special string in its texts.

        Template code may trim, cut, join or compare such texts as before. Raises UserError: nested too deeply.
        """
        if depth > DEPTH:
            raise UserError(f"a message nests its values more than {DEPTH} deep.")
        if isinstance(value, str):
            pieces, done = [], 0
            for at, _ in self.starts(value):
                pieces += [value[done : at + 1], mark]
                done = at + 1
            return "".join([*pieces, value[done:]])
        if isinstance(value, Mapping):
            return {key: self.mark(inner, mark, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark(inner, mark, depth + 1) for inner in value]
        return value

    def placed(self, text: str, mark: str) -> str:
        """A rendered text for the encoder: special strings without a mark become their private names, marks go."""
        pieces, done = [], 0
        for at, found in self.starts(text):
            if at >= done and text[at + 1 : at + 2] != mark:
                pieces += [text[done:at], self.names[found]]
                done = at + len(found)
        whole = "".join([*pieces, text[done:]])
        escaped = f"\\u{ord(mark):04x}"  # a template that writes JSON in ASCII spells the mark out
        return whole.replace(mark, "").replace(escaped, "") if ord(mark) < 0x10000 else whole.replace(mark, "")


def unused_mark(*texts: str) -> str:
    """A character for private use that none of the texts has."""
    used = set().union(*map(set, texts))
    return next(chr(number) for number in MARKS if chr(number) not in used)


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Raises UserError: no messages, one without a role, or with a role that is no plain word. (A role is part of the
    template's own text in many models: it must not be able to hold "user|>".)"""
    if not messages:
        raise UserError("the conversation has no messages. Say something.")
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not ROLE.fullmatch(role):
            raise UserError(f"message {number} has the role {str(role)[:80]!r}; a word such as user is expected.")
    return [dict(message) for message in messages]


def texts_of(value: object, depth: int = 0) -> Iterator[str]:
    """All texts in a message."""
    if isinstance(value, str):
        yield value
    elif depth <= DEPTH:
        parts: Iterable[object] = ()
        if isinstance(value, Mapping):
            parts = (*value.keys(), *value.values())
        elif isinstance(value, (list, tuple)):
            parts = value
        for part in parts:
            yield from texts_of(part, depth + 1)


def check_ids(ids: Iterable[object], vocab: int, what: str) -> None:
    """Raises UserError unless each is a whole number from 0 to vocab − 1. `what` names them."""
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            shown = str(token)[:40]
            raise UserError(f"{what} is {shown}; the model's {vocab:,} tokens count from 0 to {vocab - 1:,}.")
