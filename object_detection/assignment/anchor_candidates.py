"""Candidate anchors of an object, found from the lattices of anchors without comparing with all anchors; their IoU.

Two boxes with a given IoU overlap both in y and in x. On a lattice the overlap in y depends on the row only, is largest
at the row nearest to the object's center and decreases with the distance. So the rows with a sufficient overlap are
contiguous and have closed-form limits; the same holds for columns. Of 49,104 anchors (512 x 512 pixels) about twenty
per object remain.

Numbers of objects are those of all images, 0 .. N-1; places of anchors too, 0 .. B A - 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from object_detection.geometry.anchor_grid import AnchorGrid
from object_detection.geometry.box_coding import BoxCoder
from object_detection.geometry.box_geometry import iou
from object_detection.structures import Objects, Targets, Tensor

# More than the rounding error of float32 in coordinates (relative to the largest), areas, their quotients, rows and
# columns
_SLACK, _RELATIVE_SLACK, _CELL_SLACK = 2.0**-19, 1e-5, 1e-3
_CHUNK_SIZE = 32  # candidates per slot and iteration; most objects have ten to fifty, padding has none
_MARKED_CHUNK_SIZE = 512  # anchors, each compared with all M objects of its image

State = tuple[Tensor, ...]  # carried from one step of a loop to the next


class Windows(NamedTuple):
    """Ranges of rows and columns of each lattice, for each of N objects."""

    starts: Tensor  # [N, 2, G] int32, first row and column
    counts: Tensor  # [N, 2, G] int32, rows and columns; 0 where the lattice has no candidate


class Candidates(NamedTuple):
    """C pairs of an object and an anchor."""

    objects: Tensor  # [C] int32, 0 .. N-1
    anchors: Tensor  # [C] int32, 0 .. A-1
    places: Tensor  # [C] int32, 0 .. B A - 1: the anchor's index among the anchors of all images
    anchor_boxes: Tensor  # [C, 4]
    exist: Tensor  # [C] bool, False for padding


def candidate_windows(boxes: Tensor, assignable: Tensor, grid: AnchorGrid, *, positive_iou: float | Tensor) -> Windows:
    """Return windows with every anchor whose IoU with an object reaches `positive_iou`, or else is the largest.

    Anchors close enough to the threshold for rounding to decide are included. Invalid and empty objects have no window.

    Args:
        boxes: [N, 4] in pixels of the anchors.
        assignable: [N] bool, the objects that may be assigned.
        grid: the anchors.
        positive_iou: one value for all objects or [N, 1]; at 0 all anchors that touch an object.
    """
    low, high = boxes[:, :2, None], boxes[:, 2:, None]  # [N, 2, 1]
    sides, centers = high - low, (low + high) / 2.0
    # [N, 1, 1] px: tolerance of a side, a distance or an overlap
    slack = _SLACK * (ops.max(ops.abs(boxes), axis=1)[:, None, None] + float(abs(grid.boxes).max()))

    final = np.float32(grid.counts - 1)  # row and column
    nearest = ops.minimum(ops.maximum(ops.round((centers - grid.centers) / grid.strides), 0.0), final)
    reach = (sides + grid.sides) / 2.0
    overlap = ops.minimum(
        reach - ops.abs(centers - grid.centers - nearest * grid.strides), ops.minimum(sides, grid.sides)
    )

    box_areas = _product(sides)  # [N, 1]
    sure = _product(ops.maximum(overlap - slack, 0.0))  # [N, G]
    sure_iou = sure / (_product(grid.sides + slack) + box_areas - sure)
    largest_iou = ops.max(sure_iou, axis=1, keepdims=True)  # [N, 1]
    required_iou = ops.minimum(largest_iou, positive_iou) * (1.0 - _RELATIVE_SLACK)
    required_share = required_iou / (1.0 + required_iou)  # intersection / (sum of both areas) at this IoU
    required = required_share * (_product(ops.maximum(grid.sides - slack, 0.0)) + box_areas)  # [N, G]

    possible = ops.maximum(overlap + slack, 0.0)
    can_match = ops.logical_and(_product(possible) * (1.0 + _RELATIVE_SLACK) >= required, _product(possible) > 0.0)
    can_match = ops.logical_and(can_match, ops.logical_and(assignable, ops.all(sides[..., 0] > 0.0, axis=1))[:, None])
    # With the largest possible overlap on the other axis, the overlap required on this one limits the distance from the
    # center.
    radius = reach + slack - required[:, None] / ops.flip(possible, axis=1) * (1.0 - _RELATIVE_SLACK)
    offset = centers - grid.centers
    first = ops.maximum(ops.ceil((offset - radius) / grid.strides - _CELL_SLACK), 0.0)
    last = ops.minimum(ops.floor((offset + radius) / grid.strides + _CELL_SLACK), final)
    counts = ops.where(can_match[:, None], ops.maximum(last - first + 1.0, 0.0), 0.0)
    return Windows(ops.cast(first, "int32"), ops.cast(counts, "int32"))


def _product(sides: Tensor) -> Tensor:
    """Return the areas of sides (y, x): [..., 2, G] -> [..., G]."""
    return sides[..., 0, :] * sides[..., 1, :]


class CandidateList:
    """The anchors in windows, in the order of the objects; `slots` objects belong to one image.

    The complete list is never in memory: `fold` iterates over parts of fixed size. So shapes are static, and padded
    slots cost nothing.
    """

    def __init__(self, windows: Windows, grid: AnchorGrid, *, slots: int | Tensor):
        self.grid, self.slots = grid, slots
        counts = ops.reshape(windows.counts[:, 0] * windows.counts[:, 1], (-1,))  # [P], P = N G
        self._filled = ops.cast(counts > 0, "int32")
        ends = ops.cumsum(counts)
        self._starts, self._total = ends - counts, ends[-1]
        # Non-empty windows first, in their order; the others at the end
        pairs = ops.shape(counts)[0]
        places = ops.where(counts > 0, ops.cumsum(self._filled) - 1, pairs)
        self._listed = ops.segment_max(ops.arange(pairs, dtype="int32"), places, pairs + 1)
        steps = ops.broadcast_to(ops.convert_to_tensor(grid.steps), ops.shape(windows.starts))  # [N, 2, G]
        corners = ops.sum(windows.starts * steps, axis=1) + grid.first  # [N, G], the first anchor of each window
        columns = ops.maximum(windows.counts[:, 1], 1)
        self._windows = ops.stack(
            [self._starts, *(ops.reshape(values, (-1,)) for values in (corners, columns, steps[:, 0], steps[:, 1]))],
            axis=-1,
        )  # [P, 5]
        self._chunk = ops.shape(windows.counts)[0] * _CHUNK_SIZE

    def fold(self, function: Callable[[Candidates, State], State], state: State) -> State:
        """Return the final state of `function(candidates, state) -> state`, called for each part of the list."""

        def step(begin: Tensor, *state: Tensor) -> State:
            return begin + self._chunk, *function(self._from(begin), state)

        return ops.while_loop(lambda begin, *_: begin < self._total, step, (ops.zeros((), "int32"), *state))[1:]

    def _from(self, begin: Tensor) -> Candidates:
        lattices, numbers = len(self.grid.first), begin + ops.arange(self._chunk, dtype="int32")
        exist = numbers < self._total
        pair = ops.where(exist, self._pairs(begin), 0)
        start, corner, columns, row_step, column_step = ops.unstack(ops.take(self._windows, pair, axis=0), 5, axis=-1)
        rows, remainder = (numbers - start) // columns, (numbers - start) % columns
        anchors = corner + rows * row_step + remainder * column_step
        objects, anchors = pair // lattices, ops.where(exist, anchors, 0)
        return Candidates(
            objects,
            anchors,
            objects // self.slots * len(self.grid) + anchors,
            ops.take(ops.convert_to_tensor(self.grid.boxes), anchors, axis=0),
            exist,
        )

    def _pairs(self, begin: Tensor) -> Tensor:
        """Return the window of each candidate from number `begin` on: [C]."""
        places = self._starts - begin
        inside = ops.logical_and(self._filled > 0, ops.logical_and(places >= 0, places < self._chunk))
        begun = ops.segment_sum(self._filled, ops.where(inside, places, self._chunk), self._chunk + 1)[: self._chunk]
        offset = ops.sum(ops.where(places < 0, self._filled, 0))
        return ops.take(self._listed, ops.maximum(offset + ops.cumsum(begun) - 1, 0), axis=0)


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
    listed = ops.segment_max(
        ops.arange(count, dtype="int32"), ops.where(marked, order, count), count + 1 + _MARKED_CHUNK_SIZE
    )
    total = order[-1] + 1

    def step(begin: Tensor, *state: Tensor) -> State:
        numbers = begin + ops.arange(_MARKED_CHUNK_SIZE, dtype="int32")
        exist = numbers < total
        places = ops.where(exist, ops.take(listed, numbers, axis=0), 0)
        return begin + _MARKED_CHUNK_SIZE, *function(places, exist, state)

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


def targets_of_objects(objects: Objects[Tensor], grid: AnchorGrid, assigned: Tensor, *, box_coder: BoxCoder) -> Targets:
    """Return the targets of anchors of which none is ignored.

    Every anchor is encoded, not the assigned ones alone: so a compiler computes the deltas where the loss reads them.
    A scatter would write all [B, A, 4] of them.

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
