"""How a plan's figures and choices are put into words: units, roundings, layouts. No table yet, no page."""

from __future__ import annotations

from collections.abc import Sequence

from nearpeak.records.plan import Candidate, Estimate, Layout, Plan
from nearpeak.report import units
from nearpeak.report.units import ABSENT, Scale

MOST_ROWS = 10
SPEEDS = {
    "decode_tokens_per_s": "decode",
    "prefill_tokens_per_s": "prefill",
    "train_tokens_per_s": "training",
}
PARTS = ("weights", "kv", "activations", "gradients", "optimizer", "overhead")


def shown(plan: Plan) -> tuple[Candidate, ...]:
    """The candidates that have a row."""
    return plan.candidates[:MOST_ROWS]


def fits(plan: Plan) -> bool:
    return any(c.fits for c in plan.candidates)


def item(plan: Plan) -> str:
    """What speeds count, as units have it: "tok" where the plan names nothing else (images, clips)."""
    word = units.plain(plan.workload.get("item") or "token")
    return "tok" if word == "token" else word


def title(plan: Plan) -> tuple[str, str]:
    """The model, then the workload, a line each."""
    model = plan.model
    facts = []
    if isinstance(count := model.get("parameters"), int):
        facts.append(f"{billions(count)} parameters")
        active = model.get("active_parameters")
        if isinstance(active, int) and active != count:
            facts[-1] += f", {billions(active)} of them active"
    if isinstance(size := model.get("weight_bytes"), int):
        facts.append(f"{units.size(size)} of weights as stored")
    if isinstance(cache := model.get("kv_bytes_per_token"), int | float) and cache:
        facts.append(f"{units.size(cache)} of KV cache a token")
    asked = [f"{k.replace('_', ' ')} {_plain(v)}" for k, v in plan.workload.items() if _plain(v) and k != "item"]
    return units.plain(" · ".join([str(model.get("name", "model")), *facts])), units.plain(" · ".join(asked))


def billions(count: int) -> str:
    """Parameters as people say them: "8.03 B", "124 M", "431,080"."""
    for unit, step in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= 0.9995 * step:
            return f"{units.digits(count / step)} {unit}"
    return f"{count:,}"


def speeds(plan: Plan) -> dict[str, tuple[str, Scale]]:
    """The fields of speed that a row has, each with its word and one unit for its column."""
    found = {}
    for field, word in SPEEDS.items():
        if values := [e.value for c in shown(plan) if (e := getattr(c, field))]:
            once = field == "prefill_tokens_per_s" and any(work.phase == "encode" for work in plan.workloads)
            found[field] = "forward" if once else word, scale(values, item(plan))
    return found


def scale(values: Sequence[float], what: str) -> Scale:
    """One unit for all: tok/s, or ktok/s where one of them is above 10,000 and none is under 100; and so on."""
    for factor, prefix in ((1e6, "M"), (1e3, "k")):
        if max(values) >= 10 * factor and min(values) >= 0.1 * factor:
            return Scale(factor, f"{prefix}{' ' * (what != 'tok')}{what}/s")
    return Scale(1.0, f"{what}/s")


def training(plan: Plan) -> bool:
    return any(c.train_tokens_per_s for c in plan.candidates) or plan.workload.get("task") not in (None, "infer")


def gib(size: float) -> str:
    """Bytes as GiB, three digits; what is there but would round to nothing says so."""
    value = size / 2**30
    if size == 0 or value >= 999.5:
        return f"{value:.0f}"
    return "<0.01" if value < 0.005 else f"{value:.{2 if value < 9.995 else 1}f}"


def cards(gpu: str, count: int) -> str:
    return f"{count} × {units.plain(gpu)}"


def layout_words(layout: Layout, train: bool) -> str:
    """ "tensor 2", "FSDP 8", "2 replicas × tensor 4", and for a step of several micro-batches their size and number.

    What stands between × multiplies to the number of cards; experts lie within that, and so may a split of sequences
    within FSDP.
    """
    replicas = layout.data // layout.sharded
    words = [f"data {replicas}" if train else f"{replicas} replicas"] if replicas > 1 else []
    words += [f"FSDP {layout.sharded}"] if layout.sharded > 1 else []
    degrees = {"tensor": layout.tensor, "pipeline": layout.pipeline, "context": layout.context}
    inside = {"context"} if layout.sharded > layout.data else set()
    words += [f"{word} {degree}" for word, degree in degrees.items() if degree > 1 and word not in inside]
    text = " × ".join(words) or "one device"
    text += f", of it context {layout.context}" if inside and layout.context > 1 else ""
    text += f", experts over {layout.expert}" if layout.expert > 1 else ""
    if train and (layout.micro_batch > 1 or layout.micro_batches > 1):
        several = f" × {layout.micro_batches}" if layout.micro_batches > 1 else ""
        text += f", micro-batch {layout.micro_batch}{several}"
    return text


def estimate(value: Estimate | None, factor: float = 1.0) -> str:
    """ "47 [38–58]": the expected value and its 80 % interval, two digits at least, whole numbers from 10 on."""
    if value is None:
        return ABSENT
    return f"{rough(value.value / factor)} [{rough(value.low / factor)}–{rough(value.high / factor)}]"


def rough(value: float) -> str:
    """Two significant digits; whole numbers from 10 on: 0.43, 4.7, 47, 276."""
    if not abs(value) < 1e300:
        return ABSENT
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f}"
    return f"{value:.{1 if abs(value) >= 0.995 else 2}f}" if abs(value) >= 0.0995 else f"{value:.2g}"


def more_line(plan: Plan) -> str:
    """The order of the table, and what it leaves out."""
    rest = len(plan.candidates) - len(shown(plan))
    left_out = f"{len(shown(plan))} of {len(plan.candidates)} candidates; --json has all" if rest > 0 else ""
    return units.plain("; ".join(line for line in (left_out, plan.ranking if fits(plan) else "") if line))


def first_speed(c: Candidate, plan: Plan) -> list[str]:
    """The speed that a candidate is there for, with its interval, in the unit of the table; empty where it has none."""
    for field, word in SPEEDS.items():
        if e := getattr(c, field):
            word, unit = speeds(plan).get(field, (word, scale([e.value], item(plan))))
            return [f"{word} {estimate(e, unit.factor)} {unit.unit}"]
    return []


def _plain(value: object) -> str:
    """A value of the workload as text; empty for what is not set or is no plain value."""
    if value is None or isinstance(value, dict | list | tuple):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
