"""Text → tokens, conversation → tokens, token → bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nearpeak.models.chat_template import ChatTemplate
from nearpeak.models.special_tokens import check_ids, checked_messages, texts_of, unused_mark
from nearpeak.models.tokenizer_parts import TokenizerParts, guarded
from nearpeak.records.errors import UserError


def read_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a model's folder (tokenizer.json and what lies beside it) or of a GGUF file's header.

    Raises UserError, with file and key, for a kind that is not supported and for damaged files.
    """
    path = Path(path)
    if path.is_dir():
        from nearpeak.models.folder_tokenizer import read_folder_tokenizer

        return Tokenizer(read_folder_tokenizer(path))
    from nearpeak.models.gguf_tokenizer import read_gguf_tokenizer

    return Tokenizer(read_gguf_tokenizer(path))


class Tokenizer:
    """vocab        number of tokens; ids count from 0. The model's own vocabulary may be padded beyond
    bos          the token that begins a sequence; None where the model has none
    ends         tokens that end an answer: all that the model's files name
    special_ids  tokens that no text becomes, and that add no text
    warnings     lines about what was read and last encoded that a user should know
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self.vocab = max(parts.texts, default=-1) + 1
        self.bos, self.ends, self.special_ids = parts.bos, parts.ends, parts.special_ids
        self.chat_template = parts.chat_template
        self.warnings: tuple[str, ...] = parts.notes
        self._parts = parts
        self._template = (
            None if parts.chat_template is None else ChatTemplate(parts.chat_template, parts.template_where)
        )
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, begin: bool = True) -> list[int]:
        """Tokens of a text as it stands: special strings in it stay text. With `begin`, in front, what the model wants
        at the beginning of a sequence: one BOS, also where the text itself begins with its spelling (`warnings` says
        so then). No EOS is added: the text is to be continued. Raises UserError: a text that is no Unicode."""
        parts, first = self._parts, parts_bos(self._parts)
        lines = list(parts.notes)
        if begin and first and text.startswith(first):
            while text.startswith(first):
                text = text.removeprefix(first)
            lines.append(f"the prompt begins with {first!r}, which is put in front anyway: it counts once.")
        found = sorted({special for _, special in parts.special.starts(text)})
        if found:
            lines.append(f"the prompt holds {', '.join(map(repr, found[:5]))}: read as plain text, not as tokens.")
        ids = [*(parts.begin if begin else ()), *self._encode(text, "the prompt")]
        self.warnings = (*lines, *self._lost(text))
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool = True) -> list[int]:
        """Tokens of a conversation through the chat template: special strings that it places become their tokens, those
        in the messages stay text; one BOS at the beginning if the model wants one, whether the template gives none, one
        or two. Raises UserError: no template, no messages, or what the template refuses."""
        parts = self._parts
        if self._template is None:
            raise UserError(f"{parts.where} has no chat template. Use --raw, or a model that was trained on chats.")
        chat = checked_messages(messages)
        for said in texts_of(chat):
            _check_unicode(said, "a message")
        mark = unused_mark(self._template.source, *texts_of(chat))
        marked = [
            {key: value if key == "role" else parts.special.mark(value, mark) for key, value in message.items()}
            for message in chat
        ]
        text = self._template.render(marked, add_generation_prompt, parts.variables)
        text = parts.special.placed(text, mark)
        ids = self._one_bos(self._encode(text, f"what {parts.template_where} made"))
        self.warnings = (*parts.notes, *self._lost("".join(texts_of(chat))))
        return ids

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text: nothing for special ones, and for padding beyond the vocabulary. Raises
        UserError for what is no token at all."""
        known = self._bytes.get(token)
        if known is None:
            check_ids([token], 1 << 31, "a token")
            text = self._parts.texts.get(token)
            if text is None or token in self.special_ids:
                known = b""
            else:
                known = text.encode("utf-8", "replace") if token in self._parts.whole else self._parts.spelling(text)
            self._bytes[token] = known
        return known

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of several tokens, special ones left out; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def check_ids(self, ids: Sequence[object], what: str) -> None:
        """Raises UserError unless each is a token of this vocabulary. `what` names them: "stop token"."""
        check_ids(ids, self.vocab, what)

    def _one_bos(self, ids: list[int]) -> list[int]:
        wanted, count = self._parts.begin, 0
        while count < len(ids) and self.bos is not None and ids[count] == self.bos:
            count += 1
        if self.bos is not None and wanted[:1] == (self.bos,):
            return [self.bos, *ids[count:]]
        return ids[max(count - 1, 0) :]

    def _lost(self, text: str) -> list[str]:
        gone = sorted(self._parts.lost.intersection(text.encode())) if self._parts.lost else []
        what = ", ".join(f"0x{byte:02x}" for byte in gone)
        return (
            [f"the prompt has bytes that the model's vocabulary lacks ({what}): it does not see them."] if gone else []
        )

    def _encode(self, text: str, what: str) -> list[int]:
        _check_unicode(text, what)
        encoder = self._parts.encoder
        ids: list[int] = guarded(self._parts.where, lambda: encoder.encode(text, add_special_tokens=False).ids)
        return ids


def _check_unicode(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{what} is no valid Unicode at character {error.start:,}. Give it as UTF-8.") from error


def parts_bos(parts: TokenizerParts) -> str | None:
    """The spelling of BOS, where it stands in front of a raw prompt."""
    return parts.texts.get(parts.bos) if parts.bos is not None and parts.bos in parts.begin else None
