"""Self-contained HTML pages: tables, bars, charts and images. Text arguments are escaped here."""

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from dataset.files.image_files import encode_image
from program_support.errors import printable

Curve = Sequence[tuple[float, float]]  # (x, y)

_WIDTH, _HEIGHT = 420, 216  # units of a chart's coordinate system; about CSS pixels
_LEFT, _BOTTOM, _TOP, _RIGHT = 66, 38, 10, 8  # margins for tick labels and axis titles
_MAX_POINTS = 2 * _WIDTH  # points of a curve
_NUMERIC = ' class="n"'
SERIES = tuple(f"var(--series-{number})" for number in range(8))  # colors of the curves of a chart

# Contrast of text to its ground is at least 4.5 : 1 in both modes (WCAG 2.1, level AA); of curves and outlines 3 : 1.
THEME = """
:root{color-scheme:light dark;--text:#1c2733;--soft:#51606e;--ground:#f4f6f8;--panel:#fff;--line:#d6dde4;
  --accent:#1f6fb4;--on-accent:#fff;--stage:#e9edf1;--bad:#b3401c;--hover:#eef4fa;--warning:#fdf4ee;--code:#1c2733;--on-code:#f7f9fb;
  --good-cell:77,145,205;--bad-cell:222,120,60;
  --series-0:#1f6fb4;--series-1:#d1682a;--series-2:#2c8a4b;--series-3:#8a4fa3;--series-4:#9a6f08;--series-5:#5b6770;
  --series-6:#c2477f;--series-7:#1f8585}
@media (prefers-color-scheme:dark){:root{--text:#e5ebf0;--soft:#a3b2c0;--ground:#141a20;--panel:#1c242c;--line:#3a4652;
  --accent:#5aa7e6;--on-accent:#0d1a26;--stage:#10161b;--bad:#ef8f6c;--hover:#25303b;--warning:#33261e;--code:#0d1217;
  --on-code:#e5ebf0;--good-cell:38,106,170;--bad-cell:168,76,26;
  --series-0:#5aa7e6;--series-1:#ef8f4f;--series-2:#5cc27f;--series-3:#c08ad8;--series-4:#dcb244;--series-5:#a3b2c0;
  --series-6:#ee7fb0;--series-7:#55c9c9}}
*{box-sizing:border-box}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
"""

REPORT = (
    THEME
    + """
body{font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;margin:0}
body{color:var(--text);background:var(--panel)}
main{max-width:1080px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.5em;line-height:1.25;margin:0}h2{font-size:1.15em;margin:2em 0 .6em;padding-bottom:.2em}
h2{border-bottom:1px solid var(--line)}h3{font-size:1em;margin:1.4em 0 .4em}
h1,h2,h3,p,li,figcaption{overflow-wrap:anywhere}p.lead{color:var(--soft);margin:.3em 0 1em;max-width:80ch}
p.big{font-size:1.6em;line-height:1.3;font-weight:600;margin:.4em 0}
.row{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:20px}
.thumbnails{grid-template-columns:repeat(auto-fill,minmax(min(100%,var(--thumbnail,320px)),1fr))}
.wide+p.lead,.row+details{margin-top:1.2em}
figure{margin:0;min-width:0}figcaption{font-weight:600}
svg{display:block;width:100%;height:auto;background:var(--ground);border:1px solid var(--line);border-radius:4px}
svg text{font-size:12px;fill:var(--soft)}svg line{stroke:var(--line)}svg text.axis{fill:var(--text)}
.keys{display:flex;flex-wrap:wrap;gap:2px 16px;margin:.4em 0;font-size:.9em}
.swatch{display:inline-block;width:.75em;height:.75em;margin-right:.4em;border-radius:2px}
.wide{overflow-x:auto;max-width:100%}table{border-collapse:collapse}
td,th{padding:3px 16px 3px 0;text-align:left;vertical-align:top}th{font-weight:600;white-space:nowrap}
thead+tbody td:first-child{min-width:6em}thead+tbody td:last-child:not(.n){min-width:14em}
thead th{border-bottom:1px solid var(--line)}tbody tr:hover{background:var(--hover)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.facts td:first-child{color:var(--soft);white-space:normal}.facts td{overflow-wrap:anywhere;min-width:7em}
td.bar{min-width:clamp(90px,18vw,240px)}
.bar span{display:inline-block;height:.8em;background:var(--accent)}
td.heat{padding:3px 6px;border:1px solid var(--panel);min-width:1.6em}
.upright{font-size:.85em}.upright td{white-space:nowrap}.upright th{padding:3px 6px;vertical-align:bottom}
.upright th span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap}
a{color:var(--accent)}summary{cursor:pointer;color:var(--accent)}details{margin:.8em 0}
img{display:block;max-width:100%;border:1px solid var(--line)}
details.zoom{margin:0}.zoom summary{list-style:none;cursor:zoom-in}.zoom summary::-webkit-details-marker{display:none}
.zoom+figcaption{font-weight:400;font-size:.9em;color:var(--soft)}
.zoom[open] summary{position:fixed;inset:0;z-index:1;background:#0d1217e6;cursor:zoom-out;display:flex}
.zoom[open] img{width:100%;height:100%;object-fit:contain;border:0}
ul.notices{list-style:none;padding:0}ul.notices li{margin:.5em 0;padding:.5em .8em;background:var(--ground)}
ul.notices li{border-left:4px solid var(--line)}
ul.notices li.warning{border-color:var(--series-1);background:var(--warning)}
pre{background:var(--code);color:var(--on-code);padding:.6em .9em;overflow-x:auto;border-radius:4px}
@media (max-width:600px){main{padding:16px 12px 32px}td,th{padding-right:10px}}
"""
)


class Heat(NamedTuple):
    """Table cell with a background whose opacity is `share`, 0 to 1 (NaN: no background)."""

    text: str
    share: float
    is_bad: bool = False


class Bar(NamedTuple):
    """Table cell with a bar of length `share`, 0 to 1 of the longest."""

    share: float


def page(title: str, sections: Mapping[str, str], *, figure: str = "", lead: str = "", notes: str = "") -> str:
    """Return a complete HTML page; empty sections are left out.

    Args:
        title: title of the page.
        sections: content of each section by its heading, made by the other functions.
        figure: the most important result, in large type.
        lead: introductory sentence.
        notes: content without a heading, before the sections.
    """
    content = "".join(f"<h2>{_escaped(name)}</h2>{shown}" for name, shown in sections.items() if shown)
    result = f'<p class="big">{_escaped(figure)}</p>' if figure else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(title)}</title><style>{REPORT}</style></head><body><main><h1>{_escaped(title)}</h1>"
        f"{result}{paragraph(lead) if lead else ''}{notes}{content}</main></body></html>\n"
    )


def paragraph(text: str) -> str:
    """Return an explanatory paragraph."""
    return f'<p class="lead">{_escaped(text)}</p>'


def image_row(images: Iterable[tuple[str, np.ndarray]], *, quality: int = 80, thumbnails: bool = False) -> str:
    """Return images, uint8 [h, w, 3], with captions side by side as JPEG; empty without one."""
    return row(
        (image_figure(caption, encode_image(image, "JPEG", quality=quality)) for caption, image in images),
        thumbnails=thumbnails,
    )


def row(figures: Iterable[str], *, thumbnails: bool = False) -> str:
    """Return figures side by side, as many as fit in the width; `thumbnails` are images 320 pixels wide."""
    shown = "".join(figures)
    return f'<div class="row{" thumbnails" if thumbnails else ""}">{shown}</div>' if shown else ""


def collapsible(summary: str, content: str) -> str:
    """Return content that is hidden until the reader opens it, or nothing if the content is empty."""
    return f"<details><summary>{_escaped(summary)}</summary>{content}</details>" if content else ""


def legend(colors: Mapping[str, str]) -> str:
    """Return the legend of CSS colors by label."""
    entries = (
        f'<span><span class="swatch" style="background:{color}"></span>{_escaped(label)}</span>'
        for label, color in colors.items()
    )
    return f'<div class="keys">{"".join(entries)}</div>'


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, upright: bool = False) -> str:
    """Return a table that scrolls in a box of its own if it is too wide; nothing without rows.

    Args:
        columns: Column titles; empty for a table of names and values without a header.
        rows: Cells, which may be a `Heat` or a `Bar`. Numbers, also with a unit, are aligned to the right.
        upright: Rotate the column titles by 90 degrees.
    """
    if not rows:
        return ""
    is_number = [
        isinstance(values[0], int | float | Heat) or bool(columns and number and _are_quantities(values))
        for number, values in enumerate(zip(*rows, strict=True))
    ]
    titles = [
        f'<th scope="col"{_NUMERIC if right else ""}><span>{_escaped(name)}</span></th>'
        for name, right in zip(columns, is_number, strict=False)
    ]
    body = "".join(
        "<tr>" + "".join(_cell(value, right) for value, right in zip(values, is_number, strict=True)) + "</tr>"
        for values in rows
    )
    head = f"<thead><tr>{''.join(titles)}</tr></thead>" if titles else ""
    label = ", ".join(filter(None, columns[:3])) or "Values"
    kind = ' class="upright"' if upright else "" if titles else ' class="facts"'
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{_escaped(label)}">'
        f"<table{kind}>{head}<tbody>{body}</tbody></table></div>"
    )


def _are_quantities(values: Sequence[object]) -> bool:
    """Return whether the texts of a column are numbers with units, such as 25%; some may be empty."""
    return any(values) and all(isinstance(value, str) and (not value or value[0].isdigit()) for value in values)


def _cell(value: object, right: bool) -> str:
    if isinstance(value, Bar):
        return f'<td class="bar"><span style="width:{value.share:.1%}"></span></td>'
    if isinstance(value, Heat):
        opacity = 0.0 if math.isnan(value.share) else min(max(value.share, 0.0), 1.0)
        color = "bad" if value.is_bad else "good"
        return (
            f'<td class="n heat" style="background:rgba(var(--{color}-cell),{opacity:.2f})">{_escaped(value.text)}</td>'
        )
    return f"<td{_NUMERIC if right else ''}>{_escaped(_shown(value))}</td>"


def notices(lines: Sequence[tuple[str, str]]) -> str:
    """Return a list of messages, each (level, text); messages of level "warning" are highlighted."""
    shown = "".join(f'<li class="{_escaped(level)}">{_escaped(text)}</li>' for level, text in lines)
    return f'<ul class="notices">{shown}</ul>' if shown else ""


def command(text: str) -> str:
    """Return a preformatted command or program text."""
    return f'<pre tabindex="0">{_escaped(text)}</pre>'


def links(addresses: Mapping[str, str]) -> str:
    """Return links to other pages by title."""
    shown = "".join(
        f'<li><a href="{_escaped(quote(to))}">{_escaped(title)}</a></li>' for title, to in addresses.items()
    )
    return f"<ul>{shown}</ul>"


def bars(values: Mapping[str, float], *, unit: str = "", form: str = ".3g") -> str:
    """Return a horizontal bar chart with a row per value: name, value with unit, and a bar relative to the largest."""
    highest = max(values.values(), default=0.0)
    lines = [
        (name, Heat(f"{value:{form}}{unit}", math.nan), Bar(max(value, 0.0) / highest if highest > 0 else 0.0))
        for name, value in values.items()
    ]
    return table((), lines)


def chart_figure(
    name: str, curves: Mapping[str, Curve], *, x_label: str, y_label: str, highest: float | None = None
) -> str:
    """Return a chart with its title and the legend of several curves; nothing without a point."""
    drawn = chart(list(curves.values()), x_label=x_label, y_label=y_label, highest=highest)
    names = legend(dict(zip(curves, SERIES, strict=False))) if len(curves) > 1 else ""
    return f"<figure><figcaption>{_escaped(name)}</figcaption>{drawn}{names}</figure>" if drawn else ""


def chart(curves: Sequence[Curve], *, x_label: str, y_label: str, highest: float | None = None) -> str:
    """Return curves on common axes as SVG. The vertical axis starts at 0 unless a value is negative.

    Args:
        curves: Points (x, y); a value that is NaN or infinite is left out.
        x_label: Title of the horizontal axis.
        y_label: Title of the vertical axis.
        highest: Upper end of the vertical axis. Default: the largest value.
    """
    finite = [_thinned([(x, y) for x, y in curve if math.isfinite(y)]) for curve in curves]
    points = [point for curve in finite for point in curve]
    if not points:
        return ""
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(0.0, min(y for _, y in points)), max(y for _, y in points) if highest is None else highest
    high = high if high > low else low + 1.0

    def across(x: float) -> float:
        return left + (right - left) * (x - first) / ((last - first) or 1)

    def down(y: float) -> float:
        return bottom - (bottom - _TOP) * (y - low) / (high - low)

    # A single point is drawn as a line of length 0, whose round ends make a dot.
    lines = "".join(
        f'<polyline fill="none" style="stroke:{color}" stroke-linecap="round" '
        f'stroke-width="{1.8 if len(curve) > 1 else 7}" '
        f'points="{" ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in (curve if len(curve) > 1 else 2 * curve))}"/>'
        for curve, color in zip(finite, SERIES, strict=False)
    )
    ticks = "".join(
        f'<line x1="{left}" x2="{right}" y1="{down(y):.1f}" y2="{down(y):.1f}"/>'
        f'<text x="{left - 5}" y="{down(y) + 4:.1f}" text-anchor="end">{_number(y)}</text>'
        for y in _ticks(low, high, 4)
    )
    ticks += "".join(
        f'<text x="{across(x):.1f}" y="{bottom + 15}" '
        f'text-anchor="{"end" if across(x) > right - 20 else "middle"}">{_number(x)}</text>'
        for x in _ticks(first, last, 4)
    )
    center = (left + right) / 2
    titles = f'<text class="axis" x="{center}" y="{_HEIGHT - 6}" text-anchor="middle">{_escaped(x_label)}</text>'
    middle = (bottom + _TOP) / 2
    titles += (
        f'<text class="axis" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{_escaped(y_label)}</text>"
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_escaped(f"{y_label} by {x_label}")}">'
        f"{ticks}{lines}{titles}</svg>"
    )


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about `count` intervals."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * rough)
    return [number * step for number in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)]


def _number(value: float) -> str:
    return f"{value:,.6g}" if value else "0"


def image_figure(caption: str, jpeg: bytes) -> str:
    """Return an encoded image with its caption; a click or the Enter key shows it in the full window, and closes it."""
    image = f'<img src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" alt="{_escaped(caption)}">'
    return (
        f'<figure><details class="zoom"><summary>{image}</summary></details>'
        f"<figcaption>{_escaped(caption)}</figcaption></figure>"
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return evenly spread points, at most as many as a chart can show; a million points would make a page of 20 MB."""
    shown_numbers = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MAX_POINTS)).astype(int))
    return [points[number] for number in shown_numbers]


def _escaped(text: str) -> str:
    return "\n".join(html.escape(printable(line)) for line in text.split("\n"))


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
