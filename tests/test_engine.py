"""From a prompt to an answer, with a scripted model: what ends an answer, what is refused, what is reused."""

from __future__ import annotations

import pytest
import torch

from nearpeak.inference.engine import Asked, Engine
from nearpeak.inference.outcome import DECODE, PREFILL, Ran, outcome_of
from nearpeak.inference.sampling import Sampling
from nearpeak.models.read import read_model
from nearpeak.records.ceiling import Load
from nearpeak.records.errors import UserError
from profiles import h200

GREEDY = Sampling()
END, TURN = 30, 31
WORDS = {**{n: bytes([96 + n]) for n in range(1, 27)}, END: b"", TURN: b"", 28: "é".encode()[:1], 29: "é".encode()[1:]}


class Words:
    """Tokens 1 to 26 are letters, 28 and 29 the two bytes of one; two ways to end."""

    vocab, bos, ends, special_ids, warnings = 32, None, frozenset({END, TURN}), frozenset({END, TURN}), ()

    def token_bytes(self, token: int) -> bytes:
        return WORDS.get(token, b"")


class Script:
    """Says the tokens of `said`, one after the other, whatever it reads; keeps what it was given."""

    how, compute, vocab, device = "a script", "fp32", 32, torch.device("cpu")
    weight_bytes = memory_bytes = 1000

    def __init__(self, *said: int, capacity: int = 64) -> None:
        self.said, self.capacity, self.length = list(said), capacity, 0
        self.read: list[list[int]] = []
        self.poison_at: int | None = None

    def _next(self) -> torch.Tensor:
        logits = torch.zeros(32)
        logits[self.said.pop(0)] = 5.0
        if self.poison_at is not None and self.length > self.poison_at:
            logits[:] = torch.nan
        return logits

    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        self.read.append(ids.tolist())
        self.length += len(ids)
        return self._next()

    def decode(self, token: torch.Tensor) -> torch.Tensor:
        self.length += 1
        return self._next()

    def keep(self, length: int) -> None:
        self.length = length

    def cache_bytes(self, length: int) -> int:
        return 10 * length

    def first_not_finite(self, ids: torch.Tensor) -> str | None:
        return "layers.1"


def ask(*ids: int, **more: object) -> Asked:
    return Asked(ids, GREEDY, **{"max_tokens": 20, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [END, TURN])
def test_any_of_the_ends_ends_an_answer(end: int) -> None:
    """One file's EOS is <|end_of_text|>, but the model ends its turns with <|eot_id|>: both count."""
    said: list[str] = []
    answer = Engine(Script(5, 6, end, 7), Words()).answer(ask(1, 2, 3), said.append)
    assert answer.ids == [5, 6, end]
    assert (answer.text, "".join(said), answer.reason) == ("ef", "ef", "end of sequence")
    assert len(answer.token_seconds) == 2
    assert answer.prefill_seconds > 0


def test_a_stop_string_over_several_tokens_is_not_said() -> None:
    answer = Engine(Script(1, 2, 3, 19, 20, 15, 16, 24), Words()).answer(ask(1, stops=("stop",)))
    assert (answer.text, answer.reason) == ("abc", "stop string")


def test_the_longest_answer_and_its_held_back_text() -> None:
    said: list[str] = []
    answer = Engine(Script(1, 19, 20, 1), Words()).answer(ask(1, max_tokens=3, stops=("stop",)), said.append)
    assert (answer.text, "".join(said), answer.reason) == ("ast", "ast", "max tokens")


def test_text_never_splits_a_character() -> None:
    said: list[str] = []
    answer = Engine(Script(1, 28, 29, END), Words()).answer(ask(1), said.append)
    assert answer.text == "aé"
    assert "\ufffd" not in said


def test_a_cut_character_at_the_end_is_shown_as_such() -> None:
    assert Engine(Script(1, 28), Words()).answer(ask(1, max_tokens=2)).text == "a\ufffd"


def test_a_full_context_ends_an_answer() -> None:
    answer = Engine(Script(*[1] * 20, capacity=6), Words()).answer(ask(1, 2, 3))
    assert answer.reason == "context full"
    assert len(answer.ids) == 4  # three read, three more fit behind them, and one is said but not read again


@pytest.mark.parametrize(
    ("ids", "more", "words"),
    [
        ((), {}, ["no tokens"]),
        ((1,) * 64, {}, ["64", "Shorten"]),
        ((1,) * 63, {"max_tokens": 0}, ["--max-tokens", "0"]),
        ((1, -1), {}, ["-1", "31"]),
        ((1, 32), {}, ["32", "31"]),
        ((1, 2**63), {}, [str(2**63)]),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_numbers(
    ids: tuple[int, ...], more: dict[str, int], words: list[str]
) -> None:
    with pytest.raises(UserError) as refused:
        Engine(Script(1), Words()).answer(ask(*ids, **more))
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_conversation_reads_only_what_is_new() -> None:
    runner = Script(5, 6, END, 7, END, 8, END)
    engine = Engine(runner, Words())
    first = engine.answer(ask(1, 2, 3))
    assert (first.reused, runner.read[-1]) == (0, [1, 2, 3])
    second = engine.answer(ask(1, 2, 3, 5, 6, 9, 9))
    assert (second.reused, runner.read[-1]) == (5, [9, 9])
    other = engine.answer(ask(1, 2, 9, 9))
    assert (other.reused, runner.read[-1]) == (2, [9, 9])


def test_the_same_prompt_again_reads_its_last_token() -> None:
    runner = Script(5, END, 5, END)
    engine = Engine(runner, Words())
    engine.answer(ask(1, 2, 3))
    assert engine.answer(ask(1, 2, 3)).reused == 2
    assert runner.read[-1] == [3]


def test_numbers_that_are_not_finite_end_in_an_error_that_names_the_place() -> None:
    runner = Script(5, 6, 7)
    runner.poison_at = 3
    with pytest.raises(UserError, match=r"not finite after 4 tokens, first in layers\.1"):
        Engine(runner, Words()).answer(ask(1, 2, 3))


def test_logprobs_are_of_the_chosen_token_and_the_likeliest() -> None:
    answer = Engine(Script(5, END), Words()).answer(ask(1, logprobs=2))
    assert [len(one) for one in answer.logprobs] == [3, 3]
    token, chosen = answer.logprobs[0][0]
    assert token == 5
    assert answer.logprobs[0][1] == (5, chosen)
    expected = float(torch.log_softmax(torch.nn.functional.one_hot(torch.tensor(5), 32) * 5.0, 0)[5])
    assert chosen == pytest.approx(expected)


RAN = Ran(
    "m", "a way", "H200", "bf16", "bf16", 16_000_000_000, 4_000_000_000, 20_000_000_000, 10.0, 8.0, 16_000_000_000, 4e9
)


def answered(prefill: float, *later: float) -> object:
    answer = Engine(Script(*[5] * len(later), END), Words()).answer(ask(1, 2, 3, 4))
    answer.prefill_seconds, answer.token_seconds = prefill, list(later)
    return answer


def test_shares_are_limit_over_measured() -> None:
    profile = h200().devices[0]
    memory = profile.ceiling("memory_read")
    assert memory is not None
    outcome = outcome_of(answered(0.01, 0.01, 0.01, 0.01, 0.01), RAN, read_model("llama-3.1-8b"), profile, Load(0.05))
    least = (16e9 + 1e9) / memory.burst  # weights and a quarter of the cache's bytes, each token
    assert outcome.got[DECODE] == pytest.approx(100)
    assert outcome.limit[DECODE] == pytest.approx(1 / least)
    assert outcome.share[DECODE] == pytest.approx(least / 0.01)
    assert outcome.share[PREFILL] == pytest.approx(16e9 / memory.burst / 0.01)
    assert outcome.energy is None
    assert "energy" in outcome.reason
    assert sum(gap.seconds for gap in outcome.gap) == pytest.approx(0.05 - 4 * least - 16e9 / memory.burst)


def test_a_share_above_one_is_not_shown_but_explained() -> None:
    outcome = outcome_of(
        answered(0.01, 1e-4),
        RAN,
        read_model("llama-3.1-8b"),
        h200().devices[0],
        Load(3.0, energy_j=90.0, energy_scope="device"),
    )
    assert outcome.share[DECODE] is None
    assert "less than the limit" in outcome.reason[DECODE]
    assert outcome.energy is not None
    assert outcome.energy.per_unit == pytest.approx(45.0)


def test_without_a_profile_or_a_spec_the_reason_says_so() -> None:
    no_profile = outcome_of(answered(0.01, 0.01), RAN, read_model("llama-3.1-8b"), None, Load(0.02))
    assert no_profile.share == {PREFILL: None, DECODE: None}
    assert "nearpeak measure" in no_profile.reason[DECODE]
    no_spec = outcome_of(answered(0.01, 0.01), RAN, None, h200().devices[0], Load(0.02))
    assert "FLOPs" in no_spec.reason[PREFILL]
    one = outcome_of(answered(0.01), RAN, read_model("llama-3.1-8b"), h200().devices[0], Load(0.02))
    assert one.got[DECODE] is None
    assert "one token" in one.reason[DECODE]
