"""Whole characters and stop strings, however tokens cut them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.inference.stop_strings import StopStrings
from nearpeak.inference.text_stream import TextStream
from nearpeak.records.errors import UserError


class Pieces:
    """A tokenizer whose token i adds piece i."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def streamed(pieces: Sequence[bytes], stops: Sequence[str] = ()) -> tuple[list[str], str, bool]:
    """What each push gave, what the end gave, and whether a stop string ended it."""
    stream = TextStream(Pieces(pieces), stops)
    given = [stream.push(number) for number in range(len(pieces))]
    return given, stream.finish(), stream.stopped


def cut(data: bytes, dice: random.Random) -> list[bytes]:
    pieces, at = [], 0
    while at < len(data):
        size = dice.choice((1, 1, 1, 2, 3, 5))
        pieces.append(data[at : at + size])
        at += size
    return pieces


def test_every_character_of_four_bytes_comes_whole_however_it_is_cut() -> None:
    """Emoji became U+FFFD, decoded token by token: ferrox#124, exo#1691, dynamo#12688."""
    dice = random.Random()
    text = "".join(map(chr, range(0x1F000, 0x20000))) + "".join(
        chr(dice.randrange(0x10000, 0x110000)) for _ in range(2000)
    )
    pieces = cut(text.encode(), dice)
    given, rest, _ = streamed(pieces)
    assert "".join(given) + rest == text
    assert "\ufffd" not in "".join(given)
    assert rest == ""
    # single bytes: nothing, nothing, nothing, the character
    for character in text[:500]:
        assert streamed([bytes([byte]) for byte in character.encode()])[0] == ["", "", "", character]


@given(st.text(max_size=80), st.integers())
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back(text: str, seed: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    given, rest, _ = streamed(cut(text.encode(), random.Random(seed)))
    assert "".join(given) + rest == text


@given(st.binary(max_size=60), st.integers())
@settings(max_examples=500, deadline=None)
def test_bytes_that_are_no_text_come_as_if_read_at_once(data: bytes, seed: int) -> None:
    given, rest, _ = streamed(cut(data, random.Random(seed)))
    assert "".join(given) + rest == data.decode("utf-8", "replace")


def test_a_real_replacement_character_survives() -> None:
    assert streamed([b"a\xef", b"\xbf\xbdb"]) == (["a", "\ufffdb"], "", False)


def test_a_character_cut_off_at_the_end_is_told() -> None:
    given, rest, _ = streamed(["né".encode()[:-1]])
    assert given == ["n"]
    assert rest == "\ufffd"
    # and only once more bytes show that it is none, before that
    assert streamed([b"\xf0\x9f", b"x"])[0] == ["", "\ufffdx"]


def test_tokens_without_text_add_nothing() -> None:
    assert streamed([b"\xf0\x9f", b"", b"\x98\x80"]) == (["", "", "😀"], "", False)


def test_a_stop_string_over_four_tokens_leaves_no_trace() -> None:
    """Its head leaked, or it was missed: vllm#3574, text-generation-inference#1254, #1039."""
    pieces = [b"ab", b"cS", b"TO", b"Pxy"]
    assert streamed(pieces, ["STOP"]) == (["ab", "c", "", ""], "", True)
    stream = TextStream(Pieces(pieces), ["STOP"])
    assert [stream.push(number) for number in range(4)] == ["ab", "c", "", ""]
    assert stream.push(0) == ""  # nothing after it


def test_what_only_began_a_stop_string_is_flushed_at_the_end() -> None:
    assert streamed([b"ab", b"ST"], ["STOP"]) == (["ab", ""], "ST", False)
    assert streamed([b"ST", b"OX"], ["STOP"]) == (["", "STOX"], "", False)


def test_no_more_is_held_back_than_could_begin_a_stop_string() -> None:
    assert streamed([b"aab"], ["aabaac"]) == ([""], "aab", False)
    assert streamed([b"aabaab"], ["aabaac"]) == (["aab"], "aab", False)
    assert streamed([b"xyz"], ["STOP"]) == (["xyz"], "", False)


def test_a_stop_string_inside_a_token_and_at_the_very_start() -> None:
    assert streamed([b"hello STOP world"], ["STOP"]) == (["hello "], "", True)
    assert streamed([b"STOP"], ["STOP"]) == ([""], "", True)


def test_the_first_complete_one_ends_and_of_two_complete_at_once_the_longest() -> None:
    assert streamed([b"xabcd"], ["abcd", "bc"]) == (["xa"], "", True)
    assert streamed([b"xabc"], ["bc", "abc"]) == (["x"], "", True)


def test_a_stop_string_of_characters_cut_by_tokens() -> None:
    data = "Grüße 😀 Ende".encode()
    given, rest, stopped = streamed([bytes([byte]) for byte in data], ["😀"])
    assert "".join(given) + rest == "Grüße "
    assert stopped


def naive(text: str, stops: Sequence[str]) -> str:
    """Character by character: the first moment at which the text ends in a stop string."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - len(max(found, key=len))]
    return text


@given(
    st.text(alphabet="abcé😀", max_size=40),
    st.lists(st.text(alphabet="abcé😀", min_size=1, max_size=5), max_size=4),
    st.integers(),
)
@settings(max_examples=800, deadline=None)
def test_however_it_is_cut_the_text_before_the_stop_is_the_same(text: str, stops: list[str], seed: int) -> None:
    pieces = cut(text.encode(), random.Random(seed))
    given, rest, stopped = streamed(pieces, stops)
    assert "".join(given) + rest == naive(text, stops)
    assert stopped == any(stop in text for stop in stops)
    # nothing shown is ever taken back, and what is held back is shorter than the longest stop string
    shown = ""
    for number, piece in enumerate(given):
        shown += piece
        read = b"".join(pieces[: number + 1]).decode("utf-8", "ignore")
        assert naive(text, stops).startswith(shown)
        if not stopped:
            assert len(read) - len(shown) < max(map(len, stops), default=1)


@pytest.mark.parametrize("stops", [[""], ["a"] * 65, ["x" * 4097], ["a", ""]])
def test_stop_strings_that_make_no_sense_are_refused(stops: list[str]) -> None:
    with pytest.raises(UserError, match="stop string"):
        StopStrings(stops)


def test_one_text_instead_of_several_is_the_programmers_error() -> None:
    with pytest.raises(TypeError):
        StopStrings("STOP")
