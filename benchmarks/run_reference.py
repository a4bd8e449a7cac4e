"""The reference path of `nearpeak run` on one GPU, with CUDA graphs off and on: the starting point of the fast path.

    PYTHONPATH=src python benchmarks/run_reference.py OUT.json COMMIT [--layers 32] [--prompt 128] [--tokens 128]

Random bf16 weights in the shape of Llama-3.1-8B (fewer layers by --layers), made on the device: no files. Decode is
greedy; eager and graph take turns (A B B A). The limit is that of `run`: weights and cache over the measured read
ceiling.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from nearpeak.ceilings.bench import Bench
from nearpeak.ceilings.needed import measure_needed
from nearpeak.hardware.catalogue import find_spec
from nearpeak.hardware.devices import find_devices, select_devices, sensors_of
from nearpeak.inference.reference_runner import ReferenceRunner
from nearpeak.networks.decoder import Decoder
from nearpeak.networks.shape_of_config import shape_of_config
from nearpeak.records.files import write_text_atomically
from nearpeak.timing.sensor_window import SensorWindow
from nearpeak.timing.statistics import median, spread

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


def random_decoder(layers: int, device: torch.device) -> Decoder:
    """Weights as a trained model's are sized, so that nothing overflows."""
    shape = shape_of_config({**LLAMA, "num_hidden_layers": layers}, "Llama-3.1-8B")
    with torch.device("meta"):
        decoder = Decoder(shape).to(torch.bfloat16)
    decoder = decoder.to_empty(device=device).eval().requires_grad_(False)
    for name, parameter in decoder.named_parameters():
        torch.nn.init.ones_(parameter) if "norm" in name else torch.nn.init.normal_(parameter, std=0.02)
    return decoder


def decoded(runner: ReferenceRunner, prompt: torch.Tensor, tokens: int) -> tuple[float, float]:
    """Seconds of the prefill, and tokens a second of decoding."""
    wait: Callable[[], None] = torch.cuda.synchronize if runner.device.type == "cuda" else (lambda: None)
    runner.keep(0)
    start = time.perf_counter()
    token = runner.prefill(prompt).argmax()[None]
    wait()
    begun = time.perf_counter()
    for _ in range(tokens):
        token = runner.decode(token).argmax()[None]
    wait()
    return begun - start, tokens / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("commit")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="gpu")
    asked = parser.parse_args()
    device = select_devices(find_devices(), [asked.device])[0]
    place, sensors = torch.device(device.torch_name or "cpu"), sensors_of(device)
    decoder = random_decoder(asked.layers, place)
    capacity = asked.prompt + asked.tokens + 1
    runners = {"eager": ReferenceRunner(decoder, capacity)}
    if place.type == "cuda":
        runners["graph"] = ReferenceRunner(decoder, capacity, graphed=True)
    prompt = torch.randint(0, decoder.shape.vocab, (asked.prompt,), device=place)
    for runner in runners.values():
        decoded(runner, prompt, min(8, asked.tokens))
    rates: dict[str, list[float]] = {name: [] for name in runners}
    prefills: list[float] = []
    with SensorWindow(sensors) as window:
        for _ in range(asked.rounds):
            for name in [*runners, *reversed(runners)]:
                seconds, rate = decoded(runners[name], prompt, asked.tokens)
                prefills.append(seconds)
                rates[name].append(rate)
    found = measure_needed(Bench(device, place, sensors, find_spec(device), True), ("bf16", "fp32"))
    memory = next(c.burst for c in found.ceilings if c.kind == "memory_read")
    one = next(iter(runners.values()))
    read = one.weight_bytes + one.cache_bytes(asked.prompt + asked.tokens // 2)
    result = {
        "command": f"python benchmarks/run_reference.py --layers {asked.layers} --prompt {asked.prompt} "
        f"--tokens {asked.tokens} --rounds {asked.rounds}",
        "commit": asked.commit, "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device.name,
        "driver": device.driver.value, "power_limit_w": device.power_limit.value, "load": asdict(window.load()),
        "versions": {"torch": version("torch"), "cuda": torch.version.cuda}, "memory_read_bytes_per_s": memory,
        "bytes_per_token": read, "limit_tokens_per_s": memory / read,
        "prefill_tokens_per_s": asked.prompt / median(prefills),
        "decode_tokens_per_s": {n: {"median": median(r), "spread": spread(r), "all": r} for n, r in rates.items()},
        "share": {name: median(each) * read / memory for name, each in rates.items()},
    }  # fmt: skip
    write_text_atomically(asked.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps({key: result[key] for key in ("share", "limit_tokens_per_s", "prefill_tokens_per_s")}, indent=1))


if __name__ == "__main__":
    main()
