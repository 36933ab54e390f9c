"""Class losses whose target is a score from 0 to 1 instead of a class, unreduced, in float32.

The score of a positive anchor is the IoU of its predicted box with its object, or the score of a label assignment; all
other entries have the target 0. So the trained score ranks boxes by their quality, which suppression relies on.
"""

from collections.abc import Callable

from keras import ops

from object_detection.structures import Tensor

_VARIFOCAL_ALPHA = 0.75  # weight of entries with target 0 (Zhang et al. 2021, section 4.3)


def quality_focal_loss(logits: Tensor, classes: Tensor, scores: Tensor) -> Tensor:
    """Return |target - p|^2 times the binary cross entropy of each entry (Li et al. 2020, GFL, eq. 2 with beta 2).

    Args:
        logits: [..., K] float32; the loss is differentiable in them alone, and finite at any finite logit.
        classes: [...] int32, the class of each anchor, -1 for none.
        scores: [...] float32, 0 .. 1, the target of the entry of that class.

    Returns:
        [..., K]. Of arrays with K entries only the logits are kept for the gradient.
    """

    def loss_and_slope(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        error = ops.sigmoid(logits) - target
        cross_entropy = _cross_entropy(logits, target)
        slope = error * (2.0 * ops.sigmoid(logits) * ops.sigmoid(-logits) * cross_entropy + ops.square(error))
        return ops.square(error) * cross_entropy, slope

    return _of_logits(logits, classes, scores, loss_and_slope)


def varifocal_loss(logits: Tensor, classes: Tensor, scores: Tensor) -> Tensor:
    """Return the binary cross entropy times the target, or 0.75 p^2 where that is 0 (Zhang et al. 2021, eq. 2).

    Arguments and result as `quality_focal_loss`.
    """

    def loss_and_slope(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        probability, cross_entropy = ops.sigmoid(logits), _cross_entropy(logits, target)
        weight = ops.where(target > 0.0, target, _VARIFOCAL_ALPHA * ops.square(probability))
        of_weight = ops.where(target > 0.0, 0.0, 2.0 * weight * ops.sigmoid(-logits))  # its derivative by the logit
        return weight * cross_entropy, weight * (probability - target) + of_weight * cross_entropy

    return _of_logits(logits, classes, scores, loss_and_slope)


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross entropy; both terms are at least 0, so that none cancels the other at large logits."""
    return target * ops.softplus(-logits) + (1.0 - target) * ops.softplus(logits)


def _of_logits(
    logits: Tensor,
    classes: Tensor,
    scores: Tensor,
    loss_and_slope: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    numbers = ops.arange(logits.shape[-1], dtype=classes.dtype)

    def terms(logits: Tensor) -> tuple[Tensor, Tensor]:
        return loss_and_slope(logits, ops.where(classes[..., None] == numbers, scores[..., None], 0.0))

    @ops.custom_gradient
    def of_logits(logits: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            return (arguments[-1] if upstream is None else upstream) * terms(logits)[1]

        return terms(logits)[0], gradient

    return of_logits(logits)
