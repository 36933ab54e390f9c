"""Training of a two-stage detector: regions matched with objects by IoU and sampled at random, masks, losses.

A sample is a function of the seed and the image's position in the training, independent of the rest of the batch.
"""

import numpy as np
from keras import ops

from object_detection.gather import entries
from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.losses import hardest, smooth_l1_loss, softmax_cross_entropy
from object_detection.stateless_random import uniform_draws
from object_detection.structures import Objects, Tensor

BETA = 1 / 9  # torchvision's and Detectron's
_SMALLEST_SIDE = 1e-6  # pixels; for boxes of padding


def assign_regions(
    boxes: Tensor, valid: Tensor, objects: Objects[Tensor], *, positive_iou: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the object with the largest IoU of each region (ties: the first), and positive and negative regions.

    A region is positive if its largest IoU reaches the threshold. Crowds are not assigned.

    Args:
        boxes: [B, N, 4].
        valid: [B, N] bool, False for padding.
        objects: the ground truth.
        positive_iou: threshold.

    Returns:
        Numbers of objects [B, N] int32 (0 where not positive), positive and negative [B, N] bool, both False for
        padding.

    """
    assignable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
    overlap = ops.where(assignable[:, None], pairwise_iou(ops.stop_gradient(boxes), objects.boxes), 0.0)  # [B, N, M]
    positive = ops.logical_and(valid, ops.max(overlap, axis=-1) >= positive_iou)
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


def mask_targets(
    masks: Tensor,
    mask_boxes: Tensor,
    regions: Tensor,
    matched: Tensor,
    sizes: Tensor,
    *,
    size: int = 28,
    max_samples: int = 8,
) -> Tensor:
    """Return the fraction of each cell of a region that its object covers. -> [B, N, size, size] float32.

    A bin is the mean of samples on a grid, so both axes are sampled one after the other: a region has a matrix of
    weights for rows and one for columns, and never as many values as the image has pixels.

    As torchvision's RoIAlign of the object's bitmap: interpolated between the centers of cells, 0 outside of its box,
    and constant beyond the border of the image. Coordinates are relative to the center of the first pixel. A side is at
    least 1 pixel. A bin has one sample per pixel, rounded up, on each axis, but at most `max_samples`,
    which is a limit for sides above size * max_samples pixels only.

    Args:
        masks: [B, M, h, w] uint8, 0 or 1 in the h x w cells of the mask's box.
        mask_boxes: [B, M, 4], the objects' boxes, or the complete image; yxyx pixels.
        regions: [B, N, 4] within the image, yxyx pixels.
        matched: [B, N] int32, the objects of the regions.
        sizes: [B, 2], height and width of the images.
        size: cells per side of the targets.
        max_samples: maximum number of samples of a bin per axis.
    """
    own_boxes = entries(mask_boxes, matched)
    weights = [
        _weights(
            regions[..., axis::2],
            own_boxes[..., axis::2],
            ops.cast(sizes[:, axis, None], "float32"),
            cells=masks.shape[2 + axis],
            size=size,
            max_samples=max_samples,
        )
        for axis in (0, 1)
    ]
    rows = ops.matmul(weights[0], ops.cast(entries(masks, matched), "float32"))  # [B, N, size, w]
    return ops.matmul(rows, ops.swapaxes(weights[1], -1, -2))


def _weights(regions: Tensor, mask_boxes: Tensor, sides: Tensor, *, cells: int, size: int, max_samples: int) -> Tensor:
    """Return the weight of each cell of the mask in each cell of the region, along one axis.

    regions, mask_boxes [B, N, 2] from and to, sides [B, 1] of the images -> [B, N, size, cells].
    """
    low, length = regions[..., :1], ops.maximum(regions[..., 1:] - regions[..., :1], 1.0)
    samples = ops.minimum(ops.ceil(length / size), max_samples)
    scale = cells / ops.maximum(mask_boxes[..., 1:] - mask_boxes[..., :1], _SMALLEST_SIDE)
    # Cells further out are 0; at the border of the image the last cell is extended
    first = ops.where(mask_boxes[..., :1] <= 0.0, 0.0, -1.0)
    last = ops.where(mask_boxes[..., 1:] >= sides[..., None], cells - 1.0, float(cells))

    def of_sample(number: int) -> Tensor:
        places = low + (np.arange(size, dtype=np.float32) + (number + 0.5) / samples) * (length / size)
        places = ops.clip((places + 0.5 - mask_boxes[..., :1]) * scale - 0.5, first, last)  # [B, N, size]
        hats = ops.maximum(1.0 - ops.abs(places[..., None] - np.arange(cells, dtype=np.float32)), 0.0)
        return ops.where((number < samples)[..., None], hats / samples[..., None], 0.0)

    total = of_sample(0)
    for number in range(1, max_samples):
        total = total + of_sample(number)
    return total


def proposal_loss_sums(
    logits: Tensor, deltas: Tensor, targets: Tensor, positive: Tensor, negative: Tensor, *, beta: float = BETA
) -> tuple[Tensor, Tensor]:
    """Return the losses of proposals: binary cross entropy of samples and smooth L1 of positive boxes; scalars.

    logits [B, A]; deltas and target deltas `targets` [B, A, 4]; positive and negative [B, A] bool, as from
    `sample_masks`.
    """
    sampled = ops.cast(ops.logical_or(positive, negative), "float32")
    cross_entropy = ops.softplus(ops.where(positive, -logits, logits))
    return ops.sum(cross_entropy * sampled), box_loss_sum(deltas, targets, positive, beta=beta)


def region_loss_sums(
    class_logits: Tensor, deltas: Tensor, classes: Tensor, targets: Tensor, valid: Tensor, *, beta: float = BETA
) -> tuple[Tensor, Tensor]:
    """Return the losses of regions: cross entropy of the valid ones and smooth L1 of the boxes with an object; scalars.

    class_logits [B, N, K]; deltas [B, N, K, 4] of each class; classes [B, N] int32, 0 for the background; target deltas
    `targets` [B, N, 4]; valid [B, N] bool.
    """
    cross_entropy = softmax_cross_entropy(class_logits, classes) * ops.cast(valid, "float32")
    of_class = ops.take(ops.reshape(deltas, (-1, 4)), _places(classes, class_logits.shape[-1]), axis=0)
    return ops.sum(cross_entropy), box_loss_sum(of_class, targets, ops.logical_and(valid, classes > 0), beta=beta)


def mask_loss_sum(logits: Tensor, classes: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Return the loss of masks: mean binary cross entropy of the channel of each region's class; a scalar.

    logits [..., S, S, K], classes [...] int32, target masks `targets` [..., S, S] float32 from 0 to 1, positive [...]
    bool.
    """
    of_class = of_classes(logits, classes)
    losses = ops.mean(ops.softplus(of_class) - targets * of_class, axis=(-2, -1))
    return ops.sum(losses * ops.cast(positive, "float32"))


def of_classes(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the channel of each region's class: [..., S, S, K], [...] int32 -> [..., S, S]."""
    of_cells = ops.broadcast_to(classes[..., None, None], ops.shape(logits)[:-1])
    return ops.take(ops.reshape(logits, (-1,)), _places(of_cells, logits.shape[-1]), axis=0)


def _places(classes: Tensor, count: int) -> Tensor:
    """Return the index of each entry's class in the flat list of all entries' `count` classes, [...] int32."""
    numbers = ops.cumsum(ops.ones_like(ops.reshape(classes, (-1,)))) - 1
    return count * ops.reshape(numbers, ops.shape(classes)) + classes


def box_loss_sum(deltas: Tensor, targets: Tensor, positive: Tensor, *, beta: float) -> Tensor:
    """Return the sum of smooth L1 of the positive boxes. [..., 4], [..., 4], [...] bool -> a scalar."""
    # Targets may be infinite where there is no object
    errors = ops.where(positive[..., None], deltas - targets, 0.0)
    return ops.sum(smooth_l1_loss(errors, beta=beta))
