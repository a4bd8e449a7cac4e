"""All that decides what a decoder computes: sizes, and the plain differences between families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearpeak.networks.rope import Rope


@dataclass(frozen=True)
class LayerShape:
    """What differs from layer to layer.

    window  positions that one sees, itself among them; None: all before it
    rope    how its queries and keys are rotated; None: not at all (SmolLM3's NoPE layers, GPT-2)
    sparse  its feed-forward is a mixture of experts
    """

    window: int | None = None
    rope: Rope | None = None
    sparse: bool = False


@dataclass(frozen=True)
class ExpertsShape:
    """A router picks `chosen` of `experts` feed-forwards of `hidden` numbers for each position.

    renormalise  the chosen ones' weights are made to sum to 1
    wide         they stay in fp32 until they have been multiplied (Mixtral)
    """

    experts: int
    chosen: int
    hidden: int
    renormalise: bool
    wide: bool = False


@dataclass(frozen=True)
class DecoderShape:
    """One decoder.

    hidden       of a dense feed-forward; gated: down(act(gate x) · up x), else down(act(up x))
    norm         "rms", or "layer" with mean and bias; norm_offset: the weight is 1 + what is stored (Gemma)
    norm_wide    what is normed stays in fp32 until the weight has been multiplied (Gemma, OLMo 2)
    norm_order   "before" attention and feed-forward; "after" them, before the sum (OLMo 2); "both" (Gemma)
    qk_norm      of queries and keys: None, each "head", or all heads at once ("width")
    score_scale  what q·k is multiplied by; score_cap: cap·tanh(score ÷ cap); logit_cap likewise
    embed_scale  what embeddings are multiplied by
    context      positions that the model was made for; learned_positions: rows of its table, 0 where it has none
    tied         the head's weight is the embedding's
    """

    family: str
    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    context: int
    layers: tuple[LayerShape, ...]
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    gated: bool = True
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    norm_offset: bool = False
    norm_wide: bool = False
    norm_order: Literal["before", "after", "both"] = "before"
    qk_norm: Literal["head", "width"] | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    learned_positions: int = 0
    score_scale: float = 1.0
    score_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    tied: bool = False
    experts: ExpertsShape | None = None

    @property
    def changes_with_length(self) -> bool:
        """Rotary frequencies depend on how long the sequence is, so a step is not the same maths at any position."""
        return any(layer.rope is not None and layer.rope.changes_from is not None for layer in self.layers)
