"""Quantised folders: which tensors together are one weight, and how many parameters it has.

Sources are the formats' own writers: AutoGPTQ, AutoAWQ, bitsandbytes, compressed-tensors, modelopt, and the model cards
of DeepSeek-V3 (fp8 with a scale each 128 × 128) and gpt-oss (mxfp4).
"""

from __future__ import annotations

from collections.abc import Callable

from nearpeak.models.config import Config
from nearpeak.models.weights import Weight
from nearpeak.records.errors import UserError

Weights = dict[str, Weight]


def unpack(weights: Weights, config: Config) -> Weights:
    """Weights as they are meant. Raises UserError: a method that is not known, a packed tensor that does not fit it."""
    if not config.has("quantization_config"):
        return weights
    quantization = config.part("quantization_config")
    method = quantization.text("quant_method", quantization.text("quant_algo", "")).lower()
    if method not in METHODS:
        raise quantization.error(
            "quant_method", f"is {method[:40]!r}, which nearpeak cannot read; it reads {', '.join(sorted(METHODS))}"
        )
    return METHODS[method](weights, quantization)


def _gptq(weights: Weights, quantization: Config) -> Weights:
    """qweight int32 [inputs · bits ÷ 32, outputs], qzeros, scales, g_idx."""
    bits = _bits(quantization.size("bits"), quantization)

    def weight(stem: str, parts: Weights) -> Weight:
        rows, outputs = _matrix(stem, parts["qweight"], quantization)
        return _packed(parts, (outputs, _exact(stem, rows * 32, bits, quantization)), f"int{bits}")

    return _join(weights, "qweight", ("qzeros", "scales", "g_idx"), weight)


def _awq(weights: Weights, quantization: Config) -> Weights:
    """qweight int32 [inputs, outputs · bits ÷ 32], qzeros, scales."""
    bits = _bits(quantization.size("bits", quantization.size("w_bit", 4)), quantization)

    def weight(stem: str, parts: Weights) -> Weight:
        inputs, columns = _matrix(stem, parts["qweight"], quantization)
        return _packed(parts, (_exact(stem, columns * 32, bits, quantization), inputs), f"int{bits}")

    return _join(weights, "qweight", ("qzeros", "scales"), weight)


def _bitsandbytes(weights: Weights, quantization: Config) -> Weights:
    """4 bits: weight uint8 [n ÷ 2, 1] with absmax, quant_map, nested ones and a state; 8 bits: int8 with SCB."""
    if quantization.flag("load_in_4bit", False):
        kind = quantization.text("bnb_4bit_quant_type", "fp4")
        helpers = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", f"quant_state.bitsandbytes__{kind}")
        found: Weights = {}
        for name, weight in weights.items():
            stem, _, last = name.partition(".weight.")
            if last in helpers and f"{stem}.weight" in weights:
                continue
            parts = [weights[f"{name}.{helper}"] for helper in helpers if f"{name}.{helper}" in weights]
            if parts and weight.dtype == "uint8":
                size = weight.bytes + sum(part.bytes for part in parts)
                weight = Weight(None, 2 * weight.parameters, size, kind)
            found[name] = weight
        return found
    joined = {}
    for name, weight in weights.items():
        stem, _, last = name.rpartition(".")
        if last in ("SCB", "weight_format") and f"{stem}.weight" in weights:
            continue
        for helper in ("SCB", "weight_format"):
            extra = weights.get(f"{stem}.{helper}") if last == "weight" else None
            weight = weight._replace(bytes=weight.bytes + extra.bytes) if extra else weight
        joined[name] = weight
    return joined


def _scaled(weights: Weights, quantization: Config) -> Weights:
    """fp8 (and int8): the weight is stored as it is, beside it scales under several names."""
    helpers = ("weight_scale_inv", "weight_scale", "input_scale", "weight_zero_point", "activation_scale_inv",
               "activation_scale", "output_scale")  # fmt: skip
    found = _join(weights, "weight", helpers, lambda stem, parts: _sum(parts, parts["weight"]), keep_plain=True)
    fused = [name for name in found if name.endswith(("_scale_inv", "_scale"))]  # what no X.weight took
    for name in fused:  # experts in one tensor: gate_up_proj with gate_up_proj_scale_inv
        whole = name.removesuffix("_inv").removesuffix("_scale")
        if whole in found:
            extra = found.pop(name)
            found[whole] = found[whole]._replace(bytes=found[whole].bytes + extra.bytes)
        elif name.endswith((".k_scale", ".v_scale", ".q_scale")):
            del found[name]  # of the cache, a number each
    return found


def _compressed(weights: Weights, quantization: Config) -> Weights:
    """compressed-tensors: weight_packed with the shape by its side, or weights of 8 bits as they are."""
    groups = quantization.find("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    inner = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(inner, dict):
        raise quantization.error("config_groups", "does not say how weights are packed")
    scheme = Config(inner, quantization.where, "quantization_config.config_groups.weights.")
    bits = _bits(scheme.size("num_bits"), scheme)
    kind = scheme.text("type", "int")

    def weight(stem: str, parts: Weights) -> Weight:
        packed = parts["weight_packed"]
        rows, columns = _matrix(stem, packed, quantization)
        inputs = columns * packed.bytes * 8 // (packed.parameters * bits)
        return _packed(parts, (rows, inputs), "nvfp4" if kind == "float" and bits == 4 else f"{kind}{bits}")

    helpers = ("weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale",
               "input_global_scale", "input_scale")  # fmt: skip
    return _scaled(_join(weights, "weight_packed", helpers, weight), quantization)


def _modelopt(weights: Weights, quantization: Config) -> Weights:
    """fp8, or nvfp4: weight uint8 [outputs, inputs ÷ 2] with scales of two levels."""

    def weight(stem: str, parts: Weights) -> Weight:
        held = parts["weight"]
        if held.dtype != "uint8":
            return _sum(parts, held)
        rows, columns = _matrix(stem, held, quantization)
        return _packed(parts, (rows, 2 * columns), "nvfp4")

    helpers = ("weight_scale", "weight_scale_2", "input_scale")
    return _scaled(_join(weights, "weight", helpers, weight, keep_plain=True), quantization)


def _mxfp4(weights: Weights, quantization: Config) -> Weights:
    """X_blocks uint8 […, 16]: two numbers a byte, with X_scales: one byte for each block of 32."""
    found: Weights = {}
    for name, weight in weights.items():
        stem = name.removesuffix("_blocks").removesuffix("_scales")
        if stem == name:
            found[name] = weight
        elif name.endswith("_blocks"):
            scales = weights.get(f"{stem}_scales")
            if scales is None or weight.parameters != 16 * scales.parameters:
                there = "missing" if scales is None else f"{scales.parameters:,}"
                raise quantization.error(
                    "quant_method", f"is mxfp4: {name} has {weight.parameters:,} bytes, its scales are {there}"
                )
            found[stem] = Weight(None, 2 * weight.parameters, weight.bytes + scales.bytes, "mxfp4")
    return found


METHODS: dict[str, Callable[[Weights, Config], Weights]] = {
    "gptq": _gptq, "awq": _awq, "bitsandbytes": _bitsandbytes, "fp8": _scaled, "fbgemm_fp8": _scaled,
    "compressed-tensors": _compressed, "modelopt": _modelopt, "mxfp4": _mxfp4,
}  # fmt: skip


def _join(
    weights: Weights,
    main: str,
    helpers: tuple[str, ...],
    make: Callable[[str, Weights], Weight],
    keep_plain: bool = False,
) -> Weights:
    """X.main and those of X.helpers that are there become X.weight; what has no main stays as it is."""
    found: Weights = {}
    groups: dict[str, Weights] = {}
    for name, weight in weights.items():
        stem, _, last = name.rpartition(".")
        if last == main or last in helpers:
            groups.setdefault(stem, {})[last] = weight
        else:
            found[name] = weight
    for stem, there in groups.items():
        if main not in there:
            found |= {f"{stem}.{last}": weight for last, weight in there.items()}
        else:
            found[f"{stem}.weight"] = there[main] if keep_plain and len(there) == 1 else make(stem, there)
    return found


def _packed(parts: Weights, shape: tuple[int, int], dtype: str) -> Weight:
    return Weight(shape, shape[0] * shape[1], sum(part.bytes for part in parts.values()), dtype)


def _sum(parts: Weights, main: Weight) -> Weight:
    return Weight(main.shape, main.parameters, sum([part.bytes for part in parts.values()]), main.dtype)


def _matrix(stem: str, weight: Weight, quantization: Config) -> tuple[int, int]:
    if weight.shape is None or len(weight.shape) != 2 or not weight.parameters:
        raise quantization.error("quant_method", f"packs matrices; the tensor of {stem} has shape {weight.text()}")
    return weight.shape[0], weight.shape[1]


def _exact(stem: str, bits_there: int, bits: int, quantization: Config) -> int:
    if bits_there % bits:
        raise quantization.error("bits", f"is {bits}, which does not divide the {bits_there} bits of {stem}")
    return bits_there // bits


def _bits(bits: int, config: Config) -> int:
    if bits not in (2, 3, 4, 6, 8):
        raise UserError(f"{config.where}: {config.prefix}bits is {bits}: 2, 3, 4, 6 or 8 are read.")
    return bits
