"""A training on one page: `report.html`, one file that needs no network."""

import base64
import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataset.files.image_files import encode_image
from object_detection.atomic_files import write_text

Curve = Sequence[tuple[int, float]]  # (step, value)

FILE_NAME = "report.html"
_WIDTH, _HEIGHT = 420, 200  # pixels of a chart's coordinate system
_LEFT, _BOTTOM, _TOP = 46, 22, 10  # room for the labels of the axes
_MOST_POINTS = 2 * _WIDTH  # of a curve
_COLOURS = ("#1f6fb4", "#d1682a", "#2c8a4b", "#8a4fa3", "#b8860b", "#5b6770", "#c2477f", "#3aa6a6")
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2733;background:#fff;max-width:980px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2em 0 .5em;border-bottom:1px solid #d6dde4}
p.lead{color:#51606e;margin:.2em 0 1em}.row{display:flex;flex-wrap:wrap;gap:16px}
figure{margin:0;flex:1 1 400px;max-width:480px}
figcaption{font-weight:600}svg{width:100%;height:auto;background:#f7f9fb;border:1px solid #e3e8ed}
svg text{font-size:11px;fill:#51606e}
table{border-collapse:collapse}td,th{padding:2px 14px 2px 0;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.bar{display:inline-block;height:.8em;background:#1f6fb4}img{max-width:100%;border:1px solid #e3e8ed}.key{margin-right:12px}
.big{font-size:1.6em;font-weight:600}
"""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a report shows; any part may be empty."""

    title: str
    goal: str = ""  # what was asked for, and how long it took
    facts: Mapping[str, object] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)  # by TensorBoard tag
    numbers: Mapping[str, float] = field(default_factory=dict)  # the 12 COCO numbers
    per_class: Mapping[str, float] = field(default_factory=dict)  # AP by class name
    seconds: Mapping[str, float] = field(default_factory=dict)  # by what they were spent on
    pictures: Sequence[tuple[str, np.ndarray]] = ()  # caption, uint8 [h, w, 3]


_LOSS = re.compile(r"train/(?!det_).*loss")  # all of them and each; but det_loss is the sum of all but one
_CHARTS = (("AP", ("validation/AP", "validation/AP_raw")), ("Learning rate", ("train/learning_rate",)),
           ("Gradient norm", ("train/gradient_norm",)), ("Images per second", ("examples/sec",)))


def write_report(folder: str | Path, summary: RunSummary) -> Path:
    """Write report.html into a folder; returns its path."""
    path = Path(folder) / FILE_NAME
    write_text(path, page(summary))
    return path


def page(summary: RunSummary) -> str:
    """The whole document as HTML; a section whose part of the summary is empty is left out."""
    losses = sorted(filter(_LOSS.fullmatch, summary.curves), key=lambda tag: tag != "train/loss")  # the sum first
    charts = "".join(_figure(name, {tag: summary.curves[tag] for tag in tags if summary.curves.get(tag)})
                     for name, tags in (("Losses", losses), *_CHARTS))
    parts = [_headline(summary), _section("Curves", f'<div class="row">{charts}</div>' if charts else ""),
             _section("COCO numbers", _table(summary.numbers)), _section("AP by class", _bars(summary.per_class, unit="")),
             _section("Where the time went", _time(summary.seconds)),
             _section("Detections", _gallery(summary.pictures)), _section("Configuration", _table(summary.facts))]
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(summary.title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n")


def _headline(summary: RunSummary) -> str:
    ap = summary.numbers.get("AP")
    best = f'<p class="big">AP {ap:.3f} &nbsp; AP50 {summary.numbers.get("AP50", math.nan):.3f}</p>' if ap is not None else ""
    goal = f'<p class="lead">{html.escape(summary.goal)}</p>' if summary.goal else ""
    return f"<h1>{html.escape(summary.title)}</h1>{best}{goal}"


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""


def _figure(name: str, curves: Mapping[str, Curve]) -> str:
    if not curves:
        return ""
    names = [tag.removeprefix("train/").removeprefix("validation/") for tag in curves]
    keys = "".join(f'<span class="key" style="color:{colour}">&#9632; {html.escape(label)}</span>'
                   for label, colour in zip(names, _COLOURS, strict=False))
    return f"<figure><figcaption>{html.escape(name)}</figcaption>{chart(list(curves.values()))}<div>{keys}</div></figure>"


def chart(curves: Sequence[Curve]) -> str:
    """Curves over steps as SVG, on common axes that begin at 0 where no value is below."""
    finite = [_thinned([(step, value) for step, value in curve if math.isfinite(value)]) for curve in curves]
    points = [point for curve in finite for point in curve]
    if not points:
        return ""
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    low, high = min(0.0, min(value for _, value in points)), max(value for _, value in points)
    high = high if high > low else low + 1.0

    def place(step: int, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 8) * (step - first) / max(last - first, 1)
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (value - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    lines = "".join(  # a point alone is drawn twice: what has a length of nothing is a dot by its round ends
        f'<polyline fill="none" stroke="{colour}" stroke-linecap="round" stroke-width="{1.8 if len(curve) > 1 else 7}" '
        f'points="{" ".join(place(*p) for p in (curve if len(curve) > 1 else 2 * curve))}"/>'
        for curve, colour in zip(finite, _COLOURS, strict=False))
    ticks = "".join(f'<text x="4" y="{_HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP) + 4:.1f}">'
                    f"{low + share * (high - low):.3g}</text>" for share in (0.0, 0.5, 1.0))
    return (f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{ticks}{lines}<text x="{_LEFT}" y="{_HEIGHT - 6}">{first}</text>'
            f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">{last} steps</text></svg>')


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Points evenly spread, as many as a chart can show; one for each of a million steps would make a page of 20 MB."""
    kept = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).astype(int))
    return [points[number] for number in kept]


def _table(values: Mapping[str, object]) -> str:
    rows = "".join(f'<tr><td>{html.escape(str(key))}</td><td class="n">{html.escape(_shown(value))}</td></tr>'
                   for key, value in values.items())
    return f"<table>{rows}</table>" if rows else ""


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _bars(values: Mapping[str, float], *, unit: str) -> str:
    most = max(values.values(), default=0.0)
    rows = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="n">{value:.3g}{unit}</td>'
        f'<td><span class="bar" style="width:{260 * max(value, 0.0) / most if most > 0 else 0:.0f}px"></span></td></tr>'
        for name, value in values.items())
    return f"<table>{rows}</table>" if rows else ""


def _time(seconds: Mapping[str, float]) -> str:
    if not any(seconds.values()):
        return ""
    slowest = max(seconds, key=seconds.get)
    share = seconds[slowest] / sum(seconds.values())
    return f'<p class="lead">Most of it, {share:.0%}, on {html.escape(slowest)}.</p>' + _bars(seconds, unit=" s")


def _gallery(pictures: Sequence[tuple[str, np.ndarray]]) -> str:
    figures = "".join(f'<figure><img src="{_data_uri(image)}" alt=""><figcaption>{html.escape(caption)}</figcaption></figure>'
                      for caption, image in pictures)
    return f'<div class="row">{figures}</div>' if figures else ""


def _data_uri(image: np.ndarray) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(encode_image(image, 'JPEG')).decode()}"
