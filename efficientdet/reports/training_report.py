"""Training report: `report.html`, a self-contained page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from efficientdet.reports.html_page import (
    Curve,
    bars,
    chart_figure,
    image_row,
    page,
    paragraph,
    row,
    table,
)
from object_detection.coco.measures import MEASURES, shown_measure
from program_support.atomic_files import write_text

FILE_NAME = "report.html"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Content of a training report; any part may be empty."""

    title: str
    goal: str = ""  # the requested target and the time to reach it
    facts: Mapping[str, object] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)  # key: TensorBoard tag; values over steps
    numbers: Mapping[str, float] = field(default_factory=dict)  # the 12 COCO metrics
    per_class: Mapping[str, float] = field(default_factory=dict)  # AP by class name
    seconds: Mapping[str, float] = field(default_factory=dict)  # key: activity
    images: Sequence[tuple[str, np.ndarray]] = ()  # caption, uint8 [h, w, 3]


_LOSS = re.compile(r"train/(?!det_).*loss")  # the total and its terms; det_loss is the total without regularization
_CHARTS = (
    ("Validation AP", "AP of averaged weights", ("validation/AP",)),
    ("Learning rate", "Learning rate", ("train/learning_rate",)),
    ("Gradient norm", "L2 norm", ("train/gradient_norm",)),
    ("Throughput", "Images per second", ("examples/sec",)),
)


def write_report(folder: str | Path, summary: RunSummary) -> Path:
    """Write report.html into a folder and return its path."""
    path = Path(folder) / FILE_NAME
    write_text(path, training_page(summary))
    return path


def training_page(summary: RunSummary) -> str:
    """Return the page as HTML, without the sections whose part of the summary is empty."""
    numbers, seconds = summary.numbers, summary.seconds
    shown = [f"{name} {numbers[name]:.3f}" for name in ("AP", "AP50", "AP75") if numbers.get(name, -1) >= 0]
    measured = {name: ap for name, ap in summary.per_class.items() if ap >= 0}  # the others have no objects
    per_class = paragraph("AP averaged over IoU thresholds 0.50 to 0.95.") + bars(measured, form=".3f")
    slowest, total = max(seconds, key=seconds.__getitem__, default=""), sum(seconds.values())
    sections = {
        "Training curves": training_charts(summary.curves),
        "COCO metrics": metrics_table({"Value": {name: shown_measure(value) for name, value in numbers.items()}}),
        "AP per class": per_class if measured else "",
        "Time per activity": paragraph(f"Wall-clock time. Largest share: {slowest}, {seconds[slowest] / total:.0%}.")
        + bars(seconds, unit=" s", form=".1f")
        if total
        else "",
        "Example detections": image_row(summary.images),
        "Configuration": table((), [(key, str(value)) for key, value in summary.facts.items()]),
    }
    return page(summary.title, sections, figure=" \N{NO-BREAK SPACE} ".join(shown), lead=summary.goal)


def training_charts(curves: Mapping[str, Curve]) -> str:
    """Return charts of the curves of a training, by their tags; the throughput is a mean of twenty points."""
    losses = sorted(filter(_LOSS.fullmatch, curves), key=lambda tag: tag != "train/loss")  # the total first
    points = {tag: _smoothed(curve) if tag == "examples/sec" else curve for tag, curve in curves.items() if curve}
    return row(
        chart_figure(
            name,
            {tag.removeprefix("train/"): points[tag] for tag in tags if tag in points},
            x_label="Training step",
            y_label=unit,
        )
        for name, unit, tags in (("Loss", "Loss", losses), *_CHARTS)
    )


def _smoothed(curve: Curve) -> Curve:
    return [(step, float(np.mean([y for _, y in curve[max(0, i - 19) : i + 1]]))) for i, (step, _) in enumerate(curve)]


def metrics_table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table of the metrics with a column of texts per title."""
    rows = [
        (name, *(texts[name] for texts in columns.values()), MEASURES[name]) for name in next(iter(columns.values()))
    ]
    return table(("Metric", *columns, "Definition"), rows)
