"""Folders and GGUF files as decoders: the logits of transformers; and what is wrong is named before memory is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gguf_files import write_gguf
from nearpeak.inference import free_memory, load
from nearpeak.inference.load import Loaded, load_decoder
from nearpeak.inference.load_plan import plan_of
from nearpeak.inference.staging import Staging
from nearpeak.models.checkpoint import open_checkpoint
from nearpeak.networks.names import Source
from nearpeak.networks.plain_attention import plain_attention
from nearpeak.records.errors import UserError
from tiny_folders import CASES, save_tiny

pytest.importorskip("transformers")
pytest.importorskip("gguf")
CPU = torch.device("cpu")


def logits(loaded: Loaded, ids: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    with torch.no_grad():
        found: torch.Tensor = loaded.decoder(ids, positions, plain_attention(loaded.shape, positions))
    return found.float()


def wanted(model: Any, ids: torch.Tensor) -> torch.Tensor:
    model.set_attn_implementation("eager")  # the others leave out Gemma 2's cap
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found.float()


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def refused(path: Path, *words: str, **how: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_decoder(path, torch.float32, CPU, **how)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


# The logits of transformers


@pytest.mark.parametrize("case", CASES)
def test_logits_of_folder_and_gguf_file(tmp_path: Path, case: str) -> None:
    """F32: both those of transformers. Packed: those of transformers with the unpacked tensors.

    Reports: vllm-metal#480, tensai#37, transformers#31766, nurl#584.
    """
    model = save_tiny(tmp_path / "folder", case)
    ids = torch.randint(3, 80, (2, 70))
    right = wanted(model, ids)
    for path in (tmp_path / "folder", write_gguf(tmp_path / "folder", tmp_path / "x.gguf")):
        loaded = load_decoder(path, torch.float32, CPU)
        assert not apart(logits(loaded, ids), right) > 3e-6
        weights = open_checkpoint(path).files.weights
        assert loaded.bytes == sum(one.bytes for name, one in weights.items() if not name.startswith("rope_"))
        assert 0 < loaded.seconds < 5
        assert loaded.kind == ("safetensors" if path.is_dir() else "gguf")
    for kind in ("F16", "Q8_0", "Q4_0"):
        path = write_gguf(tmp_path / "folder", tmp_path / f"{kind}.gguf", kind)
        loaded, held = load_decoder(path, torch.float32, CPU), open_checkpoint(path)
        again = tmp_path / kind
        again.mkdir()
        save_file({name: held.read(name, torch.float32).clone().contiguous() for name in held.held},
                  again / "model.safetensors", {"format": "pt"})  # fmt: skip
        (again / "config.json").write_text((tmp_path / "folder/config.json").read_text())
        other = type(model).from_pretrained(again).eval()
        assert not apart(logits(loaded, ids), wanted(other, ids)) > 3e-6


def test_rows_in_another_order_give_other_logits(tmp_path: Path) -> None:
    """The comparison above can fail."""
    model = save_tiny(tmp_path / "folder", "llama")
    ids = torch.randint(3, 80, (2, 70))
    loaded = load_decoder(write_gguf(tmp_path / "folder", tmp_path / "x.gguf", permute=False), torch.float32, CPU)
    assert apart(logits(loaded, ids), wanted(model, ids)) > 0.01
    save_tiny(tmp_path / "qwen", "qwen2")
    a = load_decoder(write_gguf(tmp_path / "qwen", tmp_path / "q.gguf", permute=True), torch.float32, CPU)
    b = load_decoder(tmp_path / "qwen", torch.float32, CPU)
    assert apart(logits(a, ids), logits(b, ids)) > 0.01


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["llama tied", "mixtral", "phi3", "gpt2", "gemma3"])
def test_every_dtype_from_every_dtype(tmp_path: Path, case: str, stored: torch.dtype) -> None:
    model = save_tiny(tmp_path, case, stored)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        loaded = load_decoder(tmp_path, dtype, CPU)
        assert {parameter.dtype for parameter in loaded.decoder.parameters()} == {dtype}
        assert not any(parameter.requires_grad for parameter in loaded.decoder.parameters())
        assert torch.equal(loaded.decoder.embed.weight, model.get_input_embeddings().weight.to(dtype))
        down = loaded.decoder.layers[0].feed_forward
        if case == "llama tied":
            assert torch.equal(down.down.weight, model.model.layers[0].mlp.down_proj.weight.to(dtype))
            assert loaded.decoder.head.weight is loaded.decoder.embed.weight


def test_weights_are_the_pages_of_the_file(tmp_path: Path) -> None:
    """No copy where the dtype is that of the file: two loads differ in memory by less than the weights."""
    save_tiny(tmp_path, "phi3", torch.bfloat16)
    loaded = load_decoder(tmp_path, torch.bfloat16, CPU)
    layer = loaded.decoder.layers[1]
    q, k = layer.attention.q.weight, layer.attention.k.weight
    assert k.data_ptr() - q.data_ptr() == q.nbytes  # rows of the fused map, where they lie
    pages = Path("/proc/self/maps").read_text().splitlines()
    inside = [line for line in pages if str(tmp_path) in line]
    for parameter in loaded.decoder.parameters():
        at = parameter.data_ptr()
        assert any(int(line.split("-")[0], 16) <= at < int(line.split()[0].split("-")[1], 16) for line in inside)


@pytest.mark.parametrize("seed", range(3))
def test_staged_copies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to a GPU, with plain memory for pinned: pieces of any size, other dtypes, columns of a matrix."""
    from nearpeak.inference import staging

    monkeypatch.setattr(staging, "PIECE", 1000)
    torch.manual_seed(seed)
    way = Staging(CPU, pinned=False)
    for shape in [(7,), (3000,), (40, 33), (2, 900), (5, 6, 7), (1, 1), (0, 4)]:
        for source in (torch.randn(shape), torch.randn(shape).half(), torch.randn((*shape, 2))[..., 1]):
            target = torch.full(shape, torch.nan, dtype=torch.bfloat16)
            way.copy(source, target)
            assert torch.equal(target, source.to(torch.bfloat16))
    columns = torch.zeros(33, 40)
    way.copy(torch.ones(40, 33), columns.T)
    assert columns.sum() == 40 * 33
    way.wait()


def test_loading_by_way_of_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts into their stacks too."""
    model = save_tiny(tmp_path, "mixtral")
    monkeypatch.setattr(load, "Staging", lambda device: Staging(device, pinned=False))
    ids = torch.randint(3, 80, (2, 70))
    assert not apart(logits(load_decoder(tmp_path, torch.float32, CPU), ids), wanted(model, ids)) > 3e-6


def test_a_gguf_file_in_parts(tmp_path: Path) -> None:
    """Each tensor is read from its own file; a part that is missing is named."""
    import gguf

    model = save_tiny(tmp_path / "folder", "llama")
    whole = gguf.GGUFReader(write_gguf(tmp_path / "folder", tmp_path / "x.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "y.gguf", "llama", split_max_tensors=9)
    for name, field in whole.fields.items():
        if name.startswith("llama."):
            writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("y-*.gguf"))
    assert len(parts) > 2
    ids = torch.randint(3, 80, (1, 20))
    for part in parts[:2]:
        assert not apart(logits(load_decoder(part, torch.float32, CPU), ids), wanted(model, ids)) > 3e-6
    parts[1].unlink()
    refused(parts[0], parts[1].name, "missing")


@pytest.mark.parametrize("root", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_model_with_images(tmp_path: Path, root: str) -> None:
    """Its tensors have another root, its config stands inside; the tower is left out, and the notes say so."""
    model = save_tiny(tmp_path, "gemma3")
    config = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(outer))

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[root + name.removeprefix("model.")] = tensors.pop(name)
        tensors["vision_tower.patches.weight"] = torch.randn(4, 4)

    rewrite(tmp_path, change)
    loaded = load_decoder(tmp_path, torch.float32, CPU)
    ids = torch.randint(3, 80, (1, 60))
    assert not apart(logits(loaded, ids), wanted(model, ids)) > 3e-6
    assert any("tower" in note for note in loaded.spec.notes)


# Adapters


@pytest.mark.parametrize("case", ["llama", "gpt2", "phi3", "qwen2"])
@pytest.mark.parametrize("gguf", [False, True])
def test_an_adapter_gives_the_logits_of_peft(tmp_path: Path, case: str, gguf: bool) -> None:
    peft = pytest.importorskip("peft")
    model = save_tiny(tmp_path / "base", case)
    maps = ["c_attn", "c_proj"] if case == "gpt2" else "all-linear"
    model = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=maps, fan_in_fan_out=case == "gpt2"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path / "adapter")
    ids = torch.randint(3, 80, (2, 70))
    path = write_gguf(tmp_path / "base", tmp_path / "x.gguf") if gguf else tmp_path / "base"
    plain, adapted = (load_decoder(path, torch.float32, CPU, lora=lora) for lora in (None, tmp_path / "adapter"))
    right = wanted(model.merge_and_unload(), ids)
    assert not apart(logits(adapted, ids), right) > 1e-5
    assert apart(logits(plain, ids), right) > 0.05
    assert any("merged into" in note for note in adapted.notes)
    assert adapted.bytes > plain.bytes
    half = load_decoder(path, torch.bfloat16, CPU, lora=tmp_path / "adapter")
    assert not apart(logits(half, ids), right) > 0.2
    refused(path, "adapter_config.json", lora=tmp_path / "base")


# What is wrong is named


@pytest.mark.parametrize("case", ["llama", "gpt2", "mixtral", "gemma3"])
def test_any_tensor_that_is_missing_is_named(tmp_path: Path, case: str) -> None:
    """Report: nano-vllm's code leaves a parameter that nothing was assigned to."""
    save_tiny(tmp_path, case)
    whole = (tmp_path / "model.safetensors").read_bytes()
    names = list(load_file(tmp_path / "model.safetensors"))
    for name in names[:: max(1, len(names) // 12)]:
        if name == "lm_head.weight":
            continue  # then the embedding is the head
        (tmp_path / "model.safetensors").write_bytes(whole)
        rewrite(tmp_path, lambda tensors, name=name: tensors.pop(name))
        refused(tmp_path, name.split(".experts.")[0].split("layers.")[-1].split(".")[-1], "missing")


def test_what_the_network_has_no_place_for(tmp_path: Path) -> None:
    """By the config of the spec the tensor belongs to the model, but the decoder does not compute with it."""
    save_tiny(tmp_path, "llama biases")
    checkpoint = open_checkpoint(tmp_path)
    save_tiny(tmp_path / "other", "llama")
    loaded = load_decoder(tmp_path / "other", torch.float32, CPU)
    from nearpeak.networks.names import sources_of

    with pytest.raises(UserError, match=r"bias.*left over"):
        plan_of(loaded.decoder, sources_of(loaded.shape), checkpoint)
    sources = {**sources_of(loaded.shape), "norm.weight": Source(("model.embed_tokens.weight",))}
    with pytest.raises(UserError, match=r"embed_tokens.*\[80, 64\].*\[64\].*norm\.weight"):
        plan_of(loaded.decoder, sources, open_checkpoint(tmp_path / "other"))


def test_a_key_of_the_config_that_nobody_knows(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    change_config(tmp_path, a_new_kind_of_attention=True)
    refused(tmp_path, "a_new_kind_of_attention")
    change_config(tmp_path, a_new_kind_of_attention=None)
    load_decoder(tmp_path, torch.float32, CPU)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("head", ["absent", "equal", "other"])
def test_a_tied_head_in_logits(tmp_path: Path, says: bool, head: str) -> None:
    """Reports: vllm#53019, vllm#51665, Qwen3-VL-Embedding#89."""
    model = save_tiny(tmp_path, "llama")
    embedding = model.model.embed_tokens.weight.detach()
    if head == "absent":
        rewrite(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    elif head == "equal":
        rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    if head != "other":
        model.lm_head.weight.data = embedding
    change_config(tmp_path, tie_word_embeddings=says)
    loaded = load_decoder(tmp_path, torch.float32, CPU)
    ids = torch.randint(3, 80, (1, 20))
    assert not apart(logits(loaded, ids), wanted(model, ids)) > 3e-6
    assert loaded.shape.tied is (head != "other")
    assert (loaded.decoder.head.weight is loaded.decoder.embed.weight) is (head != "other")
    assert bool(loaded.notes) is (says == (head == "other"))


def test_shards(tmp_path: Path) -> None:
    """Reports: sglang#32279, nano-vllm#264."""
    model = save_tiny(tmp_path, "llama", max_shard_size="80KB")
    ids = torch.randint(3, 80, (1, 20))
    assert not apart(logits(load_decoder(tmp_path, torch.float32, CPU), ids), wanted(model, ids)) > 3e-6
    (tmp_path / "model.safetensors.index.json").unlink()
    assert not apart(logits(load_decoder(tmp_path, torch.float32, CPU), ids), wanted(model, ids)) > 3e-6
    gone = sorted(tmp_path.glob("*.safetensors"))[-1]
    gone.unlink()
    refused(tmp_path, gone.name, "missing")


def test_memory_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, "llama")
    needed = sum(tensor.nbytes for tensor in load_file(tmp_path / "model.safetensors").values())
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: needed - 1)
    monkeypatch.setattr(load._Filling, "fill", lambda *rest: pytest.fail("a weight was read"))
    refused(tmp_path, f"{needed:,}", f"{needed - 1:,}", "float32")
    monkeypatch.undo()
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: needed // 2)
    load_decoder(tmp_path, torch.bfloat16, CPU)
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: None)
    load_decoder(tmp_path, torch.float32, CPU)


def test_free_memory_of_this_machine() -> None:
    free = free_memory.free_bytes(CPU)
    assert free is not None
    assert 1 << 20 < free <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_an_error_in_one_thread_ends_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, "llama")
    read: list[str] = []

    def broken(self: Any, name: str) -> torch.Tensor:
        read.append(name)
        raise UserError(f"{name} cannot be read")

    monkeypatch.setattr(load._Filling, "_read", broken)
    refused(tmp_path, "cannot be read")
    assert len(read) < 30
    monkeypatch.setattr(load._Filling, "_read", lambda self, name: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    refused(tmp_path, "memory on cpu ran out")


def test_peak_memory_is_the_model_once(tmp_path: Path) -> None:
    """Of a packed file in a process of its own: what it takes is what its weights take, and a little. Nor does it make
    torch load its compiler, which takes seconds."""
    import subprocess
    import sys

    import transformers

    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=4096, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "folder")
    path = write_gguf(tmp_path / "folder", tmp_path / "x.gguf", "Q8_0")
    code = f"""
import resource, sys, torch
from pathlib import Path
from nearpeak.inference.load import load_decoder
import gguf.quants
torch.zeros(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loaded = load_decoder(Path({str(path)!r}), torch.float32, torch.device("cpu"))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = sum(parameter.nbytes for parameter in loaded.decoder.parameters())
print(held, (after - before) * 1024, int("torch._dynamo" in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    held, taken, compiler = map(int, done.stdout.split())
    assert not compiler
    file = path.stat().st_size  # its pages count as this process's, though they can be dropped
    assert held > 130 << 20
    assert taken < held + file + (60 << 20)
