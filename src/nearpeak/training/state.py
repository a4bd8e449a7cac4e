"""Everything that a run's future depends on, as a checkpoint holds it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from nearpeak.records.errors import UserError
from nearpeak.training.checkpoint import Checkpoint
from nearpeak.training.model import canonical


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by canonical name; a tensor that has several names (a tied head) once, under its first."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[canonical(name)] = tensor.detach()
    return found


def load_weights(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Each tensor into its place, none missing, none left over. Raises UserError that names them."""
    ours = weights_of(module)
    missing, unknown = sorted(ours.keys() - weights.keys()), sorted(weights.keys() - ours.keys())
    if missing or unknown:
        raise UserError(
            f"the saved weights are of another model: {len(missing)} tensors are missing ({', '.join(missing[:3])}), "
            f"{len(unknown)} belong nowhere ({', '.join(unknown[:3])})."
        )
    for name, tensor in ours.items():
        if tensor.shape != weights[name].shape:
            raise UserError(f"{name} has the shape {tuple(weights[name].shape)} as saved, here {tuple(tensor.shape)}.")
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(weights[name])


def capture(step: int, module: nn.Module, optimizer: Any, loss_sum: torch.Tensor, facts: dict[str, Any]) -> Checkpoint:
    """After `step` steps. loss_sum: of the losses since the last line of the log; facts: further plain ones."""
    state = {"loss_sum": loss_sum, "random.torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state |= {f"random.cuda.{n}": one for n, one in enumerate(torch.cuda.get_rng_state_all())}
    numbers: dict[str, dict[str, Any]] = {}
    for number, held in optimizer.state_dict()["state"].items():
        for key, value in held.items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer.{number}.{key}"] = value
            else:
                numbers.setdefault(str(number), {})[key] = value
    version, inner, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    keys = [int(key) for key in numpy["state"]["key"]]
    more = {
        "optimizer": numbers,
        "random.python": [version, list(inner), gauss],
        "random.numpy": [keys, int(numpy["state"]["pos"]), int(numpy["has_gauss"]), float(numpy["gauss"])],
    }
    return Checkpoint(step, weights_of(module), state, facts | more)


def restore(checkpoint: Checkpoint, module: nn.Module, optimizer: Any) -> torch.Tensor:
    """Put all of it back; gives loss_sum."""
    load_weights(module, checkpoint.weights)
    inner: dict[int, dict[str, Any]] = {}
    for key, tensor in checkpoint.state.items():
        kind, _, rest = key.partition(".")
        if kind == "optimizer":
            number, _, name = rest.partition(".")
            inner.setdefault(int(number), {})[name] = tensor
    for number_, values in checkpoint.facts["optimizer"].items():
        inner.setdefault(int(number_), {}).update(values)
    optimizer.load_state_dict({"state": inner, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(checkpoint.state["random.torch"])
    if torch.cuda.is_available():
        gpus = sorted(key for key in checkpoint.state if key.startswith("random.cuda."))
        if len(gpus) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([checkpoint.state[f"random.cuda.{n}"] for n in range(len(gpus))])
    version, numbers, gauss = checkpoint.facts["random.python"]
    random.setstate((version, tuple(numbers), gauss))
    keys, position, has_gauss, cached = checkpoint.facts["random.numpy"]
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))
    return checkpoint.state["loss_sum"]
