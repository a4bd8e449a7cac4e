"""A training run as one self-contained HTML page: curves, speed, where the time went, the settings and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nearpeak.report import units
from nearpeak.report.charts import BURST, SUSTAINED, chart, plain_axes
from nearpeak.report.document import document, escaped, paragraph, table
from nearpeak.report.train_table import HEADERS, lines, rows


def page(outcome: Mapping[str, Any]) -> str:
    """The page as text: no network, no script, light and dark. All foreign text is escaped."""
    result = outcome["result"]
    name = str(result["model"])
    body = [f"<h1>Training {escaped(name)}</h1>", paragraph(f"on {outcome['device']}", "muted"), _facts(outcome)]
    body += ["<h2>How fast, and how close to the limit?</h2>"]
    body += [table(("rate", *HEADERS[1:]), list(rows(outcome)))]
    body += [paragraph(line, "note") for line in lines(outcome)]
    body += ["<h2>How it learned</h2>", *_curves(result["curve"])]
    body += ["<h2>Where the time went</h2>", *_times(outcome)]
    settings = [(s["name"], s["value"], s["reason"]) for s in result["settings"]]
    body += ["<h2>The settings, and why</h2>", table(("setting", "value", "reason"), settings, prose=True)]
    return document(
        f"nearpeak: training {name}", [*body, paragraph(f"Made by nearpeak train, {outcome['schema']}.", "note")]
    )


def _facts(outcome: Mapping[str, Any]) -> str:
    result = outcome["result"]
    found = [(units.digits(outcome["got"]["images_per_s"] or 0.0, whole=True), "images/s in steps")]
    found.append((units.percent(outcome["share"]["images_per_s"]), "of what this device could give"))
    if result["test_accuracy"] is not None:
        found.append((f"{100 * result['test_accuracy']:.2f} %", "of the held-out images right"))
    if result["loss"] is not None:
        found.append((f"{result['loss']:.4f}", "loss at the end"))
    items = "".join(f"<li><b>{escaped(number)}</b><span>{escaped(what)}</span></li>" for number, what in found)
    return f'<ul class="facts">{items}</ul>'


def _curves(curve: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    train = [(line["step"], line["loss"]) for line in curve if "loss" in line]
    test = [(line["step"], line["test_loss"]) for line in curve if "test_loss" in line]
    right = [(line["step"], 100 * line["test_accuracy"]) for line in curve if "test_accuracy" in line]
    speed = [(line["step"], line["images_per_s"]) for line in curve if line.get("images_per_s")]
    if train:
        caption = "Loss: training (line; the mean since the point before) and held-out (dots)."
        yield chart(lambda f: _draw(f, train, test), (9.6, 3.6), caption, "loss")
    if right:
        yield chart(lambda f: _draw(f, [], right), (9.6, 3.0), "Held-out images that were right, %.", "acc")
    if speed:
        yield chart(lambda f: _draw(f, speed, []), (9.6, 3.0), "Images a second in steps.", "speed")


def _draw(figure: Any, line: Sequence[tuple[int, float]], dots: Sequence[tuple[int, float]]) -> None:
    axes = plain_axes(figure, "step")
    axes.grid(axis="y")
    if line:
        axes.plot(*zip(*line, strict=True), color=SUSTAINED, linewidth=1.5)
    if dots:
        axes.plot(*zip(*dots, strict=True), color=BURST, linewidth=1, marker="o", markersize=4)


def _times(outcome: Mapping[str, Any]) -> Iterator[str]:
    spent = [(name, units.seconds(value)) for name, value in outcome["result"]["seconds"].items()]
    yield table(("part of the run", "seconds"), spent)
    if outcome["gap"]:
        gaps = [(gap["cause"], units.seconds(gap["seconds"])) for gap in outcome["gap"]]
        yield table(("above the limit, in steps", "seconds"), gaps)
