"""The fast settings of a run, each with its reason. Pure: what is known of device, model and data goes in as facts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearpeak.records.errors import UserError
from nearpeak.training.recipe import Recipe
from nearpeak.training.trial import Candidate, Tried

LEFT_FREE = 0.5
"""The part of free device memory that data may take; the rest is for weights, activations and their peaks."""
TRIAL_FROM = 100
"""Steps of a run from which a trial pays: it costs about a second."""


@dataclass(frozen=True)
class Facts:
    """bf16: None where the device has units for it, else why not; cores: physical ones that the process may use."""

    kind: str
    bf16: str | None
    free_bytes: int
    data_bytes: int
    cores: int
    convolutions: bool
    steps: int


@dataclass(frozen=True)
class Choice:
    """One setting in words."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Settings:
    """How a run goes. threads: of the CPU's products; whole: the data lies on the device as one tensor."""

    precision: str
    threads: int
    channels_last: bool
    whole: bool
    compile: bool
    graph: bool
    choices: tuple[Choice, ...]


def candidates(recipe: Recipe, facts: Facts) -> tuple[Candidate, ...]:
    """What a trial has to compare; one alone where nothing is left open, or the run is too short for a trial."""
    precisions = [recipe.precision]
    if recipe.precision == "auto":
        precisions = ["fp32"] if facts.bf16 else ["bf16"] if facts.kind == "gpu" else ["fp32", "bf16"]
    threads = [recipe.threads or facts.cores]
    if recipe.threads is None and facts.kind == "cpu" and facts.cores > 1:
        threads.append(1)  # on a machine that others use, threads wait for each other
    if recipe.deterministic or facts.steps < TRIAL_FROM:
        precisions, threads = precisions[:1], threads[:1]
    channels_last = facts.convolutions if recipe.channels_last is None else recipe.channels_last
    return tuple(Candidate(p, t, channels_last) for p in precisions for t in threads)


def choose(recipe: Recipe, facts: Facts, tried: tuple[Tried, ...]) -> Settings:
    """tried: each candidate with its images a second; the fastest is taken. One candidate needs no trial (rate None).

    Raises UserError for a precision that the device does not have.
    """
    if recipe.precision == "fp64" and facts.kind != "cpu":
        raise UserError("precision fp64 is for checks on the CPU; take fp32 or bf16 on a GPU.")
    graph, why_graph = _graph(recipe, facts)
    best = max(tried, key=lambda one: one.rate or 0.0)
    chosen = best.candidate
    whole = facts.data_bytes <= LEFT_FREE * facts.free_bytes
    choices = [
        Choice("precision", chosen.precision, _precision_reason(recipe, facts, tried, chosen)),
        Choice("threads", str(chosen.threads), _reason(recipe.threads is not None, tried, chosen, "threads")),
        Choice(
            "channels-last", _yes(chosen.channels_last),
            "the recipe's" if recipe.channels_last is not None
            else "convolutions take it as it is; on a CPU the known CNN ran 1.25 to 1.57 times as fast"
            if facts.convolutions else "the model has no convolution",
        ),
        Choice(
            "data", "one tensor on the device" if whole else "staged from the host",
            f"{facts.data_bytes / 1e6:,.1f} MB of {facts.free_bytes / 1e9:,.1f} GB free; whole batches are gathered "
            + ("there, with no worker and no transform for each image" if whole else "on the host, two steps ahead"),
        ),
        Choice("optimizer", f"fused {recipe.optimizer.name}", "one pass over all parameters in place of one for each"),
        Choice("compile", _yes(recipe.compile), _compile_reason(recipe)),
        Choice("CUDA graph", _yes(graph), why_graph),
        Choice("losses", "summed on the device", "reading one in each step would make the device wait"),
        Choice("garbage collection", "held", "it would stop steps at random moments"),
    ]  # fmt: skip
    if recipe.micro_batch is not None and recipe.micro_batch < recipe.batch:
        why = f"the recipe's micro_batch; {-(-recipe.batch // recipe.micro_batch)} passes make one step"
        choices.append(Choice("micro-batch", str(recipe.micro_batch), why))
    return Settings(
        chosen.precision, chosen.threads, chosen.channels_last, whole, recipe.compile, graph, tuple(choices)
    )


def kept(settings: Settings, precision: str, threads: int, channels_last: bool) -> Settings:
    """Those that decide the last bits of a number as a checkpoint has them, so that a resumed run goes on exactly."""
    values = {"precision": precision, "threads": str(threads), "channels-last": _yes(channels_last)}
    choices = tuple(
        replace(c, value=values[c.name], reason="as before the interruption") if c.name in values else c
        for c in settings.choices
    )
    return replace(settings, precision=precision, threads=threads, channels_last=channels_last, choices=choices)


def _precision_reason(recipe: Recipe, facts: Facts, tried: tuple[Tried, ...], chosen: Candidate) -> str:
    if recipe.precision != "auto":
        slow = facts.bf16 if recipe.precision == "bf16" else None
        return f"the recipe's, though slow here: {slow}" if slow else "the recipe's"
    if facts.bf16:
        return f"bf16 has no units here: {facts.bf16}"
    if facts.kind == "gpu":
        return "the device has units for bf16; weights, gradients and sums stay fp32"
    return _reason(False, tried, chosen, "precision")


def _reason(given: bool, tried: tuple[Tried, ...], chosen: Candidate, name: str) -> str:
    """A trial's answer for one setting: the best of each value."""
    if given:
        return "the recipe's"
    best: dict[object, float] = {}
    for one in tried:
        value = getattr(one.candidate, name)
        best[value] = max(best.get(value, 0.0), one.rate or 0.0)
    others = [f"{rate:,.0f} with {_yes(v) if isinstance(v, bool) else v}" for v, rate in best.items()]
    if len(best) > 1:
        return f"a trial just now, images/s: {', '.join(others)}"
    return "not tried: the run is short, or deterministic" if not tried[0].rate else "the only one possible here"


def _compile_reason(recipe: Recipe) -> str:
    if recipe.compile:
        return "the recipe's; fixed shapes, the whole forward pass, no silent way round it"
    return "it takes tens of seconds first; compile: true asks for it"


def _graph(recipe: Recipe, facts: Facts) -> tuple[bool, str]:
    if facts.kind != "gpu":
        if recipe.graph:
            raise UserError("graph: true needs a GPU: a CPU has no launches to save. Leave it out.")
        return False, "there are no launches to save on a CPU"
    if recipe.micro_batch is not None and recipe.micro_batch < recipe.batch:
        if recipe.graph:
            raise UserError("graph: true and a micro_batch under the batch exclude each other: leave one out.")
        return False, "the batch is accumulated"
    if recipe.graph is False:
        return False, "the recipe's"
    return True, "all of a step is launched at once; one by one its small kernels would wait for launches"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
