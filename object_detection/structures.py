"""The tensors that travel together between the floors.

B images, H, W input pixels, A anchors of all levels, K classes, M object slots, D detection slots. Boxes are float32
(y_min, x_min, y_max, x_max) in continuous pixels of the image they travel with; classes are 0 .. K-1; absence is a mask.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Tensor = Any


class Objects(NamedTuple):
    """Ground truth of a batch, padded to M objects an image; S is the side of masks, 0 where none were asked for."""

    boxes: Tensor  # [B, M, 4] float32, yxyx pixels of the network input
    classes: Tensor  # [B, M] int32, 0 .. K-1
    valid: Tensor  # [B, M] bool, False for padding
    crowd: Tensor  # [B, M] bool, a region of many objects: never an object to learn
    difficult: Tensor  # [B, M] bool, hard to recognize (VOC's flag): learned like any other, counted by no evaluation
    masks: Tensor  # [B, M, S, S] uint8, 1 where a point of the object lies in the middle of a cell of its box

    @classmethod
    def of_boxes(cls, boxes: Tensor, classes: Tensor, valid: Tensor, crowd: Tensor) -> "Objects":
        """Objects without masks, none of them difficult; for arrays whose shape is known."""
        return cls(boxes, classes, valid, crowd, np.zeros(crowd.shape, bool), np.zeros((*crowd.shape, 0, 0), np.uint8))


class Batch(NamedTuple):
    """What a step or an evaluation consumes: B images of one size with their objects."""

    images: Tensor  # [B, H, W, 3] uint8
    sizes: Tensor  # [B, 2] int32, height and width of the part that is image; the rest is padding
    objects: Objects
    image_ids: Tensor  # [B] int64
    positions: Tensor  # [B] int64, in the endless stream of a training, or among the records of an evaluation
    scales: Tensor  # [B, 2] float32, original pixels per input pixel, y and x


class Targets(NamedTuple):
    """What each anchor is to learn."""

    classes: Tensor  # [B, A] int32, 0 .. K-1; 0 where not positive
    box_deltas: Tensor  # [B, A, 4] float32 (t_y, t_x, t_h, t_w); 0 where not positive
    positive: Tensor  # [B, A] bool
    ignored: Tensor  # [B, A] bool, counts in no loss


class Detections(NamedTuple):
    """What a detector found, best first, padded to D detections an image; S is the side of masks."""

    boxes: Tensor  # [B, D, 4] float32, yxyx
    scores: Tensor  # [B, D] float32, 0 where not valid
    classes: Tensor  # [B, D] int32, 0 .. K-1
    valid: Tensor  # [B, D] bool
    masks: Tensor | None = None  # [B, D, S, S] float32, how probably a cell of the box, clipped to the image, shows the object


def stacked(images: Sequence[Detections]) -> Detections:
    """Detections of B images, arrays without B, as those of one batch."""
    return Detections(*(None if values[0] is None else np.stack(values) for values in zip(*images, strict=True)))
