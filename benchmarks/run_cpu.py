"""`nearpeak run` on the CPU beside transformers: the same weights, the same prompt, A B B A in one process.

    python benchmarks/run_cpu.py MODEL.gguf OUT.json [--tokens 64] [--rounds 3]

Each round generates greedily with every contender, then in the opposite order. What counts is decoding: tokens after
the first, over their seconds. transformers runs in bf16 on the dequantised weights, as its GGUF reader makes them.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from nearpeak.ceilings.bench import Bench
from nearpeak.ceilings.needed import measure_needed
from nearpeak.cli.measure import commit
from nearpeak.hardware.cpu import cpu_device
from nearpeak.hardware.devices import sensors_of
from nearpeak.inference.choose_runner import fast_runner, weights_dtype
from nearpeak.inference.engine import Asked, Engine
from nearpeak.inference.load import load_decoder
from nearpeak.inference.sampling import Sampling
from nearpeak.models.tokenizer import read_tokenizer
from nearpeak.records.files import write_text_atomically
from nearpeak.timing.statistics import median, spread

CPU = torch.device("cpu")
PROMPT = "Explain in a few sentences how a bicycle stays upright while it is ridden."
Contender = Callable[[int], float]
"""Tokens to generate → decoded tokens a second."""


def ours(path: Path, precision: str, ids: tuple[int, ...], tokens: int, facts: dict[str, Any]) -> Contender:
    """nearpeak in one precision."""
    tokenizer = read_tokenizer(path)
    start = time.perf_counter()
    loaded = load_decoder(path, weights_dtype(precision), CPU)
    runner, _ = fast_runner(loaded.decoder, precision, len(ids) + tokens)
    facts[precision] = {"load_s": time.perf_counter() - start, "how": runner.how, "bytes": runner.weight_bytes}
    tokenizer.ends = frozenset()  # every contender generates the same number of tokens
    engine = Engine(runner, tokenizer)

    def generate(count: int) -> float:
        runner.keep(0)
        engine._cached = []
        answer = engine.answer(Asked(ids, Sampling(), count))
        facts[precision]["text"] = answer.text
        return len(answer.token_seconds) / sum(answer.token_seconds)

    return generate


def theirs(path: Path, ids: tuple[int, ...], facts: dict[str, Any]) -> Contender:
    """transformers' generate, bf16. Its prefill is timed apart and taken off."""
    from transformers import AutoModelForCausalLM

    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16).eval()
    facts["transformers"] = {"load_s": time.perf_counter() - start, "attention": model.config._attn_implementation}
    given = torch.tensor([ids])
    options = {"do_sample": False, "attention_mask": torch.ones_like(given), "pad_token_id": 0}

    def seconds(count: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(given, max_new_tokens=count, min_new_tokens=count, **options)
        return time.perf_counter() - start

    def generate(count: int) -> float:
        return (count - 1) / (seconds(count) - seconds(1))

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    ids = tuple(read_tokenizer(asked.model).encode_chat([{"role": "user", "content": PROMPT}]))
    facts: dict[str, Any] = {}
    contenders = {name: ours(asked.model, name, ids, asked.tokens, facts) for name in ("bf16", "int8", "int4")}
    contenders["transformers"] = theirs(asked.model, ids, facts)
    for generate in contenders.values():
        generate(8)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(asked.rounds):
        for name in [*contenders, *reversed(contenders)]:
            rates[name].append(contenders[name](asked.tokens))
    device = cpu_device()
    found = measure_needed(Bench(device, CPU, sensors_of(device), None, True), ("fp32", "fp32"), ("bf16", "fp32"))
    memory = next(c.burst for c in found.ceilings if c.kind == "memory_read")
    result = {
        "command": f"python benchmarks/run_cpu.py {asked.model.name} --tokens {asked.tokens} --rounds {asked.rounds}",
        "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.name, "features": device.features, "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("torch", "transformers")} | {"python": platform.python_version()},
        "model": asked.model.name, "prompt_tokens": len(ids), "tokens": asked.tokens, "memory_read_bytes_per_s": memory,
        "decode_tokens_per_s": {
            name: {"median": median(each), "spread": spread(each), "all": each} for name, each in rates.items()
        },
        "over_transformers": {name: median(each) / median(rates["transformers"]) for name, each in rates.items()},
        "share_of_memory_limit": {
            name: median(rates[name]) * facts[name]["bytes"] / memory for name in ("bf16", "int8", "int4")
        },
        "facts": facts,
    }  # fmt: skip
    write_text_atomically(asked.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps({k: result[k] for k in ("over_transformers", "share_of_memory_limit")}, indent=1))


if __name__ == "__main__":
    main()
