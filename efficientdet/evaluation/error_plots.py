"""Plots of the images with the most errors for a report: objects beside detections."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dataset.input.pipeline import original_images
from dataset.records.record_index import RecordIndex
from efficientdet.reports.drawing import draw_detections, resized
from object_detection.coco.error_analysis import ErrorAnalysis, ImageErrors
from object_detection.coco.results import DetectionRows

COLORS = {"right": (44, 150, 80), "missed": (232, 150, 10), "wrong": (214, 48, 40)}  # RGB
_LONGER_SIDE = 560  # pixels of one of the two images
_GAP = 8


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
