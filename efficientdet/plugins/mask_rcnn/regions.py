"""Region proposals, boxes that may contain an object of any class (Ren et al. 2015, section 3.1), and detections."""

from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from object_detection.gather import entries
from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, BoxCoder, FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import clip_boxes, pairwise_iou
from object_detection.structures import Detections, Tensor
from object_detection.suppression.tensor_suppression import (
    SuppressionConfig,
    checked_level_sizes,
    suppress_and_number,
    top_candidates,
)
from program_support.checked_fields import Count, PositiveShare, checked_part

PROPOSAL_BOX_CODER = FasterRcnnBoxCoder(log_size_limit=LARGEST_LOG_SIZE)
REGION_BOX_CODER = FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0), log_size_limit=LARGEST_LOG_SIZE)
REGION_SUPPRESSION = SuppressionConfig(
    method="hard",
    iou_threshold=0.5,
    score_threshold=0.05,
    candidates=2000,
    max_detections=100,
    scores="softmax",
    box_coder=REGION_BOX_CODER,
    clip=True,
)  # torchvision's
MIN_SIDE = 1e-2  # pixels
_IMPOSSIBLE_LOGIT = -1e9  # logit of a class that a region cannot have


def greedy_nms(boxes: Tensor, alive: Tensor, *, iou_threshold: float) -> Tensor:
    """Return which boxes of each group remain: none overlaps a better remaining box by more than the threshold.

    boxes [..., N, 4], best first; alive [..., N] bool, False for boxes to leave out -> [..., N] bool.

    The result is the unique fixed point of "alive, and no better remaining box overlaps it". So the condition is
    evaluated for all boxes at once until nothing changes: n iterations settle the n best boxes, and a few iterations
    usually all of them.
    """
    numbers = ops.arange(boxes.shape[-2], dtype="int32")
    overlapping = ops.logical_and(pairwise_iou(boxes, boxes) > iou_threshold, numbers[:, None] < numbers)

    def iterate(_: Tensor | None, current: Tensor) -> tuple[Tensor, Tensor]:
        beside_better = ops.any(ops.logical_and(overlapping, current[..., None]), axis=-2)
        return current, ops.logical_and(alive, ops.logical_not(beside_better))

    start = (ops.zeros_like(alive), iterate(None, alive)[1])
    return ops.while_loop(lambda previous, current: ops.any(previous != current), iterate, start)[1]


@checked_part
class ProposalConfig:
    """Selection of proposals from anchors.

    1. The best `candidates_per_level` of each level, without those that have a side below `min_side` pixels in the
    image.
    2. Non-maximum suppression within each level with `iou_threshold`.
    3. The best `kept` of an image remain.

    torchvision uses 2000 and 2000 in training.
    """

    candidates_per_level: Count = 1000
    kept: Count = 1000
    iou_threshold: PositiveShare = 0.7
    min_side: float = 1e-3
    box_coder: BoxCoder = PROPOSAL_BOX_CODER


def region_proposals(
    logits: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    level_sizes: Sequence[int],
    sizes: Tensor,
    config: ProposalConfig,
    *,
    nms: Callable[..., Tensor] = greedy_nms,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes within their images, scores and validity, best first. -> [B, P, 4], [B, P], [B, P] bool.

    P is config.kept, or the number of candidates if that is less. Boxes and scores are 0 where invalid. No gradient.

    Args:
        logits: [B, A].
        deltas: [B, A, 4].
        anchors: [A, 4].
        level_sizes: number of anchors of each level.
        sizes: [B, 2], height and width of each image.
        config: limits and thresholds.
        nms: `greedy_nms`, or an equivalent.

    Raises:
        ValueError: the sum of level_sizes is not A.
    """
    count = _candidates(checked_level_sizes(level_sizes, logits.shape[1]), config)
    values, numbers = _best_of_levels(ops.stop_gradient(logits), count, level_sizes)  # [B, L count]
    boxes = config.box_coder.decode(entries(ops.stop_gradient(deltas), numbers), ops.take(anchors, numbers, axis=0))
    boxes = clip_boxes(boxes, sizes)
    alive = ops.logical_and(values > -np.inf, ops.all(boxes[..., 2:] - boxes[..., :2] >= config.min_side, axis=-1))
    by_level = (-1, len(level_sizes), count)
    is_selected = nms(
        ops.reshape(boxes, (*by_level, 4)), ops.reshape(alive, by_level), iou_threshold=config.iou_threshold
    )
    values = ops.where(ops.reshape(is_selected, (-1, values.shape[1])), values, -np.inf)
    best, places = ops.top_k(values, proposal_slots(level_sizes, config))
    valid = best > -np.inf
    boxes = ops.where(valid[..., None], entries(boxes, places), 0.0)
    return boxes, ops.where(valid, ops.sigmoid(best), 0.0), valid


def proposal_slots(level_sizes: Sequence[int], config: ProposalConfig) -> int:
    """Return the P of `region_proposals`."""
    return min(config.kept, len(level_sizes) * _candidates(level_sizes, config))


def _candidates(level_sizes: Sequence[int], config: ProposalConfig) -> int:
    """Return the number of candidates per level, the same on each."""
    return min(config.candidates_per_level, max(level_sizes))


def _best_of_levels(logits: Tensor, count: int, level_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the `count` highest logits of each level, best first, padded with -inf, and the numbers of their anchors.

    [B, A] -> [B, L count], [B, L count] int32.
    """
    levels, first = [], 0
    for size in level_sizes:
        best, numbers = ops.top_k(logits[:, first : first + size], min(count, size))
        missing = [[0, 0], [0, count - min(count, size)]]
        levels.append((ops.pad(best, missing, constant_values=-np.inf), ops.pad(numbers + first, missing)))
        first += size
    return tuple(ops.concatenate(parts, axis=1) for parts in zip(*levels, strict=True))


def region_detections(
    class_logits: Tensor,
    deltas: Tensor,
    regions: Tensor,
    valid: Tensor,
    sizes: Tensor,
    *,
    config: SuppressionConfig = REGION_SUPPRESSION,
) -> tuple[Detections[Tensor], Tensor]:
    """Return Detections with D = max_detections, and the region of each, [B, D] int32 (0 where not valid).

    The candidates are the best config.candidates pairs of a region and a class, except boxes narrower or lower than
    MIN_SIDE.

    Args:
        class_logits: [B, P, K], the background first; classes are numbered without it.
        deltas: [B, P, K, 4], for each class.
        regions: [B, P, 4].
        valid: [B, P] bool.
        sizes: [B, 2], height and width of the images, to which boxes are clipped.
        config: the thresholds; scores must be a softmax with the background first, and `clip` True.

    Raises:
        ValueError: other scores, or no clipping.
    """
    if config.scores != REGION_SUPPRESSION.scores or not config.clip:
        raise ValueError(
            f"scores of regions by {config.scores}, clip {config.clip}; expected {REGION_SUPPRESSION.scores}, True"
        )
    count = class_logits.shape[-1]
    background = ops.arange(count) == 0
    logits = ops.where(ops.logical_or(valid[..., None], background), class_logits, _IMPOSSIBLE_LOGIT)
    scores, classes, numbers = top_candidates(logits, config=config)
    of_pairs = ops.reshape(deltas, (-1, deltas.shape[1] * count, 4))
    boxes = config.box_coder.decode(entries(of_pairs, numbers * count + classes + 1), entries(regions, numbers))
    boxes = clip_boxes(boxes, sizes)
    large = ops.all(boxes[..., 2:] - boxes[..., :2] >= MIN_SIDE, axis=-1)
    detections, places = suppress_and_number(boxes, ops.where(large, scores, 0.0), classes, config=config)
    return detections, ops.where(detections.valid, entries(numbers, places), 0)
