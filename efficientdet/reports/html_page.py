"""Pages of one file that need no network: tables, bars, charts and images as HTML. What is given as text is escaped here."""

import base64
import html
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from program_support.errors import printable

Curve = Sequence[tuple[float, float]]  # (x, y)

_WIDTH, _HEIGHT = 420, 200  # pixels of a chart's coordinate system
_SMALL_WIDTH, _SMALL_HEIGHT = 210, 110  # of one among many
_LEFT, _BOTTOM, _TOP = 46, 22, 10  # room for the labels of the axes
_MOST_POINTS = 2 * _WIDTH  # of a curve
_COLORS = ("#1f6fb4", "#d1682a", "#2c8a4b", "#8a4fa3", "#b8860b", "#5b6770", "#c2477f", "#3aa6a6")
_GOOD, _BAD = "31,111,180", "209,104,42"  # grounds of cells, the first two of _COLORS
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2733;background:#fff;max-width:980px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2em 0 .5em;border-bottom:1px solid #d6dde4}
p.lead{color:#51606e;margin:.2em 0 1em}.row{display:flex;flex-wrap:wrap;gap:16px}
figure{margin:0;flex:1 1 400px;max-width:480px}
figcaption{font-weight:600}svg{width:100%;height:auto;background:#f7f9fb;border:1px solid #e3e8ed}
svg text{font-size:11px;fill:#51606e}
table{border-collapse:collapse}td,th{padding:2px 14px 2px 0;text-align:left}th{font-weight:600;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.bar{display:inline-block;height:.8em;background:#1f6fb4}img{max-width:100%;border:1px solid #e3e8ed}.key{margin-right:12px}
.big{font-size:1.6em;font-weight:600}
svg line{stroke:#e3e8ed}.many{display:grid;grid-template-columns:repeat(auto-fill,minmax(180px,1fr));gap:12px}
.wide+p.lead{margin-top:1.2em}.row+.many,.many+.row{margin-top:14px}.zoom+figcaption{font-weight:400;font-size:.9em;color:#51606e}
.many figcaption{font-size:.85em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
td.heat{padding:2px 6px;border:1px solid #fff;min-width:1.4em}.light{color:#fff}.wide{overflow-x:auto}
.turned{font-size:.85em}.turned td{white-space:nowrap}.turned th{padding:2px 6px;vertical-align:bottom}
.turned th span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap}
summary{cursor:pointer;color:#1f6fb4}details{margin:.8em 0}details.zoom{margin:0}
.zoom summary{list-style:none;cursor:zoom-in}
.zoom[open] summary{position:fixed;inset:0;z-index:1;background:#1c2733e6;cursor:zoom-out;display:flex}
.zoom[open] img{width:100%;height:100%;object-fit:contain;border:0}
ul.notices{list-style:none;padding:0}
ul.notices li{margin:.4em 0;padding:.5em .8em;border-left:4px solid #8fa3b5;background:#f7f9fb}
ul.notices li.warning{border-color:#d1682a;background:#fdf4ee}
pre{background:#1c2733;color:#f7f9fb;padding:.6em .9em;overflow-x:auto;border-radius:4px}
"""


class Heat(NamedTuple):
    """A cell of a table on a ground that is the deeper the larger `share` is, 0 .. 1 (NaN: none)."""

    text: str
    share: float
    is_bad: bool = False


class Bar(NamedTuple):
    """A cell with a bar, `share` 0 .. 1 of the longest."""

    share: float


def document(title: str, parts: Sequence[str]) -> str:
    """The whole page of parts that the other functions made."""
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{_escaped(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n")


def heading(title: str, *, figure: str = "", lead: str = "") -> str:
    """The head of a page: its name, the one figure that matters, and a sentence."""
    return (f"<h1>{_escaped(title)}</h1>" + (f'<p class="big">{_escaped(figure)}</p>' if figure else "")
            + (paragraph(lead) if lead else ""))


def paragraph(text: str) -> str:
    """A sentence before what it is about."""
    return f'<p class="lead">{_escaped(text)}</p>'


def section(title: str, content: str) -> str:
    """A heading over its content; nothing where there is none."""
    return f"<h2>{_escaped(title)}</h2>{content}" if content else ""


def row(figures: Sequence[str]) -> str:
    """Charts or images side by side."""
    shown = "".join(figures)
    return f'<div class="row">{shown}</div>' if shown else ""


def grid(figures: Sequence[str]) -> str:
    """Many small charts in rows and columns."""
    return f'<div class="many">{"".join(figures)}</div>' if figures else ""


def folded(summary: str, content: str) -> str:
    """Content that the reader opens; nothing where there is none."""
    return f"<details><summary>{_escaped(summary)}</summary>{content}</details>" if content else ""


def keys(colors: Mapping[str, str]) -> str:
    """What colors (of CSS) mean."""
    return "<div>" + "".join(f'<span class="key" style="color:{color}">&#9632; {_escaped(label)}</span>'
                             for label, color in colors.items()) + "</div>"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, turned: bool = False) -> str:
    """Cells under the names of their columns (empty: a table without a head; `turned`: names written upwards).

    Numbers stand at the right; a cell may be a `Heat` or a `Bar`.
    """
    if not rows:
        return ""
    is_number = [isinstance(value, int | float | Heat) for value in rows[0]]
    names = [f'<th{" class=n" if right else ""}><span>{_escaped(name)}</span></th>'
             for name, right in zip(columns, is_number, strict=False)]
    body = "".join("<tr>" + "".join(_cell(value, right) for value, right in zip(values, is_number, strict=True)) + "</tr>"
                   for values in rows)
    head = f"<tr>{''.join(names)}</tr>" if names else ""
    return f'<div class="wide"><table{" class=turned" if turned else ""}>{head}{body}</table></div>'


def _cell(value: object, right: bool) -> str:
    if isinstance(value, Bar):
        return f"<td>{_bar(value.share)}</td>"
    if isinstance(value, Heat):
        depth = 0.0 if math.isnan(value.share) else min(max(value.share, 0.0), 1.0)
        return (f'<td class="n heat{" light" if depth > 0.7 else ""}" style="background:rgba({_BAD if value.is_bad else _GOOD},'
                f'{depth:.2f})">{_escaped(value.text)}</td>')
    return f'<td{" class=n" if right else ""}>{_escaped(_shown(value))}</td>'


def notices(lines: Sequence[tuple[str, str]]) -> str:
    """Sentences one below the other, each (level, text); those of level "warning" stand out."""
    shown = "".join(f'<li class="{_escaped(level)}">{_escaped(text)}</li>' for level, text in lines)
    return f'<ul class="notices">{shown}</ul>' if shown else ""


def command(text: str) -> str:
    """Something to be copied into a terminal."""
    return f"<pre>{_escaped(text)}</pre>"


def bars(values: Mapping[str, float], *, unit: str = "", form: str = ".3g") -> str:
    """A line for each value: its name, itself, and a bar as long as its share of the largest."""
    most = max(values.values(), default=0.0)
    lines = "".join(
        f'<tr><td>{_escaped(name)}</td><td class="n">{value:{form}}{unit}</td>'
        f"<td>{_bar(max(value, 0.0) / most if most > 0 else 0.0)}</td></tr>" for name, value in values.items())
    return f"<table>{lines}</table>" if lines else ""


def _bar(share: float) -> str:
    return f'<span class="bar" style="width:{260 * share:.0f}px"></span>'


def chart_figure(name: str, curves: Mapping[str, Curve], *, unit: str, highest: float | None = None,
                 small: bool = False) -> str:
    """A chart with its name above and, unless it is `small`, those of its curves below; nothing where no curve has a point."""
    drawn = chart(list(curves.values()), unit=unit, highest=highest, small=small)
    names = "" if small else keys(dict(zip(curves, _COLORS, strict=False)))
    return f"<figure><figcaption>{_escaped(name)}</figcaption>{drawn}{names}</figure>" if drawn else ""


def chart(curves: Sequence[Curve], *, unit: str, highest: float | None = None, small: bool = False) -> str:
    """Curves as SVG, on common axes of which the vertical begins at 0 where no value is below; `unit`: of the horizontal.

    `highest`: where the vertical axis ends; without it, at the largest value.
    """
    finite = [_thinned([(x, y) for x, y in curve if math.isfinite(y)]) for curve in curves]
    points = [point for curve in finite for point in curve]
    if not points:
        return ""
    width, height = (_SMALL_WIDTH, _SMALL_HEIGHT) if small else (_WIDTH, _HEIGHT)
    left, bottom = (_LEFT - 18, height - _BOTTOM) if small else (_LEFT, height - _BOTTOM)
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(0.0, min(y for _, y in points)), max(y for _, y in points) if highest is None else highest
    high = high if high > low else low + 1.0

    def place(x: float, y: float) -> str:
        right = left + (width - left - 8) * (x - first) / ((last - first) or 1)
        down = bottom - (bottom - _TOP) * (y - low) / (high - low)
        return f"{right:.1f},{down:.1f}"

    lines = "".join(  # a point alone is drawn twice: what has a length of nothing is a dot by its round ends
        f'<polyline fill="none" stroke="{color}" stroke-linecap="round" stroke-width="{1.8 if len(curve) > 1 else 7}" '
        f'points="{" ".join(place(*p) for p in (curve if len(curve) > 1 else 2 * curve))}"/>'
        for curve, color in zip(finite, _COLORS, strict=False))
    downs = {share: bottom - share * (bottom - _TOP) for share in (0.0, 0.5, 1.0)}
    ticks = "".join(f'<line x1="{left}" x2="{width - 8}" y1="{down:.1f}" y2="{down:.1f}"/>'
                    f'<text x="4" y="{down + 4:.1f}">{low + share * (high - low):.3g}</text>' for share, down in downs.items())
    return (f'<svg viewBox="0 0 {width} {height}" role="img">{ticks}{lines}'
            f'<text x="{left}" y="{height - 6}">{first:.7g}</text>'
            f'<text x="{width - 8}" y="{height - 6}" text-anchor="end">{last:.7g} {_escaped(unit)}</text></svg>')


def picture(caption: str, jpeg: bytes) -> str:
    """An encoded image over its caption; a click fills the window with it."""
    image = f'<img src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" alt="">'
    return (f'<figure><details class="zoom"><summary>{image}</summary></details>'
            f"<figcaption>{_escaped(caption)}</figcaption></figure>")


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points evenly spread, as many as a chart can show; one for each of a million steps would make a page of 20 MB."""
    kept = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).astype(int))
    return [points[number] for number in kept]


def _escaped(text: str) -> str:
    return "\n".join(html.escape(printable(line)) for line in text.split("\n"))


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
