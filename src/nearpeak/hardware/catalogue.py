"""The catalogue of accelerators: what each maker promises, and which device on this machine it is about.

The rows are in `data/gpus.csv`, one exact device each; docs/catalogue.md explains the columns. A person's own file with
the same columns adds rows and replaces packaged ones. Nothing here touches a GPU, and nothing imports torch.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal, NoReturn, cast, get_args

import platformdirs

from nearpeak.records.device import Device
from nearpeak.records.errors import UserError
from nearpeak.records.spec import Figure, Price, Provenance, Rate, Spec

# column: (precision, accumulate, unit); the number in the column is in units of 1e12 per second
RATES: dict[str, tuple[str, str, Literal["vector", "matrix"]]] = {
    "fp64_vector_tflops": ("fp64", "fp64", "vector"),
    "fp64_matrix_tflops": ("fp64", "fp64", "matrix"),
    "fp32_vector_tflops": ("fp32", "fp32", "vector"),
    "fp16_vector_tflops": ("fp16", "fp16", "vector"),
    "tf32_tflops": ("tf32", "fp32", "matrix"),
    "fp16_tflops": ("fp16", "fp32", "matrix"),
    "fp16_acc16_tflops": ("fp16", "fp16", "matrix"),
    "bf16_tflops": ("bf16", "fp32", "matrix"),
    "int8_tops": ("int8", "int32", "matrix"),
    "fp8_tflops": ("fp8", "fp32", "matrix"),
    "fp4_tflops": ("fp4", "fp32", "matrix"),
}
# column: what one of its units is in SI
SCALE = {"memory_gb": 1e9, "bandwidth_gb_per_s": 1e9, "power_w": 1.0, "link_gb_per_s": 1e9}
SCALE.update(dict.fromkeys(RATES, 1e12))
REQUIRED = ("vendor", "name", "year", "provenance", "source")
COLUMNS = (
    *("vendor", "name", "family", "year", "architecture", "device_names", "memory_shared"),
    *("memory_gb", "bandwidth_gb_per_s", "power_w", "link_type", "link_gb_per_s", "pcie", *RATES),
    *("price_low_usd", "price_high_usd", "price_source", "provenance", "provenance_exceptions", "source", "note"),
)

# Bytes that the driver reports ÷ (the sheet's gigabytes × 1e9). Above 1 because memory comes in 2^30 where sheets say
# "GB" (80 GB on an H100 are 85.5e9 bytes, 1.07); lower because ECC on GDDR takes 1/16 and the driver keeps some (the
# 16 GB of a T4 are 15.6e9 to torch, 0.975). The nearest sizes sold under one name are 10 and 12 GB, 1.2 apart, so the
# window, 1.10 ÷ 0.95 = 1.16 wide, never holds two of them.
MEMORY_WINDOW = (0.95, 1.10)


@dataclass(frozen=True)
class Entry:
    """One row: the spec, and what it takes to recognise its device."""

    spec: Spec
    device_names: tuple[str, ...]
    memory_shared: bool
    own: bool


def load_catalogue(user_file: Path | None = None) -> tuple[Spec, ...]:
    """All specs, in SI units: the packaged ones, then the person's own.

    user_file  CSV with the same columns; by default `gpus.csv` in the user's configuration folder, where it exists.
    Raises UserError naming file, line and column for the first thing wrong in it.
    """
    return tuple(entry.spec for entry in _entries(user_file))


def find_spec(device: Device, user_file: Path | None = None) -> Spec | None:
    """The spec of exactly this device, or None.

    The whole name must agree, never a part of it. Memory, where it is known, must agree too (MEMORY_WINDOW): it tells
    sizes sold under one name apart, and keeps a slice of a card from passing for the card. So must the architecture.
    None as well when two rows still fit. Raises UserError as load_catalogue does.
    """
    if device.kind != "gpu" or device.id.startswith("MIG-"):
        return None
    name = _driver_name(device.name)
    fitting = [entry for entry in _entries(user_file) if name in entry.device_names]
    fitting = [entry for entry in fitting if _same_architecture(entry.spec, device)]
    fitting = [entry for entry in fitting if entry.own] or fitting  # a person's own row is meant to win
    memory = device.memory.number
    if memory is not None:
        alone = len(fitting) == 1  # memory taken from the host comes in many sizes under one row
        fitting = [entry for entry in fitting if (alone and entry.memory_shared) or _same_memory(entry.spec, memory)]
    return fitting[0].spec if len(fitting) == 1 else None


def find_by_name(text: str, user_file: Path | None = None) -> Spec:
    """The spec that a person means by "RTX 3090" or "h200".

    In this order, upper and lower case alike: the full name; the name or a driver's name but for the maker's and series
    words; every part of the text found in one name only. Raises UserError with the candidates when several fit, with
    the nearest names when none does.
    """
    entries = _entries(user_file)
    wanted = _squeeze(text)
    for entry in entries:
        if wanted == _squeeze(entry.spec.name):
            return entry.spec
    core, parts = _core(text), set(_parts(text))
    fitting = [e.spec for e in entries if core and core in {_core(name) for name in (e.spec.name, *e.device_names)}]
    if not fitting:
        fitting = [e.spec for e in entries if parts and parts <= set(_parts(f"{e.spec.vendor} {e.spec.name}"))]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(spec.name for spec in fitting[:12]) + (", …" if len(fitting) > 12 else "")
        raise UserError(f"{text!r} fits {len(fitting)} cards: {names}. Give the full name of one.")
    by_core = {_core(entry.spec.name): entry.spec.name for entry in entries}
    nearest = [by_core[key] for key in difflib.get_close_matches(core, by_core, n=4, cutoff=0.3)]
    hint = f" Nearest names: {', '.join(nearest)}." if nearest else ""
    raise UserError(f"no card named {text!r} among the {len(entries)} known.{hint} To add one, see docs/catalogue.md")


# --- names ---


def _driver_name(name: str) -> str:
    """A driver's name without trade marks and maker. Case stays: NVIDIA's "2070 SUPER" is a desktop card, "2070 Super"
    a laptop's."""
    name = re.sub(r"\((?:R|TM|C)\)|[®™©]", "", name, flags=re.IGNORECASE)
    return re.sub(r"^(?:NVIDIA|AMD|Intel|Apple)\s+", "", " ".join(name.split()), flags=re.IGNORECASE)


def _squeeze(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", _driver_name(name).lower())


def _core(name: str) -> str:
    """What is left of a name without the words that people drop: "GeForce RTX 3090" and "3090" alike."""
    series = "geforce|rtx|radeon|rx|instinct|tesla|quadro|nvidia|amd|intel|apple"
    return _squeeze(re.sub(rf"(?<![a-z])(?:{series})(?![a-z])", " ", name.lower()))


def _parts(name: str) -> list[str]:
    """Letters and numbers apart: "H100 SXM5 80GB" has h, 100, sxm, 5, 80, gb."""
    return re.findall(r"[a-z]+|\d+(?:\.\d+)?", name.lower())


def _same_architecture(spec: Spec, device: Device) -> bool:
    """False only where both are known, in the same way of writing ("sm_", "gfx"), and differ."""
    ours, theirs = spec.architecture or "", (device.architecture or "").split(":")[0]
    return ours == theirs or not any(ours.startswith(kind) and theirs.startswith(kind) for kind in ("sm_", "gfx"))


def _same_memory(spec: Spec, memory: float) -> bool:
    low, high = MEMORY_WINDOW
    return spec.memory is not None and low * spec.memory.value <= memory <= high * spec.memory.value


# --- reading the files ---


@cache
def _packaged() -> tuple[Entry, ...]:
    text = (resources.files("nearpeak.hardware") / "data" / "gpus.csv").read_text("utf-8")
    return tuple(_read(text, "the packaged gpus.csv", own=False))


def _entries(user_file: Path | None) -> tuple[Entry, ...]:
    file = user_file or platformdirs.user_config_path("nearpeak") / "gpus.csv"
    if user_file is None and not file.exists():
        return _packaged()
    try:
        text = file.read_text("utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: byte {error.start} is no UTF-8. Save the file as CSV in UTF-8.") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}).") from error
    merged = {entry.spec.name.lower(): entry for entry in _packaged()}
    merged.update({entry.spec.name.lower(): entry for entry in _read(text, str(file), own=True)})
    return tuple(merged.values())


def _read(text: str, file: str, own: bool) -> Iterator[Entry]:
    """Rows of one file. Raises UserError "file, line n, column c: what is wrong"."""
    lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    seen: dict[str, int] = {}
    try:
        _check_header(lines.fieldnames or (), file)
        for fields in lines:
            row = _Row(fields, f"{file}, line {lines.line_num}")
            entry = row.entry(own)
            first = seen.setdefault(entry.spec.name.lower(), lines.line_num)
            if first != lines.line_num:
                row.fail("name", f"{entry.spec.name!r} is already in line {first}")
            yield entry
    except csv.Error as error:
        # line_num is that of the last good row: an open quote runs on to the end of the file
        raise UserError(f"{file}, from line {lines.line_num + 1} on: no valid CSV ({error}).") from error


def _check_header(columns: Iterable[str], file: str) -> None:
    columns = list(columns)
    problems = [f"column {c!r} is missing" for c in REQUIRED if c not in columns]
    for column in columns:
        if column not in COLUMNS:
            near = difflib.get_close_matches(column, COLUMNS, n=1)
            problems.append(f"column {column!r} is unknown" + (f" (meant: {near[0]!r}?)" if near else ""))
        elif columns.count(column) > 1:
            problems.append(f"column {column!r} is there twice")
    if problems:
        raise UserError(f"{file}, line 1: {problems[0]}. Columns are separated by commas; see docs/catalogue.md")


class _Row:
    """One line of a file on its way to an Entry; every complaint names its place."""

    def __init__(self, fields: dict[str, str | None], where: str) -> None:
        self.where = where
        if None in fields:
            raise UserError(f"{where}: more fields than columns. Put texts with commas in double quotes.")
        if None in fields.values():
            raise UserError(f"{where}: fewer fields than columns.")
        self.fields = {column: (value or "").strip() for column, value in fields.items()}

    def fail(self, column: str, problem: str) -> NoReturn:
        raise UserError(f"{self.where}, column {column}: {problem}.")

    def text(self, column: str) -> str:
        value = self.fields.get(column, "")
        if not value and column in REQUIRED:
            self.fail(column, "must not be empty")
        return value

    def number(self, column: str) -> float | None:
        value = self.text(column)
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            self.fail(column, f"{value!r} is no number above 0 (leave the field empty where the sheet has none)")
        return number

    def provenance(self, column: str, word: str) -> Provenance:
        if word not in get_args(Provenance):
            self.fail(column, f"{word!r} is none of {', '.join(get_args(Provenance))}")
        return cast(Provenance, word)

    def exceptions(self) -> dict[str, Provenance]:
        column, found = "provenance_exceptions", {}
        for item in filter(None, (part.strip() for part in self.text(column).split(";"))):
            figure, _, word = (part.strip() for part in item.partition("="))
            if figure not in SCALE or not self.text(figure):
                self.fail(column, f"{item!r} names no figure of this row (write column=word)")
            found[figure] = self.provenance(column, word)
        return found

    def price(self) -> Price | None:
        low, high, source = self.number("price_low_usd"), self.number("price_high_usd"), self.text("price_source")
        if low is None and high is None and not source:
            return None
        if low is None or high is None or not source:
            self.fail("price_low_usd", "a price needs price_low_usd, price_high_usd and price_source")
        if low > high:
            self.fail("price_low_usd", f"{low:g} is above price_high_usd, {high:g}")
        return Price(low, high, source)

    def entry(self, own: bool) -> Entry:
        usual, exceptions = self.provenance("provenance", self.text("provenance")), self.exceptions()
        figures: dict[str, Figure] = {}
        for column, scale in SCALE.items():
            if (number := self.number(column)) is not None:
                value = float(f"{number * scale:.12g}")  # 82.6 × 1e12 without the last digits' noise
                figures[column] = Figure(value, exceptions.get(column, usual), self.text("source"))
        if not (year := self.text("year")).isdecimal() or len(year) != 4:
            self.fail("year", f"{year!r} is no year")
        if (shared := self.text("memory_shared")) not in ("", "yes"):
            self.fail("memory_shared", f"{shared!r} is neither yes nor empty")
        spec = Spec(
            name=self.text("name"), vendor=self.text("vendor"), family=self.text("family"), year=int(year),
            architecture=self.text("architecture") or None,
            memory=figures.get("memory_gb"), memory_bandwidth=figures.get("bandwidth_gb_per_s"),
            rates=tuple(Rate(*kind, figures[column]) for column, kind in RATES.items() if column in figures),
            power=figures.get("power_w"), link_type=self.text("link_type") or None, link=figures.get("link_gb_per_s"),
            pcie=self.text("pcie") or None, price=self.price(), note=self.text("note"),
        )  # fmt: skip
        names = tuple(_driver_name(n) for n in self.text("device_names").split(";") if n.strip())
        return Entry(spec, names, memory_shared=shared == "yes", own=own)
