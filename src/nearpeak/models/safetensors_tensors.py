"""The weights of a folder of safetensors, as they are stored: bf16, fp16, fp32. Packed folders are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearpeak.models.config import Config
from nearpeak.models.folder import CONFIG_BYTES, list_folder, what_else
from nearpeak.models.fresh_tensor import as_dtype
from nearpeak.models.json_file import read_json
from nearpeak.models.place import Place
from nearpeak.models.safetensors_header import read_header_and_places
from nearpeak.models.shards import read_shards
from nearpeak.models.tensor_files import TensorFiles, Values, rows_of
from nearpeak.models.tensors import shown
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError

if TYPE_CHECKING:
    import torch

READ = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}  # our name → torch's
FOREIGN = {"quantize_config.json": "GPTQ", "quant_config.json": "AWQ", "hf_quant_config.json": "modelopt"}
MARKS = {  # ends of names that only packed folders have
    ".qweight": "GPTQ or AWQ", ".qzeros": "GPTQ or AWQ", ".SCB": "bitsandbytes", ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes", ".weight_packed": "compressed-tensors", ".weight_scale": "fp8",
    ".weight_scale_inv": "fp8", "_blocks": "mxfp4",
}  # fmt: skip


class SafetensorsFiles(TensorFiles):
    """A folder with config.json and one or more .safetensors files."""

    def __init__(self, folder: Path) -> None:
        names = list_folder(folder)
        if "config.json" not in names:
            raise UserError(f"{folder} has no config.json. {what_else(names)}")
        config = read_json(folder / "config.json", CONFIG_BYTES)
        places: dict[str, Place] = {}

        def read(path: Path) -> dict[str, Weight]:
            weights, found = read_header_and_places(path)
            places.update(found)
            return weights

        weights, notes = read_shards(folder, names, read)
        if not weights:
            pickled = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth")))
            why = f"{pickled[0]} is pickled and never opened: convert it." if pickled else "Fetch the weights."
            raise UserError(f"{folder} has no .safetensors file with tensors in it. {why}")
        _refuse_packed(folder, names, config, weights)
        super().__init__(folder, "safetensors", weights, places, config, tuple(notes))

    def refuse(self, name: str) -> None:
        weight = self.weights[name]
        if weight.dtype not in READ:
            raise UserError(
                f"{self.places[name].path}: tensor {shown(name)} is {weight.dtype}; weights are run from bf16, fp16 or "
                "fp32. Fetch the model in one of these."
            )

    def read(self, name: str, dtype: torch.dtype | None = None, rows: slice | None = None) -> torch.Tensor:
        import torch

        self.refuse(name)
        weight, place = self.weights[name], self.places[name]
        first, shape = rows_of(weight, rows)
        stored: torch.dtype = getattr(torch, READ[weight.dtype])
        row = weight.bytes // max(1, weight.shape[0]) if weight.shape else 0
        return as_dtype(self.file_of(place).tensor(place.begin + first * row, shape, stored), dtype)


def _refuse_packed(folder: Path, names: list[str], config: Values, weights: dict[str, Weight]) -> None:
    """Raise UserError naming how the folder is quantised, by what says so."""
    inner = config.get("text_config")
    for key, values in (("", config), ("text_config.", inner if isinstance(inner, dict) else {})):
        packed = values.get("quantization_config")
        if packed is None:
            continue
        found = Config(packed if isinstance(packed, dict) else {}, str(folder / "config.json"))
        method = found.values.get("quant_method", found.values.get("quant_algo", "a method that it does not name"))
        raise _packed(folder, str(method)[:40], f"{key}quantization_config in config.json")
    for name, method in FOREIGN.items():
        if name in names:
            raise _packed(folder, method, name)
    for name in weights:
        for end, method in MARKS.items():
            if name.endswith(end):
                raise _packed(folder, method, f"tensor {shown(name)}")


def _packed(folder: Path, method: str, by: str) -> UserError:
    return UserError(
        f"{folder} is quantised with {method} ({by}), which is not run yet. Fetch the model in bf16 or fp16 and let "
        "nearpeak make it int8 or int4, or fetch a GGUF file of it."
    )
