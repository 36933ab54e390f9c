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
        yield _caption(image.name, errors, analysis), _drawn(errors, analysis, rows, image.pixels)


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


def _drawn(errors: ImageErrors, analysis: ErrorAnalysis, rows: DetectionRows, image: np.ndarray) -> np.ndarray:
    """Draw the objects on the left and the detections on the right."""
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
    return np.concatenate([left, np.full((shown.shape[0], _GAP, 3), 255, np.uint8), right], axis=1)
