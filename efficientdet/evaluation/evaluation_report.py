"""Evaluation report: `report.html`, a self-contained page, its data as `report.json`, and plots of errors in images."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataset.input.pipeline import original_images
from dataset.records.record_index import RecordIndex
from efficientdet.reports.drawing import draw_detections, resized
from efficientdet.reports.html_page import (
    Bar,
    Heat,
    chart_figure,
    collapsible,
    grid,
    image_row,
    legend,
    page,
    paragraph,
    row,
    subheading,
    table,
)
from efficientdet.reports.training_report import metrics_table
from object_detection.coco.error_analysis import ERROR_TYPES, SHOWN_IOU, ErrorAnalysis, ImageErrors
from object_detection.coco.matching import RECALL_THRESHOLDS
from object_detection.coco.measures import CocoMeasures
from object_detection.coco.results import DetectionRows
from object_detection.coco.score_calibration import Reliability
from program_support.atomic_files import report_write_errors, write_text

_MOST_CLASSES = 20  # more would be illegible in the confusion matrix
_MOST_CHARTS = 12  # classes whose charts are shown without a click
_MOST_CONFUSIONS = 10
_INTERVALS = (
    "95 % intervals come from a bootstrap over the images: another set of as many images of the same kind would give "
    "other values within about these limits."
)
COLORS = {"right": (44, 150, 80), "missed": (232, 150, 10), "wrong": (214, 48, 40)}  # RGB
COLOR_NAMES = {"right": "Correct", "missed": "Missed (false negative)", "wrong": "Wrong (false positive)"}
_LONGER_SIDE = 560  # pixels of one of the two images
_GAP = 8


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
    if interval := measures.shown_interval("numbers", "AP"):
        lead += f" 95 % interval of AP: {interval}."
    values = {name: measures.numbers[name] for name in ("AP", "AP50", "AP75")}
    notes = []
    if measures.mask_numbers:
        values["mask AP"] = measures.mask_numbers["AP"]
        notes.append("Mask AP is reported below; all other sections are about boxes.")
    if measures.explanation:
        notes.append(f"AP is {measures.numbers['AP']:g}: {measures.explanation}")
    if measures.advice:
        notes.append(f"{measures.advice[0].upper()}{measures.advice[1:]}.")
    shown = (f"{name} {_shown(value if value >= 0 else math.nan)}" for name, value in values.items())
    plots = image_row(report.plots)
    explained = paragraph(
        "Left: ground truth. Right: detections above the score threshold of their class with the best F1. Click an "
        "image to enlarge it."
    ) + legend({name: f"rgb{COLORS[kind]}" for kind, name in COLOR_NAMES.items()})
    sections = {
        "Error analysis (TIDE)": _costs(analysis),
        "Precision-recall curves and calibration": _curves(analysis, measures),
        "Metrics per class": _classes(analysis, measures),
        "Confusion matrix": _confusion(analysis),
        "Images with the most errors": plots and explained + plots,
        "COCO metrics": _metrics(measures),
        "Evaluation settings": table((), [(key, str(value)) for key, value in report.facts.items()]),
    }
    figure = " \N{NO-BREAK SPACE} ".join(shown)
    return page(report.title, sections, figure=figure, lead=lead, notes="".join(map(paragraph, notes)))


def _shown(value: float) -> str:
    return "\N{EN DASH}" if math.isnan(value) else f"{value:.3f}"


def _heat(value: float, share: float | None = None, *, is_bad: bool = False) -> Heat:
    """Return a table cell; share: opacity of its background, by default the value."""
    return Heat(_shown(value), value if share is None else share, is_bad)


def _costs(analysis: ErrorAnalysis) -> str:
    costs = analysis.costs
    known = {name: cost.ap for name, cost in costs.items() if not math.isnan(cost.ap)}
    most = max(known.values(), default=0.0)
    rows = [
        (name, _heat(cost.ap, math.nan), Bar(known.get(name, 0.0) / (most or 1.0)), cost.count, ERROR_TYPES[name])
        for name, cost in costs.items()
    ]
    lead = (
        "AP50 lost is the increase of AP at IoU 0.5 if all errors of that type were corrected (TIDE, Bolya et al. "
        "2020), without a score threshold."
    )
    if most > 0:
        lead = f"The error type that costs the most AP: {max(known, key=known.__getitem__)}. {lead}"
    highest = max((np.nanmax(np.append(cost.class_ap, 0.0)) for cost in costs.values()), default=0.0) or 1.0
    by_class = [
        (
            analysis.comparison.names[k],
            *(_heat(cost.class_ap[k], cost.class_ap[k] / highest, is_bad=True) for cost in costs.values()),
        )
        for k in _by_ap(analysis)
    ]
    by_type = table(("Error type", "AP50 lost", "", "Count", "Definition"), rows)
    return paragraph(lead) + by_type + collapsible("AP50 lost per class", table(("Class", *costs), by_class))


def _by_ap(analysis: ErrorAnalysis) -> list[int]:
    """Return the classes that have objects, sorted by ascending AP."""
    ap = analysis.class_ap["all"]
    return [k for k in np.argsort(ap, kind="stable").tolist() if not math.isnan(ap[k])]


def _curves(analysis: ErrorAnalysis, measures: CocoMeasures) -> str:
    at = {name: analysis.precision(place) for name, place in SHOWN_IOU.items()}
    present, bins, best = _by_ap(analysis), analysis.reliability, analysis.threshold

    def chart(title: str, classes: list[int], *, small: bool = False) -> str:
        curves = {
            name: list(zip(RECALL_THRESHOLDS.tolist(), values[:, classes].mean(axis=1).tolist(), strict=True))
            for name, values in at.items()
            if classes
        }
        return chart_figure(title, curves, x_label="Recall", y_label="Precision", highest=1.0, small=small)

    lead = (
        f"Best F1 over all classes at IoU 0.5: {best.f1:.3f} at a score threshold of {best.score:.2f} (precision "
        f"{best.precision:.3f}, recall {best.recall:.3f}). "
        if best.f1
        else ""
    ) + (
        f"The expected calibration error is {bins.expected_error:.3f}: the mean difference between a detection's score "
        "and the measured precision."
    )
    calibrated, calibration = "", measures.score_calibration
    if calibration:
        calibrated = _explained_table(
            "Calibration of the scores",
            "Expected calibration error of the scores before and after a map of each class to the probability that a "
            "detection is correct. Half of the images measures what the other half is fitted to; the map is kept where "
            "this error and the log loss fall.",
            ("Class", "Before", "After", "Objects", "Not calibrated"),
            calibration.rows(),
        )
    charts = [
        chart("Precision-recall curve, mean over classes", present),
        _reliability_diagram(
            {"Measured": bins, "Calibrated scores, held out": calibration.after if calibration else None}
        ),
    ]
    small = grid([chart(analysis.comparison.names[k], [k], small=True) for k in present])
    if len(present) > _MOST_CHARTS:
        small = collapsible(f"Precision-recall curves of {len(present)} classes", small)
    return paragraph(lead) + row(charts) + calibrated + small


def _explained_table(title: str, lead: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return subheading(title) + paragraph(lead) + table(columns, rows)


def _reliability_diagram(bins_of: Mapping[str, Reliability | None]) -> str:
    """Return the chart of the precision of scores."""
    curves = {
        name: list(zip(bins.scores[bins.counts > 0], bins.precision[bins.counts > 0], strict=True))
        for name, bins in bins_of.items()
        if bins and bins.counts.any()
    }
    if not curves:
        return ""
    curves["Perfect calibration"] = [(0.0, 0.0), (1.0, 1.0)]
    return chart_figure(
        "Reliability diagram", curves, x_label="Confidence score", y_label="Precision at IoU 0.5", highest=1.0
    )


def _classes(analysis: ErrorAnalysis, measures: CocoMeasures) -> str:
    columns = {"AP": "all", "AP50": "IoU 0.50", "AP75": "IoU 0.75"}
    columns |= {f"AP {size}": size for size in ("small", "medium", "large")}
    interval = ["95 % interval"] if measures.intervals else []
    rows = []
    for k in _by_ap(analysis):
        name, best = analysis.comparison.names[k], analysis.thresholds[k]
        ap, *others = (_heat(float(analysis.class_ap[key][k])) for key in columns.values())
        shown = [measures.shown_interval("class_ap", name)] if interval else []
        plain = [_heat(value, math.nan) for value in (best.score, best.precision, best.recall)]
        rows.append((name, measures.class_objects[name], ap, *shown, *others, *plain, _heat(best.f1)))
    lead = (
        "Sorted by ascending AP. AP small, medium and large: objects below 32 x 32 pixels, in between, and above "
        "96 x 96 pixels. Threshold: the score with the best F1 at IoU 0.5, for which precision, recall and F1 are "
        "listed."
    )
    first, *rest = columns
    names = ("Class", "Objects", first, *interval, *rest, "Threshold", "Precision", "Recall", "F1")
    return paragraph(lead) + table(names, rows) if rows else ""


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
    matrix = table(("", *(labels[j] for j in chosen)), rows, upright=True)
    columns = ("Ground truth", "Predicted", "Count", "Share of the ground-truth objects")
    if confused:
        matrix += subheading("Most frequent confusions") + table(columns, confused)
    return paragraph(lead) + matrix


def _metrics(measures: CocoMeasures) -> str:
    fields = {"Boxes": "numbers"} | ({"Masks": "mask_numbers"} if measures.mask_numbers else {})
    columns = {column: getattr(measures, field) for column, field in fields.items()}
    intervals = {
        column: {name: measures.shown_interval(field, name) for name in columns[column]}
        for column, field in fields.items()
        if measures.intervals
    }
    return metrics_table(columns, intervals) + (paragraph(_INTERVALS) if intervals else "")


def error_plots(
    analysis: ErrorAnalysis, rows: DetectionRows, index: RecordIndex, *, record_numbers: Sequence[int], count: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield caption and plot, uint8 [h, w, 3], of the images with the most errors, the worst first.

    `rows` are the analyzed detections, `record_numbers` the records of `rows.evaluated_ids`. Images are read one at a
    time.
    """
    worst = analysis.worst_images(count)
    number_of = dict(zip(rows.evaluated_ids.tolist(), record_numbers, strict=True))
    images = original_images(index, (number_of[errors.image_id] for errors in worst))
    for errors, image in zip(worst, images, strict=True):
        yield _caption(image.name, errors, analysis), _side_by_side(_panels(errors, analysis, rows, image.pixels))


def _caption(name: str, errors: ImageErrors, analysis: ErrorAnalysis) -> str:
    types = Counter(analysis.errors.types[errors.wrong].tolist())
    wrong = ", ".join(f"{count} {name}" for name, count in types.most_common())
    parts = [
        name,
        f"{len(errors.right)} correct",
        f"{len(errors.missed)} missed",
        f"{len(errors.wrong)} wrong" + (f" ({wrong})" if wrong else ""),
    ]
    return " \N{MIDDLE DOT} ".join(parts)


def compared_errors(
    analyses: Sequence[ErrorAnalysis],
    rows: Sequence[DetectionRows],
    names: Sequence[str],
    index: RecordIndex,
    *,
    count: int,
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield caption and plot of the images on which detectors differ most in errors, their detections side by side.

    Args:
        analyses: the errors of each detector.
        rows: the analyzed detections of each, in the order of the records.
        names: the name of each.
        index: the records.
        count: largest number of images.
    """
    mistakes = np.stack([analysis.mistakes for analysis in analyses])
    spread = mistakes.max(axis=0) - mistakes.min(axis=0)
    chosen = np.argsort(-spread, kind="stable")[:count]
    chosen = chosen[spread[chosen] > 0]
    number_of = {image_id: number for number, image_id in enumerate(rows[0].evaluated_ids.tolist())}
    ids = analyses[0].comparison.image_ids[chosen].tolist()
    images = original_images(index, (number_of[image_id] for image_id in ids))
    for *errors, image in zip(*(analysis.errors_of(chosen) for analysis in analyses), images, strict=True):
        counts = (
            f"{name}: {len(one.missed)} missed, {len(one.wrong)} wrong" for name, one in zip(names, errors, strict=True)
        )
        panels = [
            _with_missed(one, analysis, _panels(one, analysis, of_detector, image.pixels)[1], image.pixels)
            for one, analysis, of_detector in zip(errors, analyses, rows, strict=True)
        ]
        yield " \N{MIDDLE DOT} ".join([image.name, *counts]), _side_by_side(panels)


def _with_missed(errors: ImageErrors, analysis: ErrorAnalysis, panel: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return the panel of the detections with the missed objects."""
    comparison = analysis.comparison
    x, y, width, height = panel.shape[0] / image.shape[0] * comparison.object_boxes[errors.missed].T
    return draw_detections(
        panel,
        np.stack([y, x, y + height, x + width], axis=-1),
        classes=comparison.objects.classes[errors.missed],
        names=comparison.names,
        colors=[COLORS["missed"]] * len(errors.missed),
    )


def _side_by_side(panels: Sequence[np.ndarray]) -> np.ndarray:
    gap = np.full((panels[0].shape[0], _GAP, 3), 255, np.uint8)
    return np.concatenate([part for panel in panels for part in (gap, panel)][1:], axis=1)


def _panels(
    errors: ImageErrors, analysis: ErrorAnalysis, rows: DetectionRows, image: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the image with the objects, and with the detections."""
    comparison, shown = analysis.comparison, resized(image, longer_side=_LONGER_SIDE)
    scale = shown.shape[0] / image.shape[0]
    x, y, width, height = comparison.object_boxes.T
    objects = np.stack([y, x, y + height, x + width], axis=-1)

    def panel(boxes: np.ndarray, classes: np.ndarray, chosen: Iterable[tuple[str, np.ndarray]], **scores) -> np.ndarray:
        numbers = np.concatenate([here for _, here in chosen])
        return draw_detections(
            shown,
            scale * boxes[numbers],
            classes=classes[numbers],
            names=comparison.names,
            colors=[COLORS[kind] for kind, here in chosen for _ in here],
            **{name: values[numbers] for name, values in scores.items()},
        )

    left = panel(objects, comparison.objects.classes, [("right", errors.detected_objects), ("missed", errors.missed)])
    right = panel(
        rows.boxes[comparison.detected],
        comparison.detections.classes,
        [("right", errors.right), ("wrong", errors.wrong)],
        scores=comparison.scores,
    )
    return left, right
