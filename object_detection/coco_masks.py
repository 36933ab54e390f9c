"""Masks as COCO's files and measures have them: run lengths (RLE) of whole images, by pycocotools."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from object_detection.coco_matching import Overlap
from object_detection.mask_pasting import pasted_masks

RunLengths = dict[str, Any]  # {"size": [height, width], "counts": text}, as json has it


def run_lengths(mask: np.ndarray) -> RunLengths:
    """The run lengths of a mask [h, w], not 0 where the object is."""
    encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode("ascii")}


def pasted_run_lengths(masks: np.ndarray, boxes: np.ndarray, *, size: tuple[int, int],
                       in_whole_pixels: bool = False) -> list[RunLengths]:
    """Run lengths in an image of `size` (height, width) of masks within boxes; see `pasted_masks`."""
    return [run_lengths(mask) for mask in pasted_masks(masks, boxes, size=size, in_whole_pixels=in_whole_pixels)]


def decoded(segmentation: RunLengths) -> np.ndarray:
    """The mask of run lengths, [h, w] bool."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pycocotools 2.0.11 under NumPy 2
        return coco_mask.decode(segmentation).astype(bool)


def encoded(segmentation: Any, size: tuple[int, int]) -> RunLengths:
    """Run lengths of what COCO calls a segmentation in an image of `size` (height, width): polygons or run lengths.

    pycocotools' C code trusts them; those of a stranger's file go through `dataset.conversion.segmentation` first.
    """
    if isinstance(segmentation, list):
        return coco_mask.merge(coco_mask.frPyObjects(segmentation, *size))
    return coco_mask.frPyObjects(segmentation, *size) if isinstance(segmentation["counts"], list) else segmentation


def mask_areas(masks: Sequence[RunLengths]) -> np.ndarray:
    """Pixels that each of N masks covers, [N] float64."""
    return np.array([coco_mask.area(mask) for mask in masks], np.float64)


def mask_overlap(detected: Sequence[RunLengths], wanted: Sequence[RunLengths], crowd: np.ndarray) -> Overlap:
    """IoU of masks, those of detections and of annotated objects; with a crowd as `box_overlap`."""
    def overlap(detections: np.ndarray, objects: np.ndarray) -> np.ndarray:
        return np.stack([
            coco_mask.iou([detected[i] for i in one], [wanted[i] for i in other], crowd[other].astype(np.uint8))
            for one, other in zip(detections, objects, strict=True)])

    return overlap
