"""Which anchor is to learn which object: the assignment by overlap of one-stage detectors.

An anchor learns the object it overlaps most if their IoU reaches the threshold; and every object that overlaps any
anchor at all is learnt by the one it overlaps most, whatever the IoU (Liu et al. 2016, SSD, section 2.2).
"""

from keras import ops

from object_detection.anchor_candidates import CandidateList, Candidates, candidate_windows
from object_detection.anchor_grid import AnchorGrid
from object_detection.box_coding import encode_boxes
from object_detection.box_geometry import iou
from object_detection.structures import Objects, Targets, Tensor


def assign_anchors(objects: Objects, grid: AnchorGrid, *, positive_iou: float = 0.5) -> Targets:
    """The target of every anchor.

    objects: boxes [B, M, 4] in the pixels of the anchors. -> Targets with [B, A] entries, `ignored` False everywhere (this
    rule has no band between positive and negative). Crowds and padding are nobody's target. Where several objects overlap an
    anchor alike, or want one as their best, the first takes it; of several anchors that an object overlaps alike it wants the
    first. Needs some [B, A] and some [B, M, G] for the G lattices of the grid, never [B, M, A]. Raises ValueError for a
    threshold that an anchor could reach without touching the object.
    """
    if not 0 < positive_iou <= 1:
        raise ValueError(f"positive_iou is {positive_iou}; wanted above 0, up to 1")
    batch, slots = ops.shape(objects.boxes)[:2]
    boxes = ops.reshape(objects.boxes, (-1, 4))  # [N, 4], N = B M
    learnable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
    candidates = CandidateList(
        candidate_windows(boxes, ops.reshape(learnable, (-1,)), grid, positive_iou=positive_iou), grid, slots=slots)
    learnt = _learnt_objects(boxes, candidates, num_anchors=batch * len(grid), positive_iou=positive_iou)
    classes, box_deltas = _targets_of_pairs(boxes, ops.reshape(objects.classes, (-1,)), candidates, learnt)
    positive = ops.reshape(learnt > 0, (batch, len(grid)))
    return Targets(
        classes=ops.reshape(classes, (batch, len(grid))),
        box_deltas=ops.reshape(box_deltas, (batch, len(grid), 4)),
        positive=positive,
        ignored=ops.zeros_like(positive),
    )


def _learnt_objects(boxes: Tensor, candidates: CandidateList, *, num_anchors, positive_iou: float) -> Tensor:
    """What each of the B A anchors learns, as its `_turn`; 0: nothing. boxes [N, 4]."""
    num_objects, grid_size = ops.shape(boxes)[0], len(candidates.grid)

    def improve(found: Candidates, state: tuple) -> tuple:
        overlap = ops.where(found.exist, iou(ops.take(boxes, found.objects, axis=0), found.anchor_boxes), 0.0)
        reaching = ops.where(overlap >= positive_iou, overlap, 0.0)
        return (*_improved(state[:2], reaching, places=found.places, turns=_turn(found.objects, num_objects)),
                *_improved(state[2:], overlap, places=found.objects, turns=_turn(found.anchors, grid_size)))

    nothing = (ops.zeros((count,), kind) for count in (num_anchors, num_objects) for kind in ("float32", "int32"))
    _, of_anchors, _, of_objects = candidates.fold(improve, tuple(nothing))

    numbers = ops.arange(num_objects, dtype="int32")
    best_places = numbers // candidates.slots * grid_size + _turn(of_objects, grid_size)
    wanted = of_objects > 0
    forced = ops.segment_max(ops.where(wanted, _turn(numbers, num_objects), 0), ops.where(wanted, best_places, 0), num_anchors)
    return ops.where(forced > 0, forced, of_anchors)


def _turn(numbers: Tensor, count) -> Tensor:
    """0 .. count-1 to count .. 1 (and back), so that the first of several is the largest."""
    return count - numbers


def _improved(so_far: tuple[Tensor, Tensor], overlap: Tensor, *, places: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """With C more overlaps: the largest at each of K places, and the largest turn of those that have it; 0 without any."""
    best, turn = so_far
    count = ops.shape(best)[0]
    largest = ops.maximum(best, ops.segment_max(overlap, places, count))
    is_best = ops.logical_and(overlap > 0.0, overlap == ops.take(largest, places, axis=0))
    found = ops.segment_max(ops.where(is_best, turns, 0), places, count)
    return largest, ops.where(largest > best, found, ops.maximum(turn, found))


def _targets_of_pairs(boxes: Tensor, classes: Tensor, candidates: CandidateList, learnt: Tensor) -> tuple[Tensor, Tensor]:
    """Class and box deltas of each of the B A anchors, 0 where it learns nothing. boxes [N, 4], classes [N], learnt [B A].

    Only what is learnt is encoded: one anchor in some hundreds.
    """
    num_objects, num_anchors = ops.shape(boxes)[0], ops.shape(learnt)[0]

    def fill(found: Candidates, state: tuple) -> tuple:
        is_learnt = ops.take(learnt, found.places, axis=0) == _turn(found.objects, num_objects)
        is_learnt = ops.logical_and(found.exist, is_learnt)
        deltas = encode_boxes(ops.take(boxes, found.objects, axis=0), found.anchor_boxes)  # [C, 4]
        deltas = ops.where(is_learnt[:, None], deltas, 0.0)
        numbers = ops.where(is_learnt, ops.take(classes, found.objects, axis=0), 0)
        # Each anchor is met once with the object it learns, so a sum is that one summand.
        return tuple(whole + ops.segment_sum(part, found.places, num_anchors)
                     for whole, part in zip(state, (numbers, deltas), strict=True))

    return candidates.fold(fill, (ops.zeros((num_anchors,), classes.dtype), ops.zeros((num_anchors, 4), "float32")))
