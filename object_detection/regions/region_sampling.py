"""Which regions a two-stage detector learns from: matched with objects by overlap, then drawn at random.

Who is drawn is a function of the seed and the image's position in the training, whatever else is in the batch.
"""

from keras import ops

from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.losses import hardest
from object_detection.stateless_random import uniform_draws
from object_detection.structures import Objects, Tensor


def assign_regions(
    boxes: Tensor, valid: Tensor, objects: Objects, *, positive_iou: float = 0.5, strictly: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The object that each region overlaps most, the first of equal ones, if their IoU reaches the threshold, or `strictly`
    is above it; otherwise it is negative. Crowds are no one's object.

    boxes [B, N, 4], valid [B, N] bool, False for padding -> numbers of objects [B, N] int32 (0 where not positive), positive
    and negative [B, N] bool, neither of them for padding. Raises InputError for a threshold that is not above 0, up to 1.
    """
    least = IouAssigner(positive_iou=positive_iou, strictly=strictly).least_positive
    learnable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
    overlap = ops.where(learnable[:, None], pairwise_iou(ops.stop_gradient(boxes), objects.boxes), 0.0)  # [B, N, M]
    positive = ops.logical_and(valid, ops.max(overlap, axis=-1) >= least)
    matched = ops.where(positive, ops.cast(ops.argmax(overlap, axis=-1), "int32"), 0)
    return matched, positive, ops.logical_and(valid, ops.logical_not(positive))


def sample_masks(
    positive: Tensor, negative: Tensor, seeds: Tensor, *, count: int, positive_share: float
) -> tuple[Tensor, Tensor]:
    """Which of the positive and negative ones of each image are drawn: count x positive_share positive ones, rounded down, or
    all where there are fewer, and negative ones up to `count` in total. Each is as likely as any other of its kind.

    positive, negative [B, N] bool, never both; seeds [B, 2] int32 as of `seeds_of` -> [B, N] bool, [B, N] bool.
    """
    draws, most = uniform_draws(seeds, ops.shape(positive)[1]), int(count * positive_share)

    def drawn(candidates, limits):
        highest = hardest(ops.where(candidates, draws, -1.0), ops.minimum(limits, _number_of(candidates)))
        return highest > 0.0

    positives = ops.minimum(_number_of(positive), most)
    return drawn(positive, positives), drawn(negative, count - positives)


def sample_regions(
    positive: Tensor, negative: Tensor, seeds: Tensor, *, count: int, positive_share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What `sample_masks` draws, as a list: positive ones first, each kind in its order.

    -> numbers [B, count] int32 of the N, positive [B, count] bool, valid [B, count] bool: False, with number 0, in the slots
    behind the last where there are fewer.
    """
    drawn = sample_masks(positive, negative, seeds, count=count, positive_share=positive_share)
    kinds = 2 * ops.cast(drawn[0], "int32") + ops.cast(drawn[1], "int32")
    length = ops.shape(positive)[1]
    # Distinct keys, as not every top_k keeps the order of equal ones; slots beyond the last
    keys = ops.pad(kinds * length - ops.arange(length, dtype="int32"), [[0, 0], [0, count]], constant_values=-1)
    keys, _ = ops.top_k(keys, count)
    valid = keys > 0
    numbers = ops.where(valid, (length - keys % length) % length, 0)
    return numbers, keys > length, valid


def _number_of(marked: Tensor) -> Tensor:
    """True ones of each row, [B] int32."""
    return ops.sum(ops.cast(marked, "int32"), axis=1)
