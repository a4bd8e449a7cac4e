"""What of a model's weights lies on one device of a layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nearpeak.limits.maps import Map, adapter_parameters, maps_of
from nearpeak.limits.weights import Widths, matrix_parameters, untied
from nearpeak.records.model_spec import (
    Attention,
    Convolution,
    Experts,
    FeedForward,
    Linear,
    ModelSpec,
    Part,
    Recurrent,
    Table,
    Vector,
)
from nearpeak.records.plan import Layout
from nearpeak.records.workload import Training

Stage = Literal["only", "first", "last"]


@dataclass(frozen=True)
class Share:
    """One device's part of a model, on one stage of a pipeline.

    weights      bytes, as stored; shards (FSDP) divided
    parameters   how many, shards divided; products: those of them in matrices that are multiplied
    adapters     of LoRA, shards divided
    block        parameters of the largest block (mixer and feed-forward) before shards divide it; outer: of embeddings
                 and head
    """

    weights: float
    parameters: float
    products: float
    adapters: float
    block: float
    outer: float


def share_of(spec: ModelSpec, widths: Widths, layout: Layout, stage: Stage, training: Training | None) -> Share:
    """Sums over the parts on a stage, each divided as its kind can be."""
    weights = parameters = products = adapters = outer = 0.0
    mixer = wide = 0.0
    layers = spec.layers
    for part in spec.parts:
        pieces = pieces_on(part, spec, layout, stage, layers)
        if not pieces:
            continue
        if isinstance(part, Linear) and part.tied and stage == "last":
            part = untied(part)  # the table lies on the first stage: the last one keeps a copy
        matrices, vectors = divided(part, layout)
        shards = layout.sharded
        if isinstance(part, Experts) and shards > 1:
            shards = max(1, shards * layout.tensor // spread(layout))
        weights += pieces * (matrices * widths.matrix(part) + vectors * widths.vector) / shards
        parameters += pieces * (matrices + vectors) / shards
        if not isinstance(part, Table):
            tied = part.active if isinstance(part, Linear) and part.tied else 0
            products += pieces * (matrices + tied / layout.tensor) / shards
        if training and training.method != "full":
            adapters += pieces * adapter_parameters(part, training) / layout.tensor / layout.sharded
        one = matrices + vectors
        if isinstance(part, Attention | Recurrent):
            mixer = max(mixer, one)
        elif isinstance(part, FeedForward | Experts):
            wide = max(wide, one)
        elif isinstance(part, Table | Linear | Convolution):
            outer += pieces * one
    return Share(weights, parameters, products, adapters, mixer + wide, outer)


def spread(layout: Layout) -> int:
    """Devices that routed experts are spread over: those of expert parallelism, at least the tensor-parallel ones."""
    return max(layout.tensor, layout.expert)


def pieces_on(part: Part, spec: ModelSpec, layout: Layout, stage: Stage, layers: int | None = None) -> float:
    """How many of a part's pieces a stage holds; a stage with the most blocks is taken.

    Embeddings and convolutions begin the first stage; head, last norm and what follows end the last. A model without
    blocks is divided evenly. layers: the spec's, where the caller has them at hand.
    """
    if stage == "only" or layout.pipeline == 1:
        return part.count
    layers = layers or spec.layers
    if isinstance(part, Attention | Recurrent | FeedForward | Experts) or part.count > 1:
        return part.count * math.ceil(layers / layout.pipeline) / layers
    if not any(isinstance(p, Attention | Recurrent) for p in spec.parts):
        return part.count / layout.pipeline
    first = isinstance(part, Table | Convolution)
    return part.count if (stage == "first") == first else 0


def divided(part: Part, layout: Layout) -> tuple[float, float]:
    """Parameters of one piece in matrices, and in vectors, on one device of the tensor-parallel group.

    Heads, hidden units and the vocabulary are split; key and value heads as far as there are heads; what comes before
    a latent, the router and all vectors are on every device (Shoeybi et al. 2019, Megatron-LM, section 3).
    """
    matrices = matrix_parameters(part)
    vectors = part.parameters - matrices
    if isinstance(part, Vector | Convolution) or layout.tensor == spread(layout) == 1:
        return matrices, vectors
    if isinstance(part, Attention | Experts):
        split = sum(m.parameters / degree(part, m, layout) for m in maps_of(part))
        return split, vectors if not isinstance(part, Experts) else vectors / spread(layout)
    return matrices / layout.tensor, vectors


def degree(part: Part, one: Map, layout: Layout) -> int:
    """Devices that a linear map is split over."""
    if isinstance(part, Attention):
        if one.name in ("q_down", "kv_down"):
            return 1
        if one.name in ("k", "v"):
            return min(layout.tensor, part.kv_heads)
    if one.name in ("router", "shared_gate"):
        return 1
    return spread(layout) if one.copies > 1 else layout.tensor
