"""Boxes as offsets from anchors, and back (Ren et al. 2015, eq. 2; no scale factors).

t_y = (y - y_a) / h_a, t_x = (x - x_a) / w_a, t_h = ln(h / h_a), t_w = ln(w / w_a), with y, x the centres.
"""

from keras import ops

from object_detection.structures import Tensor

_SMALLEST_SIDE = 1e-8  # pixels; the logarithm of an empty box stays finite


def _centre_form(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y_min, x_min, y_max, x_max = (boxes[..., i] for i in range(4))
    return (y_min + y_max) / 2.0, (x_min + x_max) / 2.0, y_max - y_min, x_max - x_min


def encode_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Offsets of boxes from anchors. [..., 4], [..., 4] -> [..., 4] (t_y, t_x, t_h, t_w)."""
    y, x, height, width = _centre_form(boxes)
    anchor_y, anchor_x, anchor_height, anchor_width = _centre_form(anchors)
    anchor_height = ops.maximum(anchor_height, _SMALLEST_SIDE)
    anchor_width = ops.maximum(anchor_width, _SMALLEST_SIDE)
    return ops.stack([
        (y - anchor_y) / anchor_height,
        (x - anchor_x) / anchor_width,
        ops.log(ops.maximum(height, _SMALLEST_SIDE) / anchor_height),
        ops.log(ops.maximum(width, _SMALLEST_SIDE) / anchor_width),
    ], axis=-1)


def decode_boxes(box_deltas: Tensor, anchors: Tensor) -> Tensor:
    """The boxes that `encode_boxes` was given. [..., 4], [..., 4] -> [..., 4]."""
    anchor_y, anchor_x, anchor_height, anchor_width = _centre_form(anchors)
    y = box_deltas[..., 0] * anchor_height + anchor_y
    x = box_deltas[..., 1] * anchor_width + anchor_x
    half_height = ops.exp(box_deltas[..., 2]) * anchor_height / 2.0
    half_width = ops.exp(box_deltas[..., 3]) * anchor_width / 2.0
    return ops.stack([y - half_height, x - half_width, y + half_height, x + half_width], axis=-1)
