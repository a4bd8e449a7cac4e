"""What a model's files say of its tokenizer, wherever they say it: the readers make it, the tokenizer uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nearpeak.models.special_tokens import SpecialTokens
from nearpeak.models.tokenizer_bytes import Spelling
from nearpeak.records.errors import UserError, first_line

MAX_TOKENS = 1 << 24
Result = TypeVar("Result")


@dataclass(frozen=True)
class TokenizerParts:
    """where      the file, for errors
    encoder    a tokenizers.Tokenizer without post-processor, in which special tokens bear their private names
    special    these names
    texts      token → its text in the vocabulary, special tokens with their public one
    whole      tokens that are text as it stands (added ones), not spelled by `spelling`
    begin      what stands before a raw prompt: nothing, or BOS, or what the model has in its place
    ends       every token that ends an answer
    lost       bytes that no token has: text with them loses them
    variables  what a chat template may use: bos_token and the like
    """

    where: str
    encoder: Any
    special: SpecialTokens
    special_ids: frozenset[int]
    texts: dict[int, str]
    whole: frozenset[int]
    spelling: Spelling
    bos: int | None
    begin: tuple[int, ...]
    ends: frozenset[int]
    chat_template: str | None
    template_where: str
    lost: frozenset[int] = frozenset()
    variables: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def guarded(where: str, work: Callable[[], Result]) -> Result:
    """What the tokenizers library gives, or a UserError: its exceptions, and its panics, which are no Exception."""
    try:
        return work()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where}: {first_line(error)[:300]}. The file is damaged: fetch it again.") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        why = first_line(error)[:300]
        raise UserError(f"{where}: the tokenizers library cannot cope with it ({why}). Fetch it again.") from error
