"""From the object that each anchor is assigned to, to training targets; for assigners that list their candidates."""

from keras import ops

from object_detection.assignment.claimed_anchors import descending
from object_detection.geometry.anchor_grid import AnchorGrid
from object_detection.geometry.box_coding import BoxCoder
from object_detection.structures import Objects, Targets, Tensor

CENTER_MARGIN = 0.01  # pixels; the center of a positive anchor is farther than this from each side, inside the object


def assignable(objects: Objects[Tensor]) -> Tensor:
    """Return which objects may be assigned, [B, M] bool: no padding, no crowds."""
    return ops.logical_and(objects.valid, ops.logical_not(objects.crowd))


def contains_centers(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return whether the centers of anchors are inside the boxes, by CENTER_MARGIN; both [..., 4] and broadcast."""
    centers = (anchors[..., :2] + anchors[..., 2:]) / 2.0
    inside = ops.logical_and(centers - boxes[..., :2] > CENTER_MARGIN, boxes[..., 2:] - centers > CENTER_MARGIN)
    return ops.all(inside, axis=-1)


def classes_in_crowds(objects: Objects[Tensor], anchors: Tensor, *, num_classes: int) -> Tensor:
    """Return whether the center of each anchor [A, 4] is in a crowd of each class, [B, A, K] bool.

    A crowd is a region whose objects of a class are not labeled one by one; one of the size of the image says that none
    of them is labeled.
    """
    is_crowd = ops.cast(ops.logical_and(objects.valid, objects.crowd), "float32")
    centers, boxes = (anchors[:, :2] + anchors[:, 2:]) / 2.0, objects.boxes[:, :, None]
    inside = ops.logical_and(centers >= boxes[..., :2], centers < boxes[..., 2:])  # [B, M, A, 2]
    classes = ops.one_hot(objects.classes, num_classes, dtype="float32") * is_crowd[..., None]  # [B, M, K]
    return ops.einsum("bma,bmk->bak", ops.cast(ops.all(inside, axis=-1), "float32"), classes) > 0.0


def targets_of_objects(objects: Objects[Tensor], grid: AnchorGrid, assigned: Tensor, *, box_coder: BoxCoder) -> Targets:
    """Return the targets of anchors of which none is ignored.

    Args:
        objects: boxes [B, M, 4] in pixels of the anchors.
        grid: the A anchors.
        assigned: [B A] int32, the object of each anchor as `descending` of its number among all B M, 0 for none.
        box_coder: encodes boxes as offsets from anchors.

    Returns:
        Targets with [B, A] entries.
    """
    batch, slots = ops.shape(objects.boxes)[:2]
    assigned = ops.reshape(assigned, (batch, len(grid)))
    positive = assigned > 0
    numbers = ops.where(positive, descending(assigned, batch * slots), 0)
    boxes = ops.take(ops.reshape(objects.boxes, (-1, 4)), numbers, axis=0)  # [B, A, 4]
    deltas = box_coder.encode(boxes, ops.convert_to_tensor(grid.boxes))
    return Targets(
        classes=ops.where(positive, ops.take(ops.reshape(objects.classes, (-1,)), numbers, axis=0), 0),
        box_deltas=ops.where(positive[..., None], deltas, 0.0),
        positive=positive,
        ignored=ops.zeros_like(positive),
    )
