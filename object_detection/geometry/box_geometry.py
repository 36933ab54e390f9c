"""Areas, IoU and clipping of boxes (y_min, x_min, y_max, x_max) in continuous pixels."""

from typing import NamedTuple

from keras import ops

from object_detection.structures import Tensor

IOU_KINDS = ("iou", "giou", "diou", "ciou")
LARGEST_COORDINATE = 1e9  # pixels; areas of boxes within it are finite in float32
_SMALLEST = 1e-8  # keeps a quotient finite if its divisor is zero


def box_area(boxes: Tensor) -> Tensor:
    """Return the area of each box. [..., 4] -> [...]; 0 for an empty or inverted box."""
    return _area(boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1])


def _area(height: Tensor, width: Tensor) -> Tensor:
    """Return the product, rounded to float32; 0 if a side is negative.

    The comparison separates the product from the sum that uses it. Otherwise compilers fuse the two into one
    instruction, which rounds once instead of twice, and which of two equal IoUs is the larger would depend on the
    compiler.
    """
    area = ops.maximum(height, 0.0) * ops.maximum(width, 0.0)
    return ops.where(area > 0.0, area, 0.0)


def clip_boxes(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Return boxes clipped to their images. boxes [..., N, 4], sizes [..., 2] (height, width) -> [..., N, 4]."""
    limits = ops.cast(sizes, boxes.dtype)
    limits = ops.expand_dims(ops.concatenate([limits, limits], axis=-1), -2)  # [..., 1, 4]
    return ops.minimum(ops.maximum(boxes, 0.0), limits)


def has_area(boxes: Tensor, sizes: Tensor | None = None) -> Tensor:
    """Return whether each box has an area within its image. [..., N, 4], [..., 2] -> [..., N] bool; False for NaN.

    Only comparisons are used, because backends differ in the minimum of NaN and a number. sizes as in
    `clip_boxes`; None: within an unlimited image.
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    inside = low < high
    if sizes is not None:
        limits = ops.expand_dims(ops.cast(sizes, boxes.dtype), -2)  # [..., 1, 2]
        inside = ops.logical_and(inside, ops.logical_and(low < limits, high > 0.0))
    return ops.all(inside, axis=-1)


class Sides(NamedTuple):
    """Boxes as separate arrays of the same shape. A loop that computes IoUs splits its boxes once, before it begins."""

    top: Tensor
    left: Tensor
    bottom: Tensor
    right: Tensor
    area: Tensor


def sides_of(boxes: Tensor) -> Sides:
    """Split boxes [..., 4] into sides and areas [...]."""
    return Sides(boxes[..., 0], boxes[..., 1], boxes[..., 2], boxes[..., 3], box_area(boxes))


def _overlap(boxes: Sides, others: Sides) -> tuple[Tensor, Tensor]:
    """Return the areas of intersection and union of boxes that broadcast against each other."""
    height = ops.minimum(boxes.bottom, others.bottom) - ops.maximum(boxes.top, others.top)
    width = ops.minimum(boxes.right, others.right) - ops.maximum(boxes.left, others.left)
    intersection = _area(height, width)
    return intersection, boxes.area + others.area - intersection


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the IoU of every box with every other. [..., M, 4], [..., N, 4] -> [..., M, N]; 0 if a box is empty."""
    return iou(ops.expand_dims(boxes, -2), ops.expand_dims(others, -3))


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the IoU of boxes that broadcast against each other. [..., 4], [..., 4] -> [...]; 0 if a box is empty."""
    return iou_of_sides(sides_of(boxes), sides_of(others))


def iou_of_sides(boxes: Sides, others: Sides) -> Tensor:
    """Return the IoU of boxes that broadcast against each other, 0 if one is empty."""
    intersection, union = _overlap(boxes, others)
    return ops.where(intersection > 0.0, intersection / ops.where(union > 0.0, union, 1.0), 0.0)


def generalized_iou(boxes: Tensor, others: Tensor, *, kind: str) -> Tensor:
    """Return the IoU minus the penalty of `kind`, for use in a loss. [..., 4], [..., 4] -> [...].

    kind: "iou", "giou" (Rezatofighi et al. 2019), "diou" or "ciou" (Zheng et al. 2020). Finite for empty and infinite
    boxes.
    """
    if kind not in IOU_KINDS:
        raise ValueError(f"kind of IoU {kind!r}; expected one of {', '.join(IOU_KINDS)}")
    # The squares of larger coordinates, such as a diverged network's, are infinite, and their quotients NaN
    boxes, others = (ops.clip(values, -LARGEST_COORDINATE, LARGEST_COORDINATE) for values in (boxes, others))
    intersection, union = _overlap(sides_of(boxes), sides_of(others))
    overlap = intersection / ops.maximum(union, _SMALLEST)
    if kind == "iou":
        return overlap
    hull_height = ops.maximum(boxes[..., 2], others[..., 2]) - ops.minimum(boxes[..., 0], others[..., 0])
    hull_width = ops.maximum(boxes[..., 3], others[..., 3]) - ops.minimum(boxes[..., 1], others[..., 1])
    if kind == "giou":
        hull = ops.maximum(hull_height * hull_width, _SMALLEST)
        return overlap - (hull - union) / hull
    distance_y = (boxes[..., 0] + boxes[..., 2] - others[..., 0] - others[..., 2]) / 2.0
    distance_x = (boxes[..., 1] + boxes[..., 3] - others[..., 1] - others[..., 3]) / 2.0
    diagonal = ops.maximum(ops.square(hull_height) + ops.square(hull_width), _SMALLEST)
    distance_iou = overlap - (ops.square(distance_y) + ops.square(distance_x)) / diagonal
    if kind == "diou":
        return distance_iou
    shape = 4.0 / 3.141592653589793**2 * ops.square(_aspect_angle(boxes) - _aspect_angle(others))
    # The weight of the aspect ratio term has no gradient (Zheng et al., eq. 12 and after).
    weight = ops.stop_gradient(shape / ops.maximum(1.0 - overlap + shape, _SMALLEST))
    return distance_iou - weight * shape


def _aspect_angle(boxes: Tensor) -> Tensor:
    """Return the angle whose tangent is width over height."""
    return ops.arctan2(boxes[..., 3] - boxes[..., 1], ops.maximum(boxes[..., 2] - boxes[..., 0], _SMALLEST))
