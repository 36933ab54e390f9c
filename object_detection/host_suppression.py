"""Candidates and suppression in NumPy: what `object_detection.suppression` finds, for networks run by another runtime.

An image's loop looks at its best candidates first. Scores only fall, so once the last detection scores more than the best
candidate left out, the others could not have changed anything; where that is not so, all candidates take part.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from object_detection.structures import Detections
from object_detection.suppression import SuppressionConfig

_FIRST_CANDIDATES = 600
_SMALLEST = np.float32(1e-30)


class NetworkOutputs(NamedTuple):
    """Of one image."""

    class_logits: np.ndarray  # [A, K] float32
    box_deltas: np.ndarray  # [A, 4] float32
    best_logits: np.ndarray  # [A] float32, the highest of each anchor


def detections_on_host(outputs: NetworkOutputs, anchors: np.ndarray, *, config: SuppressionConfig) -> Detections:
    """Of one image, anchors [A, 4] float32: Detections of arrays with D = max_detections and without B."""
    logits, deltas, best_of_anchor = outputs
    for count in (min(_FIRST_CANDIDATES, config.candidates), config.candidates):
        scores, classes, numbers = _top_candidates(logits, best_of_anchor, count)
        boxes = _decoded(deltas[numbers], anchors[numbers])
        chosen, chosen_scores = _suppress(boxes, scores, classes, config)
        enough = len(chosen) == config.max_detections and chosen_scores[-1] > scores[-1]
        if enough or scores[-1] <= config.score_threshold or len(scores) < count:
            break
    slots, found = config.max_detections, len(chosen)

    def in_slots(values):
        padded = np.zeros((slots, *values.shape[1:]), values.dtype)
        padded[:found] = values
        return padded

    return Detections(in_slots(boxes[chosen]), in_slots(chosen_scores), in_slots(classes[chosen]), np.arange(slots) < found)


def stacked(images: Sequence[Detections]) -> Detections:
    """Those of B images as one batch."""
    return Detections(*map(np.stack, zip(*images, strict=True)))


def _top_candidates(logits, best_of_anchor, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, classes and anchors of the highest of all anchor x class scores, best first; see `top_candidates` there."""
    kept = np.sort(_top(best_of_anchor, count))
    flat = logits[kept].ravel()
    # The best of each kept anchor are as many scores already: those below all of them are not looked at again.
    places = np.flatnonzero(flat >= best_of_anchor[kept].min()) if len(kept) == count else np.arange(len(flat))
    order = places[_top(flat[places], count)]
    anchors, classes = np.divmod(order, logits.shape[1])
    with np.errstate(over="ignore"):
        scores = np.float32(1) / (np.float32(1) + np.exp(-flat[order]))
    return scores, classes.astype(np.int32), kept[anchors]


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the highest values, highest first, of equal ones the first place first."""
    places = np.arange(len(values))
    if count < len(values):
        last = np.partition(values, len(values) - count)[len(values) - count]
        above, ties = np.flatnonzero(values > last), np.flatnonzero(values == last)
        places = np.sort(np.concatenate([above, ties[: count - len(above)]]))
    return places[np.argsort(-values[places], kind="stable")]


def _decoded(deltas, anchors) -> np.ndarray:
    """See `decode_boxes`, which the tests hold it to."""
    sides = anchors[:, 2:] - anchors[:, :2]
    centres = deltas[:, :2] * sides + (anchors[:, :2] + anchors[:, 2:]) / 2
    with np.errstate(over="ignore"):
        halves = np.exp(deltas[:, 2:]) * sides / 2
    return np.concatenate([centres - halves, centres + halves], axis=1)


def _suppress(boxes, scores, classes, config: SuppressionConfig) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the selected boxes in the order of selection, and their scores then."""
    remaining = np.where(scores > config.score_threshold, scores, np.float32(0))
    top, left, bottom, right = (np.ascontiguousarray(side) for side in boxes.T)
    bottom, right = bottom + np.float32(config.iou_pixel_offset), right + np.float32(config.iou_pixel_offset)
    with np.errstate(over="ignore"):  # boxes of a detector that has learnt nothing
        areas = np.maximum(bottom - top, 0) * np.maximum(right - left, 0)
    groups = [np.flatnonzero(classes == k) for k in range(classes.max() + 1)] if config.per_class else None
    chosen, chosen_scores = [], []
    for _ in range(config.max_detections):
        best = int(remaining.argmax())
        if remaining[best] <= 0:
            break
        chosen.append(best)
        chosen_scores.append(remaining[best])
        rivals = groups[classes[best]] if groups else slice(None)
        height = np.minimum(bottom[rivals], bottom[best]) - np.maximum(top[rivals], top[best])
        width = np.minimum(right[rivals], right[best]) - np.maximum(left[rivals], left[best])
        intersection = np.maximum(height, 0) * np.maximum(width, 0)
        union = areas[rivals] + areas[best] - intersection
        overlap = intersection / np.maximum(union, _SMALLEST)  # an empty box has no intersection
        if config.method == "gaussian":
            kept = remaining[rivals] * np.exp(np.square(overlap) * np.float32(-1 / config.sigma))
        else:
            kept = remaining[rivals] * (overlap <= config.iou_threshold)
        remaining[rivals] = np.where(kept > config.score_threshold, kept, 0)
        remaining[best] = 0
    return np.array(chosen, np.int64), np.array(chosen_scores, np.float32)
