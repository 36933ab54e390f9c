"""Region proposals: boxes that may contain an object of any class (Ren et al. 2015, section 3.1)."""

from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from object_detection.gather import entries
from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, BoxCoder, FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import clip_boxes
from object_detection.structures import Tensor
from object_detection.suppression.greedy_nms import greedy_nms
from object_detection.suppression.tensor_suppression import checked_level_sizes
from program_support.checked_fields import Count, PositiveShare, checked_part

PROPOSAL_BOX_CODER = FasterRcnnBoxCoder(log_size_limit=LARGEST_LOG_SIZE)


@checked_part
class ProposalConfig:
    """Selection of proposals from anchors.

    1. The best `candidates_per_level` of each level, without those that have a side below `min_side` pixels in the
    image.
    2. Non-maximum suppression within each level with `iou_threshold`; the best `kept_per_level` (None: all) remain.
    3. The best `kept` of an image remain.

    torchvision uses 2000 and 2000 in training. If corners are last pixels in the box coder, images are clipped
    accordingly.
    """

    candidates_per_level: Count = 1000
    kept_per_level: Count | None = None
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
    boxes = clip_boxes(boxes, sizes, last_pixel=config.box_coder.last_pixel)
    alive = ops.logical_and(values > -np.inf, ops.all(boxes[..., 2:] - boxes[..., :2] >= config.min_side, axis=-1))
    by_level = (-1, len(level_sizes), count)
    is_selected = nms(
        ops.reshape(boxes, (*by_level, 4)), ops.reshape(alive, by_level), iou_threshold=config.iou_threshold
    )
    if config.kept_per_level is not None:
        is_selected = ops.logical_and(
            is_selected, ops.cumsum(ops.cast(is_selected, "int32"), axis=-1) <= config.kept_per_level
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
