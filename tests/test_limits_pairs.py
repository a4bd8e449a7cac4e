"""Pairs of positions against masks counted one by one."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.limits.pairs import pairs

windows = st.none() | st.integers(1, 60)


def mask_of(new, context, window, causal):
    query = torch.arange(context, context + new)[:, None]
    key = torch.arange(new + context)[None]
    mask = key <= query if causal else torch.ones(new, new + context, dtype=torch.bool)
    return mask if window is None else mask & ((query - key).abs() < window)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), windows, st.booleans())
def test_pairs_against_a_mask(new, context, window, causal):
    assert pairs(new, context, window, causal) == int(mask_of(new, context, window, causal).sum())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 20), windows)
def test_chunks_of_a_prompt_see_what_the_whole_sees(chunks, context, window):
    seen, before = 0, context
    for chunk in chunks:
        seen += pairs(chunk, before, window)
        before += chunk
    assert seen == pairs(sum(chunks), context, window)


def test_long_windows_take_no_longer():
    """Closed forms: a million positions at once."""
    assert pairs(10**6, 10**6, 1024) == 10**6 * 1024
    assert pairs(10**6, 0, 1024, causal=False) == 10**6 * 2047 - 1023 * 1024
