"""An evaluation on one page: `report.html`, one file that needs no network, and the same as numbers: `report.json`."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataset.files.image_files import encode_image
from efficientdet.evaluation.error_pictures import COLORS
from efficientdet.reports.html_page import (
    Bar,
    Heat,
    chart_figure,
    document,
    folded,
    grid,
    heading,
    keys,
    paragraph,
    picture,
    row,
    section,
    table,
)
from object_detection.coco.curves import RECALL_THRESHOLDS
from object_detection.coco.error_analysis import SHOWN_IOU, ErrorAnalysis
from object_detection.coco.error_types import ERROR_TYPES
from object_detection.coco.evaluation import CocoMeasures
from program_support.atomic_files import telling_write_errors, write_text

_MOST_CLASSES = 20  # in the confusion matrix; with more the cells cannot be read
_MOST_CHARTS = 12  # of classes that are shown without a click
_MOST_CONFUSIONS = 10
_NONE = "\N{EN DASH}"


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """What the page shows."""

    title: str
    measures: CocoMeasures
    analysis: ErrorAnalysis
    pictures: Iterable[tuple[str, np.ndarray]] = ()  # caption, uint8 [h, w, 3]; looked at one by one
    facts: Mapping[str, object] = field(default_factory=dict)


def write_evaluation_report(folder: str | Path, report: EvaluationReport) -> None:
    """Write report.html and report.json into a folder that is there. Raises InputError where they cannot be written."""
    content = {"title": report.title, "facts": {key: str(value) for key, value in report.facts.items()},
               "measures": report.measures.to_json(), **report.analysis.to_json()}
    numbers = json.dumps(content, indent=1, allow_nan=False) + "\n"
    for path, text in ((Path(folder, "report.json"), numbers), (Path(folder, "report.html"), evaluation_page(report))):
        with telling_write_errors(path):
            write_text(path, text)


def evaluation_page(report: EvaluationReport) -> str:
    """The whole document as HTML."""
    analysis, measures = report.analysis, report.measures
    lead = (f"{measures.images:,} images, {sum(measures.class_objects.values()):,} objects of {len(measures.class_ap)} "
            f"classes, {measures.detections:,} detections.")
    masks = "Masks were evaluated as well; this page is about the boxes." if measures.mask_numbers else ""
    pictures = [picture(caption, encode_image(image, "JPEG", quality=80)) for caption, image in report.pictures]
    return document(report.title, [
        heading(report.title, figure=_figure(measures), lead=lead), paragraph(masks) if masks else "",
        paragraph(f"AP is {measures.numbers['AP']:g}: {measures.explanation}") if measures.explanation else "",
        section("What the errors cost", _costs(analysis)),
        section("Precision, recall and scores", _curves(analysis)),
        section("Classes", _classes(analysis, measures)),
        section("What is taken for what", _confusion(analysis)),
        section("The images with the most errors", _worst(pictures)),
        section("COCO numbers", _numbers(measures)),
        section("How this was made", table((), [(key, str(value)) for key, value in report.facts.items()]))])


def _figure(measures: CocoMeasures) -> str:
    shown = {"AP": measures.numbers["AP"], "AP50": measures.numbers["AP50"], "AP75": measures.numbers["AP75"]}
    if measures.mask_numbers:
        shown["mask AP"] = measures.mask_numbers["AP"]
    return " \N{NO-BREAK SPACE} ".join(f"{name} {_shown(value if value >= 0 else math.nan)}" for name, value in shown.items())


def _shown(value: float) -> str:
    return _NONE if math.isnan(value) else f"{value:.3f}"


def _plain(value: float) -> Heat:
    """A number on no ground."""
    return Heat(_shown(value), math.nan)


def _costs(analysis: ErrorAnalysis) -> str:
    costs = analysis.costs
    known = {name: cost.ap for name, cost in costs.items() if not math.isnan(cost.ap)}
    most = max(known.values(), default=0.0)
    rows = [(name, _plain(cost.ap), Bar(cost.ap / most if most > 0 and name in known else 0.0), cost.count, ERROR_TYPES[name])
            for name, cost in costs.items()]
    lead = "What AP at IoU 0.5 would gain were there no error of one type (TIDE, Bolya et al. 2020), over all scores."
    if most > 0:
        lead = f"Most AP is lost to one type: {max(known, key=known.get)}. {lead}"
    order = _by_ap(analysis)
    highest = max((np.nanmax(np.append(cost.class_ap, 0.0)) for cost in costs.values()), default=0.0) or 1.0
    by_class = table(("class", *costs), [
        (analysis.comparison.names[k], *(Heat(_shown(cost.class_ap[k]), cost.class_ap[k] / highest, is_bad=True)
                                         for cost in costs.values())) for k in order])
    return paragraph(lead) + table(("error", "AP50 lost", "", "count", "what it is"), rows) + folded(
        "Of each class", by_class)


def _by_ap(analysis: ErrorAnalysis) -> list[int]:
    """The classes that have objects, the worst first."""
    ap = analysis.class_ap["all"]
    return [k for k in np.argsort(ap, kind="stable").tolist() if not math.isnan(ap[k])]


def _curves(analysis: ErrorAnalysis) -> str:
    at = {name: analysis.precision(place) for name, place in SHOWN_IOU.items()}
    present = _by_ap(analysis)

    def points(precision: np.ndarray) -> list[tuple[float, float]]:
        return list(zip(RECALL_THRESHOLDS.tolist(), precision.tolist(), strict=True))

    mean = {name: points(values[:, present].mean(axis=1)) for name, values in at.items()} if present else {}
    bins = analysis.reliability
    measured = [(score, precision) for score, precision in zip(bins.scores.tolist(), bins.precision.tolist(), strict=True)
                if not math.isnan(score)]
    charts = [chart_figure("Precision over recall, mean of the classes", mean, unit="recall", highest=1.0)]
    if measured:
        charts.append(chart_figure("Share that is right over score", {"measured": measured, "were a score a probability": [
            (0.0, 0.0), (1.0, 1.0)]}, unit="score", highest=1.0))
    best = analysis.threshold
    lead = (f"For all classes together the best F1 is {best.f1:.3f}, from score {best.score:.2f} on (precision "
            f"{best.precision:.3f}, recall {best.recall:.3f}, at IoU 0.5). " if best.f1 else "") + (
        f"A score differs from the share of detections that are right by {bins.expected_error:.3f} on average (expected "
        "calibration error).")
    small = grid([chart_figure(analysis.comparison.names[k], {name: points(values[:, k]) for name, values in at.items()},
                               unit="recall", highest=1.0, small=True) for k in present])
    return paragraph(lead) + row(charts) + (
        small if len(present) <= _MOST_CHARTS else folded(f"Each of {len(present)} classes", small))


def _classes(analysis: ErrorAnalysis, measures: CocoMeasures) -> str:
    columns = {"AP": "all", "AP50": "IoU 0.50", "AP75": "IoU 0.75", "small": "small", "medium": "medium", "large": "large"}
    rows = []
    for k in _by_ap(analysis):
        name, best = analysis.comparison.names[k], analysis.thresholds[k]
        values = [float(analysis.class_ap[key][k]) for key in columns.values()]
        rows.append((name, measures.class_objects[name], *(Heat(_shown(value), value) for value in values),
                     _plain(best.score), _plain(best.precision), _plain(best.recall), Heat(_shown(best.f1), best.f1)))
    lead = ("The lowest AP first; AP by the size of the object (small below 32 x 32 pixels, large above 96 x 96), and the "
            "score from which on F1 at IoU 0.5 is best, with precision and recall there.")
    return paragraph(lead) + table(("class", "objects", *columns, "score", "precision", "recall", "F1"), rows) if rows else ""


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
    rows = [(labels[i], *(Heat(str(counts[i, j]) if counts[i, j] else "", shares[i, j], is_bad=i != j) for j in chosen))
            for i in chosen]
    lead = ("Detections from the best score of their class on. A row is a class of objects, a column what they were taken for; "
            "in the last column are objects that were missed, in the last row detections where no object was left.")
    if len(chosen) <= background:
        lead += f" The {_MOST_CLASSES} classes with the most errors; all are in report.json."
    pairs = np.argsort(-among, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    pairs = [(*np.unravel_index(pair, among.shape), among.flat[pair]) for pair in pairs]
    confused = [(names[i], names[j], int(count), f"{shares[i, j]:.1%} of these objects") for i, j, count in pairs if count]
    return paragraph(lead) + table(("", *(labels[j] for j in chosen)), rows, turned=True) + (
        paragraph("Most often confused:") + table(("object", "taken for", "times", ""), confused) if confused else "")


def _worst(pictures: list[str]) -> str:
    if not pictures:
        return ""
    colors = {name: "#{:02x}{:02x}{:02x}".format(*COLORS[kind]) for name, kind in (
        ("found, and right", "right"), ("missed", "missed"), ("wrong", "wrong"))}
    lead = "At the left the objects, at the right the detections from the best score of their class on. A click enlarges."
    return paragraph(lead) + keys(colors) + row(pictures)


def _numbers(measures: CocoMeasures) -> str:
    columns = {"boxes": measures.numbers} | ({"masks": measures.mask_numbers} if measures.mask_numbers else {})
    return table(("", *columns), [(name, *(f"{numbers[name]:.4f}" if numbers[name] >= 0 else _NONE
                                           for numbers in columns.values())) for name in measures.numbers])
