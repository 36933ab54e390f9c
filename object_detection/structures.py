"""Tensors that are passed between the packages.

B images, H, W input pixels, A anchors of all levels, K classes, M object slots, D detection slots. Boxes are float32
(y_min, x_min, y_max, x_max) in continuous pixels of their image; classes are 0 .. K-1; masks mark the valid entries.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Tensor = Any


class Objects(NamedTuple):
    """Ground truth of a batch, padded to M objects per image; S is the side of masks, 0 without masks."""

    boxes: Tensor  # [B, M, 4] float32, yxyx pixels of the network input
    classes: Tensor  # [B, M] int32, 0 .. K-1
    valid: Tensor  # [B, M] bool, False for padding
    crowd: Tensor  # [B, M] bool, a region of many objects: never assigned to an anchor
    difficult: Tensor  # [B, M] bool, VOC's flag: used in training like any other, ignored in evaluation
    masks: Tensor  # [B, M, S, S] uint8, 1 where the center of a cell of the box belongs to the object

    @classmethod
    def of_boxes(cls, boxes: Tensor, classes: Tensor, valid: Tensor, crowd: Tensor) -> "Objects":
        """Return objects without masks, none of them difficult; for arrays with a known shape."""
        return cls(boxes, classes, valid, crowd, np.zeros(crowd.shape, bool), np.zeros((*crowd.shape, 0, 0), np.uint8))


class Batch(NamedTuple):
    """Input of a training step or an evaluation: B images of one size with their objects."""

    images: Tensor  # [B, H, W, 3] uint8
    sizes: Tensor  # [B, 2] int32, height and width of the valid area; the rest is padding
    objects: Objects
    image_ids: Tensor  # [B] int64
    positions: Tensor  # [B] int64, position in the endless training stream, or among the records of an evaluation
    scales: Tensor  # [B, 2] float32, original pixels per input pixel, y and x


class Targets(NamedTuple):
    """Training target of each anchor."""

    classes: Tensor  # [B, A] int32, 0 .. K-1; 0 where not positive
    box_deltas: Tensor  # [B, A, 4] float32 (t_y, t_x, t_h, t_w); 0 where not positive
    positive: Tensor  # [B, A] bool
    ignored: Tensor  # [B, A] bool, excluded from all losses


class ScoredTargets(NamedTuple):
    """`Targets`, and a score for each positive anchor: the target of a class loss and the weight of the box loss."""

    classes: Tensor
    box_deltas: Tensor
    positive: Tensor
    ignored: Tensor
    scores: Tensor  # [B, A] float32, 0 .. 1; 0 where not positive


class Detections(NamedTuple):
    """Detections, best first, padded to D per image; S is the side of masks."""

    boxes: Tensor  # [B, D, 4] float32, yxyx
    scores: Tensor  # [B, D] float32, 0 where not valid
    classes: Tensor  # [B, D] int32, 0 .. K-1
    valid: Tensor  # [B, D] bool
    masks: Tensor | None = None  # [B, D, S, S] float32, probabilities in the cells of the box clipped to the image


def stacked(images: Sequence[Detections]) -> Detections:
    """Return Detections of B images, given as arrays without B, as those of one batch."""
    return Detections(*(None if values[0] is None else np.stack(values) for values in zip(*images, strict=True)))
