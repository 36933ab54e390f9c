"""Task-aligned assignment (Feng et al. 2021, TOOD, section 3.2): the anchors whose outputs fit an object best already.

The alignment of an anchor with an object is t = s u^6, of the score s of the object's class and the IoU u of the
predicted box with the object.
"""

from keras import ops

from object_detection.assignment.anchor_assignment import Assigner
from object_detection.assignment.anchor_candidates import descending, improved, targets_of_objects
from object_detection.gather import entries
from object_detection.geometry.anchor_grid import AnchorGrid
from object_detection.geometry.box_coding import BoxCoder
from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.structures import Objects, ScoredTargets, Tensor

ANCHORS_PER_OBJECT = 13
CENTER_MARGIN = 0.01  # pixels; the center of a positive anchor is farther than this from each side, inside the object
_CHUNK_SIZE = 4  # objects of each image that are compared with all anchors at a time
_SMALLEST = 1e-30  # keeps a quotient finite if its divisor is zero


class TaskAlignedAssigner(Assigner):
    """Label assignment by the network's outputs.

    Of the anchors whose center is inside an object, the 13 with the largest alignment are positive. Among several
    objects an anchor is assigned to the one with the largest IoU, the first in a tie. The score of a positive anchor is
    t / max(t) max(u), with the maxima over the anchors of its object.
    """

    reads_outputs = True

    def assign(
        self,
        objects: Objects[Tensor],
        grid: AnchorGrid,
        *,
        box_coder: BoxCoder,
        outputs: tuple[Tensor, Tensor] | None = None,
    ) -> ScoredTargets:
        """Return the target and the score of every anchor, see `Assigner`; the logits are those of a sigmoid."""
        assert outputs is not None
        class_logits, box_deltas = outputs
        batch, slots = ops.shape(objects.boxes)[:2]
        predicted = box_coder.decode(box_deltas, ops.convert_to_tensor(grid.boxes))
        pairs = _best_aligned(objects, grid, ops.transpose(class_logits, (0, 2, 1)), predicted)
        anchors, alignment, overlap = (ops.reshape(values, (batch * slots, -1)) for values in pairs)  # [N, k]
        numbers = ops.broadcast_to(ops.arange(batch * slots, dtype="int32")[:, None], ops.shape(anchors))
        places = ops.reshape(numbers // slots * len(grid) + anchors, (-1,))
        ranks = descending(numbers, batch * slots)
        total = batch * len(grid)
        _, assigned = improved(
            (ops.zeros((total,), "float32"), ops.zeros((total,), "int32")),
            ops.reshape(ops.where(alignment > 0.0, overlap, 0.0), (-1,)),
            places=places,
            ranks=ops.reshape(ranks, (-1,)),
        )
        is_assigned = ops.logical_and(
            alignment > 0.0, ops.reshape(ops.take(assigned, places), ops.shape(ranks)) == ranks
        )
        alignment, overlap = (ops.where(is_assigned, values, 0.0) for values in (alignment, overlap))
        largest = ops.max(alignment, axis=1, keepdims=True)
        scores = alignment / ops.maximum(largest, _SMALLEST) * ops.max(overlap, axis=1, keepdims=True)
        # Each anchor is assigned once, so a sum has a single term.
        scores = ops.segment_sum(ops.reshape(scores, (-1,)), places, total)
        targets = targets_of_objects(objects, grid, assigned, box_coder=box_coder)
        return ScoredTargets(*targets, scores=ops.reshape(scores, (batch, len(grid))))


def _best_aligned(
    objects: Objects[Tensor], grid: AnchorGrid, class_logits: Tensor, predicted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchor, alignment and IoU of the k best aligned anchors of each object, [B, M, k] each.

    class_logits [B, K, A], predicted boxes [B, A, 4]. The alignment is 0 where an object has fewer. Iterates over the
    objects up to the last one that may be assigned, so that padding costs nothing and memory is a multiple of [B, A].
    """
    batch, slots = ops.shape(objects.boxes)[:2]
    per_object, anchor_boxes = min(ANCHORS_PER_OBJECT, len(grid)), ops.convert_to_tensor(grid.boxes)
    may_be_assigned = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
    count = ops.max(ops.where(may_be_assigned, ops.arange(1, slots + 1, dtype="int32"), 0))

    def step(begin: Tensor, anchors: Tensor, alignment: Tensor, overlap: Tensor) -> tuple[Tensor, ...]:
        numbers = begin + ops.arange(_CHUNK_SIZE, dtype="int32")
        existing = ops.minimum(numbers, slots - 1)
        boxes = ops.take(objects.boxes, existing, axis=1)  # [B, c, 4]
        of_chunk = ops.logical_and(ops.take(may_be_assigned, existing, axis=1), numbers < slots)
        logits = entries(class_logits, ops.cast(ops.take(objects.classes, existing, axis=1), "int32"))  # [B, c, A]
        logits = ops.cast(logits, "float32")
        overlaps = pairwise_iou(boxes, predicted)
        inside = ops.logical_and(_contains_centers(boxes[:, :, None], anchor_boxes), of_chunk[..., None])
        aligned = ops.where(inside, ops.sigmoid(logits) * ops.square(overlaps * ops.square(overlaps)), 0.0)  # s u^6
        best, places = ops.top_k(aligned, per_object)
        places = ops.cast(places, "int32")
        best_anchors = places, best, ops.take_along_axis(overlaps, places, axis=-1)
        states = (anchors, alignment, overlap)
        first = (0, begin, 0)
        updated = (ops.slice_update(state, first, part) for state, part in zip(states, best_anchors, strict=True))
        return begin + _CHUNK_SIZE, *updated

    padded = -(-slots // _CHUNK_SIZE) * _CHUNK_SIZE
    empty = (ops.zeros((batch, padded, per_object), kind) for kind in ("int32", "float32", "float32"))
    best_anchors = ops.while_loop(lambda begin, *_: begin < count, step, (ops.zeros((), "int32"), *empty))[1:]
    return tuple(values[:, :slots] for values in best_anchors)


def _contains_centers(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return whether the centers of anchors are inside the boxes, by CENTER_MARGIN; both [..., 4] and broadcast."""
    centers = (anchors[..., :2] + anchors[..., 2:]) / 2.0
    inside = ops.logical_and(centers - boxes[..., :2] > CENTER_MARGIN, boxes[..., 2:] - centers > CENTER_MARGIN)
    return ops.all(inside, axis=-1)
