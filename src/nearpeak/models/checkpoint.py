"""A model's weights as transformers names them, whatever the files: each one accounted for, none read yet.

What a GGUF file has otherwise is undone here: names, maps that are stored turned round, experts in one tensor, rows of
queries and keys in another order (Llama), norms with 1 added (Gemma).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.models.architecture import Architecture, Tensor
from nearpeak.models.config import Config
from nearpeak.models.families import architecture_of
from nearpeak.models.fresh_tensor import as_dtype
from nearpeak.models.gguf_maths import PERMUTED
from nearpeak.models.gguf_model import spec_of_gguf
from nearpeak.models.gguf_tensors import GgufTensors
from nearpeak.models.place import Place
from nearpeak.models.spec_of import model_spec
from nearpeak.models.tensor_files import TensorFiles, Values, open_tensors
from nearpeak.models.tensors import account, head_is_there
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import ModelSpec

if TYPE_CHECKING:
    import torch

HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight")


@dataclass(frozen=True)
class Held:
    """How one tensor of transformers lies in the files.

    name      there; expert: which one of a tensor of all of them
    shape     as transformers has it; turned: the file has (outputs, inputs), transformers (inputs, outputs)
    heads     whose rows are to be put back in order; 0: they are
    offset    what the file has added to it
    """

    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    turned: bool = False
    heads: int = 0
    offset: float = 0.0


class Checkpoint:
    """path, kind: of the files; config: as config.json, `tie_word_embeddings` by what the files hold; spec; notes.

    held   name in transformers → how it lies in the files
    """

    def __init__(
        self, files: TensorFiles, config: Values, spec: ModelSpec, held: dict[str, Held], notes: tuple[str, ...]
    ) -> None:
        self.files, self.config, self.spec, self.held, self.notes = files, config, spec, held, notes
        self.path, self.kind = files.path, files.kind

    def weight(self, name: str) -> Weight:
        """Shape as in transformers; dtype and bytes as in the file."""
        held = self.held[name]
        weight = self.files.weights[held.name]
        size = weight.bytes if held.expert is None else weight.bytes // (weight.shape or (1,))[0]
        return Weight.plain(held.shape, size, weight.dtype)

    def place(self, name: str) -> Place:
        """Where the tensor that holds it begins."""
        return self.files.places[self.held[name].name]

    def read_ahead(self, name: str) -> int:
        """Have the bytes of one tensor in memory on return, where the system can be told to; how many they are."""
        held, size = self.held[name], self.weight(name).bytes
        place = self.files.places[held.name]
        self.files.file_of(place).read_ahead(place.begin + size * (held.expert or 0), size)
        return size

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor on the CPU as transformers would have it. dtype None: as stored, packed types as fp32. No copy
        where the file has it so. Do not write to it."""
        held = self.held[name]
        rows = None if held.expert is None else slice(held.expert, held.expert + 1)
        if held.offset:
            tensor = self.files.read(held.name, rows=rows).float() - held.offset  # in fp32, where 1 was added
            tensor = as_dtype(tensor, dtype)
        else:
            tensor = self.files.read(held.name, dtype, rows)
        if held.turned:
            tensor = tensor.reshape(held.shape[::-1]).T
        if held.heads:
            tensor = _half_split(tensor, held.heads)
        return tensor.reshape(held.shape)


def open_checkpoint(path: Path) -> Checkpoint:
    """A model folder or .gguf file with every tensor accounted for, by headers alone, but for a head that may be the
    embedding again, which is compared.

    Raises UserError naming the tensor or key: one is missing, has another shape or dtype, belongs to no part.
    """
    files = open_tensors(path)
    checkpoint = _gguf(files) if isinstance(files, GgufTensors) else _folder(files)
    for held in checkpoint.held.values():
        files.refuse(held.name)
    if checkpoint.spec.task != "generate" or not head_is_there(checkpoint.spec.parts):
        raise UserError(f"{path} has no head over a vocabulary: it writes no text. Name a model that does.")
    return checkpoint


def _folder(files: TensorFiles) -> Checkpoint:
    where = str(files.path / "config.json")
    first = architecture_of(Config(files.config, where))
    tied, notes = _tied(files, first)
    values = files.config
    if tied is not None:
        values = {**values, "tie_word_embeddings": tied}
        inner = values.get("text_config")
        if isinstance(inner, dict):
            values["text_config"] = {**inner, "tie_word_embeddings": tied}
    config = Config(values, where)
    architecture = architecture_of(config)
    held = account(architecture, files.weights, str(files.path))
    if not head_is_there(held.parts):
        architecture = replace(architecture, task="encode")
    name = files.path.resolve().name or str(files.path)
    notes = (*notes, *files.notes)
    spec = model_spec(name, architecture, config, held.parts, held.stored, str(files.path), [*held.notes, *notes])
    where_held = {canonical: Held(name, files.weights[name].shape or ()) for canonical, name in held.names.items()}
    return Checkpoint(files, values, spec, where_held, notes)


def _tied(files: TensorFiles, architecture: Architecture) -> tuple[bool | None, tuple[str, ...]]:
    """Whether head and embedding are one tensor, by what the files hold, and a note where config.json says otherwise.

    None: this model has no head.
    """
    says = bool(architecture.duplicates)
    heads = {tensor.name for piece in architecture.pieces if not piece.optional for tensor in piece.tensors}
    if not says and HEAD not in heads:
        return None, ()
    head = _find(files, HEAD)
    embedding = next((found for name in EMBEDDINGS if (found := _find(files, name))), None)
    if embedding is None:
        return says, ()
    if head is None:
        if says:
            return True, ()
        return True, (f"config.json says that the head is no copy of the embedding, but there is no {HEAD}: the "
                      "embedding is taken as the head.",)  # fmt: skip
    if files.weights[head].shape != files.weights[embedding].shape:
        return says, ()  # the account says what is wrong
    same = files.same(head, embedding)
    if same and not says:
        return True, (f"{HEAD} is the same as the embedding: it is kept once.",)
    if not same and says:
        return False, (f"config.json says that the head is the embedding, but the files hold a {HEAD} that differs: "
                       "the files' head is used.",)  # fmt: skip
    return same, ()


def _find(files: TensorFiles, name: str) -> str | None:
    """A name as it stands in the files, with another root or none."""
    bare = name.removeprefix("model.").removeprefix("transformer.")
    roots = ("", "model.", "transformer.", "language_model.", "model.language_model.", "language_model.model.",
             "model.text_model.")  # fmt: skip
    return next((root + bare for root in roots if root + bare in files.weights), None)


def _gguf(files: GgufTensors) -> Checkpoint:
    header, values, notes = files.header, files.config, files.notes
    if "output.weight" in header.tensors and files.same("output.weight", "token_embd.weight"):
        values = {**values, "tie_word_embeddings": True}
    spec, architecture = spec_of_gguf(header, values, files.path)
    held: dict[str, Held] = {}
    norms = 1.0 if values["model_type"] in ("gemma2", "gemma3_text") else 0.0
    for piece in architecture.pieces:
        for way in (piece.tensors, *piece.otherwise):
            if all(tensor.gguf for tensor in way):
                for tensor in way:
                    for name, one in _held(tensor, piece.layers, norms, files):
                        held.setdefault(name, one)
                break
    return Checkpoint(files, values, spec, held, notes)


def _held(tensor: Tensor, layers: tuple[int, ...], norms: float, files: GgufTensors) -> list[tuple[str, Held]]:
    """Each name that the tensor has in transformers, with how the file holds it."""
    values = files.config
    heads = 0
    if str(files.header.metadata["general.architecture"]) in PERMUTED:
        stem = tensor.gguf.rpartition(".")[0]
        count = {"blk.{i}.attn_q": "num_attention_heads", "blk.{i}.attn_k": "num_key_value_heads"}.get(stem)
        if count:
            found = values.get(count, values["num_attention_heads"])
            assert isinstance(found, int)
            heads = found
    offset = norms if tensor.gguf.endswith("norm.weight") else 0.0
    found_names = []
    for number, name in enumerate(tensor.names(layers)):
        layer, expert = divmod(number, tensor.experts if "{e}" in tensor.name else 1)
        there = tensor.gguf.replace("{i}", str(layers[layer]))
        if there in files.weights:
            one = Held(there, tensor.shape, expert if "{e}" in tensor.name else None, tensor.transposed, heads, offset)
            found_names.append((name, one))
    return found_names


def _half_split(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows [heads · head_dim, …] of q or k, a bias too: from neighbours that turn together to halves of a head that do.

    llama.cpp's converter makes row 2j of row j and row 2j + 1 of row j + head_dim ÷ 2 of each head.
    """
    rest = tensor.shape[1:]
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *rest)
    return pairs.transpose(1, 2).reshape(tensor.shape)
