"""Any other causal model that transformers knows, run by transformers itself: right, with that library's speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nearpeak.records.errors import UserError, first_line


class OtherRunner:
    """A Runner over a model of transformers, its own cache beside it."""

    def __init__(self, model: Any, capacity: int) -> None:
        self.model, self.capacity = model, capacity
        self.vocab, self.device = int(model.config.get_text_config().vocab_size), model.device
        self.how = f"transformers' {type(model).__name__}, as nearpeak has no network of its own for it"
        self.compute = str(model.dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")
        self.length = 0
        self._cache: Any = None

    @property
    def weight_bytes(self) -> int:
        embed = self.model.get_input_embeddings().weight
        head = self.model.get_output_embeddings()
        tied = head is not None and head.weight.data_ptr() == embed.data_ptr()
        return self._all_weights() - (0 if tied else embed.nbytes)

    @property
    def memory_bytes(self) -> int:
        return self._all_weights()

    def _all_weights(self) -> int:
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self.model.state_dict().values()}.values())

    def cache_bytes(self, length: int) -> int:
        return 0  # transformers' cache is its own business; its bytes are left out of the limit

    @torch.inference_mode()
    def prefill(self, ids: torch.Tensor) -> torch.Tensor:
        done = self.model(ids[None], past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = done.past_key_values
        self.length += len(ids)
        logits: torch.Tensor = done.logits[0, -1]
        return logits

    def decode(self, token: torch.Tensor) -> torch.Tensor:
        return self.prefill(token)

    def keep(self, length: int) -> None:
        if length and length < self.length:
            self._cache.crop(length)
        elif not length:
            self._cache = None
        self.length = length

    def first_not_finite(self, ids: torch.Tensor) -> str | None:
        return "a place that transformers does not tell"


def open_other(path: Path, dtype: torch.dtype, device: torch.device, capacity: int, why: UserError) -> OtherRunner:
    """Load a folder through transformers; no code of the folder runs, nothing is fetched.

    why: the reason that nearpeak's own networks gave; it is raised again where transformers cannot run it either.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise UserError(f"{why} Other models run through transformers: pip install transformers") from None
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(path, **options)
        model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=dtype, use_safetensors=True, **options)
    except Exception as error:  # it raises all sorts
        raise UserError(f"{why} transformers cannot run it either: {first_line(error)}") from error
    return OtherRunner(model.to(device).eval(), capacity)
