"""What all pages share: one self-contained HTML document, its style, paragraphs and tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from nearpeak.report import units

LIGHT = ["#1d5fb0", "#c2410c", "#15803d", "#8b3fd1", "#a16207", "#0e7490", "#be185d", "#4d7c0f", "#64748b", "#7f1d1d"]
DARK = ["#7db3f5", "#fb9a66", "#5fd08a", "#c9a2f7", "#e8c35a", "#5cc8e0", "#f48fb8", "#a9d15c", "#a8b3c4", "#f0908c"]

STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--muted:#5b6470;--grid:#e1e4e8;--panel:#f7f8fa;
--spec:#d3d8df;--burst:#8db4e2;--sustained:#1d5fb0;--warn:#8a5a00;LIGHT}
@media screen and (prefers-color-scheme:dark){:root{--page:#14171b;--ink:#e6e9ed;--muted:#9aa4b1;--grid:#30363d;
--panel:#1e2329;--spec:#4a535f;--burst:#4f7fb5;--sustained:#8fc1ff;--warn:#e3b45c;DARK}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1120px;padding:40px 32px 64px;background:var(--page);
color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}h2{font-size:21px;line-height:1.3;margin:56px 0 2px}
h3{font-size:16px;margin:36px 0 6px}p{margin:4px 0}.muted,figcaption,.note{color:var(--muted);font-size:13px}
.line{color:var(--warn);font-size:14px;margin-top:8px}p,h2{overflow-wrap:anywhere}
.facts{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0 8px;padding:0;list-style:none}
.facts li{flex:1 1 160px;background:var(--panel);border-radius:8px;padding:12px 16px}.facts span{font-size:13px}
.facts b{display:block;font-size:21px;line-height:1.3}.pair{display:flex;flex-wrap:wrap;gap:0 32px}
figure{margin:20px 0 0;break-inside:avoid}figure svg{display:block;width:100%;height:auto}
.pair figure{flex:1 1 420px;min-width:0;max-width:560px}.scroll{overflow-x:auto}.facts span,th{color:var(--muted)}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;width:100%}
th{font-weight:600;vertical-align:bottom;border-bottom:1px solid var(--ink);line-height:1.3}
td{vertical-align:top;border-bottom:1px solid var(--grid);white-space:nowrap}
th,td{padding:5px 12px 5px 0;text-align:right}th:first-child,td:first-child,th:last-child,td:last-child,.prose *{
text-align:left}th:last-child,td:last-child{padding-right:0}.prose td:first-child,.prose td:last-child{
white-space:normal;min-width:84px}.prose td:last-child{min-width:240px}
@media print{body{padding:0;max-width:none;font-size:12px}table{font-size:8px}th,td{padding:3px 5px 3px 0}
.scroll{overflow:visible}tr,.facts li{break-inside:avoid}.prose td,.prose td:last-child{white-space:normal;min-width:0}}
"""


def document(heading: str, body: Iterable[str]) -> str:
    """A whole page around a body that is already HTML: styled, light and dark, allowed to fetch and run nothing."""
    style = STYLE
    for word, palette in (("LIGHT", LIGHT), ("DARK", DARK)):
        style = style.replace(word, "".join(f"--s{i}:{c};" for i, c in enumerate(palette)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(heading)}</title>\n<style>{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def escaped(text: object) -> str:
    """Foreign text for HTML: one line, printable, without markup."""
    return html.escape(units.plain(text), quote=True)


def paragraph(text: str, css: str) -> str:
    """One paragraph of a class of the style: muted, note, line."""
    return f'<p class="{css}">{escaped(text)}</p>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], prose: bool = False) -> str:
    """A table that scrolls by itself where it is wide; prose: columns of words, to the left and wrapped."""
    head = "".join(f"<th>{'<br>'.join(map(escaped, h.splitlines()))}</th>" for h in headers)
    body = "\n".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    css = ' class="prose"' if prose else ""
    return f'<div class="scroll"><table{css}><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
