"""What a person asks `nearpeak plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearpeak.limits.precision import weight_bits
from nearpeak.planning.efficiency import engines
from nearpeak.records.errors import UserError
from nearpeak.records.machine_profile import MachineProfile
from nearpeak.records.model_spec import ModelSpec

Task = Literal["infer", "train", "lora", "qlora"]
TASKS: tuple[Task, ...] = ("infer", "train", "lora", "qlora")

# What is taken where the question leaves it open. Each is said in the plan's notes.
DEFAULT_CONTEXT = 4096
DEFAULT_OUTPUT_SHARE = 0.25  # of the context is written by the model, the rest is the prompt
DEFAULT_ELECTRICITY = 0.25  # US dollars a kWh, 2026-12: between the household price in the United States and in Germany


# What a plan is made for at most: more cards than any cluster has, more sequences than any step.
MOST_CARDS, MOST_SEQUENCES, MOST_DOLLARS = 100_000, 10**9, 1e9
# Weights that are trained, or that adapters are trained on: GGUF mixes and 4-bit floats are for inference.
TRAINED = ("bf16", "fp16", "fp32")
PRECISIONS: dict[str, tuple[str, ...]] = {
    "train": TRAINED, "lora": (*TRAINED, "fp8", "int8", "int4", "nf4"), "qlora": TRAINED,
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A model, a task, the devices to look at, and what would be good enough.

    spec           of the model
    task           infer; train (full fine-tune or training from scratch); lora; qlora
    gpu, count     the card that is asked about, and how many; without `count` 1, 2, 4 and 8 are tried; neither, with a
                   profile: as many as it has
    any            all cards of the catalogue, and this machine's CPU, at counts 1, 2, 4 and 8
    context        positions a sequence: prompt and answer together, or a training sequence
    batch          sequences in a training step by all devices together; of inference: sequences at once
    users          people who ask at the same time: inference is then at that many sequences at once
    precision      of the weights ("bf16", "fp8", "q4_k_m", …); None: as stored, for training bf16
    engine         whose efficiency counts: "llama.cpp", "vllm", "trtllm", "gpt-fast", …; None: the usual one
    target_tps     decode (or training) tokens/s that must be reached by the expected value
    max_price      US dollars for all cards together
    profile        of this machine: measured ceilings come before the maker's figures for the cards in it
    price_per_hour of one card, US dollars; None: from the purchase price
    electricity    US dollars a kWh
    """

    spec: ModelSpec
    task: Task = "infer"
    gpu: str | None = None
    count: int | None = None
    any: bool = False
    context: int | None = None
    batch: int | None = None
    users: int | None = None
    precision: str | None = None
    engine: str | None = None
    target_tps: float | None = None
    max_price: float | None = None
    profile: MachineProfile | None = None
    price_per_hour: float | None = None
    price_per_card: float | None = None
    electricity: float = DEFAULT_ELECTRICITY

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UserError(f"task {self.task!r} is none of {', '.join(TASKS)}.")
        for name in ("count", "context", "batch", "users"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}: it must be 1 or more.")
            most = MOST_CARDS if name == "count" else MOST_SEQUENCES
            if value is not None and value > most:
                raise UserError(f"{name} is {value:,}: plans are made for {most:,} at most.")
        for name in ("target_tps", "max_price", "price_per_hour", "price_per_card"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name} is {value:g}: it must be above 0.")
            if value is not None and name.startswith("price") and value > MOST_DOLLARS:
                raise UserError(f"{name} is {value:g}: it must be {MOST_DOLLARS:g} US dollars or less.")
        if not 0 <= self.electricity <= MOST_DOLLARS:
            raise UserError(f"electricity is {self.electricity:g}: it must be from 0 to {MOST_DOLLARS:g} US dollars.")
        self._check_precision()
        if self.engine is not None and self.engine not in engines():
            raise UserError(f"no measured rows of engine {self.engine!r}. Known: {', '.join(engines())}.")
        if self.gpu is None and not self.any and self.profile is None:
            raise UserError("which cards? Name one with --gpu, or look at all with --any.")
        if self.gpu is not None and self.any:
            raise UserError("--gpu names one card and --any all of them: give one of the two.")
        if self.spec.task != "generate" and self.task in ("lora", "qlora"):
            raise UserError(f"{self.task} is planned for text models; {self.spec.name} is there to {self.spec.task}.")
        if self.batch is not None and self.users is not None and self.task == "infer" and self.batch != self.users:
            raise UserError(f"batch {self.batch} and users {self.users} both say how many sequences run at once.")

    def _check_precision(self) -> None:
        """A precision is one that the task can have; qlora packs the frozen weights itself (nf4)."""
        if self.precision is None:
            return
        known = PRECISIONS.get(self.task)
        if known and self.precision not in known:
            why = ": qlora packs the frozen weights in nf4 itself" if self.task == "qlora" else ""
            raise UserError(f"{self.task} is not planned in {self.precision!r}{why}. Possible: {', '.join(known)}.")
        if self.precision in ("fp64", "tf32"):
            raise UserError(f"inference is not planned in {self.precision!r}: models are run in fp32 or less.")
        if self.precision != "stored":
            weight_bits(self.precision)

    @property
    def sequences(self) -> int:
        """At once, in inference."""
        return self.users or self.batch or 1

    @property
    def training_task(self) -> bool:
        """Whether a training step is asked for: work of minutes, held against sustained ceilings."""
        return self.task != "infer"
