r"""How byte-level vocabularies cut text before merging, by the name in a GGUF file's key tokenizer.ggml.pre.

The patterns are those of the models' own tokenizer.json files (regular expressions in Oniguruma's syntax, each applied
to what the one before it left in pieces); which name means which one: llama.cpp, src/llama-vocab.cpp, 2026. Models of
the name qwen2 also compose characters (NFC), as their tokenizer.json does and llama.cpp does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from nearpeak.records.errors import UserError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # English contractions
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_SHORT}|{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FRONT = r"[^\r\n\p{L}\p{N}]?"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_FRONT}{_UPPER}*{_LOWER}+|{_FRONT}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED}|{_SPACES}"
_GPT4O = rf"{_FRONT}{_UPPER}*{_LOWER}+{_SHORT}?|{_FRONT}{_UPPER}+{_LOWER}*{_SHORT}?|\p{{N}}{{1,3}}|{_SLASHED}|{_SPACES}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_SHORT}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"


@dataclass(frozen=True)
class PreTokenizer:
    """patterns       applied one after another, each match and each gap a piece
    whole_words    a piece that is a token is that token, whatever the merges say
    begins         BOS goes in front, where no key says otherwise
    composed       characters are composed first (NFC)
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    begins: bool = False
    composed: bool = False


def _all(names: str, kind: PreTokenizer) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), kind)


KNOWN: dict[str, PreTokenizer] = {
    **_all("gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4 modern-bert",
           PreTokenizer((_GPT2,))),
    **_all("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer((r"\p{N}", _GPT2))),
    **_all("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", PreTokenizer((_LLAMA3,), True, True)),
    **_all("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    **_all("qwen2 deepseek-r1-qwen megrez", PreTokenizer((_QWEN2,), composed=True)),
    **_all("stablelm2 hunyuan solar-open grok-2", PreTokenizer((_QWEN2,))),
    "qwen35": PreTokenizer((_QWEN35,), composed=True),
    "tekken": PreTokenizer((_TEKKEN,), True, True),
    **_all("gpt-4o llama4 kanana2 minimax-m2", PreTokenizer((_GPT4O,))),
    **_all("deepseek-v3 hunyuan-dense joyai-llm", PreTokenizer(_DEEPSEEK3)),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "falcon": PreTokenizer(_FALCON),
    **_all("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    "seed-coder": PreTokenizer((_SEED,)),
}  # fmt: skip


def pre_tokenizer_of(name: object, where: str) -> PreTokenizer:
    """Raises UserError for a name that nearpeak does not know, or none at all: a guess would give wrong tokens."""
    if isinstance(name, str) and name in KNOWN:
        return KNOWN[name]
    if name is None or name == "default":
        raise UserError(
            f"{where} is {'missing' if name is None else repr(name)}, so nothing says how text is cut. Convert the "
            "model again with a newer llama.cpp."
        )
    near = get_close_matches(str(name), KNOWN, 3)
    hint = f"Nearest: {', '.join(near)}." if near else f"Known: {', '.join(sorted(KNOWN))}."
    raise UserError(f"{where} is {str(name)[:60]!r}, which nearpeak does not know. {hint}")


def build(kind: PreTokenizer, add_prefix_space: bool) -> tuple[Any, Any]:
    """Normalizer (None: none) and pre-tokenizer of the tokenizers library."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps: list[Any] = [normalizers.NFC()] if kind.composed else []
    if add_prefix_space:
        steps.append(normalizers.Prepend(" "))
    return normalizers.Sequence(steps) if steps else None, pre_tokenizers.Sequence([*splits, letters])
