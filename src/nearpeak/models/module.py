"""Any nn.Module → ModelSpec: one forward pass on fake tensors, which have shapes and no data.

What is seen are the calls of torch's functions (linear, convolution, embedding, attention, matrix products with a
parameter), not classes of modules, so that hand-written layers count too. The module itself is left as it was. Torch is
imported here alone in this package, and only when the function is called.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nearpeak.models.scribe import Call, parts_of
from nearpeak.records.errors import UserError, first_line
from nearpeak.records.model_spec import SCHEMA, ModelSpec, Stored, Vector

if TYPE_CHECKING:
    import torch

WHOLE = (  # arguments of torch.nn.functional.multi_head_attention_forward, in order
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
    "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
)  # fmt: skip
WHOLE_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight")

Example = Sequence["torch.Tensor | tuple[int, ...]"]


def spec_of_module(module: torch.nn.Module, example: Example, name: str) -> ModelSpec:
    """Parts, exact parameters and bytes of a module.

    example   what its forward takes, in order: tensors, or shapes with the batch first. A shape stands for numbers of
              the module's own dtype, or for token ids where that fails.

    Raises UserError where the forward pass fails on fake tensors, as it does where it looks at values.
    """
    calls, notes = _trace(module, example)
    parameters = {id(parameter): (key, parameter) for key, parameter in reversed(list(module.named_parameters()))}
    sizes = {key: (parameter.numel(), parameter.dim()) for key, parameter in parameters.values()}
    first = example[0]
    shape = tuple(first if isinstance(first, tuple) else first.shape)
    text = any(call.kind == "embedding" for call in calls) and len(shape) == 2
    stream = "text" if text else "image" if len(shape) == 4 else "input"
    parts, used, streams = parts_of(calls, stream, shape[1] if len(shape) > 1 else 1)
    left = Counter((_kind(key), size) for key, (size, _) in sizes.items() if key not in used)
    parts += [Vector(kind, count, stream, size=size) for (kind, size), count in sorted(left.items())]
    unseen = sorted(key for key, (_, dimensions) in sizes.items() if key not in used and dimensions > 1)
    if unseen:
        some = ", ".join(unseen[:3])
        notes.append(f"Counted without FLOPs, as no product was seen with them: {len(unseen)} parameters ({some}).")
    stored: dict[str, Stored] = {}
    for _, parameter in parameters.values():
        dtype = _dtype(str(parameter.dtype))
        so_far, numbers = stored.get(dtype, Stored(0, 0)), parameter.numel()
        stored[dtype] = Stored(so_far.parameters + numbers, so_far.bytes + numbers * parameter.element_size())
    if text:
        streams[stream] = None
    vocabulary = {part.rows for part in parts if hasattr(part, "rows")}
    last = next((part for part in reversed(parts) if hasattr(part, "outputs") and hasattr(part, "tied")), None)
    generates = text and last is not None and last.outputs in vocabulary
    if generates and last is not None:
        parts[parts.index(last)] = replace(last, name="head")
    return ModelSpec(
        SCHEMA, name, "module", "generate" if generates else "encode", tuple(parts), streams, None, stored,
        f"traced {type(module).__module__}.{type(module).__qualname__}", {}, tuple(notes),
    )  # fmt: skip


def _trace(module: torch.nn.Module, example: Example) -> tuple[list[Call], list[str]]:
    """The calls of one forward pass; a shape is tried as numbers, then as token ids."""
    import torch

    errors = []
    shapes = any(isinstance(item, tuple) for item in example)
    floating = next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), torch.float32)
    for dtype in (floating, torch.int64) if shapes else (floating,):
        try:
            return _run(module, example, dtype)
        except Exception as error:  # whatever a stranger's forward pass may raise
            errors.append(first_line(error))
            if "indices" not in str(error):
                break
    raise UserError(
        f"{type(module).__name__} cannot be traced on {_shapes(example)}: {errors[-1]}. Pass example tensors that its "
        "forward takes; a forward that looks at values cannot be traced."
    )


def _run(module: torch.nn.Module, example: Example, dtype: torch.dtype) -> tuple[list[Call], list[str]]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    training = {inner: inner.training for inner in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        module.eval()
        torch.backends.mha.set_fastpath_enabled(False)  # it would hide the products in one call
        with fake, torch.no_grad():
            state = {key: fake.from_tensor(tensor.detach()) for key, tensor in module.named_parameters()}
            names = {id(tensor): key for key, tensor in state.items()}
            state |= {key: fake.from_tensor(tensor) for key, tensor in module.named_buffers()}
            inputs = [
                torch.zeros(item, dtype=dtype, device=device) if isinstance(item, tuple) else fake.from_tensor(item)
                for item in example
            ]
            watch = _watch(names)
            with watch:
                torch.func.functional_call(module, state, tuple(inputs))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for inner, flag in training.items():
            inner.training = flag
    return watch.calls, watch.notes()


def _watch(names: dict[int, str]) -> Any:
    """A mode of torch that sees each call of its functions. names: id of a parameter → its name."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    def of(tensor: Any) -> str | None:
        if not isinstance(tensor, torch.Tensor):
            return None
        return names.get(id(tensor)) or (names.get(id(tensor._base)) if tensor._base is not None else None)

    class Watch(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Call] = []
            self.unfollowed = 0
            self.masked = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            if func in seen:
                seen[func](self, args, kwargs, result)
            return result

        def notes(self) -> list[str]:
            notes = []
            if self.masked:
                notes.append(f"{self.masked} attentions have a mask whose values are not seen: counted as full.")
            followed = sum(math.prod(call.shape[:2]) * max(call.positions, 1) for call in self.calls)
            if self.unfollowed * 1000 > followed:  # rotary positions make a tiny one
                flop = 2 * self.unfollowed
                notes.append(
                    f"Not counted: {flop:,} FLOPs of products of two activations outside of torch's attention."
                )
            return notes

    def linear(watch: Watch, args: Any, kwargs: Any, result: Any) -> None:
        x, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        _linear(watch, x, of(weight), tuple(reversed(weight.shape)), of(bias), bias)

    def _linear(watch: Watch, x: Any, key: str | None, shape: tuple[int, ...], bias: str | None, held: Any) -> None:
        if key is None or len(shape) != 2:
            watch.unfollowed += x.numel() * shape[-1]
            return
        positions = math.prod(x.shape[1:-1]) if x.dim() > 2 else 1
        once = x.dim() <= 2
        watch.calls.append(
            Call("linear", key, bias if held is not None else None, shape, positions=positions, once=once)
        )

    def product(watch: Watch, args: Any, kwargs: Any, result: Any) -> None:
        left, right = args[0], args[1]
        if of(right) is not None or of(left) is None:
            _linear(watch, left, of(right), tuple(right.shape), None, None)
        else:
            watch.unfollowed += left.numel() * (right.shape[-1] if right.dim() > 1 else 1)

    def addmm(watch: Watch, args: Any, kwargs: Any, result: Any) -> None:
        if of(args[2]) is None:
            watch.unfollowed += args[1].numel() * args[2].shape[-1]
            return
        bias = args[0]
        rows = args[1].shape[0]
        call = Call("linear", of(args[2]), of(bias), tuple(args[2].shape), positions=rows, once=False, flat=True)
        watch.calls.append(call)

    def convolution(watch: Watch, args: Any, kwargs: Any, result: Any) -> None:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        key = of(weight)
        if key is None:
            watch.unfollowed += result.numel() * weight[0].numel()
            return
        inputs = args[0].shape[1]
        shape = (inputs, result.shape[1], *weight.shape[2:])
        groups = inputs * result.shape[1] * math.prod(weight.shape[2:]) // weight.numel()
        watch.calls.append(
            Call("convolution", key, of(bias), shape, positions=math.prod(result.shape[2:]), groups=groups)
        )

    def embedding(watch: Watch, args: Any, kwargs: Any, result: Any) -> None:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        if of(weight) is not None:
            watch.calls.append(Call("embedding", of(weight), None, tuple(weight.shape), positions=0))

    def attention(watch: Watch, args: Any, kwargs: Any, result: Any) -> None:
        query, key, value = (
            args[n] if len(args) > n else kwargs[name] for n, name in enumerate(("query", "key", "value"))
        )
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        causal = bool(args[5] if len(args) > 5 else kwargs.get("is_causal", False))
        if mask is not None:
            watch.masked += 1
        if query.dim() == 3:  # heads folded into the batch
            query, key, value = (tensor.unsqueeze(1) for tensor in (query, key, value))
        heads, kv_heads = query.shape[-3], key.shape[-3]
        shape = (heads, kv_heads, query.shape[-1], value.shape[-1])
        watch.calls.append(
            Call("attention", None, None, shape, positions=query.shape[-2], reads=key.shape[-2], causal=causal)
        )

    def whole_attention(watch: Watch, args: Any, kwargs: Any, result: Any) -> None:
        """torch's own multi-head attention, whose inner calls are not seen; positions come first."""
        given = dict(zip(WHOLE, args, strict=False)) | kwargs
        query, key, value = given["query"], given["key"], given["value"]
        weights = [given.get(name) for name in WHOLE_WEIGHTS]
        biases = [given.get(name) for name in ("in_proj_bias", "out_proj_bias", "bias_k", "bias_v")]
        held = tuple(found for tensor in (*weights, *biases) if (found := of(tensor)))
        if given.get("attn_mask") is not None and not given.get("is_causal"):
            watch.masked += 1
        shape = (given["num_heads"], query.shape[-1], key.shape[-1], value.shape[-1])
        watch.calls.append(
            Call("whole attention", held[0], None, shape, positions=query.shape[0], reads=key.shape[0], held=held,
                 causal=bool(given.get("is_causal")), biases=sum(bias.numel() for bias in biases if of(bias)))
        )  # fmt: skip

    seen: dict[Any, Callable[[Watch, Any, Any, Any], None]] = {
        functional.linear: linear, torch.addmm: addmm, functional.embedding: embedding,
        functional.scaled_dot_product_attention: attention,
        functional.multi_head_attention_forward: whole_attention,
    }  # fmt: skip
    for name in ("matmul", "bmm", "mm"):
        seen[getattr(torch, name)] = seen[getattr(torch.Tensor, name)] = product
    seen[torch.Tensor.__matmul__] = product
    for kind in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
        seen[getattr(functional, kind)] = seen[getattr(torch, kind)] = convolution
    return Watch()


def _kind(key: str) -> str:
    """The last module's name in a parameter's path, without numbers: "layers.3.norm.weight" → "norm"."""
    names = [name for name in key.split(".") if not name.isdigit()]
    return names[-2] if len(names) > 1 else names[-1]


def _dtype(name: str) -> str:
    short = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float64": "fp64"}
    return short.get(name, name.removeprefix("torch."))


def _shapes(example: Example) -> str:
    return ", ".join(str(tuple(item if isinstance(item, tuple) else item.shape)) for item in example)
