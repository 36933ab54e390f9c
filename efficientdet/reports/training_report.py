"""Training report: `report.html`, a self-contained page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataset.files.image_files import encode_image
from efficientdet.reports.coco_metrics import metrics_table
from efficientdet.reports.html_page import (
    Curve,
    bars,
    chart_figure,
    document,
    heading,
    image_figure,
    paragraph,
    row,
    section,
    table,
)
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
_LEGEND = {"validation/AP": "AP (averaged weights)", "validation/AP_raw": "AP_raw (weights of the last step)"}
_CHARTS = (
    ("Validation AP", "AP (IoU 0.50:0.95)", ("validation/AP", "validation/AP_raw")),
    ("Learning rate", "Learning rate", ("train/learning_rate",)),
    ("Gradient norm", "L2 norm", ("train/gradient_norm",)),
    ("Throughput", "Images per second", ("examples/sec",)),
)


def write_report(folder: str | Path, summary: RunSummary) -> Path:
    """Write report.html into a folder and return its path."""
    path = Path(folder) / FILE_NAME
    write_text(path, page(summary))
    return path


def page(summary: RunSummary) -> str:
    """Return the page as HTML, without the sections whose part of the summary is empty."""
    shown = [
        f"{name} {summary.numbers[name]:.3f}" for name in ("AP", "AP50", "AP75") if summary.numbers.get(name, -1) >= 0
    ]
    losses = sorted(filter(_LOSS.fullmatch, summary.curves), key=lambda tag: tag != "train/loss")  # the total first
    charts = [
        chart_figure(
            name,
            {
                _LEGEND.get(tag, tag.removeprefix("train/")): summary.curves[tag]
                for tag in tags
                if summary.curves.get(tag)
            },
            x_label="Training step",
            y_label=unit,
        )
        for name, unit, tags in (("Loss", "Loss", losses), *_CHARTS)
    ]
    images = [image_figure(caption, encode_image(image, "JPEG")) for caption, image in summary.images]
    measured = {name: ap for name, ap in summary.per_class.items() if ap >= 0}  # the others have no objects
    per_class = paragraph("AP averaged over IoU thresholds 0.50 to 0.95.") + bars(measured, form=".3f")
    return document(
        summary.title,
        [
            heading(summary.title, figure=" \N{NO-BREAK SPACE} ".join(shown), lead=summary.goal),
            section("Training curves", row(charts)),
            section("COCO metrics", metrics_table({"Value": summary.numbers} if summary.numbers else {})),
            section("AP per class", per_class if measured else ""),
            section("Time per activity", _time(summary.seconds)),
            section("Example detections", row(images)),
            section(
                "Configuration",
                table((), [(key, str(value)) for key, value in summary.facts.items()], label="Configuration"),
            ),
        ],
    )


def _time(seconds: Mapping[str, float]) -> str:
    if not any(seconds.values()):
        return ""
    slowest = max(seconds, key=seconds.__getitem__)
    share = seconds[slowest] / sum(seconds.values())
    return paragraph(f"Wall-clock time. Largest share: {slowest}, {share:.0%}.") + bars(seconds, unit=" s", form=".1f")
