"""A training on one page: `report.html`, one file that needs no network."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataset.files.image_files import encode_image
from efficientdet.reports.html_page import Curve, bars, chart_figure, document, heading, paragraph, picture, row, section, table
from program_support.atomic_files import write_text

FILE_NAME = "report.html"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a report shows; any part may be empty."""

    title: str
    goal: str = ""  # what was asked for, and how long it took
    facts: Mapping[str, object] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)  # over steps, by TensorBoard tag
    numbers: Mapping[str, float] = field(default_factory=dict)  # the 12 COCO numbers
    per_class: Mapping[str, float] = field(default_factory=dict)  # AP by class name
    seconds: Mapping[str, float] = field(default_factory=dict)  # by what they were spent on
    pictures: Sequence[tuple[str, np.ndarray]] = ()  # caption, uint8 [h, w, 3]


_LOSS = re.compile(r"train/(?!det_).*loss")  # all of them and each; but det_loss is the sum of all but one
_LEGEND = {"validation/AP": "AP (averaged weights)", "validation/AP_raw": "AP_raw (weights of the last step, which the average "
           "follows slowly)"}
_CHARTS = (("AP", ("validation/AP", "validation/AP_raw")), ("Learning rate", ("train/learning_rate",)),
           ("Gradient norm", ("train/gradient_norm",)), ("Images per second", ("examples/sec",)))


def write_report(folder: str | Path, summary: RunSummary) -> Path:
    """Write report.html into a folder; returns its path."""
    path = Path(folder) / FILE_NAME
    write_text(path, page(summary))
    return path


def page(summary: RunSummary) -> str:
    """The whole document as HTML; a section whose part of the summary is empty is left out."""
    ap = summary.numbers.get("AP")
    best = f"AP {ap:.3f} \N{NO-BREAK SPACE} AP50 {summary.numbers.get('AP50', math.nan):.3f}" if ap is not None else ""
    losses = sorted(filter(_LOSS.fullmatch, summary.curves), key=lambda tag: tag != "train/loss")  # the sum first
    charts = [chart_figure(name, {_LEGEND.get(tag, tag.removeprefix("train/")): summary.curves[tag]
                                  for tag in tags if summary.curves.get(tag)}, unit="steps")
              for name, tags in (("Losses", losses), *_CHARTS)]
    pictures = [picture(caption, encode_image(image, "JPEG")) for caption, image in summary.pictures]
    return document(summary.title, [
        heading(summary.title, figure=best, lead=summary.goal), section("Curves", row(charts)),
        section("COCO numbers", table((), [(name, value if value >= 0 else "-") for name, value in summary.numbers.items()])),
        section("AP by class", bars(summary.per_class)),
        section("Where the time went", _time(summary.seconds)), section("Detections", row(pictures)),
        section("Configuration", table((), [(key, str(value)) for key, value in summary.facts.items()]))])


def _time(seconds: Mapping[str, float]) -> str:
    if not any(seconds.values()):
        return ""
    slowest = max(seconds, key=seconds.get)
    most = paragraph(f"Most of it, {seconds[slowest] / sum(seconds.values()):.0%}, on {slowest}.")
    return most + bars(seconds, unit=" s", form=".1f")
