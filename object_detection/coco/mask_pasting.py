"""Pasting of masks, predicted within boxes, into the images of the boxes."""

from collections.abc import Iterator

import numpy as np

THRESHOLD = 0.5  # probability above which a pixel shows the object


def pasted_masks(
    masks: np.ndarray,
    boxes: np.ndarray,
    *,
    size: tuple[int, int],
    threshold: float = THRESHOLD,
    in_whole_pixels: bool = False,
) -> Iterator[np.ndarray]:
    """Yield each mask in an image of `size`, [h, w] bool; one at a time, because a hundred masks of a photo take 1 GB.

    A pixel is interpolated bilinearly between the centers of cells, at its own center. Beyond the outermost centers the
    probability is constant, so that a mask of ones covers the pixels whose centers lie in the box.

    Args:
        masks: [N, S, S], probabilities in the S x S cells of each box.
        boxes: [N, 4] yxyx in pixels of that image; they may extend beyond its border.
        size: height and width of the image.
        threshold: probability above which a pixel belongs to the object.
        in_whole_pixels: as torchvision and Detectron paste. The mask gets a border of zeros, one cell wide, and the
            enlarged box is rounded to integer pixels and begins and ends at pixel centers (the legacy of boxes in
            integer pixels whose width is x_max - x_min + 1).
    """
    masks, boxes = np.asarray(masks, np.float32), np.asarray(boxes).reshape(-1, 4)
    if in_whole_pixels:
        masks, boxes = _bordered(masks, boxes)
    for mask, box in zip(masks, boxes.astype(np.float64), strict=True):
        pasted = np.zeros(size, bool)
        rows, row_weights = _weights(box[0], box[2], length=size[0], cells=mask.shape[0])
        columns, column_weights = _weights(box[1], box[3], length=size[1], cells=mask.shape[1])
        pasted[rows, columns] = row_weights @ mask @ column_weights.T > threshold
        yield pasted


def _bordered(masks: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return masks [N, S, S] with a border of zeros, and their boxes, enlarged by it, in integer pixels."""
    boxes, cells = boxes.astype(np.float32), masks.shape[-1]  # float32 as in the references, for the same truncation
    low, high = boxes[:, :2], boxes[:, 2:]
    centers, halves = (high + low) * 0.5, (high - low) * 0.5 * ((cells + 2) / cells)
    first, last = np.trunc(centers - halves), np.trunc(centers + halves)
    return np.pad(masks, ((0, 0), (1, 1), (1, 1))), np.concatenate([first, np.maximum(last, first) + 1], axis=1)


def _weights(low: float, high: float, *, length: int, cells: int) -> tuple[slice, np.ndarray]:
    """Return the pixels with their center between `low` and `high`, and the weight of each cell in each pixel.

    -> slice of n of `length` pixels, [n, cells] float32 with rows that sum to 1.
    """
    first, end = (int(np.clip(np.ceil(edge - 0.5), 0, length)) for edge in (low, high))
    middles = np.arange(first, max(end, first)) + 0.5
    places = np.clip((middles - low) * (cells / max(high - low, 1e-9)) - 0.5, 0, cells - 1)
    weights = np.maximum(1.0 - np.abs(places[:, None] - np.arange(cells)), 0.0)
    return slice(first, max(end, first)), weights.astype(np.float32)
