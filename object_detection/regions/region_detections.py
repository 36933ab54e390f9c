"""Detections from the second-stage outputs of a two-stage detector."""

from keras import ops

from object_detection.gather import entries
from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import clip_boxes
from object_detection.structures import Detections, Tensor
from object_detection.suppression.tensor_suppression import SuppressionConfig, suppress_and_number, top_candidates

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
    boxes = clip_boxes(boxes, sizes, last_pixel=config.box_coder.last_pixel)
    large = ops.all(boxes[..., 2:] - boxes[..., :2] >= MIN_SIDE, axis=-1)
    detections, places = suppress_and_number(boxes, ops.where(large, scores, 0.0), classes, config=config)
    return detections, ops.where(detections.valid, entries(numbers, places), 0)
