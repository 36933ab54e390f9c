"""The reference of a detector: statistics of labeled images, and its AP on them, unchanged and changed in many ways."""

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import encode_image
from dataset.records.record_index import index_records
from efficientdet.configuration.flag_paths import class_names_for
from efficientdet.inference.detect import Detector
from efficientdet.plugins.monitor.estimates import as_jpeg, detection_statistics, image_statistics, window_statistics
from efficientdet.reports.drawing import resized
from object_detection.coco.bootstrap import multiplicities, resampled
from object_detection.coco.evaluation import CocoEvaluator, GroundTruth
from object_detection.coco.matching import Comparison
from object_detection.coco.results import DetectionRows
from object_detection.coco.score_calibration import ScoreMap, fitted_map
from program_support.atomic_files import report_write_errors, write_bytes
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError

SHOWN = 20  # images on the page, of the reference and of the window
_FEWEST_IMAGES, _MOST_IMAGES = 10, 60
_LEAST_AP = 0.01
_LONGER_SIDE, _QUALITY = 160, 70  # of a stored image
_LEAST_VISIBLE = 0.4  # share of an object's area, below which it is not expected to be found
_RESAMPLES = 200

Change = Callable[[np.ndarray], np.ndarray]


def _scaled(image: np.ndarray, factor: float | tuple[float, ...]) -> np.ndarray:
    return np.clip(image * np.array(factor), 0, 255).astype(np.uint8)


def _contrast(image: np.ndarray, factor: float) -> np.ndarray:
    mean = image.mean()
    return np.clip((image - mean) * factor + mean, 0, 255).astype(np.uint8)


def _noise(image: np.ndarray, deviation: float) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, deviation, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def _coarse(image: np.ndarray, factor: float) -> np.ndarray:
    height, width = image.shape[:2]
    small = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    return cv2.resize(small, (width, height))


def _zoomed(image: np.ndarray, factor: float) -> np.ndarray:
    """Return the image enlarged about its center, or reduced before its mean color."""
    height, width = image.shape[:2]
    matrix = np.array([[factor, 0, (1 - factor) * width / 2], [0, factor, (1 - factor) * height / 2]])
    mode = cv2.INTER_LINEAR if factor > 1 else cv2.INTER_AREA
    return cv2.warpAffine(image, matrix, (width, height), flags=mode, borderValue=image.mean(axis=(0, 1)).tolist())


_CHANGES: tuple[tuple[str, Callable[..., np.ndarray], tuple], ...] = (
    ("dark", _scaled, (0.75, 0.5, 0.3, 0.15)),
    ("bright", _scaled, (1.25, 1.6, 2.2)),
    ("contrast", _contrast, (0.7, 0.4, 0.2, 0.1)),
    ("blur", lambda image, sigma: cv2.GaussianBlur(image, (0, 0), sigma), (1, 2, 4, 7)),
    ("noise", _noise, (12, 30, 60, 100)),
    ("jpeg", as_jpeg, (25, 8, 3)),
    ("resolution", _coarse, (0.5, 0.25, 0.12)),
    ("color", _scaled, ((1.2, 1, 0.7), (0.6, 0.9, 1.2))),
    ("smaller", _zoomed, (0.7, 0.45)),
    ("larger", _zoomed, (1.5, 2.2)),
)


class Reference(NamedTuple):
    """Statistics of n labeled images, and of C evaluations, the first of unchanged images."""

    images: np.ndarray  # [n, 7 + K] statistics of `image_statistics` and `detection_statistics`
    windows: np.ndarray  # [C, 8] of `window_statistics`
    measures: np.ndarray  # [C, 3] of MEASURES
    kinds: np.ndarray  # [C] of the changes
    spread: np.ndarray  # [3] standard deviations of the measures of one image
    objects: np.ndarray  # labels of an image
    score_map: np.ndarray  # [3] of the `ScoreMap` from scores to probabilities
    shown: np.ndarray  # bytes of JPEGs, one after another
    shown_sizes: np.ndarray  # number of bytes of each
    model: np.ndarray  # its checksum


class Seen(NamedTuple):
    """An image as the detector saw it, without its pixels."""

    of_image: list[float]  # `image_statistics`
    size: tuple[int, ...]  # height, width
    rows: DetectionRows


def seen_image(image: np.ndarray, rows: DetectionRows) -> Seen:
    """Return what is kept of an image [h, w, 3] and its detections."""
    return Seen(image_statistics(image), image.shape[:2], rows)


def statistics(seen: Sequence[Seen], class_names: ClassNames, score_map: ScoreMap) -> np.ndarray:
    """Return the statistics of n images, [n, 7 + K] float32: equal ones, as of gray images, must stay equal."""
    ids = np.array(class_names.category_ids)

    def of_detections(one: Seen) -> list[float]:
        sides = np.maximum(one.rows.boxes[:, 2:] - one.rows.boxes[:, :2], 0).astype(np.float64)
        sizes = np.sqrt(sides.prod(axis=1) / np.prod(one.size))
        classes = np.searchsorted(ids, one.rows.category_ids)
        return detection_statistics(score_map(one.rows.scores), sizes, classes, num_classes=len(ids))

    return np.array([one.of_image + of_detections(one) for one in seen], np.float32)


def reference_path(model: str) -> Path:
    """Return the file of the reference beside a model."""
    return Path(f"{model.rstrip('/')}.monitor.npz")


def read_reference(model: str) -> Reference:
    """Return the reference of the model at a path.

    Raises:
        InputError: there is none, or it is of another model.
    """
    path = reference_path(model)
    make = "make one from labeled records that it was not trained on: --reference='records/val-*'"
    if not path.exists():
        raise InputError(f"--model={model}: has no reference; {make}")
    try:
        stored = np.load(io.BytesIO(path.read_bytes()))
        reference = Reference(*(stored[name] for name in Reference._fields))
    except Exception as error:  # zipfile, zlib and NumPy raise many types
        raise InputError(f"{path}: is damaged or of an earlier version ({error}); {make}") from error
    if str(reference.model) != _checksum(model):
        raise InputError(f"{path}: is the reference of another model than {model}, such as an earlier training; {make}")
    return reference


def make_reference(model: str, detector: Detector, records: Sequence[str]) -> None:
    """Evaluate a detector on labeled images, unchanged and changed, and store its reference beside it.

    Raises:
        InputError: there are too few images, or the detector finds nothing in them.
    """
    reference = _measured(model, detector, records)
    content = io.BytesIO()
    np.savez_compressed(content, **reference._asdict())
    path = reference_path(model)
    with claimed_outputs(path), report_write_errors(path):
        write_bytes(path, content.getvalue())
    print(
        f"wrote {path}: AP {reference.measures[0, 0]:.4f} on {len(reference.images)} images, "
        f"{len(reference.kinds)} evaluations"
    )


def _measured(model: str, detector: Detector, records: Sequence[str]) -> Reference:
    from dataset.input.pipeline import original_images  # these import TensorFlow, which a server need not have
    from efficientdet.evaluation.data_set_evaluator import read_evaluator, rows_of_detector

    index = index_records(records)
    is_used = np.zeros(len(index), bool)
    is_used[np.linspace(0, len(index) - 1, _MOST_IMAGES).astype(int)] = True  # neighbors in a file may be alike
    index, samples = index.only(is_used), int(is_used.sum())
    class_names = class_names_for(tuple(records), json_file=None, json_flag=None)
    evaluator = read_evaluator(index, class_names, json_file=None)
    if samples < _FEWEST_IMAGES:
        raise InputError(f"{records[0]}: {samples} images; expected at least {_FEWEST_IMAGES} labeled ones")

    def evaluated(factor: float = 1.0, change: Change = lambda image: image):
        """Return the comparison with the labels, the measures, and each image as it was seen; factor: of a zoom."""
        seen: list[Seen] = []

        def detect(images: list[np.ndarray]) -> list[DetectionRows]:
            changed = change(images[0])
            [rows] = detector.detect([changed])
            seen.append(seen_image(changed, rows))
            center = np.tile(np.array(changed.shape[:2]) / 2, 2)
            return [rows._replace(boxes=((rows.boxes - center) / factor + center).astype(np.float32))]

        rows = rows_of_detector(replace(detector, detect=detect), model, index, class_names, samples=0)
        judge = evaluator if factor <= 1 else CocoEvaluator(_visible(evaluator.ground_truth, factor))
        comparison = judge.compare(rows)
        ap = judge.evaluate(rows, comparison=comparison).numbers["AP"]
        return comparison, [ap, *precision_and_recall(counts_of_images(comparison, detector).sum(axis=0))], seen

    clean, of_clean, seen = evaluated()
    if of_clean[0] < _LEAST_AP:
        raise InputError(
            f"--model={model}: AP {of_clean[0]:.4f} on {records[0]}; expected at least {_LEAST_AP} to estimate AP"
        )
    counted = clean.outcomes.counted
    score_map = fitted_map(clean.scores[counted].astype(np.float64), clean.outcomes.right[counted])
    objects, images = float(clean.class_counts.sum()) / samples, statistics(seen, class_names, score_map)
    shown = [
        encode_image(resized(image.pixels, longer_side=_LONGER_SIDE), "JPEG", quality=_QUALITY)
        for image in original_images(index, np.unique(np.linspace(0, samples - 1, SHOWN).astype(int)).tolist())
    ]
    weights = multiplicities(samples, _RESAMPLES)
    counts = weights @ counts_of_images(clean, detector)
    resamples = [resampled(clean, weights).numbers[0], *precision_and_recall(counts)]
    kinds, measures, windows = ["none"], [of_clean], [window_statistics(images.mean(axis=0), objects)]
    for kind, factor, change in _changes():
        _, of_changed, seen = evaluated(factor, change)
        means = statistics(seen, class_names, score_map).mean(axis=0)
        kinds, measures = [*kinds, kind], [*measures, of_changed]
        windows.append(window_statistics(means, objects))
    return Reference(
        images,
        np.array(windows),
        np.maximum(measures, 0),
        np.array(kinds),
        spread=np.nanstd(resamples, axis=1) * np.sqrt(samples),
        objects=np.array(objects),
        score_map=np.array(score_map),
        shown=np.frombuffer(b"".join(shown), np.uint8),
        shown_sizes=np.array([*map(len, shown)]),
        model=np.array(_checksum(model)),
    )


def counts_of_images(comparison: Comparison, detector: Detector) -> np.ndarray:
    """Return correct detections, detections and objects of n images, [n, 3], at the detector's score thresholds."""
    ids = detector.class_names.by_name()
    thresholds = detector.thresholds.of(np.array([ids[name] for name in comparison.names]))
    reaches = comparison.outcomes.counted & (comparison.scores >= thresholds[comparison.detections.classes])
    images, of_objects = comparison.detections.images, comparison.objects.images[~comparison.flags.ignored]
    counted = images[reaches & comparison.outcomes.right], images[reaches], of_objects
    return np.stack([np.bincount(numbers, minlength=len(comparison.image_ids)) for numbers in counted], axis=1)


def precision_and_recall(counts: np.ndarray) -> np.ndarray:
    """Return both [2, ...] from sums [..., 3] of `counts_of_images`; 0 without detections or objects."""
    return counts[..., 0] / np.maximum(np.moveaxis(counts[..., 1:], -1, 0), 1)


def _changes() -> Iterator[tuple[str, float, Change]]:
    """Yield kind, zoom factor and function of each change of an image."""
    for kind, function, levels in _CHANGES:
        for level in levels:
            yield kind, level if function is _zoomed else 1.0, partial(_changed, function, level)


def _changed(function: Callable[..., np.ndarray], level: object, image: np.ndarray) -> np.ndarray:
    return function(image, level)


def _visible(truth: GroundTruth, factor: float) -> GroundTruth:
    """Return the labels that remain in enlarged images, cut off at their borders; in pixels of the original images."""
    annotations = []
    for annotation in truth.annotations:
        height, width = truth.image_sizes[annotation["image_id"]] or (0, 0)
        margins = np.array([width, height]) * (1 - 1 / factor) / 2
        low, size = np.array(annotation["bbox"]).reshape(2, 2)
        first, last = np.maximum(low, margins), np.minimum(low + size, [width, height] - margins)
        left = np.maximum(last - first, 0)
        if left.prod() > _LEAST_VISIBLE * size.prod():
            annotations.append({**annotation, "bbox": [*first.tolist(), *left.tolist()], "area": float(left.prod())})
    return replace(truth, annotations=tuple(annotations))


def _checksum(model: str) -> str:
    """Return the SHA-256 of an exported file, of a checkpoint's index or of a SavedModel's graph."""
    files = filter(os.path.isfile, (model, f"{model}.index", f"{model}/saved_model.pb"))
    return hashlib.sha256(Path(next(files)).read_bytes()).hexdigest()
