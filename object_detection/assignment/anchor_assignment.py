"""Label assignment by IoU, for one-stage detectors and region proposals.

An anchor is assigned to the object with which it has the largest IoU, if that IoU reaches a threshold. In addition,
each object may claim the anchor with which it has the largest IoU, whatever that IoU is (Liu et al. 2016, SSD, section
2.2). Detectors differ in the rule for such claims.
"""

from typing import Annotated, NamedTuple

import numpy as np
from keras import ops

from object_detection.assignment.anchor_candidates import (
    CandidateList,
    Candidates,
    candidate_overlap,
    candidate_windows,
    descending,
    improved,
    objects_of_anchors,
    targets_of_objects,
    tied_anchors,
)
from object_detection.geometry.anchor_grid import AnchorGrid
from object_detection.geometry.box_coding import PLAIN_BOX_CODER, BoxCoder
from object_detection.structures import Objects, ScoredTargets, Targets, Tensor
from program_support.checked_fields import PositiveShare, checked_part, one_of


class Assigner:
    """Base class of label assignment: which anchors are trained on which object."""

    reads_outputs = False  # True: `assign` gets the network's outputs, and counts are known only after the forward pass

    def assign(
        self,
        objects: Objects[Tensor],
        grid: AnchorGrid,
        *,
        box_coder: BoxCoder,
        outputs: tuple[Tensor, Tensor] | None = None,
    ) -> Targets | ScoredTargets:
        """Return the target of every anchor.

        Args:
            objects: boxes [B, M, 4] in pixels of the anchors. Crowds and padding (`valid` False) are not assigned.
            grid: the A anchors.
            box_coder: encodes boxes as offsets from anchors.
            outputs: class logits [B, A, K] and box deltas [B, A, 4] if `reads_outputs`; no gradient flows through them.

        Returns:
            Targets with [B, A] entries; with scores if a loss shall weight the positives.
        """
        raise NotImplementedError


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


CLAIMS = ("best", "best, last", "ties")


@checked_part
class IouAssigner(Assigner):
    """Label assignment by IoU thresholds, with claims of objects without a sufficient overlap.

    Attributes:
        positive_iou: an anchor whose largest IoU with an object reaches this value is assigned to that object (in a
            tie, to the first).
        strictly: the IoU has to exceed positive_iou.
        negative_iou: an unassigned anchor is ignored by the losses if its largest IoU reaches this value. None: no
            anchor is ignored.
        claim: which anchors are assigned whatever their IoU (above 0):

            - "best": for each object the anchor with the largest IoU, the first in a tie. If several objects claim one
              anchor, the first object gets it, whichever fits best. EfficientDet's and NVIDIA's rule.
            - "best, last": the same, but the last object gets it. MLPerf's SSD reference.
            - "ties": for each object all anchors with the largest IoU. They are assigned to the object with which they
              have the largest IoU, which may be another one. torchvision's `allow_low_quality_matches`.

    RetinaNet: (0.5, 0.4, "ties"); Mask R-CNN's proposals (0.7, 0.3, "ties"); SSD300 (0.5, strictly, "best, last").
    """

    positive_iou: PositiveShare = 0.5
    negative_iou: PositiveShare | None = None
    claim: Annotated[str, one_of(*CLAIMS)] = "best"
    strictly: bool = False

    def assign(
        self,
        objects: Objects[Tensor],
        grid: AnchorGrid,
        *,
        box_coder: BoxCoder,
        outputs: tuple[Tensor, Tensor] | None = None,
    ) -> Targets:
        """Return the target of every anchor, see `Assigner`; `outputs` is not used."""
        return assign_anchors(objects, grid, rule=self, box_coder=box_coder)

    @property
    def lowest_iou(self) -> float:
        """IoU from which an anchor is not negative."""
        return self.least_positive if self.negative_iou is None else self.negative_iou

    @property
    def least_positive(self) -> float:
        """Smallest float32 IoU that makes an anchor positive."""
        return float(np.nextafter(np.float32(self.positive_iou), np.float32(2))) if self.strictly else self.positive_iou


def assign_anchors(
    objects: Objects[Tensor],
    grid: AnchorGrid,
    *,
    positive_iou: float = 0.5,
    rule: IouAssigner | None = None,
    box_coder: BoxCoder = PLAIN_BOX_CODER,
) -> Targets:
    """Return the target of every anchor by `rule`, default: IouAssigner(positive_iou=positive_iou).

    Crowds, padding and objects that touch no anchor are not assigned. Memory is a multiple of [B, A] and of [B, M, G]
    for the G lattices of the grid, never [B, M, A].

    Args:
        objects: boxes [B, M, 4] in pixels of the anchors.
        grid: the A anchors.
        positive_iou: IoU threshold of the default rule.
        rule: the thresholds and claims.
        box_coder: encodes boxes as offsets from anchors.

    Returns:
        Targets with [B, A] entries.

    Raises:
        InputError: an anchor could reach the threshold without touching the object.
    """
    rule = rule or IouAssigner(positive_iou=positive_iou)
    batch, slots = ops.shape(objects.boxes)[:2]
    boxes = ops.reshape(objects.boxes, (-1, 4))  # [N, 4], N = B M
    assignable = ops.reshape(ops.logical_and(objects.valid, ops.logical_not(objects.crowd)), (-1,))
    candidates = CandidateList(
        candidate_windows(boxes, assignable, grid, positive_iou=rule.lowest_iou), grid, slots=slots
    )
    overlaps = _largest_overlaps(boxes, candidates, num_anchors=batch * len(grid), lowest_iou=rule.lowest_iou)
    assigned = _assigned_objects(boxes, assignable, candidates, overlaps, rule=rule)
    targets = targets_of_objects(objects, grid, assigned, box_coder=box_coder)
    if rule.negative_iou is None:
        return targets
    reaching = ops.reshape(overlaps.of_anchors > 0.0, (batch, len(grid)))
    return targets._replace(ignored=ops.logical_and(reaching, ops.logical_not(targets.positive)))


class _Overlaps(NamedTuple):
    """The largest IoU of each of the B A anchors (0 below the threshold) and of each of the N objects."""

    of_anchors: Tensor  # [B A] float32
    their_objects: Tensor  # [B A] int32, as `descending`; 0: none
    of_objects: Tensor  # [N] float32
    their_anchors: Tensor  # [N] int32, as `descending`; 0: none


def _largest_overlaps(
    boxes: Tensor, candidates: CandidateList, *, num_anchors: int | Tensor, lowest_iou: float
) -> _Overlaps:
    """Return the largest overlaps of anchors, 0 below `lowest_iou`, and of objects with boxes [N, 4]."""
    num_objects, grid_size = ops.shape(boxes)[0], len(candidates.grid)

    def improve(candidates: Candidates, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        overlap = candidate_overlap(boxes, candidates)
        reaching = ops.where(overlap >= lowest_iou, overlap, 0.0)
        return (
            *improved(state[:2], reaching, places=candidates.places, ranks=descending(candidates.objects, num_objects)),
            *improved(state[2:], overlap, places=candidates.objects, ranks=descending(candidates.anchors, grid_size)),
        )

    nothing = (ops.zeros((count,), kind) for count in (num_anchors, num_objects) for kind in ("float32", "int32"))
    return _Overlaps(*candidates.fold(improve, tuple(nothing)))


def _assigned_objects(
    boxes: Tensor, assignable: Tensor, candidates: CandidateList, overlaps: _Overlaps, *, rule: IouAssigner
) -> Tensor:
    """Return the object assigned to each of the B A anchors, as `descending` (0: none)."""
    num_anchors = ops.shape(overlaps.of_anchors)[0]
    by_overlap = overlaps.their_objects
    if rule.negative_iou is not None:
        by_overlap = ops.where(overlaps.of_anchors >= rule.least_positive, by_overlap, 0)
    if rule.claim == "ties":
        tied = tied_anchors(boxes, candidates, overlaps.of_objects, num_anchors=num_anchors)
        # An anchor below the thresholds may overlap another object more, whose candidates did not include that IoU
        unlisted = ops.logical_and(tied, overlaps.their_objects == 0)
        others = objects_of_anchors(boxes, assignable, unlisted, candidates)
        return ops.where(unlisted, others, ops.where(tied, overlaps.their_objects, by_overlap))
    claims = _best_claims(candidates, overlaps, last=rule.claim == "best, last")
    return ops.where(claims > 0, claims, by_overlap)


def _best_claims(candidates: CandidateList, overlaps: _Overlaps, *, last: bool) -> Tensor:
    """Return for each of the B A anchors the first, or the last, object that claims it, as `descending`."""
    num_anchors, num_objects = (ops.shape(values)[0] for values in (overlaps.of_anchors, overlaps.of_objects))
    grid_size, numbers = len(candidates.grid), ops.arange(num_objects, dtype="int32")
    best_places = numbers // candidates.slots * grid_size + descending(overlaps.their_anchors, grid_size)
    has_claim = overlaps.their_anchors > 0
    order = numbers + 1 if last else descending(numbers, num_objects)
    claims = ops.segment_max(ops.where(has_claim, order, 0), ops.where(has_claim, best_places, 0), num_anchors)
    return ops.where(claims > 0, descending(claims - 1, num_objects), 0) if last else claims
