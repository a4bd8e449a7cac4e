"""Where the reference rounds, and what must not happen in a step: modules bit for bit in 16 bits, far positions in
every family, nothing copied to the device."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearpeak.networks.decoder import Decoder
from nearpeak.networks.norms import RMSNorm
from nearpeak.networks.plain_attention import plain_attention
from nearpeak.networks.rope import rotate
from networks import decoder_of, error, logits_of
from tiny_folders import CASES, tiny

FAR = 1500
ROTATING = [case for case in CASES if case != "gpt2"]
HALVES = [torch.bfloat16, torch.float16]
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 2.0}}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", ROTATING)
def test_norms_round_where_the_reference_does(case: str, dtype: torch.dtype) -> None:
    """Llama rounds before it multiplies by the weight, Gemma and OLMo 2 after."""
    model = tiny(case).to(dtype)
    decoder = decoder_of(model)
    theirs = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    ours = [module for module in decoder.modules() if isinstance(module, RMSNorm)]
    assert len(ours) == len(theirs)
    for size in {len(norm.weight) for norm in ours}:
        x = (3 * torch.randn(2, 7, size)).to(dtype)
        made = sorted(norm(x).sum(dtype=torch.float64).item() for norm in ours if len(norm.weight) == size)
        wanted = sorted(norm(x).sum(dtype=torch.float64).item() for norm in theirs if len(norm.weight) == size)
        assert made == wanted


@pytest.mark.parametrize("case", ROTATING)
def test_rotations_round_where_the_reference_does(case: str) -> None:
    """In bf16 far from the start; OLMo 2 turns in fp32."""
    model = tiny(case)
    turning, apply = _turning(model)
    shape = decoder_of(model).shape
    positions = torch.stack([torch.arange(9), torch.arange(FAR, FAR + 9)])
    q, k = (torch.randn(2, heads, 9, shape.head_dim).bfloat16() for heads in (4, 2))
    rotations = Decoder(shape).rotations
    kinds = getattr(model.config, "layer_types", None) or [None] * len(shape.layers)
    compared = 0
    for layer, kind in zip(shape.layers, kinds, strict=True):
        if layer.rope is None:
            continue
        wanted = apply(q, k, *(turning(q, positions, kind) if case == "gemma3" else turning(q, positions)))
        ours = rotations(layer.rope, positions, torch.bfloat16)
        for x, truth in zip((q, k), wanted, strict=True):
            assert torch.equal(rotate(x, *ours), truth)
            compared += 1
    assert compared


@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe"])
def test_experts_are_weighted_in_the_references_dtype(case: str) -> None:
    model = tiny(case).to(torch.bfloat16)
    model.config._experts_implementation = "eager"
    x = torch.randn(2, 9, 64).bfloat16()
    for theirs, ours in zip(model.model.layers, decoder_of(model).layers, strict=True):
        with torch.no_grad():
            made, wanted = ours.experts(x), theirs.mlp(x)
        router = theirs.mlp.gate(x.flatten(0, 1))[1]
        rows = x.flatten(0, 1)
        assert torch.equal(ours.experts._route(rows)[0].to(router.dtype), router)
        assert ours.experts._route(rows)[0].dtype == router.dtype
        assert error(made, wanted) <= 1e-3


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", ["gemma2", "gemma3"])
def test_the_embeddings_scale_is_rounded_to_the_weights_dtype(case: str, dtype: torch.dtype) -> None:
    """√72 has no end; √64 would show nothing."""
    model = tiny(case, hidden_size=72).to(dtype)
    ids = torch.randint(0, 80, (1, 9))
    came_in: list[torch.Tensor] = []
    decoder = decoder_of(model)
    decoder.layers[0].register_forward_pre_hook(lambda block, inputs: came_in.append(inputs[0]))
    logits_of(decoder, ids)
    with torch.no_grad():
        assert torch.equal(came_in[0], model(ids, output_hidden_states=True).hidden_states[0])


@pytest.mark.parametrize("case", [*CASES, "dynamic"])
def test_long_sequences_agree(case: str) -> None:
    """Tokens 1,000 apart, past every window, training and original length: short ones look right with any theta."""
    model = _long(case)
    ids = torch.randint(0, 80, (1, 1000))
    with torch.no_grad():
        truth = model(ids).logits
    assert error(logits_of(decoder_of(model), ids), truth) <= 3e-5


@pytest.mark.parametrize("case", [*CASES, "dynamic"])
def test_rows_that_start_at_different_positions_agree(case: str) -> None:
    model = _long(case)
    ids = torch.randint(0, 80, (3, 20))
    positions = torch.tensor([[0], [900], [FAR]]) + torch.arange(20)
    with torch.no_grad():
        truth = model(ids, position_ids=positions).logits
        decoder = decoder_of(model)
        made = decoder(ids, positions, plain_attention(decoder.shape, positions))
    assert error(made, truth) <= 3e-5


@pytest.mark.parametrize("case", CASES)
def test_in_bf16_far_positions_are_no_worse_than_transformers_own(case: str) -> None:
    """transformers keeps its frequencies in fp32 when it loads a folder; model.to(bf16) alone would round them, and
    hide any error of ours behind that."""
    model = _long(case)
    ids = torch.randint(0, 80, (2, 30))
    positions = torch.tensor([[0], [FAR]]) + torch.arange(30)
    with torch.no_grad():
        truth = model(ids, position_ids=positions).logits
        kept = {name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
        model = model.to(torch.bfloat16)
        for name, buffer in kept.items():
            if name.endswith("inv_freq"):
                module, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(module), leaf, buffer)
        theirs = model(ids, position_ids=positions).logits
        decoder = decoder_of(model)
        made = decoder(ids, positions, plain_attention(decoder.shape, positions))
    assert error(made, truth) <= 1.3 * error(theirs, truth) + 1e-3


class _NoCopies(TorchDispatchMode):
    """Refuses operators that take tensors of the host to the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        places = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        copied = isinstance(made, torch.Tensor) and made.device.type == "meta" and "cpu" in places
        assert not copied, f"{func} copies to the device"
        return made


class _NoNumbers(TorchFunctionMode):
    """Refuses tensors of the device that are made of Python's numbers, which no operator shows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            assert made.device.type == "cpu", "a tensor of Python's numbers is copied to the device"
        return made


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("mixtral", "qwen3_moe", "phi4")])
def test_a_second_step_copies_nothing_to_the_device(case: str) -> None:
    """What a CUDA graph cannot hold, found without one: the device is "meta". Frequencies that change with the length
    (LongRoPE) and experts have to be chosen on the host."""
    shape = decoder_of(tiny(case)).shape
    assert not shape.changes_with_length
    with torch.device("meta"):
        decoder = Decoder(shape).to(torch.bfloat16)
        ids, positions = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
    decoder(ids, positions, plain_attention(shape, positions))
    with _NoNumbers(), _NoCopies():
        logits = decoder(ids, positions, plain_attention(shape, positions))
    assert logits.shape == (1, 1, 80)


def test_frequencies_kept_in_inference_serve_training_too() -> None:
    decoder = decoder_of(tiny("llama"))
    ids, positions = torch.randint(0, 80, (1, 5)), torch.arange(5)[None]
    with torch.inference_mode():
        before = decoder(ids, positions, plain_attention(decoder.shape, positions))
    after = decoder(ids, positions, plain_attention(decoder.shape, positions))
    after.sum().backward()
    assert torch.equal(after.detach(), before.clone())
    assert decoder.layers[0].attention.q.weight.grad is not None


def _long(case: str) -> Any:
    """A model with room for far positions; attention as the reference has it plainly."""
    more = {"gpt2": {"n_positions": 2048}, "dynamic": DYNAMIC}.get(case, {})
    model = tiny("llama" if case == "dynamic" else case, **more)
    model.config._attn_implementation = model.config._experts_implementation = "eager"
    return model


def _turning(model: Any) -> tuple[Any, Any]:
    """transformers' module of cosines and sines, and its function that turns queries and keys."""
    code = importlib.import_module(type(model).__module__)
    return model.model.rotary_emb, code.apply_rotary_pos_emb
