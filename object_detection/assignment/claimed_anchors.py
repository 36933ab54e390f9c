"""Anchors that objects claim whatever their IoU: the steps of label assignment in which detectors differ.

Numbers of objects are those of all images, 0 .. N-1; places of anchors too, 0 .. B A - 1.
"""

from collections.abc import Callable

from keras import ops

from object_detection.assignment.anchor_candidates import CandidateList, Candidates, State
from object_detection.geometry.box_geometry import iou
from object_detection.structures import Tensor

_CHUNK_SIZE = 512  # anchors, each compared with all M objects of its image


def descending(numbers: Tensor, count: int | Tensor) -> Tensor:
    """Map 0 .. count-1 to count .. 1 (and back), so that the maximum selects the first of several."""
    return count - numbers


def improved(so_far: State, overlap: Tensor, *, places: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """Update the largest overlap at each of K places, and the largest rank with it (0: none), by C overlaps."""
    best, best_rank = so_far
    count = ops.shape(best)[0]
    largest = ops.maximum(best, ops.segment_max(overlap, places, count))
    is_best = ops.logical_and(overlap > 0.0, overlap == ops.take(largest, places, axis=0))
    largest_rank = ops.segment_max(ops.where(is_best, ranks, 0), places, count)
    return largest, ops.where(largest > best, largest_rank, ops.maximum(best_rank, largest_rank))


def candidate_overlap(boxes: Tensor, candidates: Candidates) -> Tensor:
    """Return the IoU of each candidate, [C]; boxes [N, 4]."""
    return ops.where(candidates.exist, iou(ops.take(boxes, candidates.objects, axis=0), candidates.anchor_boxes), 0.0)


def fold_marked(marked: Tensor, function: Callable[[Tensor, Tensor, State], State], state: State) -> State:
    """Return the final state of `function(places, exist, state) -> state` over parts [C] of the True places."""
    count = ops.shape(marked)[0]
    order = ops.cumsum(ops.cast(marked, "int32")) - 1
    # As many padding entries follow the last place as one iteration takes.
    listed = ops.segment_max(ops.arange(count, dtype="int32"), ops.where(marked, order, count), count + 1 + _CHUNK_SIZE)
    total = order[-1] + 1

    def step(begin: Tensor, *state: Tensor) -> State:
        numbers = begin + ops.arange(_CHUNK_SIZE, dtype="int32")
        exist = numbers < total
        places = ops.where(exist, ops.take(listed, numbers, axis=0), 0)
        return begin + _CHUNK_SIZE, *function(places, exist, state)

    return ops.while_loop(lambda begin, *_: begin < total, step, (ops.zeros((), "int32"), *state))[1:]


def tied_anchors(
    boxes: Tensor, candidates: CandidateList, best_overlaps: Tensor, *, num_anchors: int | Tensor
) -> Tensor:
    """Return which anchors have the largest IoU of some object, [B A] bool. boxes [N, 4], best_overlaps [N]."""

    def mark(candidates: Candidates, state: State) -> State:
        overlap = candidate_overlap(boxes, candidates)
        tied = ops.logical_and(overlap > 0.0, overlap == ops.take(best_overlaps, candidates.objects, axis=0))
        return (ops.maximum(state[0], ops.segment_max(ops.cast(tied, "int32"), candidates.places, num_anchors)),)

    return candidates.fold(mark, (ops.zeros((num_anchors,), "int32"),))[0] > 0


def objects_of_anchors(boxes: Tensor, assignable: Tensor, marked: Tensor, candidates: CandidateList) -> Tensor:
    """Return the object with which each marked anchor has the largest IoU; [B A] as `descending` (0: none).

    boxes [N, 4], assignable [N] bool, marked [B A] bool.
    """
    num_objects, num_anchors, slots, grid = ops.shape(boxes)[0], ops.shape(marked)[0], candidates.slots, candidates.grid
    by_image = ops.reshape(boxes, (-1, slots, 4))
    may_be_assigned = ops.reshape(assignable, (-1, slots))

    def find(places: Tensor, exist: Tensor, state: State) -> State:
        images, anchors = places // len(grid), places % len(grid)
        anchor_boxes = ops.take(ops.convert_to_tensor(grid.boxes), anchors, axis=0)
        overlap = iou(ops.take(by_image, images, axis=0), anchor_boxes[:, None])  # [C, M]
        overlap = ops.where(ops.take(may_be_assigned, images, axis=0), overlap, -1.0)
        objects = images * slots + ops.cast(ops.argmax(overlap, axis=1), "int32")
        ranks = ops.where(exist, descending(objects, num_objects), 0)
        return (ops.maximum(state[0], ops.segment_max(ranks, places, num_anchors)),)

    return fold_marked(marked, find, (ops.zeros((num_anchors,), "int32"),))[0]
