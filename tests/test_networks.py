"""The decoder against transformers: random models of every family, all weights drawn, in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nearpeak.inference.attend import cached_attend
from nearpeak.inference.cache import make_cache
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.first_not_finite import first_not_finite
from nearpeak.networks.names import sources_of
from nearpeak.networks.plain_attention import plain_attention
from networks import decoder_of, error, logits_of
from tiny_folders import CASES, tiny

SAME = 3e-5  # sums in another order, through three to seven layers
LONG = 100  # past windows, original lengths and training lengths of the tiny models (128 is the most they take)


def reference(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    model.config._attn_implementation = "eager"
    model.config._experts_implementation = "eager"
    with torch.no_grad():
        logits: torch.Tensor = model(ids, **more).logits
    return logits


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str) -> None:
    model = tiny(case)
    ids = torch.randint(0, 80, (2, LONG))
    decoder = decoder_of(model)
    assert error(logits_of(decoder, ids), reference(model, ids)) <= SAME


@pytest.mark.parametrize("case", CASES)
def test_decode_gives_what_prefill_gives(case: str) -> None:
    """Through a cache: a prefill of some tokens, then one at a time, past every window."""
    decoder = decoder_of(tiny(case))
    ids = torch.randint(0, 80, (2, 40))
    if decoder.shape.changes_with_length:
        ids = ids[:, :20]  # frequencies of the first keys stay those of a short sequence
    truth = logits_of(decoder, ids)
    cache = make_cache(decoder.shape, 48, torch.float32, torch.device("cpu"), batch=2)
    parts = []
    with torch.no_grad():
        for first, last in [(0, 7), *((i, i + 1) for i in range(7, ids.shape[1]))]:
            positions = torch.arange(first, last)
            for seen in (last, None):  # only what is filled, or all of the buffer with a mask
                attend = cached_attend(decoder.shape, cache, positions, seen)
                got = decoder(ids[:, first:last], positions.expand(2, -1), attend)
            parts.append(got)
    assert error(torch.cat(parts, 1), truth) <= SAME


# A mixture's rounding may turn the router's choice: test_networks_exact.py holds those to the bit.
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("mixtral", "qwen3_moe")])
def test_in_bf16_rounding_is_no_worse_than_transformers_own(case: str) -> None:
    model = tiny(case)
    ids = torch.randint(0, 80, (2, 30))
    truth = reference(model, ids)
    model = model.to(torch.bfloat16)
    rounded = logits_of(decoder_of(model), ids)
    assert error(rounded, truth) <= 2 * error(reference(model, ids), truth) + 2e-3


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_the_checkpoint_has_one_place(case: str) -> None:
    model = tiny(case)
    used: list[str] = []
    fused: dict[str, list[tuple[int, int]]] = {}
    weights = model.state_dict()
    for source in sources_of(decoder_of(model).shape).values():
        if not all(name in weights for name in source.names) and source.otherwise:
            source = source.otherwise
        for name in source.names:
            fused.setdefault(name, []).append(source.rows) if source.rows else used.append(name)
    assert len(used) == len(set(used))
    for name, rows in fused.items():
        assert name not in used
        ends = [end for cut in sorted(rows) for end in cut]
        assert ends[0] == 0
        assert ends[1:-1:2] == ends[2::2], f"{name}: a gap or an overlap"
        outputs = weights[name].shape[1] if weights[name].ndim == 3 or "c_attn.weight" in name else len(weights[name])
        assert ends[-1] == outputs
    left = set(weights) - set(used) - set(fused)
    assert left <= {"lm_head.weight"} if model.config.tie_word_embeddings else not left


@pytest.mark.parametrize("case", ["llama", "gemma2", "gemma3", "phi4", "smollm3", "gpt2"])
def test_sequences_at_different_positions_do_not_disturb_each_other(case: str) -> None:
    """One row starts at 0, one later: each as if it were alone."""
    decoder = decoder_of(tiny(case))
    ids = torch.randint(0, 80, (2, 12))
    starts = torch.tensor([[0], [9]])
    positions = starts + torch.arange(12)
    with torch.no_grad():
        both = decoder(ids, positions, plain_attention(decoder.shape, positions))
        for row in range(2):
            one = slice(row, row + 1)
            alone = decoder(ids[one], positions[one], plain_attention(decoder.shape, positions[one]))
            assert error(both[one], alone) <= SAME


def test_a_window_counts_the_token_itself() -> None:
    """Two layers, one with a window of 4: what position 3 saw of the first token, position 4 no longer does."""
    decoder = decoder_of(tiny("mistral"))
    window = decoder.shape.layers[0].window
    assert window == 6
    single = Decoder(type(decoder.shape)(**{**decoder.shape.__dict__, "layers": decoder.shape.layers[:1]})).eval()
    single.load_state_dict({k: v for k, v in decoder.state_dict().items() if k in single.state_dict()})
    ids = torch.randint(0, 80, (1, 12))
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % 80
    differs = (logits_of(single, ids) - logits_of(single, changed)).abs().amax(-1)[0] > 0
    assert differs.tolist() == [position < window for position in range(12)]


def test_the_last_logits_alone_are_the_same() -> None:
    decoder = decoder_of(tiny("qwen3"))
    ids = torch.randint(0, 80, (2, 9))
    positions = torch.arange(9).expand(2, 9)
    with torch.no_grad():
        last = decoder(ids, positions, plain_attention(decoder.shape, positions), last_only=True)
    assert last.shape == (2, 1, 80)
    assert error(last[:, 0], logits_of(decoder, ids)[:, -1]) <= SAME


@pytest.mark.parametrize("place", ["layers.1.feed_forward.down", "layers.2.attention.k", "embed", "norm"])
def test_the_first_place_that_is_not_finite_is_named(place: str) -> None:
    decoder = decoder_of(tiny("llama"))
    ids = torch.randint(0, 80, (1, 9))
    positions = torch.arange(9)[None]
    attend = plain_attention(decoder.shape, positions)
    assert first_not_finite(decoder, ids, positions, attend) is None
    with torch.no_grad():
        decoder.get_submodule(place).weight.fill_(torch.inf)
    assert first_not_finite(decoder, ids, positions, attend) == place


def test_fp16_that_overflows_is_found() -> None:
    """What prints "!!!!" at full speed elsewhere: one map scaled until fp16 cannot hold its output."""
    decoder = decoder_of(tiny("llama")).half()
    with torch.no_grad():
        decoder.layers[1].feed_forward.down.weight.mul_(3e5)
    ids = torch.randint(0, 80, (1, 5))
    positions = torch.arange(5)[None]
    found = first_not_finite(decoder, ids, positions, plain_attention(decoder.shape, positions))
    assert found == "layers.1.feed_forward.down"


def test_router_ties_choose_as_transformers_does() -> None:
    model = tiny("mixtral")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.zero_()  # every expert alike
    ids = torch.randint(0, 80, (1, 12))
    assert error(logits_of(decoder_of(model), ids), reference(model, ids)) <= SAME
