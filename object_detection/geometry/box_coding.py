"""Boxes as offsets from anchors, and back (Ren et al. 2015, eq. 2).

t_y = (y - y_a) / h_a, t_x = (x - x_a) / w_a, t_h = ln(h / h_a), t_w = ln(w / w_a), with y, x the centres; some detectors
multiply these by weights.
"""

import math
from dataclasses import dataclass

import numpy as np
from keras import ops

from object_detection.structures import Tensor

_SMALLEST_SIDE = 1e-8  # pixels; the logarithm of an empty box stays finite
_LAST_PIXEL = np.float32([0.0, 0.0, 1.0, 1.0])
LARGEST_LOG_SIZE = math.log(1000 / 16)  # torchvision's limit: a side is at most 62.5 times its anchor's


@dataclass(frozen=True, kw_only=True)
class BoxCoder:
    """How a detector writes a box as offsets from an anchor.

    weights: what (t_y, t_x, t_h, t_w) are multiplied by; (10, 10, 5, 5) in the second stage of Mask R-CNN, and in SSD, which
    calls the reciprocals 0.1 and 0.2 variances. log_size_limit: on decoding, t_h and t_w without their weights count as no more
    than this, so that no box is boundless; None for no limit. last_pixel: corners are the first and the last pixel of a box, so
    that sides are a pixel longer than their difference, as in Detectron and what came of it.
    """

    weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    log_size_limit: float | None = None
    last_pixel: bool = False

    def __post_init__(self):
        if len(self.weights) != 4 or min(self.weights) <= 0:
            raise ValueError(f"box coder with weights {self.weights}; wanted four above zero")

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Offsets of boxes from anchors. [..., 4], [..., 4] -> [..., 4] (t_y, t_x, t_h, t_w); finite for empty ones."""
        y, x, height, width = self._centre_form(boxes)
        anchor_y, anchor_x, anchor_height, anchor_width = self._centre_form(anchors)
        anchor_height = ops.maximum(anchor_height, _SMALLEST_SIDE)
        anchor_width = ops.maximum(anchor_width, _SMALLEST_SIDE)
        deltas = (
            (y - anchor_y) / anchor_height,
            (x - anchor_x) / anchor_width,
            ops.log(ops.maximum(height, _SMALLEST_SIDE) / anchor_height),
            ops.log(ops.maximum(width, _SMALLEST_SIDE) / anchor_width),
        )
        return ops.stack([delta if weight == 1 else delta * weight
                          for delta, weight in zip(deltas, self.weights, strict=True)], axis=-1)

    def decode(self, box_deltas: Tensor, anchors: Tensor) -> Tensor:
        """The boxes that `encode` was given, as far as the limit lets them. [..., 4], [..., 4] -> [..., 4]."""
        t_y, t_x, t_h, t_w = (box_deltas[..., i] if weight == 1 else box_deltas[..., i] / weight
                              for i, weight in enumerate(self.weights))
        if self.log_size_limit is not None:
            t_h, t_w = ops.minimum(t_h, self.log_size_limit), ops.minimum(t_w, self.log_size_limit)
        anchor_y, anchor_x, anchor_height, anchor_width = self._centre_form(anchors)
        y = t_y * anchor_height + anchor_y
        x = t_x * anchor_width + anchor_x
        half_height = ops.exp(t_h) * anchor_height / 2.0
        half_width = ops.exp(t_w) * anchor_width / 2.0
        boxes = ops.stack([y - half_height, x - half_width, y + half_height, x + half_width], axis=-1)
        return boxes - _LAST_PIXEL if self.last_pixel else boxes

    def _centre_form(self, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Centre y and x, height and width of boxes [..., 4], each [...]."""
        y_min, x_min, y_max, x_max = (boxes[..., i] for i in range(4))
        if self.last_pixel:
            y_max, x_max = y_max + 1.0, x_max + 1.0
        return (y_min + y_max) / 2.0, (x_min + x_max) / 2.0, y_max - y_min, x_max - x_min


PLAIN_BOX_CODER = BoxCoder()


def encode_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """`BoxCoder.encode` without weights."""
    return PLAIN_BOX_CODER.encode(boxes, anchors)


def decode_boxes(box_deltas: Tensor, anchors: Tensor) -> Tensor:
    """`BoxCoder.decode` without weights or limit."""
    return PLAIN_BOX_CODER.decode(box_deltas, anchors)
