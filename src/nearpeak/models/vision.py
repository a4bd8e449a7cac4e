"""ViT, ResNet, ConvNeXt, EfficientNet, and plain stacks of convolutions such as the 28 × 28 CNN."""

from __future__ import annotations

import math
from dataclasses import replace

from nearpeak.models import pieces as build
from nearpeak.models.architecture import Architecture, Piece, Tensor
from nearpeak.models.config import MAX_LAYERS, Config
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Linear

RUNNING = (r".*\.(running_mean|running_var|num_batches_tracked)",)


def vit(config: Config) -> Architecture:
    """Vision transformer (arXiv 2010.11929): patches, a class token, learned positions."""
    width, layers = config.size("hidden_size"), config.layers("num_hidden_layers")
    heads, hidden = config.size("num_attention_heads"), config.size("intermediate_size")
    config.divides("num_attention_heads", heads, "hidden_size", width)
    image, patch, channels = config.size("image_size"), config.size("patch_size"), config.size("num_channels", 3)
    config.divides("patch_size", patch, "image_size", image)
    patches = (image // patch) ** 2
    positions = patches + 1
    bias = "qkvo" if config.flag("qkv_bias", True) else "o"
    every, layer, start = build.every(layers), "vit.encoder.layer.{i}", "vit.embeddings"
    names = build.AttentionNames(
        f"{layer}.attention", q="attention.query", k="attention.key", v="attention.value", o="output.dense"
    )
    pieces = [
        build.convolution("patches", f"{start}.patch_embeddings.projection", channels, width, (patch, patch), patches,
                          "image"),
        build.vector("class_token", f"{start}.cls_token", (1, 1, width), stream="image"),
        build.vector("positions", f"{start}.position_embeddings", (1, positions, width), stream="image"),
        build.norm("norm", f"{layer}.layernorm_before", width, layers=every, bias=True, stream="image"),
        build.attention(names, every, width, heads, heads, width // heads, bias=bias, causal=False, stream="image"),
        build.norm("norm", f"{layer}.layernorm_after", width, layers=every, bias=True, stream="image"),
        build.plain(f"{layer}.intermediate.dense", f"{layer}.output.dense", every, width, hidden, stream="image"),
        build.norm("final_norm", "vit.layernorm", width, bias=True, stream="image"),
        *_classifier(config, "classifier", width, "ViTForImageClassification"),
    ]  # fmt: skip
    pooled = config.size("pooler_output_size", width)
    pooler = build.linear("pooler", "vit.pooler.dense", width, pooled, bias=True, once=True, stream="image")
    pieces.append(replace(pooler, optional=True, expected=config.architecture() == "ViTModel"))
    return Architecture("vit", "encode", tuple(pieces), {"image": positions}, None, roots=("vit.", ""))


def _classifier(config: Config, stem: str, width: int, architecture: str) -> list[Piece]:
    """The head; a file, or `architectures`, may say that there is none."""
    count, expected = config.labels(), config.architecture() in (None, architecture)
    return [
        build.linear("classifier", stem, width, count, bias=True, once=True, stream="image", optional=True,
                     expected=expected)
    ]  # fmt: skip


class _Stack:
    """Convolutions one after another, with the size of what comes out."""

    def __init__(self, size: int, channels: int) -> None:
        self.size, self.channels = size, channels
        self.pieces: list[Piece] = []

    def convolve(self, stem: str, outputs: int, kernel: int, stride: int = 1, *, norm: str = "", groups: int = 1,
                 bias: bool = False, name: str = "convolution", padding: int | None = None) -> None:  # fmt: skip
        """`padding` None: so that a stride of 1 keeps the size."""
        pad = kernel // 2 if padding is None else padding
        self.size = (self.size + 2 * pad - kernel) // stride + 1
        if self.size < 1:
            raise UserError(f"{stem}: nothing is left of the image. Correct image_size or the kernels in the config.")
        self.pieces.append(
            build.convolution(name, stem, self.channels, outputs, (kernel, kernel), self.size**2, "image",
                              groups=groups, bias=bias)
        )  # fmt: skip
        self.channels = outputs
        if norm:
            self.norm(norm)

    def norm(self, stem: str) -> None:
        self.pieces.append(build.norm("norm", stem, self.channels, bias=True, stream="image"))


def resnet(config: Config) -> Architecture:
    """ResNet (arXiv 1512.03385) with the stride in the 3 × 3 convolution."""
    depths, widths = config.depths("depths"), config.sizes("hidden_sizes")
    if len(depths) != len(widths):
        raise config.error("depths", f"has {len(depths)} entries, hidden_sizes {len(widths)}")
    kind = config.text("layer_type", "bottleneck")
    if kind not in ("basic", "bottleneck"):
        raise config.error("layer_type", f"is {kind[:40]!r}: basic or bottleneck is expected")
    in_bottleneck = config.flag("downsample_in_bottleneck", False)
    stack = _Stack(config.size("image_size", 224), config.size("num_channels", 3))
    start = "resnet.embedder.embedder"
    stack.convolve(f"{start}.convolution", config.size("embedding_size", 64), 7, 2, norm=f"{start}.normalization")
    stack.size = (stack.size - 1) // 2 + 1  # 3 × 3 pooling
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for block in range(depth):
            first = block == 0 and (stage > 0 or config.flag("downsample_in_first_stage", False))
            _residual(stack, f"resnet.encoder.stages.{stage}.layers.{block}", width, 2 if first else 1, kind,
                      in_bottleneck)  # fmt: skip
    pieces = [*stack.pieces, *_classifier(config, "classifier.1", stack.channels, "ResNetForImageClassification")]
    return Architecture("resnet", "encode", tuple(pieces), {"image": 1}, None, roots=("resnet.", ""), ignored=RUNNING)


def _residual(stack: _Stack, stem: str, width: int, stride: int, kind: str, in_bottleneck: bool) -> None:
    size, channels = stack.size, stack.channels
    if channels != width or stride != 1:
        stack.convolve(f"{stem}.shortcut.convolution", width, 1, stride, norm=f"{stem}.shortcut.normalization")
        stack.size, stack.channels = size, channels
    narrow = width // 4
    steps = [(width, 3, stride), (width, 3, 1)]
    if kind == "bottleneck":
        strides = (stride, 1) if in_bottleneck else (1, stride)
        steps = [(narrow, 1, strides[0]), (narrow, 3, strides[1]), (width, 1, 1)]
    for number, (outputs, kernel, step) in enumerate(steps):
        inner = f"{stem}.layer.{number}"
        stack.convolve(f"{inner}.convolution", outputs, kernel, step, norm=f"{inner}.normalization")


def convnext(config: Config) -> Architecture:
    """ConvNeXt (arXiv 2201.03545): depthwise 7 × 7, then two maps at each place."""
    depths = config.depths("depths", (3, 3, 9, 3))
    widths = config.sizes("hidden_sizes", (96, 192, 384, 768))
    if len(depths) != len(widths):
        raise config.error("depths", f"has {len(depths)} entries, hidden_sizes {len(widths)}")
    patch = config.size("patch_size", 4)
    stack = _Stack(config.size("image_size", 224), config.size("num_channels", 3))
    start, scale = "convnext.embeddings", config.number("layer_scale_init_value", 1e-6) > 0
    stack.convolve(
        f"{start}.patch_embeddings", widths[0], patch, patch, bias=True, norm=f"{start}.layernorm", padding=0
    )
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        stem = f"convnext.encoder.stages.{stage}"
        if stage:
            stack.norm(f"{stem}.downsampling_layer.0")
            stack.convolve(f"{stem}.downsampling_layer.1", width, 2, 2, bias=True, padding=0)
        for layer in range(depth):
            inner = f"{stem}.layers.{layer}"
            stack.convolve(f"{inner}.dwconv", width, 7, groups=width, bias=True, norm=f"{inner}.layernorm")
            for name, into, out in (("pwconv1", width, 4 * width), ("pwconv2", 4 * width, width)):
                pointwise = build.convolution("pointwise", f"{inner}.{name}", into, out, (), stack.size**2, "image")
                stack.pieces.append(pointwise)
            if scale:
                stack.pieces.append(build.vector("scale", f"{inner}.layer_scale_parameter", (width,), stream="image"))
    final = build.norm("final_norm", "convnext.layernorm", stack.channels, bias=True, stream="image")
    head = _classifier(config, "classifier", stack.channels, "ConvNextForImageClassification")
    return Architecture(
        "convnext", "encode", (*stack.pieces, final, *head), {"image": 1}, None, roots=("convnext.", "")
    )


def efficientnet(config: Config) -> Architecture:
    """EfficientNet (arXiv 1905.11946); a squeeze_expansion_ratio of 0 leaves that step out (the lite ones)."""
    by_width, by_depth = config.number("width_coefficient", 1.0), config.number("depth_coefficient", 1.0)
    fixed = config.flag("fix_first_and_last", False)  # the lite ones scale neither stem nor head nor their repeats
    config.find("num_hidden_layers")  # a number that transformers derives and never uses
    divisor, squeeze = config.size("depth_divisor", 8), config.number("squeeze_expansion_ratio", 0.25)
    keys = ("kernel_sizes", "in_channels", "out_channels", "strides", "num_block_repeats", "expand_ratios")
    columns = [config.sizes(key) for key in keys]
    blocks = sum(math.ceil(by_depth * repeats) for repeats in config.depths("num_block_repeats"))
    if blocks > MAX_LAYERS:
        raise config.error("depth_coefficient", f"makes {blocks:,} blocks; at most {MAX_LAYERS:,} are read")
    if len({len(column) for column in columns}) != 1:
        raise config.error("kernel_sizes", f"and its like have {[len(column) for column in columns]} entries")

    def rounded(channels: int) -> int:
        wanted = channels * by_width
        near = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
        return near + divisor if near < 0.9 * wanted else near

    stack = _Stack(config.size("image_size", 224), config.size("num_channels", 3))
    start = "efficientnet.embeddings"
    stack.convolve(f"{start}.convolution", 32 if fixed else rounded(32), 3, 2, norm=f"{start}.batchnorm")
    number, rows = 0, list(zip(*columns, strict=True))
    for row, (kernel, _, out, stride, repeats, expand) in enumerate(rows):
        same = fixed and row in (0, len(rows) - 1)
        for repeat in range(repeats if same else math.ceil(by_depth * repeats)):
            stem = f"efficientnet.encoder.blocks.{number}"
            step = stride if repeat == 0 else 1
            _inverted(stack, stem, kernel, rounded(out), step, expand, squeeze)
            number += 1
    top = 1280 if fixed else rounded(1280)
    stack.convolve("efficientnet.encoder.top_conv", top, 1, norm="efficientnet.encoder.top_bn")
    config.must_be("hidden_dim", top, f"the last convolution gives {top}")
    head = _classifier(config, "classifier", top, "EfficientNetForImageClassification")
    return Architecture(
        "efficientnet", "encode", (*stack.pieces, *head), {"image": 1}, None, roots=("efficientnet.", ""),
        ignored=RUNNING,
    )  # fmt: skip


def _inverted(stack: _Stack, stem: str, kernel: int, out: int, stride: int, expand: int, squeeze: float) -> None:
    inputs = stack.channels
    wide = inputs * expand
    if expand != 1:
        stack.convolve(f"{stem}.expansion.expand_conv", wide, 1, norm=f"{stem}.expansion.expand_bn")
    depth = f"{stem}.depthwise_conv.depthwise"
    stack.convolve(f"{depth}_conv", wide, kernel, stride, groups=wide, norm=f"{depth}_norm")
    if squeeze:
        narrow = max(1, int(inputs * squeeze))
        for name, into, to in (("reduce", wide, narrow), ("expand", narrow, wide)):
            inner = f"{stem}.squeeze_excite.{name}"
            stack.pieces.append(build.convolution("squeeze", inner, into, to, (1, 1), 1, "image"))
    stack.convolve(f"{stem}.projection.project_conv", out, 1, norm=f"{stem}.projection.project_bn")


def cnn(config: Config) -> Architecture:
    """A stack that a data file spells out: {"input": [channels, size], "layers": [{"conv": [outputs, kernel]}, …]}.

    Layers: {"conv": [outputs, kernel]} without padding, {"pool": size}, {"linear": outputs}. Names count from 0 as in
    an nn.Sequential of them all.
    """
    given = config.sizes("input")
    layers = config.find("layers")
    if len(given) != 2 or not isinstance(layers, list):
        raise config.error("layers", "and input are expected: a list of layers, and [channels, size]")
    stack = _Stack(given[1], given[0])
    flat = 0
    for number, layer in enumerate(layers):
        one = Config(layer if isinstance(layer, dict) else {}, config.where, f"layers[{number}].")
        stem = f"layers.{number}"
        if one.has("conv"):
            if len(sizes := one.sizes("conv")) != 2:
                raise one.error("conv", f"has {len(sizes)} entries; outputs and kernel are expected")
            outputs, kernel = sizes
            stack.convolve(stem, outputs, kernel, bias=True, padding=0)
        elif one.has("pool"):
            stack.size //= one.size("pool")
        else:
            inputs = flat or stack.channels * stack.size**2
            if not inputs:
                raise one.error("linear", "has nothing left to read")
            flat = one.size("linear")
            part = Linear("linear", 1, "image", inputs=inputs, outputs=flat, bias=True, once=True)
            stack.pieces.append(
                Piece(part, (Tensor(f"{stem}.weight", (flat, inputs)), Tensor(f"{stem}.bias", (flat,))))
            )
    return Architecture("cnn", "encode", tuple(stack.pieces), {"image": 1}, None)
