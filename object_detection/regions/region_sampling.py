"""Sampling of regions for training: matching with objects by IoU, then random sampling.

A sample is a function of the seed and the image's position in the training, independent of the rest of the batch.
"""

from keras import ops

from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.losses import hardest
from object_detection.stateless_random import uniform_draws
from object_detection.structures import Objects, Tensor


def assign_regions(
    boxes: Tensor, valid: Tensor, objects: Objects[Tensor], *, positive_iou: float = 0.5, strictly: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the object with the largest IoU of each region (ties: the first), and positive and negative regions.

    A region is positive if its largest IoU reaches the threshold, or exceeds it with `strictly`. Crowds are not
    assigned.

    Args:
        boxes: [B, N, 4].
        valid: [B, N] bool, False for padding.
        objects: the ground truth.
        positive_iou: threshold.
        strictly: whether the IoU has to exceed the threshold.

    Returns:
        Numbers of objects [B, N] int32 (0 where not positive), positive and negative [B, N] bool, both False for
        padding.

    Raises:
        InputError: the threshold is not above 0, at most 1.
    """
    least = IouAssigner(positive_iou=positive_iou, strictly=strictly).least_positive
    assignable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
    overlap = ops.where(assignable[:, None], pairwise_iou(ops.stop_gradient(boxes), objects.boxes), 0.0)  # [B, N, M]
    positive = ops.logical_and(valid, ops.max(overlap, axis=-1) >= least)
    matched = ops.where(positive, ops.cast(ops.argmax(overlap, axis=-1), "int32"), 0)
    return matched, positive, ops.logical_and(valid, ops.logical_not(positive))


def sample_masks(
    positive: Tensor, negative: Tensor, seeds: Tensor, *, count: int, positive_share: float
) -> tuple[Tensor, Tensor]:
    """Return which of the positive and negative entries of each image are sampled, uniformly within each kind.

    At most count x positive_share positive entries, rounded down, are sampled, and negative ones up to `count` in
    total.

    positive, negative [B, N] bool, never both; seeds [B, 2] int32 from `seeds_of` -> [B, N] bool, [B, N] bool.
    """
    draws, most = uniform_draws(seeds, ops.shape(positive)[1]), int(count * positive_share)

    def sampled(candidates: Tensor, limits: Tensor) -> Tensor:
        highest = hardest(ops.where(candidates, draws, -1.0), ops.minimum(limits, _count_true(candidates)))
        return highest > 0.0

    positives = ops.minimum(_count_true(positive), most)
    return sampled(positive, positives), sampled(negative, count - positives)


def sample_regions(
    positive: Tensor, negative: Tensor, seeds: Tensor, *, count: int, positive_share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the samples of `sample_masks` as a list: positive entries first, each kind in its order.

    -> numbers [B, count] int32 of the N, positive [B, count] bool, valid [B, count] bool: False, with number 0, in the
    slots behind the last sample.
    """
    sampled = sample_masks(positive, negative, seeds, count=count, positive_share=positive_share)
    kinds = 2 * ops.cast(sampled[0], "int32") + ops.cast(sampled[1], "int32")
    length = ops.shape(positive)[1]
    # Distinct keys, because not every top_k preserves the order of ties; empty slots come last
    keys = ops.pad(kinds * length - ops.arange(length, dtype="int32"), [[0, 0], [0, count]], constant_values=-1)
    keys, _ = ops.top_k(keys, count)
    valid = keys > 0
    numbers = ops.where(valid, (length - keys % length) % length, 0)
    return numbers, keys > length, valid


def _count_true(marked: Tensor) -> Tensor:
    """Return the number of True entries of each row, [B] int32."""
    return ops.sum(ops.cast(marked, "int32"), axis=1)
