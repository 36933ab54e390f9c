"""Detectors compared on the images of the same records: detections, paired differences, page and JSON."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataset.class_names import ClassNames
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.evaluation.data_set_evaluator import read_evaluator, read_results, rows_of_detector
from efficientdet.evaluation.evaluation_report import COLOR_NAMES, COLORS, error_plots, worst_images
from efficientdet.inference.detect import Detector
from efficientdet.options.evaluate import CompareOptions
from efficientdet.reports.html_page import Heat, collapsible, image_row, legend, page, paragraph, table
from object_detection.coco.bootstrap import Difference, PairedDifferences, multiplicities, paired_differences, resampled
from object_detection.coco.error_analysis import ErrorAnalysis
from object_detection.coco.evaluation import CocoEvaluator, GroundTruth
from object_detection.coco.measures import CocoMeasures, shown_measure
from object_detection.coco.results import DetectionRows
from program_support.atomic_files import write_texts
from program_support.checked_fields import checked
from program_support.errors import InputError

_DRAWN_IMAGES = 12
_LEAD = (
    "All detectors are measured on the same images, and differences on the same resamples of them, so that images that "
    "are hard for all do not widen the 95 % intervals. An interval that excludes 0 shows a difference on images of "
    "this kind; it says nothing about another training with another seed."
)


@checked
class ComparisonConfig(CompareOptions):
    """Options of a comparison with resolved records."""

    records: tuple[str, ...]
    class_names: ClassNames
    open_detector: Callable[[str], Detector]


class ComparedModel(NamedTuple):
    """A detector's detections on the common images."""

    name: str
    rows: DetectionRows
    measures: CocoMeasures
    analysis: ErrorAnalysis
    cost: dict[str, float]  # "milliseconds per image" (median, detection alone); {} for results


def _print_differences(first: ComparedModel, other: ComparedModel, pair: PairedDifferences, *, resamples: int) -> None:
    print(f"\n{pair.name}: {first.measures.images} images, {resamples} resamples")
    print(f"{'':<9}{'first':>8}{'second':>9}{'change':>9}  {'95 % interval':<20}P(second is better)")
    for name, one in pair.numbers.items():
        print(
            f"{name:<9}{shown_measure(first.measures.numbers[name]):>8}"
            f"{shown_measure(other.measures.numbers[name]):>9}{one.value:>+9.4f}  "
            f"{f'{one.low:+.4f} to {one.high:+.4f}':<20}{one.probability:>6.1%}  {one.verdict}"
        )


def compare_models(config: ComparisonConfig) -> tuple[list[ComparedModel], list[PairedDifferences]]:
    """Detect with each model, print and return the differences from the first, write compare.html and compare.json.

    Raises:
        InputError: for other classes, detections of other images, a single image, and images without objects.
    """
    index = index_records(config.records)
    evaluator = read_evaluator(index, config.class_names, json_file=config.val_json_file)
    _require_comparable(evaluator, index, config)
    detected = [_detected(path, evaluator.ground_truth, index, config) for path in config.models]
    if config.common_classes:
        evaluator = CocoEvaluator(_with_common_classes(evaluator.ground_truth, [names for _, names, _ in detected]))
        _require_comparable(evaluator, index, config)
    models = [
        ComparedModel(
            name=path,
            rows=rows,
            measures=evaluator.evaluate(rows, resamples=config.bootstrap),
            analysis=ErrorAnalysis(comparison=evaluator.compare(rows)),
            cost=cost,
        )
        for path, (rows, _, cost) in zip(config.models, detected, strict=True)
    ]
    weights = multiplicities(models[0].measures.images, config.bootstrap)
    samples = [resampled(one.analysis.comparison, weights) for one in models]
    pairs = [
        paired_differences(
            f"{models[0].name} -> {other.name}",
            samples[0],
            of_other,
            classes=other.analysis.comparison.names,
            images=other.measures.images,
        )
        for other, of_other in zip(models[1:], samples[1:], strict=True)
    ]
    for other, pair in zip(models[1:], pairs, strict=True):
        _print_differences(models[0], other, pair, resamples=config.bootstrap)
    assert config.output_dir is not None
    number_of = {image_id: number for number, image_id in enumerate(models[0].rows.evaluated_ids.tolist())}
    plots = error_plots(
        [(one.name, one.analysis, one.rows) for one in models],
        index,
        number_of=number_of,
        chosen=worst_images([one.analysis for one in models], _DRAWN_IMAGES),
    )
    numbers = {
        "images": models[0].measures.images,
        "resamples": config.bootstrap,
        "models": [{"name": one.name, "cost": one.cost, "measures": one.measures.to_json()} for one in models],
        "differences": [pair.to_json() for pair in pairs],
    }
    html = comparison_page(models, pairs, plots)
    write_texts(config.output_dir, {"compare.json": json.dumps(numbers, indent=1) + "\n", "compare.html": html})
    print(f"\npage: {Path(config.output_dir, 'compare.html')}")
    return models, pairs


def _require_comparable(evaluator: CocoEvaluator, index: RecordIndex, config: ComparisonConfig) -> None:
    truth = evaluator.ground_truth
    ids = list(truth.image_sizes)
    if config.val_json_file is not None:
        ids = [image["id"] for image in ground_truth_of_records(index, config.class_names)["images"]]
    ids = ids[: config.eval_samples or None]
    if len(ids) < 2:
        raise InputError(f"a comparison needs at least two images, since one has no spread; found {len(ids)}")
    if unknown := [image_id for image_id in ids if image_id not in truth.image_sizes]:
        raise InputError(
            f"{truth.source}: {len(unknown)} of the {len(ids)} images of the records are missing, such as id "
            f"{unknown[0]}; expected the annotations of the same images"
        )
    evaluated = set(ids)
    if not any(one["image_id"] in evaluated and not one["iscrowd"] for one in truth.annotations):
        raise InputError(f"{truth.source}: no object in {len(ids)} images; expected labeled images")


def _detected(
    path: str, truth: GroundTruth, index: RecordIndex, config: ComparisonConfig
) -> tuple[DetectionRows, tuple[str, ...] | None, dict[str, float]]:
    """Return detections without masks, the classes of the detector if known, and its cost."""
    print(f"detections of {path}")
    samples = config.eval_samples
    if path.endswith(".json"):
        rows = read_results(path, index, truth, config.class_names, samples=samples)
        if empty := len(rows.evaluated_ids) - len(np.unique(rows.image_ids)):
            print(f"{path}: no detection in {empty} of {len(rows.evaluated_ids)} images; were they evaluated?")
        return rows._replace(masks=None), None, {}
    detector, milliseconds = config.open_detector(path), []

    def detect(images: list[np.ndarray]) -> list[DetectionRows]:
        start = time.perf_counter()
        rows = detector.detect(images)
        milliseconds.append(1e3 * (time.perf_counter() - start))
        return rows

    rows = rows_of_detector(
        replace(detector, detect=detect),
        path,
        index,
        config.class_names,
        samples=samples,
        may_differ=config.common_classes,
    )
    median = float(np.median(milliseconds[1:] or milliseconds))  # the first compiles
    cost = {"milliseconds per image": round(median, 2)}
    return rows._replace(masks=None), detector.class_names.names, cost


def _with_common_classes(truth: GroundTruth, class_names: list[tuple[str, ...] | None]) -> GroundTruth:
    """Return the ground truth of the classes that all detectors have.

    Raises:
        InputError: there are none.
    """
    named = [set(names) for names in class_names if names is not None]
    categories = {number: name for number, name in truth.categories.items() if all(name in names for names in named)}
    if not categories:
        raise InputError(
            f"{truth.source}: none of the classes {', '.join(truth.categories.values())} is one of all detectors"
        )
    if left_out := [name for number, name in truth.categories.items() if number not in categories]:
        print(f"left out, because not all detectors have them: {', '.join(left_out)}")
    annotations = tuple(one for one in truth.annotations if one["category_id"] in categories)
    return replace(truth, categories=categories, annotations=annotations)


def comparison_page(
    models: Sequence[ComparedModel], pairs: Sequence[PairedDifferences], plots: Iterable[tuple[str, np.ndarray]]
) -> str:
    """Return the page as HTML."""
    first, *others = models
    ap = pairs[0].numbers.get("AP")
    figure = f"AP {ap.value:+.3f} ({ap.low:+.3f} to {ap.high:+.3f})" if ap else ""
    detectors = [
        (
            one.name,
            shown_measure(one.measures.numbers["AP"]),
            one.measures.shown_interval("numbers", "AP"),
            shown_measure(one.measures.numbers["AP50"]),
            f"{one.cost['milliseconds per image']:.1f} ms" if one.cost else "",
        )
        for one in models
    ]
    titles = ("Detector", "AP", "95 % interval", "AP50", "Time per image")
    figures = image_row(plots)
    order = "From left to right: the detectors in the order of the table, each at its best thresholds."
    shown = legend({name: f"rgb{COLORS[kind]}" for kind, name in COLOR_NAMES.items()}) + paragraph(order) + figures
    sections = {
        "Detectors": table(titles, detectors),
        **{
            f"{other.name} against {first.name}": _differences(first, other, pair)
            for other, pair in zip(others, pairs, strict=True)
        },
        "Images on which they differ most": figures and shown,
    }
    objects = sum(first.measures.class_objects.values())
    lead = f"{first.measures.images:,} images, {objects:,} objects. {_LEAD}"
    return page("Comparison of detectors", sections, figure=figure, lead=lead)


def _differences(first: ComparedModel, other: ComparedModel, pair: PairedDifferences) -> str:
    def cells(one: Difference) -> tuple[Heat, str, str, str]:
        strength = abs(one.probability - 0.5) * 2 if one.verdict in ("better", "worse") else np.nan
        return (
            Heat(f"{one.value:+.4f}", strength, is_bad=one.value < 0),
            f"{one.low:+.4f} to {one.high:+.4f}",
            f"{one.probability:.1%}",
            one.verdict,
        )

    numbers = [
        (name, *(shown_measure(model.measures.numbers[name]) for model in (first, other)), *cells(one))
        for name, one in pair.numbers.items()
    ]
    by_class = [
        (name, metric, *cells(one)) for name, metrics in pair.classes.items() for metric, one in metrics.items()
    ]
    titles = ("Change", "95 % interval", "P(better)", "Verdict")
    classes = table(("Class", "Metric", *titles), by_class)
    return table(("Metric", "First", "Second", *titles), numbers) + collapsible("By class and object size", classes)
