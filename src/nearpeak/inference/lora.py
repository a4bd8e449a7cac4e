"""A LoRA adapter of peft, to be merged into the weights as they are loaded: W + scale · B·A (Hu et al. 2021).

adapter_config.json is peft's LoraConfig: each of its keys is honoured, known not to change what is computed, or refused
by name. What is merged has no cost at run time; the adapter's own dropout is of training alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from nearpeak.models.checkpoint import HEAD, Checkpoint
from nearpeak.models.config import Config
from nearpeak.models.json_file import read_json
from nearpeak.models.safetensors_header import read_header_and_places
from nearpeak.models.safetensors_tensors import READ
from nearpeak.models.tensor_files import TensorFiles
from nearpeak.models.tensors import shown
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
ROOTS = ("model.language_model.", "language_model.model.", "model.text_model.", "model.", "transformer.", "")

# of training, of how the adapter came about, or of which modules have one (its tensors say that)
NO_MATTER = frozenset({
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "target_modules", "exclude_modules", "lora_dropout", "layers_to_transform", "layers_pattern", "megatron_core",
    "qalora_group_size", "eva_config", "modules_to_save", "ensure_weight_tying", "fan_in_fan_out", "runtime_config",
})  # fmt: skip
HONOURED = frozenset({"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias",
                      "init_lora_weights"})  # fmt: skip
REFUSED = {  # key → what it is; null, false and empty mean that it is not there
    "use_dora": "DoRA", "use_qalora": "QALoRA", "lora_bias": "a bias beside B·A", "megatron_config": "Megatron's maps",
    "trainable_token_indices": "single rows of an embedding", "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "repeated layers", "target_parameters": "experts or other bare parameters",
    "use_bdlora": "block-diagonal LoRA", "arrow_config": "arrow routing", "kasa_config": "KaSA",
    "velora_config": "VeLoRA", "monteclora_config": "MonteCLoRA", "loftq_config": "LoftQ", "corda_config": "CorDA",
    "lora_ga_config": "LoRA-GA",
}  # fmt: skip
KEEP_THE_BASE = (True, False, "gaussian", "eva", "orthogonal")  # ways to begin; others change the base's weights too


@dataclass(frozen=True)
class Update:
    """What is added to one weight. a [r, inputs], b [outputs, r] on the CPU; scale: alpha ÷ r, or alpha ÷ √r."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    def added_to(self, weight: torch.Tensor, turned: bool) -> torch.Tensor:
        """weight + scale · B·A in fp32, in a tensor of its own. turned: the weight is (inputs, outputs), as GPT-2's."""
        delta = self.b.float() @ self.a.float()
        return torch.add(weight.float(), delta.T if turned else delta, alpha=self.scale)


@dataclass(frozen=True)
class Adapter:
    """updates, replaced: by the name of the weight in transformers; a replaced one was trained as a whole."""

    path: Path
    updates: dict[str, Update]
    replaced: dict[str, torch.Tensor]
    bytes: int

    @property
    def note(self) -> str:
        """One line for a person."""
        whole = f", {len(self.replaced)} replaced as a whole" if self.replaced else ""
        return f"Adapter {self.path} merged into {len(self.updates)} weights{whole}."

    def merged(self, name: str, weight: torch.Tensor, turned: bool = False) -> torch.Tensor:
        """The weight with what the adapter does to it, in fp32; itself where that is nothing."""
        weight = self.replaced.get(name, weight)
        update = self.updates.get(name)
        return weight if update is None else update.added_to(weight, turned)

    def touches(self, name: str) -> bool:
        """The adapter changes this weight."""
        return name in self.updates or name in self.replaced


def read_adapter(folder: Path, base: Checkpoint) -> Adapter:
    """The adapter in `folder` for the model `base`.

    Raises UserError naming key or tensor: another kind of adapter, one for another model, something not understood.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: name a folder that peft's save_pretrained has written.")
    config = Config(read_json(folder / CONFIG, 4 << 20), str(folder / CONFIG))
    _check(config)
    files = _Tensors(folder / WEIGHTS)
    halves: dict[str, dict[str, str]] = {}
    replaced: dict[str, torch.Tensor] = {}
    for tensor in files.weights:
        files.refuse(tensor)
        module, half = _module(files.path, tensor)
        if half:
            halves.setdefault(module, {})[half] = tensor
        else:
            name = _name(base, module, "", files.path, tensor)
            _same_shape(files, tensor, base.held[name].shape, name)
            whole = files.read(tensor)
            if torch.equal(whole, base.read(name, whole.dtype)):
                continue  # peft writes embedding and head once more where one of them has an adapter
            _not_tied(base, name, files.path, tensor)
            replaced[name] = whole
    updates: dict[str, Update] = {}
    for module, pair in halves.items():
        one = next(iter(pair.values()))
        name = _name(base, module, ".weight", files.path, one)
        if "A" not in pair or "B" not in pair:
            raise UserError(f"{files.path}: tensor {shown(one)} is there without its other half. Fetch the file again.")
        _not_tied(base, name, files.path, one)
        updates[name] = _update(config, files, base, name, module, pair)
    if not updates and not replaced:
        raise UserError(f"{files.path} holds no tensor. Fetch it again.")
    return Adapter(folder, updates, replaced, sum(weight.bytes for weight in files.weights.values()))


class _Tensors(TensorFiles):
    """One safetensors file without a config."""

    def __init__(self, path: Path) -> None:
        weights, places = read_header_and_places(path)
        super().__init__(path, "safetensors", weights, places, {})

    def refuse(self, name: str) -> None:
        if self.weights[name].dtype not in READ:
            raise UserError(
                f"{self.path}: tensor {shown(name)} is {self.weights[name].dtype}; bf16, fp16, fp32 are read."
            )

    def read(self, name: str, dtype: torch.dtype | None = None, rows: slice | None = None) -> torch.Tensor:
        weight, place = self.weights[name], self.places[name]
        stored = self.file_of(place).tensor(place.begin, weight.shape or (), getattr(torch, READ[weight.dtype]))
        return stored if dtype is None else stored.to(dtype)


def _check(config: Config) -> None:
    """Every key of the adapter's config, by name."""
    kind = config.text("peft_type")
    if kind.upper() != "LORA":
        raise config.error("peft_type", f"is {kind[:40]!r}: LORA alone is merged")
    for key, value in config.values.items():
        if key in NO_MATTER or key in HONOURED or value in (None, False) or value in ({}, []):
            continue
        if key in REFUSED:
            raise config.error(key, f"is set: {REFUSED[key]} is not merged")
        raise config.error(key[:100], "is not known here, and may change what the adapter does")
    if config.text("bias", "none") != "none":
        raise config.error("bias", "is not 'none': trained biases are not merged")
    begin = config.values.get("init_lora_weights", True)
    if begin is not None and begin not in KEEP_THE_BASE:
        raise config.error(
            "init_lora_weights", f"is {str(begin)[:40]!r}, which changes the model's own weights too; save the adapter "
            "with path_initial_model_for_weight_conversion"
        )  # fmt: skip


def _module(path: Path, tensor: str) -> tuple[str, str]:
    """The module that a tensor belongs to, and "A" or "B"; for one that was trained as a whole its own name, and ""."""
    name = tensor.removeprefix(PREFIX)
    if name == tensor:
        raise UserError(f"{path}: tensor {shown(tensor)} does not begin with {PREFIX}: it is none of peft's.")
    if match := re.fullmatch(r"(.+)\.lora_([AB])\.weight", name):
        return match[1], match[2]
    if "lora_" in name:
        raise UserError(f"{path}: tensor {shown(tensor)} is no half of a linear map's LoRA: that is not merged.")
    return name.replace(".base_layer.", "."), ""


def _name(base: Checkpoint, module: str, end: str, path: Path, tensor: str) -> str:
    """The weight in transformers, whatever root stands before the module's name."""
    bare = module
    for root in ROOTS:
        if root and module.startswith(root):
            bare = module.removeprefix(root)
            break
    for root in ("model.", "transformer.", ""):
        if root + bare + end in base.held:
            return root + bare + end
    raise UserError(
        f"{path}: tensor {shown(tensor)} is for {module[:200]}, which {base.spec.name} ({base.spec.family}) does not "
        "have as a weight of its own. The adapter is for another model, or of a kind that is not merged."
    )


def _not_tied(base: Checkpoint, name: str, path: Path, tensor: str) -> None:
    embedding = name.endswith(("embed_tokens.weight", "wte.weight"))
    if embedding and HEAD not in base.held:
        raise UserError(
            f"{path}: tensor {shown(tensor)} changes the embedding, which is the head too in {base.spec.name}: that is "
            "not merged."
        )


def _update(
    config: Config, files: _Tensors, base: Checkpoint, name: str, module: str, pair: dict[str, str]
) -> Update:  # fmt: skip
    held = base.held[name]
    if len(held.shape) != 2 or name.endswith(("embed_tokens.weight", "wte.weight", "wpe.weight")):
        raise UserError(f"{files.path}: tensor {shown(pair['A'])} is for {name}, which is no linear map.")
    rank = _pattern(config, "rank_pattern", module, config.size("r", 8))
    alpha = _pattern(config, "alpha_pattern", module, config.number("lora_alpha", 8))
    if rank != int(rank) or rank < 1:
        raise config.error("rank_pattern", f"gives {rank:g} for {module[:200]}: a whole number from 1 is expected")
    outputs, inputs = reversed(held.shape) if transposed(base, name) else held.shape
    _same_shape(files, pair["A"], (int(rank), inputs), name)
    _same_shape(files, pair["B"], (outputs, int(rank)), name)
    scale = alpha / (math.sqrt(rank) if config.flag("use_rslora", False) else rank)
    return Update(files.read(pair["A"]), files.read(pair["B"]), scale)


def transposed(base: Checkpoint, name: str) -> bool:
    """Stored (inputs, outputs): GPT-2's maps."""
    return base.spec.family == "gpt2" and re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name) is not None


def _same_shape(files: _Tensors, tensor: str, shape: tuple[int, ...], name: str) -> None:
    weight: Weight = files.weights[tensor]
    if weight.shape != shape:
        raise UserError(
            f"{files.path}: tensor {shown(tensor)} is {weight.text()}; for {name} it should be {list(shape)}. The "
            "adapter is for another model, or its rank is another."
        )


def _pattern(config: Config, key: str, module: str, default: float) -> float:
    """The value of the first entry whose name the module's ends in. peft takes names as regular expressions: only
    those that are plain names are read, with "^" for the whole name."""
    table = config.values.get(key) or {}
    if not isinstance(table, dict):
        raise config.error(key, "is no object of names with numbers")
    for pattern, value in table.items():
        plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if not re.fullmatch(r"[\w.]+", plain):
            raise config.error(key, f"has {pattern[:100]!r}, a regular expression; names alone are read")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e6:
            raise config.error(key, f"gives {str(value)[:40]} for {pattern[:100]!r}: a number is expected")
        if module == plain or (not pattern.startswith("^") and module.endswith("." + plain)):
            return float(value)
    return default
