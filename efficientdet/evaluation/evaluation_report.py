"""Evaluation report: `report.html`, a self-contained page, its data as `report.json`, and plots of errors in images."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from dataset.class_names import class_names_of_records
from dataset.input.pipeline import original_images
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.evaluation.data_set_evaluator import read_evaluator, read_results
from efficientdet.reports.drawing import Color, draw_detections, resized
from efficientdet.reports.html_page import (
    Bar,
    Heat,
    chart_figure,
    command,
    image_row,
    legend,
    links,
    notices,
    page,
    paragraph,
    row,
    table,
)
from efficientdet.reports.training_report import metrics_table, training_charts
from efficientdet.run_log.journal import read_curves
from object_detection.coco.error_analysis import ERROR_TYPES, SHOWN_IOU, ErrorAnalysis, ImageErrors
from object_detection.coco.matching import RECALL_THRESHOLDS, Comparison
from object_detection.coco.measures import CocoMeasures, interval_note, shown_measure
from object_detection.coco.results import DetectionRows
from object_detection.coco.score_calibration import Reliability
from program_support.atomic_files import write_texts

_MOST_CLASSES = 20  # more would be illegible in the confusion matrix
_INTERVALS = (
    "95 % intervals come from a bootstrap over the images: another set of as many images of the same kind would give "
    "other values within about these limits."
)
COLORS = {"right": (44, 150, 80), "missed": (232, 150, 10), "wrong": (214, 48, 40)}  # RGB
COLOR_NAMES = {"right": "Correct", "missed": "Missed (false negative)", "wrong": "Wrong (false positive)"}
_LONGER_SIDE = 560  # pixels of one image
_GAP = 8
_SHOWN, _WORST_SHOWN, _WEAKEST_SHOWN = 12, 4, 2  # images, images with the most errors, and classes of a result
_USABLE_F1 = 0.5
_USABLE = "it is usable as it is where this is enough"
_NOT_YET = "train longer, or label more images, before it is used"


def write_evaluation_report(
    folder: str | Path,
    title: str,
    measures: CocoMeasures,
    analysis: ErrorAnalysis,
    *,
    plots: Iterable[tuple[str, np.ndarray]] = (),
    facts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write report.html and report.json into an existing folder.

    Raises:
        InputError: they cannot be written.
    """
    content = {"title": title, "facts": {**facts}, "measures": measures.to_json(), **analysis.to_json()}
    page = evaluation_page(title, measures, analysis, plots=plots, facts=facts)
    numbers = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_texts(folder, {"report.json": numbers, "report.html": page})


def evaluation_page(
    title: str,
    measures: CocoMeasures,
    analysis: ErrorAnalysis,
    *,
    plots: Iterable[tuple[str, np.ndarray]] = (),
    facts: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the page as HTML; `plots` are captions and images, uint8 [h, w, 3], consumed one at a time."""
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
    shown = (f"{name} {_shown(value if value >= 0 else math.nan)}" for name, value in values.items())
    images = image_row(plots)
    explained = paragraph(
        "Detections above the score threshold of their class with the best F1, and missed objects. Click an image to "
        "enlarge it."
    ) + legend({name: f"rgb{COLORS[kind]}" for kind, name in COLOR_NAMES.items()})
    sections = {
        "Error analysis (TIDE)": _costs(analysis),
        "Precision-recall curves and calibration": _curves(analysis, measures),
        "Metrics per class": _classes(analysis, measures),
        "Confusion matrix": _confusion(analysis),
        "Images with the most errors": images and explained + images,
        "COCO metrics": _metrics(measures),
        "Evaluation settings": table((), [*facts.items()]),
    }
    figure = " \N{NO-BREAK SPACE} ".join(shown)
    return page(title, sections, figure=figure, lead=lead, notes="".join(map(paragraph, notes)))


def _shown(value: float) -> str:
    return "\N{EN DASH}" if math.isnan(value) else f"{value:.3f}"


def _heat(value: float, share: float | None = None) -> Heat:
    """Return a table cell; share: opacity of its background, by default the value."""
    return Heat(_shown(value), value if share is None else share)


def _costs(analysis: ErrorAnalysis) -> str:
    known = {name: cost.ap for name, cost in analysis.costs.items() if not math.isnan(cost.ap)}
    most = max(known.values(), default=0.0)
    rows = [
        (name, _heat(cost.ap, math.nan), Bar(known.get(name, 0.0) / (most or 1.0)), cost.count, ERROR_TYPES[name])
        for name, cost in analysis.costs.items()
    ]
    lead = (
        "AP50 lost is the increase of AP at IoU 0.5 if all errors of that type were corrected (TIDE, Bolya et al. "
        "2020), without a score threshold. report.json has it for each class."
    )
    if most > 0:
        lead = f"The error type that costs the most AP: {max(known, key=known.__getitem__)}. {lead}"
    return paragraph(lead) + table(("Error type", "AP50 lost", "", "Count", "Definition"), rows)


def _by_ap(analysis: ErrorAnalysis) -> list[int]:
    """Return the classes that have objects, sorted by ascending AP."""
    ap = analysis.class_ap["all"]
    return [k for k in np.argsort(ap, kind="stable").tolist() if not math.isnan(ap[k])]


def _curves(analysis: ErrorAnalysis, measures: CocoMeasures) -> str:
    present, best, calibration = _by_ap(analysis), analysis.threshold, measures.score_calibration
    curves = {}
    for name, place in SHOWN_IOU.items() if present else ():
        precision = analysis.precision(place)[:, present].mean(axis=1)
        curves[name] = list(zip(RECALL_THRESHOLDS.tolist(), precision.tolist(), strict=True))
    lead = (
        f"Best F1 over all classes at IoU 0.5: {best.f1:.3f} at a score threshold of {best.score:.2f} (precision "
        f"{best.precision:.3f}, recall {best.recall:.3f}). "
        if best.f1
        else ""
    ) + (
        f"The expected calibration error is {analysis.reliability.expected_error:.3f}: the mean difference between a "
        "detection's score and the measured precision."
    )
    after = calibration.after if calibration else None
    charts = [
        chart_figure(
            "Precision-recall curve, mean over classes", curves, x_label="Recall", y_label="Precision", highest=1.0
        ),
        _reliability_diagram({"Measured": analysis.reliability, "Calibrated scores, held out": after}),
    ]
    return paragraph(lead) + row(charts)


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
    counts, labels = analysis.confusion, [*analysis.comparison.names, "background"]
    background, wrong = len(labels) - 1, analysis.confusion.copy()
    np.fill_diagonal(wrong, 0)
    if not counts.sum():
        return ""
    order = np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1))[:background], kind="stable")
    chosen = [*np.sort(order[:_MOST_CLASSES]).tolist(), background]
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
    matrix = table(("", *(labels[j] for j in chosen)), rows, upright=True)
    return paragraph(lead) + matrix


def _metrics(measures: CocoMeasures) -> str:
    columns = {}
    for title, values in {"Boxes": "numbers", "Masks": "mask_numbers"}.items():
        if numbers := getattr(measures, values):
            columns[title] = {name: shown_measure(value) for name, value in numbers.items()}
            if measures.intervals:
                columns[f"{title}: 95 % interval"] = {name: measures.shown_interval(values, name) for name in numbers}
    return metrics_table(columns) + (paragraph(_INTERVALS) if measures.intervals else "")


def worst_images(analyses: Sequence[ErrorAnalysis], count: int) -> np.ndarray:
    """Return the places of at most `count` images with the most errors, the worst first.

    Of several detectors it is the images in which their numbers of errors differ most.
    """
    mistakes = np.stack([analysis.mistakes for analysis in analyses])
    rank = mistakes.max(axis=0) - (mistakes.min(axis=0) if len(analyses) > 1 else 0)
    worst = np.argsort(-rank, kind="stable")[:count]
    return worst[rank[worst] > 0]


def error_plots(
    detectors: Sequence[tuple[str, ErrorAnalysis, DetectionRows]],
    index: RecordIndex,
    *,
    number_of: Mapping[int, int],
    chosen: np.ndarray,
    with_labels: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield caption and plot, uint8 [h, w, 3], of images; those of several detectors stand side by side.

    Images are read one at a time.

    Args:
        detectors: the name of each, its errors, and the analyzed detections.
        index: the records.
        number_of: number of the record of each image id.
        chosen: places of the images in `comparison.image_ids`, see `worst_images`.
        with_labels: show the labels in a further panel, on the left.
    """
    analyses = [analysis for _, analysis, _ in detectors]
    numbers = (number_of[image_id] for image_id in analyses[0].comparison.image_ids[chosen].tolist())
    errors = zip(*(analysis.errors_of(chosen) for analysis in analyses), strict=True)
    for of_image, image in zip(errors, original_images(index, numbers), strict=True):
        caption, panels = [image.name], [_labels_panel(of_image[0], analyses[0], image.pixels)] if with_labels else []
        for one, (name, analysis, rows) in zip(of_image, detectors, strict=True):
            caption.append(f"{name}: " * (len(detectors) > 1) + _counts(one, analysis))
            panels += [np.full_like(panels[0][:, :_GAP], 255)] if panels else []
            panels.append(_panel(one, analysis, rows, image.pixels))
        yield " \N{MIDDLE DOT} ".join(caption), np.concatenate(panels, axis=1)


def _counts(errors: ImageErrors, analysis: ErrorAnalysis) -> str:
    types = Counter(analysis.errors.types[errors.wrong].tolist())
    wrong = ", ".join(f"{count} {name}" for name, count in types.most_common())
    return f"{len(errors.right)} correct, {len(errors.missed)} missed, {len(errors.wrong)} wrong" + (
        f" ({wrong})" if wrong else ""
    )


def _labels_panel(errors: ImageErrors, analysis: ErrorAnalysis, image: np.ndarray) -> np.ndarray:
    """Return the image with its labels."""
    panel, objects = resized(image, longer_side=_LONGER_SIDE), np.append(errors.detected_objects, errors.missed)
    return _with_objects(panel, objects, analysis.comparison, scale=panel.shape[0] / image.shape[0])


def _panel(errors: ImageErrors, analysis: ErrorAnalysis, rows: DetectionRows, image: np.ndarray) -> np.ndarray:
    """Return the image with the detections above the thresholds and the missed objects."""
    comparison, panel = analysis.comparison, resized(image, longer_side=_LONGER_SIDE)
    scale = panel.shape[0] / image.shape[0]
    detected = np.concatenate([errors.right, errors.wrong])
    panel = draw_detections(
        panel,
        scale * rows.boxes[comparison.detected[detected]],
        classes=comparison.detections.classes[detected],
        names=comparison.names,
        scores=comparison.scores[detected],
        colors=[COLORS["right"]] * len(errors.right) + [COLORS["wrong"]] * len(errors.wrong),
    )
    return _with_objects(panel, errors.missed, comparison, scale=scale, color=COLORS["missed"])


def _with_objects(
    panel: np.ndarray, objects: np.ndarray, comparison: Comparison, *, scale: float, color: Color | None = None
) -> np.ndarray:
    """Return the panel with labeled objects, by their rows; default of `color`: those of the classes."""
    x, y, width, height = scale * comparison.object_boxes[objects].T
    return draw_detections(
        panel,
        np.stack([y, x, y + height, x + width], axis=-1),
        classes=comparison.objects.classes[objects],
        names=comparison.names,
        colors=color and [color] * len(objects),
    )


def write_result_page(
    path: Path,
    records: list[str],
    detections: Path,
    *,
    measures: Mapping[str, Any],
    measured_on: str,
    log: Path,
    advice: Sequence[str],
    commands: str,
    pages: Mapping[str, str],
) -> None:
    """Write the page of a training and its evaluation: images, AP, what to do next, curves, and links.

    Args:
        path: the page.
        records: files of the evaluated images.
        detections: their detections in COCO's results format.
        measures: content of the JSON file of an evaluation.
        measured_on: name of the split.
        log: log of the training.
        advice: sentences that precede those about the detector.
        commands: what a user may run next.
        pages: address of each further page by its title.
    """
    index, names = index_records(tuple(records)), class_names_of_records(records)
    assert names is not None, "records of a quick start name their classes"
    evaluator = read_evaluator(index, names, json_file=None)
    rows = read_results(str(detections), index, evaluator.ground_truth, names)
    analysis = ErrorAnalysis(comparison=evaluator.compare(rows))
    worst = worst_images([analysis], _WORST_SHOWN)
    others = np.setdiff1d(np.arange(len(analysis.comparison.image_ids)), worst)
    chosen = np.append(worst, others[:: -(-len(others) // (_SHOWN - len(worst))) or 1])
    number_of = {image_id: number for number, image_id in enumerate(rows.evaluated_ids.tolist())}
    plots = error_plots([("", analysis, rows)], index, number_of=number_of, chosen=chosen, with_labels=True)
    interval = interval_note(measures, "AP")
    lead = (
        f"Measured on {measures['images']:,} {measured_on} images with "
        f"{sum(measures['class_objects'].values()):,} objects. {_INTERVALS if interval else ''}"
    )
    explained = (
        f"Left: the labels. Right: detections above the score with the best F1, and missed objects. The first "
        f"{len(worst)} images have the most errors. Click an image to enlarge it."
    )
    images = paragraph(explained) + legend({name: f"rgb{COLORS[kind]}" for kind, name in COLOR_NAMES.items()})
    steps = [("note", line) for line in [*advice, *_next_steps(analysis, measures)]]
    sections = {
        "Next steps": notices(steps) + command(commands),
        "Training curves": training_charts(read_curves(log)),
        "Further pages": links(pages),
    }
    figure = f"AP {_shown(measures['AP'])}{interval}, AP50 {_shown(measures['AP50'])}"
    notes = images + image_row(plots)
    html = page("Detector of the quick start", sections, figure=figure, lead=lead, notes=notes)
    write_texts(path.parent, {path.name: html})


def _next_steps(analysis: ErrorAnalysis, measures: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about what the detector is good for, and which images to label."""
    best = analysis.threshold
    yield (
        f"At a score of {best.score:.2f} the detector finds {best.recall:.0%} of the objects, and {best.precision:.0%} "
        f"of its detections are correct: {_USABLE if best.f1 >= _USABLE_F1 else _NOT_YET}."
        if best.f1
        else "No detection is correct: train longer, and check the labels."
    )
    weakest = _by_ap(analysis)[:_WEAKEST_SHOWN]
    if len(measures["class_ap"]) > 1 and weakest:
        names = [analysis.comparison.names[k] for k in weakest]
        listed = ", ".join(f"{name} (AP {measures['class_ap'][name]:.2f})" for name in names)
        yield f"Label more images with the weakest classes: {listed}."
