"""From tokens to text as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from nearpeak.inference.stop_strings import StopStrings


class TokenBytes(Protocol):
    """What a stream asks of a tokenizer."""

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text, in UTF-8."""


class TextStream:
    """The text of one answer, token by token.

    The pieces together are the tokens' bytes read as UTF-8, cut before the first stop string. Bytes that are no UTF-8
    become U+FFFD, as in Python's errors="replace", but only once what follows shows that they are none.
    """

    def __init__(self, tokenizer: TokenBytes, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """A stop string is complete: there is no more text."""
        return self._stops.found is not None

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character or what may be a stop string is incomplete."""
        return self._stops.push(self._characters.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> str:
        """What was held back, an incomplete character as U+FFFD; "" after a stop string."""
        return self._stops.push(self._characters.decode(b"", final=True)) + self._stops.finish()
