"""Plans built by hand for tests: inference on several cards, training, and a model that fits nowhere."""

from __future__ import annotations

from dataclasses import replace

from nearpeak.records.limit import Limit
from nearpeak.records.plan import SCHEMA, Candidate, Estimate, Layout, Measured, Memory, Plan, Step, Term, Variation
from nearpeak.records.workload import Training, Workload

GIB = 2**30
ROW = Measured("Llama-3-8B F16, llama.cpp, 1 × GeForce RTX 3090, 512 tokens", 47.4, "tok/s", "example.org, table 3")
LLAMA = {
    "name": "llama-3.1-8b", "parameters": 8_030_261_248, "active_parameters": 8_030_261_248,
    "weight_bytes": 16_060_522_496, "kv_bytes_per_token": 131_072, "layers": 32,
}  # fmt: skip


def gibs(weights: float, kv: float, capacity: float, **others: float) -> Memory:
    sizes = {"activations": 0.25, "gradients": 0.0, "optimizer": 0.0, "overhead": 1.0, **others}
    return Memory(int(weights * GIB), int(kv * GIB), **{k: int(v * GIB) for k, v in sizes.items()},
                  capacity=int(capacity * GIB))  # fmt: skip


def decode_step() -> Step:
    limit = Limit(0.0172, 0.0175, 0.0002, 0.0172, {"bf16": 15e9}, 16.1e9, "memory", "spec × 0.80")
    terms = (
        Term("limit", 0.0172, "16.1 GB ÷ 936 GB/s"),
        Term("efficiency", 0.0026, "limit ÷ 0.87 − limit"),
        Term("fixed costs", 0.0014, "32 layers × 44 µs"),
    )
    return Step("decode", 1.0, terms, limit)


def one_3090() -> Candidate:
    return Candidate(
        "GeForce RTX 3090", 1, True, gibs(14.96, 0.5, 23.5), Layout(), Estimate(2300.0, 1700.0, 3100.0),
        Estimate(1 / 0.0212, 38.2, 58.4), None, 7.1, 0.62, "memory", ROW, "spec × 0.80", ("24 GB cards are used",), {},
        (decode_step(),),
    )  # fmt: skip


def infer_plan() -> Plan:
    two = replace(
        one_3090(), count=2, memory=gibs(7.48, 0.25, 23.5), layout=Layout(tensor=2), nearest_measured=None, steps=(),
        decode_tokens_per_s=Estimate(74.0, 55.0, 99.0), bound_by="link", joules_per_token=9.4,
    )  # fmt: skip
    h200 = replace(
        one_3090(), gpu="H200 SXM 141 GB", memory=gibs(14.96, 0.5, 137.0), rates="measured here (sustained)", steps=(),
        prefill_tokens_per_s=Estimate(31000.0, 24000.0, 40000.0), decode_tokens_per_s=Estimate(182.0, 150.0, 220.0),
        joules_per_token=None, missing={"joules_per_token": "its power under this load was never measured"},
    )  # fmt: skip
    small = replace(
        one_3090(), gpu="GeForce RTX 4060", fits=False, memory=gibs(14.96, 0.5, 7.8), prefill_tokens_per_s=None,
        decode_tokens_per_s=None, joules_per_token=None, cost_per_million_tokens=None, nearest_measured=None, steps=(),
        missing=dict.fromkeys(
            ("decode_tokens_per_s", "prefill_tokens_per_s", "joules_per_token", "cost_per_million_tokens"),
            "it does not fit",
        ),
    )  # fmt: skip
    asked = {"task": "infer", "context": 4096, "batch": 1, "precision": "bf16", "engine": "llama.cpp"}
    works = (Workload("prefill", 1, 3072), Workload("decode", 1, 1, 4095))
    notes = ("price of electricity: 0.25 US$ a kWh (2026-12)", "prices of cards: catalogue, 2026-12")
    return Plan(SCHEMA, dict(LLAMA), dict(asked), works, (h200, two, one_3090(), small),
                "llama-3.1-8b in bf16 fits one RTX 3090; one H200 is 3.9 times as fast.", notes)  # fmt: skip


def train_plan() -> Plan:
    memory = gibs(1.9, 0, 79.0, activations=21.0, gradients=3.7, optimizer=11.2)
    layout = Layout(data=8, sharded=8, micro_batch=2, micro_batches=4)
    candidate = Candidate(
        "A100 SXM4 80 GB", 8, True, memory, layout, None, None, Estimate(41000.0, 33000.0, 51000.0), 0.11, 0.05,
        "FLOPs", ROW, "spec × 0.80", (), {"prefill_tokens_per_s": "a training step has none"},
    )  # fmt: skip
    works = (Workload("train", 64, 4096, training=Training()),)
    return Plan(SCHEMA, dict(LLAMA), {"task": "train", "context": 4096, "batch": 64}, works, (candidate,),
                "A full fine-tune of llama-3.1-8b needs 8 × 80 GB.")  # fmt: skip


def nowhere_plan() -> Plan:
    found = [c for c in infer_plan().candidates if not c.fits]
    lines = "nothing fits: one GeForce RTX 4060 is 8.91 GiB short."
    return replace(infer_plan(), candidates=tuple(found), advice=lines)


def variations() -> tuple[Variation, ...]:
    faster = replace(one_3090(), memory=gibs(4.6, 0.5, 23.5), decode_tokens_per_s=Estimate(115.4, 95.0, 140.0))
    return (
        Variation("precision", "q4_k_m", faster),
        Variation("context", 131_072, replace(one_3090(), fits=False, memory=gibs(14.96, 16.0, 23.5))),
        Variation("count", 2, infer_plan().candidates[1]),
    )
