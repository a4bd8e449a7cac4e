"""Rows that others measured, as package data: what the efficiencies are fitted on, and what a claim is held against.

`data/measured.csv` has the columns of the collection as found (kind to note) and, beside them, what they mean: engine
and its version, the catalogue's card, a known model, the layout, lengths. `left_out` says why a row cannot be computed.
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from nearpeak.hardware.catalogue import load_catalogue
from nearpeak.limits.precision import WEIGHT_BITS
from nearpeak.planning.cards import group_of
from nearpeak.records.plan import Layout, Measured


@dataclass(frozen=True)
class Row:
    """One measurement.

    kind        train, decode, prefill, throughput or memory
    value, unit as the source has them
    model       as the source calls it; spec: the known model of that shape, "" where there is none
    parameters  as the source counts them
    gpu         as the source calls it; card: the catalogue's, "" where there is none; group: its class
    cards       how many, 0 if not told
    recipe      of a row of memory: what was kept, "name=value …"
    batch       sequences at once by all cards (throughput "max load": 0); length: prompt or training sequence
    answer      tokens written; depth: mean positions in the cache while decoding
    bits_file   bytes of the model's file where the source tells them, else 0
    """

    number: int
    kind: str
    model: str
    spec: str
    parameters: float
    gpu: str
    card: str
    group: str
    cards: int
    precision: str
    engine: str
    version: str
    value: float
    unit: str
    batch: float
    length: int
    answer: int
    depth: int
    layout: Layout
    chunks: int
    method: str
    recompute: str
    file_bytes: int
    flags: tuple[str, ...]
    left_out: str
    recipe: str
    source: str
    note: str
    dtype: str

    @property
    def text(self) -> str:
        """In one line, for a person to check."""
        cards = f"{self.cards} × {self.gpu}" if self.cards > 1 else self.gpu
        more = f", batch {self.batch:g}" if self.batch > 1 else ""
        length = f", {self.length} positions" if self.length else ""
        return f"{self.model} {self.dtype} on {cards} ({self.engine or 'engine not told'}{length}{more})"


@cache
def load_measured() -> tuple[Row, ...]:
    """All rows, in the file's order."""
    text = (resources.files("nearpeak.planning") / "data" / "measured.csv").read_text("utf-8")
    return tuple(_row(number, fields) for number, fields in enumerate(csv.DictReader(io.StringIO(text)), 2))


def _row(number: int, f: dict[str, str]) -> Row:
    cards = _int(f["n_gpus"])
    tensor, pipeline, context = (_int(f[name]) or 1 for name in ("tensor", "pipeline", "context"))
    expert = _int(f["expert"]) or 1
    data = max(1, (cards or 1) // (tensor * pipeline * context))
    batch = float(f["batch"]) if f["batch"].replace(".", "").isdigit() else 0.0
    micro = _int(f["micro_batch"]) or (max(1, round(batch / data)) if f["kind"] == "train" else 1)
    steps = _int(f["micro_batches"]) or (max(1, round(batch / data / micro)) if f["kind"] == "train" else 1)
    sharded = min(_int(f["sharded"]) or 1, data * context)
    layout = Layout(data, sharded, tensor, pipeline, context, expert, micro, steps)
    return Row(
        number, f["kind"], f["model"], f["spec"], 1e9 * float(f["params_b"] or 0), f["gpu"], f["card"],
        _groups().get(f["card"], ""), cards, f["precision"], f["engine"], f["version"],
        float(f["value"]), f["unit"], batch, _int(f["input_len"]), _int(f["output_len"]), _int(f["depth"]), layout,
        _int(f["chunks"]) or 1, f["method"], f["recompute"], _int(f["file_bytes"]), tuple(f["flags"].split()),
        f["left_out"], f["recipe"], f["source"], f["note"], f["dtype_or_quant"],
    )  # fmt: skip


@cache
def _groups() -> dict[str, str]:
    return {spec.name: group_of(spec) for spec in load_catalogue()}


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Claim:
    """What a measured row should be near to: kind as in Row, parameters in units, and the rest as in Row; method "" for
    inference."""

    kind: str
    spec: str
    parameters: float
    card: str
    group: str
    cards: int
    precision: str
    engine: str
    batch: float
    length: int
    method: str = ""


def nearest_row(claim: Claim) -> Measured | None:
    """The row of the claim's kind with the smallest distance, or None where there is none of that kind."""
    best: tuple[float, Row] | None = None
    for row in _by_kind().get(claim.kind, ()):
        away = distance(claim, row)
        if best is None or away < best[0]:
            best = away, row
    return Measured(best[1].text, best[1].value, best[1].unit, best[1].source) if best else None


@cache
def _by_kind() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in load_measured():
        if row.spec and row.card:
            found.setdefault(row.kind, []).append(row)
    return found


def family_of(name: str) -> str:
    """A model's family by its name: "llama-3.1-8b" and "llama-2-7b" are of one."""
    return re.split(r"[-\d]", name.lower())[0]


def distance(claim: Claim, row: Row) -> float:
    """0 for the same; each difference adds its weight, sizes and counts by the log of their ratio. Another card of the
    class weighs as much as three times the parameters, another class twice that."""
    total = 0.0
    if row.spec != claim.spec:
        total += 0.1 + (0.0 if family_of(row.spec) == family_of(claim.spec) else 0.3)
        total += abs(math.log(max(row.parameters, 1.0) / max(claim.parameters, 1.0)))
    if row.card != claim.card:
        total += 1.1 if row.group == claim.group else 2.2
    total += 0.5 * abs(math.log2(max(row.cards, 1) / claim.cards))
    total += 0.4 * abs(math.log2(bits(row.precision) / bits(claim.precision)))
    total += 0.0 if row.engine == claim.engine else 0.5
    total += 0.6 if claim.method and row.method and row.method != claim.method else 0.0
    total += 0.15 * abs(math.log2(max(row.batch, 1.0) / max(claim.batch, 1.0)))
    if row.length and claim.length:
        total += 0.1 * abs(math.log2(row.length / claim.length))
    return total


def bits(precision: str) -> float:
    """A weight's; 16 where a row does not tell."""
    return WEIGHT_BITS.get(precision, 16.0)
