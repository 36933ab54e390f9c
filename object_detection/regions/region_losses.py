"""Losses of two-stage detectors, summed over the samples; the caller divides them by the number of samples."""

from keras import ops

from object_detection.losses import smooth_l1_loss, softmax_cross_entropy
from object_detection.structures import Tensor

BETA = 1 / 9  # torchvision's and Detectron's


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
