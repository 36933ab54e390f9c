"""What a detector found in one image as rows of results, whatever ran it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import pasted_run_lengths

Detect = Callable[[list[np.ndarray]], list[DetectionRows]]  # of images [h, w, 3] uint8 the detections of each, best first


class OpenedModel(NamedTuple):
    """A stored model, ready to detect."""

    detect: Detect
    class_names: ClassNames
    thresholds: ScoreThresholds


def rows_of_signature(outputs: Mapping[str, np.ndarray], image: np.ndarray, *, description: Description) -> DetectionRows:
    """One image's outputs of a SavedModel (see `export_saved_model`) as rows; `masks` [D, S, S] may be among them."""
    count = int(outputs["count"])
    masks = outputs["masks"][:count] if "masks" in outputs else None
    return rows_of_image(*(outputs[name][:count] for name in ("boxes", "scores", "classes")), image=image, masks=masks,
                         masks_in_whole_pixels=description.hparams.get("masks_in_whole_pixels", False))


def rows_of_image(boxes: np.ndarray, scores: np.ndarray, category_ids: np.ndarray, *, image: np.ndarray,
                  masks: np.ndarray | None = None, masks_in_whole_pixels: bool = False) -> DetectionRows:
    """Rows of an image [h, w, 3]; masks [N, S, S] within the boxes are pasted into it, as `pasted_masks` says.

    A box that is not finite, as a network of broken weights finds, is left out: it is nowhere, and no JSON.
    """
    finite = np.isfinite(boxes).all(axis=1)
    boxes, scores, category_ids = boxes[finite], scores[finite], category_ids[finite]
    masks = None if masks is None else masks[finite]
    pasted = None if masks is None else pasted_run_lengths(masks, boxes, size=image.shape[:2],
                                                           in_whole_pixels=masks_in_whole_pixels)
    return DetectionRows.of_image(boxes, scores, category_ids, masks=pasted)
