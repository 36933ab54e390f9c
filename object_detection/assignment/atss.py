"""ATSS, adaptive training sample selection (Zhang et al. 2020, algorithm 1).

Candidates of an object are the anchors of the cells nearest to its center, equally many on each level whatever the size
of the object. The threshold on their IoU is the mean plus the standard deviation of these IoUs, so each object has its
own.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from keras import ops

from object_detection.assignment.assigned_targets import assignable, contains_centers, targets_of_objects
from object_detection.assignment.assigner import Assigner
from object_detection.assignment.claimed_anchors import descending, improved
from object_detection.geometry.anchor_grid import AnchorGrid
from object_detection.geometry.box_coding import BoxCoder
from object_detection.geometry.box_geometry import iou
from object_detection.structures import Objects, Targets, Tensor

NEAREST_CELLS = 9  # cells per object and level; all their anchors are candidates


class AtssAssigner(Assigner):
    """Label assignment by an IoU threshold that is computed for each object.

    An anchor is positive if it is a candidate of the object, its IoU reaches the threshold and its center is inside the
    object. Among several such objects it is assigned to the one with the largest IoU, the first in a tie.
    """

    def assign(
        self,
        objects: Objects[Tensor],
        grid: AnchorGrid,
        *,
        box_coder: BoxCoder,
        outputs: tuple[Tensor, Tensor] | None = None,
    ) -> Targets:
        """Return the target of every anchor, see `Assigner`; `outputs` is not used."""
        batch, slots = ops.shape(objects.boxes)[:2]
        count = batch * slots  # N
        boxes = ops.reshape(objects.boxes, (-1, 4))[:, None]  # [N, 1, 4]
        anchors = _nearest_anchors((boxes[:, 0, :2] + boxes[:, 0, 2:]) / 2.0, grid)  # [N, C]
        anchor_boxes = ops.take(ops.convert_to_tensor(grid.boxes), anchors, axis=0)  # [N, C, 4]
        overlap = iou(boxes, anchor_boxes)
        mean = ops.mean(overlap, axis=1, keepdims=True)
        variance = ops.sum(ops.square(overlap - mean), axis=1, keepdims=True) / max(anchors.shape[1] - 1, 1)
        positive = ops.logical_and(overlap >= mean + ops.sqrt(variance), contains_centers(boxes, anchor_boxes))
        positive = ops.logical_and(positive, ops.reshape(assignable(objects), (-1, 1)))
        numbers = ops.broadcast_to(ops.arange(count, dtype="int32")[:, None], ops.shape(anchors))
        _, assigned = improved(
            (ops.zeros((batch * len(grid),), "float32"), ops.zeros((batch * len(grid),), "int32")),
            ops.reshape(ops.where(positive, overlap, 0.0), (-1,)),
            places=ops.reshape(numbers // slots * len(grid) + anchors, (-1,)),
            ranks=ops.reshape(descending(numbers, count), (-1,)),
        )
        return targets_of_objects(objects, grid, assigned, box_coder=box_coder)


class _Cells(NamedTuple):
    """A lattice of cells of one level. Pairs are (y, x)."""

    center: np.ndarray  # row 0, column 0
    stride: np.ndarray
    counts: np.ndarray  # rows and columns
    steps: np.ndarray
    first: int  # number of the first anchor of row 0, column 0


def _nearest_anchors(centers: Tensor, grid: AnchorGrid) -> Tensor:
    """Return the anchors of the cells of each level nearest to centers [N, 2]: [N, C] int32."""
    by_level = []
    for lattices, shapes in _levels(grid):
        windows = [_window(centers, cells) for cells in lattices]
        distances, anchors = (ops.concatenate(values, axis=1) for values in zip(*windows, strict=True))
        _, nearest = ops.top_k(-distances, min(NEAREST_CELLS, distances.shape[1]))
        anchors = ops.take_along_axis(anchors, ops.cast(nearest, "int32"), axis=1)[..., None] + shapes  # [N, 9, shapes]
        by_level.append(ops.reshape(anchors, (-1, anchors.shape[1] * anchors.shape[2])))
    return ops.concatenate(by_level, axis=1)


def _window(centers: Tensor, cells: _Cells) -> tuple[Tensor, Tensor]:
    """Return the squared distance, in pixels, and the first anchor of cells around centers [N, 2]: [N, cells] each.

    No cell is nearer than the nearest nine of its row and the nearest nine of its column, so that these rows and these
    columns contain the nearest nine of all.
    """
    offsets, numbers = [], []
    for axis in range(2):
        size = min(NEAREST_CELLS, int(cells.counts[axis]))
        nearest = ops.round((centers[:, axis : axis + 1] - cells.center[axis]) / cells.stride[axis])
        start = ops.clip(nearest - NEAREST_CELLS // 2, 0.0, float(cells.counts[axis] - size))
        places = start + np.arange(size, dtype=np.float32)  # [N, size]
        offsets.append(cells.center[axis] + places * cells.stride[axis] - centers[:, axis : axis + 1])
        numbers.append(ops.cast(places, "int32") * cells.steps[axis])
    distances = ops.square(offsets[0])[:, :, None] + ops.square(offsets[1])[:, None]
    anchors = cells.first + numbers[0][:, :, None] + numbers[1][:, None]
    count = distances.shape[1] * distances.shape[2]
    return ops.reshape(distances, (-1, count)), ops.reshape(anchors, (-1, count))


def _levels(grid: AnchorGrid) -> Iterator[tuple[list[_Cells], np.ndarray]]:
    """Yield the lattices of cells of each level, and the distances from a cell's first anchor to all its anchors.

    A level has several lattices if some of its centers are clipped at a limit.
    """
    levels = np.searchsorted(np.cumsum(grid.level_sizes), grid.first, side="right")
    for level in range(len(grid.level_sizes)):
        members = np.flatnonzero(levels == level)
        positions = np.concatenate([grid.centers, grid.strides, grid.counts])[:, members].T
        lattices, which = np.unique(positions, axis=0, return_inverse=True)
        anchors = [np.sort(grid.first[members[which.ravel() == number]]) for number in range(len(lattices))]
        yield (
            [
                _Cells(lattice[:2], lattice[2:4], lattice[4:].astype(int), grid.steps[:, members[0]], int(first[0]))
                for lattice, first in zip(lattices, anchors, strict=True)
            ],
            anchors[0] - anchors[0][0],
        )
