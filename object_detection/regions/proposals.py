"""Region proposals: the boxes that may hold an object of any class (Ren et al. 2015, section 3.1)."""

from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from object_detection.gather import entries
from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, BoxCoder, FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import clip_boxes
from object_detection.structures import Tensor
from object_detection.suppression.greedy_nms import greedy_nms
from object_detection.suppression.tensor_suppression import check_level_sizes
from program_support.checked_fields import Count, PositiveShare, checked_part

PROPOSAL_BOX_CODER = FasterRcnnBoxCoder(log_size_limit=LARGEST_LOG_SIZE)


@checked_part
class ProposalConfig:
    """Which anchors propose a region: the best `candidates_per_level` of each level whose sides, within the image, reach
    least_side pixels and that overlap no better one of their level by more than iou_threshold; of these the best
    `kept_per_level` of each level, or all, and of those the `kept` best of an image. torchvision's has 2000 and 2000 in
    training. Where the box coder counts to the last pixel, images end there as well."""

    candidates_per_level: Count = 1000
    kept_per_level: Count | None = None
    kept: Count = 1000
    iou_threshold: PositiveShare = 0.7
    least_side: float = 1e-3
    box_coder: BoxCoder = PROPOSAL_BOX_CODER


def region_proposals(
    logits: Tensor, deltas: Tensor, anchors: Tensor, level_sizes: Sequence[int], sizes: Tensor, config: ProposalConfig,
    *, nms: Callable[..., Tensor] = greedy_nms,
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes within their images, scores and which of them exist, best first. [B, A], [B, A, 4], [A, 4] -> [B, P, 4], [B, P],
    [B, P] bool; P is config.kept, or as many as there are candidates.

    level_sizes: how many of the A anchors each level has; sizes [B, 2], height and width of each image; nms: `greedy_nms`, or
    what finds the same in another way. Without gradient. Boxes and scores are 0 where there is none. Raises ValueError for
    level sizes that are not those of A anchors.
    """
    check_level_sizes(level_sizes, logits.shape[1])
    count = _candidates(level_sizes, config)
    values, numbers = _best_of_levels(ops.stop_gradient(logits), count, level_sizes)  # [B, L count]
    boxes = config.box_coder.decode(entries(ops.stop_gradient(deltas), numbers), ops.take(anchors, numbers, axis=0))
    boxes = clip_boxes(boxes, sizes, last_pixel=config.box_coder.last_pixel)
    alive = ops.logical_and(values > -np.inf, ops.all(boxes[..., 2:] - boxes[..., :2] >= config.least_side, axis=-1))
    by_level = (-1, len(level_sizes), count)
    kept = nms(ops.reshape(boxes, (*by_level, 4)), ops.reshape(alive, by_level), iou_threshold=config.iou_threshold)
    if config.kept_per_level is not None:
        kept = ops.logical_and(kept, ops.cumsum(ops.cast(kept, "int32"), axis=-1) <= config.kept_per_level)
    values = ops.where(ops.reshape(kept, (-1, values.shape[1])), values, -np.inf)
    best, places = ops.top_k(values, proposal_slots(level_sizes, config))
    valid = best > -np.inf
    boxes = ops.where(valid[..., None], entries(boxes, places), 0.0)
    return boxes, ops.where(valid, ops.sigmoid(best), 0.0), valid


def proposal_slots(level_sizes: Sequence[int], config: ProposalConfig) -> int:
    """The P of `region_proposals`."""
    return min(config.kept, len(level_sizes) * _candidates(level_sizes, config))


def _candidates(level_sizes: Sequence[int], config: ProposalConfig) -> int:
    """Slots of a level's candidates, as many on each."""
    return min(config.candidates_per_level, max(level_sizes))


def _best_of_levels(logits: Tensor, count: int, level_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The `count` highest logits of each level, best first, -inf where it has fewer, and the numbers of their anchors.

    [B, A] -> [B, L count], [B, L count] int32.
    """
    levels, first = [], 0
    for size in level_sizes:
        best, numbers = ops.top_k(logits[:, first:first + size], min(count, size))
        missing = [[0, 0], [0, count - min(count, size)]]
        levels.append((ops.pad(best, missing, constant_values=-np.inf), ops.pad(numbers + first, missing)))
        first += size
    return tuple(ops.concatenate(parts, axis=1) for parts in zip(*levels, strict=True))
