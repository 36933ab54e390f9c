"""Evaluation report: `report.html`, a self-contained page, and its data as `report.json`."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataset.files.image_files import encode_image
from efficientdet.evaluation.error_plots import COLORS
from efficientdet.reports.coco_metrics import (
    metrics_table,
    miss_rate_table,
    reliability_diagram,
    score_calibration_table,
)
from efficientdet.reports.html_page import (
    Bar,
    Heat,
    chart_figure,
    collapsible,
    document,
    grid,
    heading,
    image_figure,
    legend,
    paragraph,
    row,
    section,
    subheading,
    table,
)
from object_detection.coco.comparison import RECALL_THRESHOLDS
from object_detection.coco.error_analysis import ERROR_TYPES, SHOWN_IOU, ErrorAnalysis
from object_detection.coco.measures import CocoMeasures
from object_detection.coco.score_calibration import ScoreCalibration
from program_support.atomic_files import report_write_errors, write_text

_MOST_CLASSES = 20  # more would be illegible in the confusion matrix
_MOST_CHARTS = 12  # classes whose charts are shown without a click
_MOST_CONFUSIONS = 10
_INTERVALS = (
    "95 % intervals come from a bootstrap over the images: another set of as many images of the same kind would give "
    "other values within about these limits."
)
_NONE = "\N{EN DASH}"


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """Content of an evaluation report."""

    title: str
    measures: CocoMeasures
    analysis: ErrorAnalysis
    plots: Iterable[tuple[str, np.ndarray]] = ()  # caption, uint8 [h, w, 3]; consumed one at a time
    facts: Mapping[str, object] = field(default_factory=dict)


def write_evaluation_report(folder: str | Path, report: EvaluationReport) -> None:
    """Write report.html and report.json into an existing folder.

    Raises:
        InputError: they cannot be written.
    """
    content = {
        "title": report.title,
        "facts": {key: str(value) for key, value in report.facts.items()},
        "measures": report.measures.to_json(),
        **report.analysis.to_json(),
    }
    numbers = json.dumps(content, indent=1, allow_nan=False) + "\n"
    for path, text in ((Path(folder, "report.json"), numbers), (Path(folder, "report.html"), evaluation_page(report))):
        with report_write_errors(path):
            write_text(path, text)


def evaluation_page(report: EvaluationReport) -> str:
    """Return the page as HTML."""
    analysis, measures = report.analysis, report.measures
    lead = (
        f"{measures.images:,} images, {sum(measures.class_objects.values()):,} objects of {len(measures.class_ap)} "
        f"classes, {measures.detections:,} detections."
    )
    masks = "Mask AP is reported below; all other sections are about boxes." if measures.mask_numbers else ""
    plots = [image_figure(caption, encode_image(image, "JPEG", quality=80)) for caption, image in report.plots]
    return document(
        report.title,
        [
            heading(report.title, figure=_figure(measures), lead=lead + _interval_of_ap(measures)),
            paragraph(masks) if masks else "",
            paragraph(f"AP is {measures.numbers['AP']:g}: {measures.explanation}") if measures.explanation else "",
            paragraph(f"{measures.advice[0].upper()}{measures.advice[1:]}.") if measures.advice else "",
            section("Error analysis (TIDE)", _costs(analysis)),
            section("Precision-recall curves and calibration", _curves(analysis, measures.score_calibration)),
            section("Metrics per class", _classes(analysis, measures) + miss_rate_table(measures.miss_rate_thresholds)),
            section("Confusion matrix", _confusion(analysis)),
            section("Images with the most errors", _worst(plots)),
            section("COCO metrics", _metrics(measures)),
            section(
                "Evaluation settings",
                table((), [(key, str(value)) for key, value in report.facts.items()], label="Evaluation settings"),
            ),
        ],
    )


def _figure(measures: CocoMeasures) -> str:
    values = {name: measures.numbers[name] for name in ("AP", "AP50", "AP75")}
    if measures.mask_numbers:
        values["mask AP"] = measures.mask_numbers["AP"]
    shown = (f"{name} {_shown(value if value >= 0 else math.nan)}" for name, value in values.items())
    return " \N{NO-BREAK SPACE} ".join(shown)


def _interval_of_ap(measures: CocoMeasures) -> str:
    shown = measures.shown_interval("numbers", "AP")
    return f" 95 % interval of AP: {shown}." if shown else ""


def _shown(value: float) -> str:
    return _NONE if math.isnan(value) else f"{value:.3f}"


def _plain(value: float) -> Heat:
    return Heat(_shown(value), math.nan)


def _costs(analysis: ErrorAnalysis) -> str:
    costs = analysis.costs
    known = {name: cost.ap for name, cost in costs.items() if not math.isnan(cost.ap)}
    most = max(known.values(), default=0.0)
    shares = {name: ap / most if most > 0 else 0.0 for name, ap in known.items()}
    rows = [
        (name, _plain(cost.ap), Bar(shares.get(name, 0.0)), cost.count, ERROR_TYPES[name])
        for name, cost in costs.items()
    ]
    lead = (
        "AP50 lost is the increase of AP at IoU 0.5 if all errors of that type were corrected (TIDE, Bolya et al. "
        "2020), without a score threshold."
    )
    if most > 0:
        lead = f"The error type that costs the most AP: {max(known, key=known.__getitem__)}. {lead}"
    order = _by_ap(analysis)
    highest = max((np.nanmax(np.append(cost.class_ap, 0.0)) for cost in costs.values()), default=0.0) or 1.0
    by_class = table(
        ("Class", *costs),
        [
            (
                analysis.comparison.names[k],
                *(Heat(_shown(cost.class_ap[k]), cost.class_ap[k] / highest, is_bad=True) for cost in costs.values()),
            )
            for k in order
        ],
        label="AP50 lost per class",
    )
    by_type = table(("Error type", "AP50 lost", "", "Count", "Definition"), rows, label="Error types")
    return paragraph(lead) + by_type + collapsible("AP50 lost per class", by_class)


def _by_ap(analysis: ErrorAnalysis) -> list[int]:
    """Return the classes that have objects, sorted by ascending AP."""
    ap = analysis.class_ap["all"]
    return [k for k in np.argsort(ap, kind="stable").tolist() if not math.isnan(ap[k])]


def _curves(analysis: ErrorAnalysis, calibration: ScoreCalibration | None) -> str:
    at = {name: analysis.precision(place) for name, place in SHOWN_IOU.items()}
    present = _by_ap(analysis)

    def points(precision: np.ndarray) -> list[tuple[float, float]]:
        return list(zip(RECALL_THRESHOLDS.tolist(), precision.tolist(), strict=True))

    mean = {name: points(values[:, present].mean(axis=1)) for name, values in at.items()} if present else {}
    bins = analysis.reliability
    title = "Precision-recall curve, mean over classes"
    charts = [
        chart_figure(title, mean, x_label="Recall", y_label="Precision", highest=1.0),
        reliability_diagram(bins, calibration),
    ]
    best = analysis.threshold
    lead = (
        f"Best F1 over all classes at IoU 0.5: {best.f1:.3f} at a score threshold of {best.score:.2f} (precision "
        f"{best.precision:.3f}, recall {best.recall:.3f}). "
        if best.f1
        else ""
    ) + (
        f"The expected calibration error is {bins.expected_error:.3f}: the mean difference between a detection's score "
        "and the measured precision."
    )
    small = grid(
        [
            chart_figure(
                analysis.comparison.names[k],
                {name: points(values[:, k]) for name, values in at.items()},
                x_label="Recall",
                y_label="Precision",
                highest=1.0,
                small=True,
            )
            for k in present
        ]
    )
    if len(present) > _MOST_CHARTS:
        small = collapsible(f"Precision-recall curves of {len(present)} classes", small)
    return paragraph(lead) + row(charts) + score_calibration_table(calibration) + small


def _classes(analysis: ErrorAnalysis, measures: CocoMeasures) -> str:
    columns = {"AP": "all", "AP50": "IoU 0.50", "AP75": "IoU 0.75"}
    columns |= {f"AP {size}": size for size in ("small", "medium", "large")}
    rows = []
    for k in _by_ap(analysis):
        name, best = analysis.comparison.names[k], analysis.thresholds[k]
        values = [float(analysis.class_ap[key][k]) for key in columns.values()]
        rows.append(
            (
                name,
                measures.class_objects[name],
                *(Heat(_shown(value), value) for value in values[:1]),
                *([measures.shown_interval("class_ap", name)] if measures.intervals else []),
                *(Heat(_shown(value), value) for value in values[1:]),
                _plain(best.score),
                _plain(best.precision),
                _plain(best.recall),
                Heat(_shown(best.f1), best.f1),
            )
        )
    lead = (
        "Sorted by ascending AP. AP small, medium and large: objects below 32 x 32 pixels, in between, and above "
        "96 x 96 pixels. Threshold: the score with the best F1 at IoU 0.5, for which precision, recall and F1 are "
        "listed."
    )
    ap, *others = columns
    titles = (ap, "95 % interval", *others) if measures.intervals else columns
    names = ("Class", "Objects", *titles, "Threshold", "Precision", "Recall", "F1")
    return paragraph(lead) + table(names, rows, label="Metrics per class") if rows else ""


def _confusion(analysis: ErrorAnalysis) -> str:
    counts, names = analysis.confusion, analysis.comparison.names
    background, wrong = len(names), analysis.confusion.copy()
    np.fill_diagonal(wrong, 0)
    if not counts.sum():
        return ""
    among = wrong[:background, :background]
    order = np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1))[:background], kind="stable")
    chosen = [*np.sort(order[:_MOST_CLASSES]).tolist(), background]
    labels = [*names, "background"]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    rows = [
        (labels[i], *(Heat(str(counts[i, j]) if counts[i, j] else "", shares[i, j], is_bad=i != j) for j in chosen))
        for i in chosen
    ]
    lead = (
        "Rows: ground-truth class; columns: predicted class. Last column: missed objects (false negatives); last row: "
        "detections without an object (false positives). Score threshold of a class: the one with the best F1."
    )
    if len(chosen) <= background:
        lead += f" Shown are the {_MOST_CLASSES} classes with the most errors; report.json has all."
    most_frequent = np.argsort(-among, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    pairs = [(*np.unravel_index(pair, among.shape), among.flat[pair]) for pair in most_frequent]
    confused = [(names[i], names[j], int(count), f"{shares[i, j]:.1%}") for i, j, count in pairs if count]
    matrix = table(("", *(labels[j] for j in chosen)), rows, label="Confusion matrix", upright=True)
    columns = ("Ground truth", "Predicted", "Count", "Share of the ground-truth objects")
    if confused:
        matrix += subheading("Most frequent confusions") + table(columns, confused, label="Most frequent confusions")
    return paragraph(lead) + matrix


def _worst(plots: list[str]) -> str:
    if not plots:
        return ""
    names = {"right": "Correct", "missed": "Missed (false negative)", "wrong": "Wrong (false positive)"}
    colors = {name: "#{:02x}{:02x}{:02x}".format(*COLORS[kind]) for kind, name in names.items()}
    lead = (
        "Left: ground truth. Right: detections above the score threshold of their class with the best F1. Click an "
        "image to enlarge it."
    )
    return paragraph(lead) + legend(colors) + row(plots)


def _metrics(measures: CocoMeasures) -> str:
    fields = {"Boxes": "numbers"} | ({"Masks": "mask_numbers"} if measures.mask_numbers else {})
    columns = {column: getattr(measures, field) for column, field in fields.items()}
    intervals = {
        column: {name: measures.shown_interval(field, name) for name in columns[column]}
        for column, field in fields.items()
        if measures.intervals
    }
    return metrics_table(columns, intervals) + (paragraph(_INTERVALS) if intervals else "")
