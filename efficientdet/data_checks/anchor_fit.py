"""Anchor fit: the IoU of each object with its best anchor, computed from the grid of anchors."""

import numpy as np

from object_detection.geometry.anchor_grid import AnchorGrid

ENOUGH = 0.5  # IoU from which an anchor counts as a match
_VIEWS = 7  # training scales that are evaluated
_AT_ONCE = 20_000  # objects per chunk, to limit memory


def best_overlaps(boxes: np.ndarray, grid: AnchorGrid) -> np.ndarray:
    """Return the largest IoU of each box [N, 4] (yxyx, pixels of the input) with any anchor, [N] float32.

    On a grid it is reached by the anchor of the nearest row and column, because the overlap decreases with the
    distance.
    """
    best = np.zeros(len(boxes), np.float32)
    for begin in range(0, len(boxes), _AT_ONCE):
        part = np.asarray(boxes[begin : begin + _AT_ONCE], np.float32)
        best[begin : begin + _AT_ONCE] = _best_overlaps(part, grid)
    return best


def _best_overlaps(boxes: np.ndarray, grid: AnchorGrid) -> np.ndarray:
    sides, centers = boxes[:, 2:] - boxes[:, :2], (boxes[:, :2] + boxes[:, 2:]) / 2
    common = _common_length(sides, centers, grid, axis=0) * _common_length(sides, centers, grid, axis=1)  # [G, N]
    areas = sides.prod(axis=1) + grid.sides.prod(axis=0)[:, None]
    return (common / np.maximum(areas - common, 1e-9)).max(axis=0)


def _common_length(sides: np.ndarray, centers: np.ndarray, grid: AnchorGrid, *, axis: int) -> np.ndarray:
    """Return the length that each box shares with the nearest anchor of each lattice along an axis, [G, N]."""
    first, stride, anchor, count = (
        values[axis][:, None] for values in (grid.centers, grid.strides, grid.sides, grid.counts)
    )
    side, position = sides[:, axis], (centers[:, axis] - first) / stride
    distance = stride * np.abs(position - np.clip(np.round(position), 0, count - 1))
    return np.clip(np.minimum((side + anchor) / 2 - distance, np.minimum(side, anchor)), 0, None)


def overlaps_in_training(
    boxes: np.ndarray, grid: AnchorGrid, *, image_size: tuple[int, int], scales: tuple[float, float]
) -> np.ndarray:
    """Return the largest IoU of each box at the scales (lowest, highest) of scale jitter: [views, N].

    Boxes that a crop moves outside the input are moved back inside; truncation by the crop is ignored.
    """
    least, most = scales
    if least == most == 1.0:
        return best_overlaps(boxes, grid)[None]
    views = []
    for scale in least + (most - least) * (np.arange(_VIEWS) + 0.5) / _VIEWS:
        centers = (boxes[:, :2] + boxes[:, 2:]) / 2 * scale % np.array(image_size, np.float32)
        half_sides = (boxes[:, 2:] - boxes[:, :2]) / 2 * scale
        views.append(best_overlaps(np.concatenate([centers - half_sides, centers + half_sides], axis=1), grid))
    return np.stack(views)
