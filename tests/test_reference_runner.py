"""The reference path: with a cache as without, and on a GPU with a CUDA graph as without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nearpeak.inference.check import logits_of, random_ids
from nearpeak.inference.choose_runner import fast_runner, reference_runner
from nearpeak.inference.load import load_decoder
from nearpeak.inference.reference_runner import ReferenceRunner
from nearpeak.inference.sampler import Sampler
from nearpeak.inference.sampling import Sampling
from networks import decoder_of, error
from networks import logits_of as whole_logits
from tiny_folders import CASES, save_tiny, tiny

CPU = torch.device("cpu")
UNCHANGING = [case for case in CASES if case not in ("phi4", "mixtral", "qwen3_moe")]  # these cannot be one graph


@pytest.mark.parametrize("case", CASES)
def test_a_cache_changes_nothing(case: str) -> None:
    decoder = decoder_of(tiny(case))
    ids = random_ids(80, CPU, 0)[:30] if decoder.shape.changes_with_length else random_ids(80, CPU, 0)
    runner = ReferenceRunner(decoder, 64)
    truth = whole_logits(decoder, ids[None])[0]
    found = [runner.prefill(ids[:20])]
    found += [runner.decode(token[None]) for token in ids[20:]]
    assert error(torch.stack(found), truth[19:]) <= 3e-5


def test_bytes_are_those_of_the_weights_that_a_token_reads() -> None:
    runner = ReferenceRunner(decoder_of(tiny("llama")).bfloat16(), 64)
    total = sum(tensor.nbytes for tensor in runner.decoder.state_dict().values())
    assert runner.weight_bytes == total - runner.decoder.embed.weight.nbytes
    tied = ReferenceRunner(decoder_of(tiny("llama tied")).bfloat16(), 64)
    every = {tensor.data_ptr(): tensor.nbytes for tensor in tied.decoder.state_dict().values()}
    assert tied.weight_bytes == sum(every.values())


@pytest.mark.gpu
@pytest.mark.parametrize("case", UNCHANGING)
def test_a_graph_gives_what_eager_launches_give(case: str) -> None:
    gpu = torch.device("cuda:0")
    decoder = decoder_of(tiny(case)).to(gpu)
    ids = random_ids(80, gpu, 0)
    eager = logits_of(reference_runner(decoder, "fp32", 64), ids)
    graph = logits_of(reference_runner(decoder, "fp32", 64, graphed=True), ids)
    assert error(graph, eager) <= 1e-5
    truth = logits_of(reference_runner(decoder_of(tiny(case)).to(gpu), "fp32", 64), ids)
    assert error(truth, eager) > 1e-3, "other weights give other logits"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8", "int4"])
def test_a_folder_loads_to_the_gpu_and_gives_the_cpus_logits(precision: str, tmp_path: Path) -> None:
    gpu = torch.device("cuda:0")
    save_tiny(tmp_path, "qwen3", torch.bfloat16)
    found = []
    for place in (gpu, CPU):
        runner, _ = fast_runner(load_decoder(tmp_path, torch.bfloat16, place).decoder, precision, 64)
        found.append(logits_of(runner, random_ids(80, place, 1)))
    assert error(*found) <= 0.05


@pytest.mark.gpu
def test_draws_on_a_gpu_do_not_wait_for_it() -> None:
    gpu = torch.device("cuda:0")
    logits = torch.randn(50_000, device=gpu)
    sampler = Sampler(Sampling(0.8, 40, 0.9, 0.05, 3), 50_000, gpu)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        token = sampler.choose(logits)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert 0 <= int(token) < 50_000
