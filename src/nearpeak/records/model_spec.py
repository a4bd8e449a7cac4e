"""What a model is, read from file headers: its parts, exact parameters, and the bytes its weights take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCHEMA = "nearpeak.model-spec/1"


@dataclass(frozen=True)
class Part:
    """`count` equal pieces of a model. All sizes are of one of them.

    name      where it stands, as in the files where they have one name for it: "attention", "feed_forward", "head"
    stream    whose positions pass through it: a name in ModelSpec.streams
    """

    name: str
    count: int
    stream: str

    @property
    def parameters(self) -> int:
        """Of one piece."""
        raise NotImplementedError

    @property
    def active(self) -> int:
        """Parameters of one piece that one position uses in products; a table that is only looked up has none."""
        return self.parameters


@dataclass(frozen=True)
class Table(Part):
    """An embedding that is looked up: rows × width, no FLOPs. A head tied to it is a Linear with tied=True."""

    rows: int
    width: int

    @property
    def parameters(self) -> int:
        return self.rows * self.width

    @property
    def active(self) -> int:
        return 0


@dataclass(frozen=True)
class Vector(Part):
    """Parameters that are added or multiplied, element by element: norms, position tables added whole, class tokens."""

    size: int

    @property
    def parameters(self) -> int:
        return self.size

    @property
    def active(self) -> int:
        return 0


@dataclass(frozen=True)
class Linear(Part):
    """y = x·Wᵀ (+ bias). tied: its weight is a Table's, counted there. once: applied to one position a sequence only
    (a pooler, a classifier)."""

    inputs: int
    outputs: int
    bias: bool = False
    tied: bool = False
    once: bool = False

    @property
    def parameters(self) -> int:
        return (0 if self.tied else self.inputs * self.outputs) + (self.outputs if self.bias else 0)

    @property
    def active(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Attention(Part):
    """Projections and scores. MHA, GQA and MQA by kv_heads; MLA where `latent` is set.

    width      of the hidden state; key_width of what keys and values are made from (cross-attention), else width
    head_dim   of queries and keys; value_dim of values
    causal     position i sees positions up to i; window: only the last `window` of them, itself among them
    reads      the stream that keys and values come from: its own, or another's (cross-attention)
    bias       parameters of all biases (and sinks) of one piece; norms: of query and key norms
    latent     of MLA: what is cached is latent.kv_rank + latent.rotary numbers a position, not heads
    gate       what comes out is multiplied by a gate, a map of its own from the hidden state (Qwen3-Next)
    keys_are_values   one map gives both; both are still cached, as only the keys are rotated (Gemma 4)
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    causal: bool = True
    window: int | None = None
    reads: str | None = None
    key_width: int | None = None
    bias: int = 0
    norms: int = 0
    latent: Latent | None = None
    gate: bool = False
    keys_are_values: bool = False

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """name: (inputs, outputs) of each projection, unfused."""
        source = self.key_width or self.width
        out = self.heads * self.value_dim, self.width
        if self.latent is None:
            keys, values = self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
            shapes = {"q": (self.width, self.heads * self.head_dim), "k": (source, keys)}
            if not self.keys_are_values:
                shapes["v"] = source, values
            if self.gate:
                shapes["q_gate"] = self.width, self.heads * self.value_dim
            shapes["o"] = out
            return shapes
        mla = self.latent
        shapes = {"kv_down": (source, mla.kv_rank + mla.rotary)}
        shapes["kv_up"] = mla.kv_rank, self.heads * (self.head_dim - mla.rotary + self.value_dim)
        if mla.q_rank:
            shapes["q_down"] = self.width, mla.q_rank
            shapes["q_up"] = mla.q_rank, self.heads * self.head_dim
        else:
            shapes["q"] = self.width, self.heads * self.head_dim
        shapes["o"] = out
        return shapes

    @property
    def parameters(self) -> int:
        return self.active + self.bias + self.norms

    @property
    def active(self) -> int:
        return sum(inputs * outputs for inputs, outputs in self.linear_shapes.values())

    @property
    def cached(self) -> int:
        """Numbers kept a position in the KV cache by one piece."""
        if self.latent:
            return self.latent.kv_rank + self.latent.rotary
        return self.kv_heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): one compressed latent a position in place of heads.

    kv_rank   of the latent; rotary: width of the one shared rotary key; q_rank: of the query's, 0 where it has none
    """

    kv_rank: int
    rotary: int
    q_rank: int = 0


@dataclass(frozen=True)
class Recurrent(Part):
    """Linear attention, state space or short convolution: a state of fixed size in place of a growing cache.

    shapes       name: (inputs, outputs) of its linear maps
    others       parameters that are no linear map (decay, convolution, norms)
    state        numbers kept a sequence; state_flop: FLOPs a position for updating and reading the state
    """

    shapes: dict[str, tuple[int, int]]
    others: int
    state: int
    state_flop: float

    @property
    def parameters(self) -> int:
        return self.active + self.others

    @property
    def active(self) -> int:
        return sum(inputs * outputs for inputs, outputs in self.shapes.values())


@dataclass(frozen=True)
class FeedForward(Part):
    """Dense: width → hidden → width; gated ones have two maps in. bias: parameters of all biases."""

    width: int
    hidden: int
    gated: bool
    bias: int = 0

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def parameters(self) -> int:
        return self.active + self.bias

    @property
    def active(self) -> int:
        return self.matrices * self.width * self.hidden


@dataclass(frozen=True)
class Experts(Part):
    """Mixture: a router picks `chosen` of `experts` feed-forwards for each position; `shared` see every one.

    hidden         of one expert; shared_hidden of all shared ones together
    router_bias    parameters of the router beside its width × experts; bias: of one expert's biases
    """

    width: int
    hidden: int
    experts: int
    chosen: int
    gated: bool = True
    shared_hidden: int = 0
    shared_gate: int = 0
    router_bias: int = 0
    bias: int = 0

    @property
    def one_expert(self) -> int:
        """Parameters of one expert's matrices."""
        return (3 if self.gated else 2) * self.width * self.hidden

    @property
    def shared(self) -> int:
        return (3 if self.gated else 2) * self.width * self.shared_hidden + self.shared_gate

    @property
    def router(self) -> int:
        return self.width * self.experts

    @property
    def parameters(self) -> int:
        return self.experts * (self.one_expert + self.bias) + self.shared + self.router + self.router_bias

    @property
    def active(self) -> int:
        return self.chosen * self.one_expert + self.shared + self.router


@dataclass(frozen=True)
class Convolution(Part):
    """outputs × (inputs ÷ groups) × kernel…, giving `positions` outputs an item (h·w, or frames)."""

    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    positions: int
    groups: int = 1
    bias: bool = True

    @property
    def parameters(self) -> int:
        return self.active + (self.outputs if self.bias else 0)

    @property
    def active(self) -> int:
        size = self.outputs * (self.inputs // self.groups)
        for length in self.kernel:
            size *= length
        return size


@dataclass(frozen=True)
class Stored:
    """Weights of one dtype as they lie on disk (or would, for a known name)."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class ModelSpec:
    """One model. Every parameter belongs to exactly one part: their sum is `parameters`.

    name         what the user calls it, or the folder's name
    family       the architecture's plain name: "llama", "gemma3", "bert", "whisper", "cnn"
    task         what a run gives: "generate" (next tokens), "encode" (one vector or class an item), "transcribe"
    parts        in the order of the computation
    streams      name: positions an item, None where the workload's tokens decide (text)
    context      most positions that the model was made for; None where there is no such limit
    stored       dtype ("bf16", "q4_k", …): parameters and bytes
    source       the file, or the data file's own source
    config       the keys of the file that were honoured, as found (for `--explain` and the networks)
    notes        what a reader should know: a key that was derived, a tensor that is not counted and why
    """

    schema: str
    name: str
    family: str
    task: Literal["generate", "encode", "transcribe"]
    parts: tuple[Part, ...]
    streams: dict[str, int | None]
    context: int | None
    stored: dict[str, Stored]
    source: str
    config: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """All of them, a tied head once."""
        return sum(part.count * part.parameters for part in self.parts)

    @property
    def active_parameters(self) -> int:
        """Those that one position needs: as `parameters`, but of the experts only the chosen and shared ones."""
        idle = sum(
            part.count * (part.experts - part.chosen) * (part.one_expert + part.bias)
            for part in self.parts
            if isinstance(part, Experts)
        )
        return self.parameters - idle

    @property
    def weight_bytes(self) -> int:
        """As stored."""
        return sum(stored.bytes for stored in self.stored.values())

    @property
    def layers(self) -> int:
        """Blocks of the longest kind: what a pipeline can be cut into."""
        mixers = (Attention, Recurrent)
        by_stream: dict[str, int] = {}
        for part in self.parts:
            if isinstance(part, mixers) and not (isinstance(part, Attention) and part.reads):
                by_stream[part.stream] = by_stream.get(part.stream, 0) + part.count
        return sum(by_stream.values()) or sum(1 for part in self.parts if part.active)
