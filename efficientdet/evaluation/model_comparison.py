"""Detectors compared on the images of the same records: detections, paired differences, page and JSON."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.evaluation.comparison_page import ComparedModel, comparison_page
from efficientdet.evaluation.data_set_evaluator import read_evaluator
from efficientdet.evaluation.error_plots import compared_errors
from efficientdet.evaluation.other_detections import OtherDetections
from efficientdet.inference.detect import Detector
from efficientdet.options.evaluate import CompareOptions
from object_detection.coco.bootstrap import PairedDifferences, multiplicities, paired_differences, resampled
from object_detection.coco.error_analysis import ErrorAnalysis
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.ground_truth import GroundTruth
from object_detection.coco.measures import shown_measure
from object_detection.coco.results import DetectionRows
from program_support.atomic_files import report_write_errors, write_text
from program_support.checked_fields import checked
from program_support.errors import InputError
from program_support.file_patterns import paths_beginning_with

_DRAWN_IMAGES = 12


@checked
class ComparisonConfig(CompareOptions):
    """Options of a comparison with resolved records."""

    records: tuple[str, ...]
    class_names: ClassNames
    open_detector: Callable[[str], Detector]


@dataclass(frozen=True, kw_only=True)
class ComparedModels:
    """All detectors, and the differences of each from the first."""

    models: list[ComparedModel]
    pairs: list[PairedDifferences]
    resamples: int

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dump`."""
        return {
            "images": self.models[0].measures.images,
            "resamples": self.resamples,
            "models": [{"name": one.name, "cost": one.cost, "measures": one.measures.to_json()} for one in self.models],
            "differences": [pair.to_json() for pair in self.pairs],
        }

    def lines(self) -> Iterator[str]:
        """Yield a table for each pair."""
        first = self.models[0]
        for other, pair in zip(self.models[1:], self.pairs, strict=True):
            yield f"\n{first.name} -> {other.name}: {first.measures.images} images, {self.resamples} resamples"
            yield f"{'':<9}{'first':>8}{'second':>9}{'change':>9}  {'95 % interval':<20}P(second is better)"
            for name, one in pair.numbers.items():
                yield (
                    f"{name:<9}{shown_measure(first.measures.numbers[name]):>8}"
                    f"{shown_measure(other.measures.numbers[name]):>9}{one.value:>+9.4f}  "
                    f"{f'{one.low:+.4f} to {one.high:+.4f}':<20}{one.probability:>6.1%}  {one.verdict}"
                )


@dataclass
class _Timed:
    """Opens a detector and records the milliseconds of each image."""

    path: str
    open_detector: Callable[[str], Detector]
    milliseconds: list[float] = field(default_factory=list)
    class_names: tuple[str, ...] | None = None  # of the opened detector
    multiply_adds: int | None = None

    def load(self) -> Detector:
        detector = self.open_detector(self.path)
        self.class_names = detector.class_names.names
        self.multiply_adds = detector.multiply_adds and detector.multiply_adds()

        def detect(images: list[np.ndarray]) -> list[DetectionRows]:
            start = time.perf_counter()
            rows = detector.detect(images)
            self.milliseconds.append(1e3 * (time.perf_counter() - start))
            return rows

        return replace(detector, detect=detect)

    @cached_property
    def cost(self) -> dict[str, float]:
        timed = self.milliseconds[1:] or self.milliseconds  # the first compiles
        cost = {"milliseconds per image": round(float(np.median(timed)), 2), "bytes": _bytes(self.path)}
        return cost if self.multiply_adds is None else {**cost, "multiply-adds per image": self.multiply_adds}


def _bytes(path: str) -> int:
    """Return the size of a file, of the files of a checkpoint, or of a folder."""
    folder = Path(path)
    files = (
        folder.rglob("*") if folder.is_dir() else map(Path, [path] if folder.is_file() else paths_beginning_with(path))
    )
    return sum(file.stat().st_size for file in files if file.is_file())


def compare_models(config: ComparisonConfig) -> ComparedModels:
    """Detect with each model, print the differences, and write compare.html and compare.json.

    Raises:
        InputError: for other classes, detections of other images, a single image, and images without objects.
    """
    index = index_records(config.records)
    evaluator = read_evaluator(index, config.class_names, json_file=config.val_json_file)
    _require_comparable(evaluator, index, config)
    detected = [_detected(path, evaluator.ground_truth, index, config) for path in config.models]
    if config.common_classes:
        evaluator = CocoEvaluator(_with_common_classes(evaluator.ground_truth, [one for one, _ in detected]))
        _require_comparable(evaluator, index, config)
    models = [
        ComparedModel(
            name=timed.path,
            rows=rows,
            measures=evaluator.evaluate(rows, resamples=config.bootstrap),
            analysis=ErrorAnalysis(comparison=evaluator.compare(rows)),
            cost=timed.cost if timed.milliseconds else {},
        )
        for timed, rows in detected
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
    compared = ComparedModels(models=models, pairs=pairs, resamples=config.bootstrap)
    for line in compared.lines():
        print(line)
    assert config.output_dir is not None
    plots = compared_errors(
        [one.analysis for one in models],
        [one.rows for one in models],
        [one.name for one in models],
        index,
        count=_DRAWN_IMAGES,
    )
    page = comparison_page(models, pairs, plots)
    for name, text in (("compare.json", json.dumps(compared.to_json(), indent=1) + "\n"), ("compare.html", page)):
        with report_write_errors(path := Path(config.output_dir, name)):
            write_text(path, text)
    print(f"\npage: {Path(config.output_dir, 'compare.html')}")
    return compared


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
) -> tuple[_Timed, DetectionRows]:
    timed = _Timed(path, config.open_detector)
    is_file = path.endswith(".json")
    others = OtherDetections(
        path=path,
        kind="results" if is_file else "exported file",
        load=None if is_file else timed.load,
        may_differ=config.common_classes,
    )
    print(f"detections of {path}")
    rows = others.rows(index, truth, class_names=config.class_names, samples=config.eval_samples)
    if is_file and (empty := len(rows.evaluated_ids) - len(np.unique(rows.image_ids))):
        print(f"{path}: no detection in {empty} of {len(rows.evaluated_ids)} images; were they evaluated?")
    return timed, rows._replace(masks=None)


def _with_common_classes(truth: GroundTruth, detectors: list[_Timed]) -> GroundTruth:
    """Return the ground truth of the classes that all detectors have.

    Raises:
        InputError: there are none.
    """
    named = [set(one.class_names) for one in detectors if one.class_names is not None]
    categories = {number: name for number, name in truth.categories.items() if all(name in names for names in named)}
    if not categories:
        raise InputError(
            f"{truth.source}: none of the classes {', '.join(truth.categories.values())} is one of all detectors"
        )
    if left_out := [name for number, name in truth.categories.items() if number not in categories]:
        print(f"left out, because not all detectors have them: {', '.join(left_out)}")
    annotations = tuple(one for one in truth.annotations if one["category_id"] in categories)
    return replace(truth, categories=categories, annotations=annotations)
