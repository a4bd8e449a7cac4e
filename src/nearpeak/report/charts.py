"""What all charts share: inline SVG that follows light and dark, its colours, plain axes."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

# Charts are drawn in these colours, then each is replaced by the CSS variable, so that a page follows light and dark.
INK, MUTED, GRID, SPEC, BURST, SUSTAINED = "#101112", "#606162", "#d0d1d2", "#c0c1c2", "#80a1c2", "#1050a1"
SERIES = tuple(f"#a0b0{i:02x}" for i in range(10))
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SPEC: "spec", BURST: "burst", SUSTAINED: "sustained"}
VARIABLES |= {colour: f"s{i}" for i, colour in enumerate(SERIES)}


def chart(draw: Callable[[Any], None], inches: tuple[float, float], caption: str, key: str) -> str:
    """An inline SVG: colours as CSS variables, ids that no other chart of the page has, no address in it."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings = {"text.usetex": False, "text.parse_math": False, "svg.fonttype": "path", "font.family": ["DejaVu Sans"]}
    settings |= {"font.size": 9, "text.color": INK, "axes.labelcolor": MUTED, "axes.edgecolor": MUTED}
    settings |= {"xtick.color": MUTED, "ytick.color": MUTED, "grid.color": GRID, "svg.hashsalt": key}
    buffer = io.StringIO()
    with matplotlib.rc_context(settings):  # the reader's own matplotlib settings do not change the page
        figure = Figure(figsize=inches, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{key}-", svg)
    svg = re.sub("#[0-9a-f]{6}", lambda m: f"var(--{VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(caption, quote=True)}" ', 1)
    return f"<figure>{svg}<figcaption>{html.escape(caption, quote=True)}</figcaption></figure>"


def plain_axes(figure: Any, label: str) -> Any:
    """The figure's only axes: no frame, no tick marks, the label below."""
    axes = figure.add_subplot()
    axes.set_xlabel(label)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", labelcolor=INK)
    return axes


def ticks(axis: Any, text: Callable[[float], str], log: bool = True) -> None:
    """Tick labels by `text`; on a logarithmic axis at powers of ten only."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if log:
        axis.set_major_locator(LogLocator(numticks=7))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: text(v)))


def fits(value: float | None) -> bool:
    """Whether a logarithmic axis can hold the value; a file can hold anything."""
    return value is not None and 1e-30 < value < 1e30
