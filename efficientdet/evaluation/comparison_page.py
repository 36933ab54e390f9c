"""The page of a comparison of detectors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dataset.files.image_files import encode_image
from efficientdet.evaluation.error_plots import COLORS
from efficientdet.reports.html_page import (
    Heat,
    collapsible,
    document,
    heading,
    image_figure,
    legend,
    paragraph,
    row,
    section,
    table,
)
from object_detection.coco.bootstrap import Difference, PairedDifferences
from object_detection.coco.error_analysis import ErrorAnalysis
from object_detection.coco.measures import CocoMeasures, shown_measure
from object_detection.coco.results import DetectionRows

_LEAD = (
    "All detectors are measured on the same images, and differences on the same resamples of them, so that images that "
    "are hard for all do not widen the 95 % intervals. An interval that excludes 0 shows a difference on images of "
    "this kind; it says nothing about another training with another seed."
)


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A detector's detections on the common images."""

    name: str
    rows: DetectionRows
    measures: CocoMeasures
    analysis: ErrorAnalysis
    # "milliseconds per image" (median, detection alone), "bytes", and of checkpoints "multiply-adds per image" of the
    # network; {} for results
    cost: dict[str, float]


def comparison_page(
    models: Sequence[ComparedModel],
    pairs: Sequence[PairedDifferences],
    plots: Iterable[tuple[str, np.ndarray]],
) -> str:
    """Return the page as HTML."""
    first, title = models[0], "Comparison of detectors"
    ap = [pair.numbers["AP"] for pair in pairs if "AP" in pair.numbers]
    figure = f"AP {ap[0].value:+.3f} ({ap[0].low:+.3f} to {ap[0].high:+.3f})" if ap else ""
    objects = sum(first.measures.class_objects.values())
    parts = [heading(title, figure=figure, lead=f"{first.measures.images:,} images, {objects:,} objects. {_LEAD}")]
    parts.append(section("Detectors", _detectors(models)))
    for other, pair in zip(models[1:], pairs, strict=True):
        parts.append(section(f"{other.name} against {first.name}", _differences(first, other, pair)))
    figures = [image_figure(caption, encode_image(image, "JPEG", quality=80)) for caption, image in plots]
    names = {"right": "Correct", "missed": "Missed (false negative)", "wrong": "Wrong (false positive)"}
    colors = {name: "#{:02x}{:02x}{:02x}".format(*COLORS[kind]) for kind, name in names.items()}
    order = "From left to right: the detectors in the order of the table, each at its best thresholds."
    shown = legend(colors) + paragraph(order) + row(figures)
    return document(title, [*parts, section("Images on which they differ most", shown if figures else "")])


def _detectors(models: Sequence[ComparedModel]) -> str:
    rows = [
        (
            one.name,
            shown_measure(one.measures.numbers["AP"]),
            one.measures.shown_interval("numbers", "AP"),
            shown_measure(one.measures.numbers["AP50"]),
            f"{one.cost['milliseconds per image']:.1f} ms" if one.cost else "",
            f"{one.cost['multiply-adds per image'] / 1e9:.3g} G" if "multiply-adds per image" in one.cost else "",
            f"{one.cost['bytes'] / 1e6:.1f} MB" if one.cost else "",
        )
        for one in models
    ]
    titles = ("Detector", "AP", "95 % interval", "AP50", "Time per image", "Multiply-adds", "Size")
    return table(titles, rows, label="Detectors")


def _cells(one: Difference) -> tuple[Heat, str, str, str]:
    strength = abs(one.probability - 0.5) * 2 if one.verdict in ("better", "worse") else np.nan
    return (
        Heat(f"{one.value:+.4f}", strength, is_bad=one.value < 0),
        f"{one.low:+.4f} to {one.high:+.4f}",
        f"{one.probability:.1%}",
        one.verdict,
    )


def _differences(first: ComparedModel, other: ComparedModel, pair: PairedDifferences) -> str:
    rows = [
        (
            name,
            shown_measure(first.measures.numbers[name]),
            shown_measure(other.measures.numbers[name]),
            *_cells(one),
        )
        for name, one in pair.numbers.items()
    ]
    titles = ("Change", "95 % interval", "P(better)", "Verdict")
    numbers = table(("Metric", "First", "Second", *titles), rows, label="Differences")
    by_class = [
        (name, metric, *_cells(one)) for name, metrics in pair.classes.items() for metric, one in metrics.items()
    ]
    classes = table(("Class", "Metric", *titles), by_class, label="Differences by class")
    return numbers + collapsible("By class and object size", classes)
