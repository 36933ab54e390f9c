"""Masks as run lengths (RLE) of complete images, as in COCO's files and metrics, by pycocotools; masks within boxes."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from object_detection.coco.matching import Overlap

RunLengths = dict[str, Any]  # {"size": [height, width], "counts": text}, as in JSON
THRESHOLD = 0.5  # probability above which a pixel of a mask within a box shows the object
Masks = Sequence[RunLengths] | np.ndarray  # an array [N] of objects, in `DetectionRows`


def run_lengths(mask: np.ndarray) -> RunLengths:
    """Return the run lengths of a mask [h, w] that is nonzero on the object."""
    encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode("ascii")}


def pasted_run_lengths(
    masks: np.ndarray, boxes: np.ndarray, *, size: tuple[int, int], in_whole_pixels: bool = False
) -> list[RunLengths]:
    """Return run lengths in an image of `size` (height, width) of masks within boxes; see `pasted_masks`."""
    return [run_lengths(mask) for mask in pasted_masks(masks, boxes, size=size, in_whole_pixels=in_whole_pixels)]


def decoded(segmentation: RunLengths) -> np.ndarray:
    """Return the mask of run lengths, [h, w] bool."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pycocotools 2.0.11 under NumPy 2
        return coco_mask.decode(segmentation).astype(bool)


def moved(mask: RunLengths, offset: np.ndarray, *, size: tuple[int, ...]) -> RunLengths:
    """Return a mask, moved by `offset` (y, x) into an image of `size` (height, width), and cut to it."""
    inside = decoded(mask)[: size[0] - int(offset[0]), : size[1] - int(offset[1])]
    rows = np.pad(inside.astype(np.int8), ((1, 1), (0, 0)))
    columns, edges = np.nonzero(np.diff(rows, axis=0).T)  # start and end of each run, column by column
    places = (columns + int(offset[1])) * size[0] + edges + int(offset[0])
    joined = np.flatnonzero(places[1:-1:2] == places[2::2])  # runs that continue in the next column
    places = np.delete(places, np.concatenate([2 * joined + 1, 2 * joined + 2]))
    counts = np.trim_zeros(np.diff(np.concatenate([[0], places, [size[0] * size[1]]])), "b")
    runs = coco_mask.frPyObjects({"size": list(size), "counts": counts.tolist()}, *size)
    return {"size": list(size), "counts": runs["counts"].decode("ascii")}


def united(masks: Sequence[RunLengths]) -> RunLengths:
    """Return the union of the masks of one image."""
    if len(masks) == 1:
        return masks[0]
    merged = coco_mask.merge(list(masks))
    return {"size": [int(side) for side in merged["size"]], "counts": merged["counts"].decode("ascii")}


def encoded(segmentation: Any, size: tuple[int, int]) -> RunLengths:
    """Return the run lengths of a COCO segmentation, polygons or run lengths, in an image of `size` (height, width).

    pycocotools' C code does not validate its input; segmentations of untrusted files are checked by
    `dataset.conversion.segmentation` first.
    """
    if isinstance(segmentation, list):
        return coco_mask.merge(coco_mask.frPyObjects(segmentation, *size))
    return coco_mask.frPyObjects(segmentation, *size) if isinstance(segmentation["counts"], list) else segmentation


class DecodedMasks(Sequence[np.ndarray]):
    """The masks of N run lengths, [h, w] bool each, decoded on access: a hundred masks of a photo take gigabytes."""

    def __init__(self, masks: Masks):
        self._masks = masks

    def __len__(self) -> int:
        return len(self._masks)

    def __getitem__(self, number: Any) -> Any:  # an integer; slices have no user
        return decoded(self._masks[number])


def mask_bounds(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return the box (y_min, x_min, y_max, x_max) of the set pixels of [h, w]; zeros if there are none."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return 0, 0, 0, 0
    return int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1


def mask_areas(masks: Masks) -> np.ndarray:
    """Return the number of pixels of each of N masks, [N] float64."""
    return np.array([coco_mask.area(mask) for mask in masks], np.float64)


def mask_overlap(detected: Masks, annotated: Masks, crowd: np.ndarray) -> Overlap:
    """Return the IoU of the masks of detections and of objects; with a crowd as `box_overlap`.

    Successive detections whose pairs begin with the same object are paired with the same objects, and decoded once.
    """

    def overlap(detections: np.ndarray, objects: np.ndarray) -> np.ndarray:
        pairs = np.broadcast_arrays(detections, objects)
        rows, others = (numbers.ravel() for numbers in pairs)
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        begins = firsts[np.flatnonzero(np.diff(others[firsts], prepend=-1))].tolist()
        ious = np.zeros(len(rows))
        for begin, end in pairwise([*begins, len(rows)]):
            one, other = (list(dict.fromkeys(numbers[begin:end].tolist())) for numbers in (rows, others))
            masks = [detected[i] for i in one], [annotated[i] for i in other]
            ious[begin:end] = coco_mask.iou(*masks, crowd[other].astype(np.uint8)).ravel()
        return ious.reshape(pairs[0].shape)

    return overlap


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
