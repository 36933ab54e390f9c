"""Which anchors objects have a claim to, whatever their overlap: the steps of `assignment` that detectors do differently.

Numbers of objects are those of all images, 0 .. N-1, places of anchors too, 0 .. B A - 1.
"""

from collections.abc import Callable

from keras import ops

from object_detection.assignment.anchor_candidates import CandidateList, Candidates, candidate_windows
from object_detection.geometry.box_geometry import iou
from object_detection.structures import Tensor

_MARKED_AT_ONCE = 512  # anchors, each beside all M objects of its image
_LEAST_REACH = 1e-4  # an IoU below which all anchors that touch an object are looked at


def turn(numbers: Tensor, count) -> Tensor:
    """0 .. count-1 to count .. 1 (and back), so that the first of several is the largest."""
    return count - numbers


def improved(so_far: tuple[Tensor, Tensor], overlap: Tensor, *, places: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """With C more overlaps: the largest at each of K places, and the largest turn of those that have it; 0 without any."""
    best, best_turn = so_far
    count = ops.shape(best)[0]
    largest = ops.maximum(best, ops.segment_max(overlap, places, count))
    is_best = ops.logical_and(overlap > 0.0, overlap == ops.take(largest, places, axis=0))
    found = ops.segment_max(ops.where(is_best, turns, 0), places, count)
    return largest, ops.where(largest > best, found, ops.maximum(best_turn, found))


def candidate_overlap(boxes: Tensor, found: Candidates) -> Tensor:
    """IoU of each candidate, [C]; boxes [N, 4]."""
    return ops.where(found.exist, iou(ops.take(boxes, found.objects, axis=0), found.anchor_boxes), 0.0)


def fold_marked(marked: Tensor, function: Callable[[Tensor, Tensor, tuple], tuple], state: tuple) -> tuple:
    """`function(places, exist, state) -> state` for the places [C] of the True ones of marked [K], turn after turn."""
    count = ops.shape(marked)[0]
    order = ops.cumsum(ops.cast(marked, "int32")) - 1
    # Behind the last one there are as many entries more as a turn takes.
    listed = ops.segment_max(ops.arange(count, dtype="int32"), ops.where(marked, order, count), count + 1 + _MARKED_AT_ONCE)
    total = order[-1] + 1

    def one_turn(begin, *state):
        numbers = begin + ops.arange(_MARKED_AT_ONCE, dtype="int32")
        exist = numbers < total
        places = ops.where(exist, ops.take(listed, numbers, axis=0), 0)
        return begin + _MARKED_AT_ONCE, *function(places, exist, state)

    return ops.while_loop(lambda begin, *_: begin < total, one_turn, (ops.zeros((), "int32"), *state))[1:]


def tied_anchors(boxes: Tensor, candidates: CandidateList, best_overlaps: Tensor, *, num_anchors) -> Tensor:
    """Whether an anchor is one of those that some object overlaps most, [B A] bool. boxes [N, 4], best_overlaps [N]."""
    def mark(found: Candidates, state: tuple) -> tuple:
        overlap = candidate_overlap(boxes, found)
        tied = ops.logical_and(overlap > 0.0, overlap == ops.take(best_overlaps, found.objects, axis=0))
        return (ops.maximum(state[0], ops.segment_max(ops.cast(tied, "int32"), found.places, num_anchors)),)

    return candidates.fold(mark, (ops.zeros((num_anchors,), "int32"),))[0] > 0


def objects_of_anchors(boxes: Tensor, learnable: Tensor, marked: Tensor, candidates: CandidateList) -> Tensor:
    """The object that each marked anchor overlaps most, of all of its image; [B A] as `turn`, 0 where not marked.

    boxes [N, 4], learnable [N] bool, marked [B A] bool.
    """
    num_objects, num_anchors, slots, grid = ops.shape(boxes)[0], ops.shape(marked)[0], candidates.slots, candidates.grid
    by_image = ops.reshape(boxes, (-1, slots, 4))
    may_learn = ops.reshape(learnable, (-1, slots))

    def look(places, exist, state: tuple) -> tuple:
        images, anchors = places // len(grid), places % len(grid)
        anchor_boxes = ops.take(ops.convert_to_tensor(grid.boxes), anchors, axis=0)
        overlap = iou(ops.take(by_image, images, axis=0), anchor_boxes[:, None])  # [C, M]
        overlap = ops.where(ops.take(may_learn, images, axis=0), overlap, -1.0)
        objects = images * slots + ops.cast(ops.argmax(overlap, axis=1), "int32")
        turns = ops.where(exist, turn(objects, num_objects), 0)
        return (ops.maximum(state[0], ops.segment_max(turns, places, num_anchors)),)

    return fold_marked(marked, look, (ops.zeros((num_anchors,), "int32"),))[0]


def bipartite_claims(
    boxes: Tensor, learnable: Tensor, candidates: CandidateList, best_overlaps: Tensor, *, num_anchors
) -> Tensor:
    """The object that each anchor has in the greedy bipartite matching, [B A] as `turn`, 0: none.

    boxes [N, 4], learnable [N] bool, best_overlaps [N]. To take the pair that overlaps most again and again leaves the one
    matching in which no object and anchor would both rather have each other (Gale and Shapley 1962; there is but one as both
    sides rank pairs alike). So objects ask, all at once, for the best anchor that they would not be refused by, an anchor
    keeps the best one that asked so far, and who is sent away asks again, looking further down where all others are taken.
    """
    grid, slots, num_objects = candidates.grid, candidates.slots, ops.shape(boxes)[0]
    numbers = ops.arange(num_objects, dtype="int32")
    turns = turn(numbers, num_objects)

    def ask(asking, reach, places, held, holders):
        def look(found: Candidates, state: tuple) -> tuple:
            overlap, kept = candidate_overlap(boxes, found), ops.take(held, found.places, axis=0)
            before = ops.take(turns, found.objects, axis=0) > ops.take(holders, found.places, axis=0)
            better = ops.logical_or(overlap > kept, ops.logical_and(overlap == kept, before))
            return improved(state, ops.where(better, overlap, 0.0), places=found.objects, turns=turn(found.anchors, len(grid)))

        windows = candidate_windows(boxes, asking, grid, positive_iou=ops.maximum(reach, 0.0)[:, None])
        best, anchors = CandidateList(windows, grid, slots=slots).fold(
            look, (ops.zeros((num_objects,), "float32"), ops.zeros((num_objects,), "int32")))
        found = ops.logical_and(asking, ops.logical_and(best > 0.0, best >= reach))  # else one outside may be better
        places = ops.where(found, numbers // slots * len(grid) + turn(anchors, len(grid)), places)
        held, holders = improved((held, holders), ops.where(found, best, 0.0), places=places, turns=turns)
        given_up = ops.logical_and(asking, ops.logical_and(reach == 0.0, ops.logical_not(found)))
        farther = ops.where(reach < _LEAST_REACH, 0.0, reach / 2.0)
        reach = ops.where(ops.logical_and(asking, ops.logical_not(found)), farther, reach)
        reach = ops.where(given_up, -1.0, reach)
        asking = ops.logical_and(reach >= 0.0, ops.take(holders, places, axis=0) != turns)
        return asking, reach, places, held, holders

    asking = ops.logical_and(learnable, best_overlaps > 0.0)
    start = (asking, ops.where(asking, best_overlaps, -1.0), 0 * numbers,
             ops.zeros((num_anchors,), "float32"), ops.zeros((num_anchors,), "int32"))
    return ops.while_loop(lambda asking, *_: ops.any(asking), ask, start)[-1]
