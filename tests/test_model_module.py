"""Any nn.Module: the parts that one traced forward pass gives, against what the families say of the same model."""

from __future__ import annotations

import logging

import pytest

from nearpeak.models.read import read_model
from nearpeak.records.errors import UserError
from nearpeak.records.model_spec import Attention, Convolution, Linear, ModelSpec, Vector

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from nearpeak.models.module import spec_of_module  # noqa: E402


def total(module: nn.Module) -> int:
    return sum({id(parameter): parameter.numel() for parameter in module.parameters()}.values())


def products(spec: ModelSpec) -> int:
    """Multiply-adds of all maps for one item, where its positions are known, else for one position."""
    found = 0
    for part in spec.parts:
        once = isinstance(part, Linear) and part.once
        positions = 1 if once else getattr(part, "positions", spec.streams[part.stream] or 1)
        found += part.count * part.active * positions
    return found


def test_the_28_by_28_cnn() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip
    spec = spec_of_module(module, ((4, 1, 28, 28),), "mine")
    known = read_model("cnn-28x28")
    assert spec.parameters == total(module) == known.parameters
    assert products(spec) == products(known)
    assert [type(part) for part in spec.parts] == [Convolution, Convolution, Linear, Linear]
    assert all(part.once for part in spec.parts if isinstance(part, Linear))
    assert spec.task == "encode"
    assert spec.notes == ()


FAMILY_CASES = {
    "llama": (2, 16), "llama tied, biases, head_dim": (2, 16), "qwen3": (2, 16), "gpt2": (2, 16), "bert": (2, 16),
    "olmo2": (2, 16), "starcoder2": (2, 16), "vit": (2, 3, 32, 32), "resnet bottleneck": (2, 3, 224, 224),
    "convnext": (2, 3, 32, 32), "efficientnet": (2, 3, 64, 64),
}  # fmt: skip


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_transformers_models_traced_and_read_agree(case: str, tmp_path: object) -> None:
    transformers = pytest.importorskip("transformers")
    from test_model_families import CASES

    logging.getLogger("transformers").setLevel(logging.ERROR)
    kind = getattr(transformers, CASES[case][0])
    module = kind(kind.config_class(**CASES[case][1]))
    module.config.save_pretrained(tmp_path)
    module.config.architectures = [CASES[case][0]]
    module.config.save_pretrained(tmp_path)
    traced, read = spec_of_module(module, (FAMILY_CASES[case],), case), read_model(str(tmp_path))
    assert traced.parameters == read.parameters == total(module)
    assert products(traced) == products(read)
    assert traced.task == read.task
    assert sum(stored.bytes for stored in traced.stored.values()) == 4 * total(module)
    mine = [part for part in traced.parts if isinstance(part, Attention)]
    theirs = [part for part in read.parts if isinstance(part, Attention)]
    for one, other in zip(mine, theirs, strict=True):
        assert one.linear_shapes == other.linear_shapes
        for key in ("count", "heads", "kv_heads", "causal"):
            assert getattr(one, key) == getattr(other, key)


def test_torch_s_own_transformer() -> None:
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 3)
    spec = spec_of_module(module, (torch.zeros(2, 10, 64),), "encoder")
    assert spec.parameters == total(module)
    (attention,) = [part for part in spec.parts if isinstance(part, Attention)]
    assert (attention.count, attention.width, attention.heads, attention.head_dim) == (3, 64, 4, 16)
    assert attention.bias == 4 * 64
    assert products(spec) == 10 * 3 * (4 * 64 * 64 + 2 * 64 * 128)
    assert spec.streams == {"input": 10}


def test_attention_across_reads_the_other_stream() -> None:
    module = nn.MultiheadAttention(32, 4, kdim=24, vdim=24, batch_first=True)
    spec = spec_of_module(module, ((2, 6, 32), (2, 9, 24), (2, 9, 24)), "cross")
    assert spec.parameters == total(module)
    (attention,) = [part for part in spec.parts if isinstance(part, Attention)]
    assert attention.key_width == 24
    assert attention.reads is not None
    assert spec.streams[attention.reads] == 9


class Odd(nn.Module):
    """Weights by hand, one map used twice, one tied to the embedding, a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.by_hand = nn.Parameter(torch.zeros(16, 24))
        self.back = nn.Linear(24, 16, bias=False)
        self.twice = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))
        self.unused = nn.Parameter(torch.zeros(3, 5))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.back((self.table(ids) @ self.by_hand).relu()) * self.scale
        return self.head(self.twice(self.twice(x)))


def test_hand_written_weights_and_shared_ones() -> None:
    module = Odd()
    spec = spec_of_module(module, ((2, 7),), "odd")
    assert spec.parameters == total(module)
    assert products(spec) == 2 * 16 * 24 + 2 * 16 * 16 + 16 * 50
    assert spec.task == "generate"
    assert sum(part.parameters * part.count for part in spec.parts if isinstance(part, Vector)) == 16 + 15
    assert any("unused" in note for note in spec.notes)
    head = next(part for part in spec.parts if part.name == "head")
    assert isinstance(head, Linear)
    assert head.tied


class ByHand(nn.Module):
    """Attention without torch's function for it."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.into(x).chunk(3, -1)
        return self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)


def test_products_of_two_activations_are_said_not_to_be_counted() -> None:
    spec = spec_of_module(ByHand(), ((2, 8, 32),), "by hand")
    assert spec.parameters == total(ByHand())
    assert any(f"{2 * 2 * 2 * 8 * 8 * 32:,} FLOPs" in note for note in spec.notes)


class FewKeys(nn.Module):
    """Grouped queries whose keys are repeated before torch's attention sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, size, bias=False) for size in (32, 8, 8))
        self.o = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (m(x).view(batch, length, -1, 8).transpose(1, 2) for m in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(4, 1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


def test_repeated_keys_are_cached_once() -> None:
    spec = spec_of_module(FewKeys(), ((2, 5, 32),), "few")
    (attention,) = [part for part in spec.parts if isinstance(part, Attention)]
    assert (attention.heads, attention.kv_heads, attention.cached) == (4, 1, 16)
    assert attention.causal
    assert spec.parameters == total(FewKeys())


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.LazyLinear(2))
    module(torch.randn(2, 3, 8, 8))
    module.train()
    module[1].eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    spec_of_module(module, ((2, 3, 8, 8),), "kept")
    assert module.training
    assert not module[1].training
    assert module[2].training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_module_on_the_meta_device_and_one_too_large_for_memory() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(100_000, 1_000_000, bias=False, dtype=torch.bfloat16))
    spec = spec_of_module(module, ((1, 3, 100_000),), "large")
    assert spec.parameters == 10**11
    assert spec.stored["bf16"].bytes == 2 * 10**11


def test_a_forward_that_looks_at_values_is_refused() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.map(x) if x.sum().item() > 0 else x

    with pytest.raises(UserError, match="looks at values"):
        spec_of_module(Looks(), ((2, 4),), "looks")
    with pytest.raises(UserError, match="cannot be traced"):
        spec_of_module(nn.Linear(4, 4), ((2, 5),), "wrong size")
