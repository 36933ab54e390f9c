"""Detection losses, unreduced, in float32, with finite value and gradient at any logit."""

import dataclasses
from collections.abc import Callable

import numpy as np
from keras import ops

from object_detection.geometry.box_coding import BoxCoder, FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import generalized_iou, iou
from object_detection.structures import ScoredTargets, Targets, Tensor

_LOWEST = float(np.finfo(np.float32).min)  # the difference of two logits may exceed the range of float32
_UNLIMITED_LOG_SIZE = 32.0  # e^32 times the side of an anchor: its square is still far below the largest float32


def focal_loss(logits: Tensor, targets: Tensor, *, alpha: float, gamma: float, label_smoothing: float = 0.0) -> Tensor:
    """Return the focal loss of each entry (Lin et al. 2017, eq. 5), finite at any logit.

    logits, of any precision, and targets (bool, True for the entry's class) have one shape; differentiable in the
    logits. The smoothed target enters the cross entropy only, not the modulating factor, as in the published training.
    """
    return _focal_loss(logits, lambda: targets, alpha=alpha, gamma=gamma, label_smoothing=label_smoothing)


def focal_loss_of_classes(
    logits: Tensor, classes: Tensor, *, alpha: float, gamma: float, label_smoothing: float = 0.0
) -> Tensor:
    """Return `focal_loss` of logits [..., K] for classes [...] (int32, -1 for none). -> [..., K].

    Of arrays with K entries only the logits are kept for the gradient.
    """
    numbers = ops.arange(logits.shape[-1], dtype=classes.dtype)
    return _focal_loss(
        logits, lambda: classes[..., None] == numbers, alpha=alpha, gamma=gamma, label_smoothing=label_smoothing
    )


def _focal_loss(
    logits: Tensor, targets: Callable[[], Tensor], *, alpha: float, gamma: float, label_smoothing: float
) -> Tensor:
    smoothing = 0.5 * label_smoothing

    def terms(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        is_target = targets()
        wrong_by = ops.where(is_target, -logits, logits)
        wrong = ops.sigmoid(wrong_by)  # 1 - p_t
        weight = ops.where(is_target, alpha, 1.0 - alpha) * _power(wrong, gamma)
        return is_target, wrong, weight, ops.softplus(wrong_by) - smoothing * wrong_by

    def loss(logits: Tensor) -> Tensor:
        _, _, weight, cross_entropy = terms(logits)
        return weight * cross_entropy

    def slope(logits: Tensor) -> Tensor:
        is_target, wrong, weight, cross_entropy = terms(logits)
        of_wrong = weight * (gamma * (1.0 - wrong) * cross_entropy + wrong - smoothing)
        return ops.where(is_target, -of_wrong, of_wrong)

    return _of_logits(logits, loss, slope)


def _of_logits(logits: Tensor, loss: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a loss, float32, of logits of any precision, with its slope in them as gradient.

    Both are computed in float32 from the logits, which alone are kept: on an accelerator one pass reads them and one
    writes the gradient in their precision, a third of the memory passes of automatic differentiation.
    """

    @ops.custom_gradient
    def of_logits(logits: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            outer = arguments[-1] if upstream is None else upstream
            outer = outer if len(outer.shape) == len(logits.shape) else outer[..., None]  # a loss of all K logits
            return ops.cast(outer * slope(ops.cast(logits, "float32")), logits.dtype)

        return loss(ops.cast(logits, "float32")), gradient

    return of_logits(logits)


def _power(base: Tensor, exponent: float) -> Tensor:
    """Return base (at least 0) to the exponent, without a logarithm for integers and halves such as 1.5."""
    halves = round(2 * exponent)
    if halves != 2 * exponent or not 0 <= halves <= 8:
        return ops.power(base, exponent)
    result = ops.sqrt(base) if halves % 2 else ops.ones_like(base)
    for _ in range(halves // 2):
        result = result * base
    return result


def softmax_cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Return -ln of the probability of each entry's class; the background is a class like any other.

    logits [..., K] of any precision, classes [...] int32 from 0 to K - 1 -> [...] float32; differentiable in the
    logits. An ignored entry needs a valid class too: mask its loss. Finite at any finite logits. Only the logits and
    the classes are kept for the gradient.
    """
    numbers = ops.arange(logits.shape[-1], dtype=classes.dtype)

    def terms(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Relative to the largest logit, so that a small loss of large logits keeps its precision
        below = ops.maximum(logits - ops.max(logits, axis=-1, keepdims=True), _LOWEST)
        powers = ops.exp(below)
        return classes[..., None] == numbers, below, powers, ops.sum(powers, axis=-1)

    def loss(logits: Tensor) -> Tensor:
        is_class, below, _, total = terms(logits)
        return ops.log(total) - ops.sum(ops.where(is_class, below, 0.0), axis=-1)

    def slope(logits: Tensor) -> Tensor:
        is_class, _, powers, total = terms(logits)
        return powers / total[..., None] - ops.cast(is_class, "float32")

    return _of_logits(logits, loss, slope)


def hardest(losses: Tensor, counts: Tensor) -> Tensor:
    """Return 1 for the highest `counts` [B] of each row of losses [B, A] (ties: the first), else 0: float32.

    All entries of a row are selected if it has fewer. Sorting the losses gives the smallest one selected; the indices
    need no sort.
    """
    length = ops.shape(losses)[1]
    counts = ops.cast(ops.clip(counts, 0, length), "int32")[:, None]
    ascending = ops.sort(losses, axis=1)
    place = ops.clip(length - counts, 0, length - 1)
    least = ops.sum(ops.where(ops.arange(length, dtype="int32") == place, ascending, 0.0), axis=1, keepdims=True)
    above, equal = losses > least, losses == least
    missing = counts - ops.sum(ops.cast(above, "int32"), axis=1, keepdims=True)
    first = ops.cumsum(ops.cast(equal, "int32"), axis=1) <= missing
    is_hard = ops.logical_and(counts > 0, ops.logical_or(above, ops.logical_and(equal, first)))
    return ops.cast(is_hard, "float32")


def l1_loss(errors: Tensor) -> Tensor:
    """Return |e| of each entry, float32; the gradient at 0 is 0."""
    return ops.abs(ops.cast(errors, "float32"))


def smooth_l1_loss(errors: Tensor, *, beta: float) -> Tensor:
    """Return e^2 / (2 beta) for |e| < beta, else |e| - beta / 2, float32 (Girshick 2015, eq. 3, with beta 1).

    This is the Huber loss with delta = beta divided by beta.

    Raises:
        ValueError: beta is not above 0; for 0 see `l1_loss`.
    """
    if beta <= 0:
        raise ValueError(f"beta is {beta}; expected above 0")
    return huber_loss(ops.cast(errors, "float32"), delta=beta) / beta


def huber_loss(errors: Tensor, *, delta: float) -> Tensor:
    """Return 0.5 e^2 for |e| < delta, else delta (|e| - delta / 2), of each entry."""
    size = ops.abs(errors)
    inside = ops.minimum(size, delta)
    return 0.5 * ops.square(inside) + delta * (size - inside)


def quality_focal_loss(logits: Tensor, classes: Tensor, scores: Tensor) -> Tensor:
    """Return |target - p|^2 times the binary cross entropy of each entry (Li et al. 2020, GFL, eq. 2 with beta 2).

    The target of the entry of a positive anchor's class is a score: the IoU of its predicted box with its object, or
    the score of a label assignment; all other entries have the target 0. So the trained score ranks boxes by their
    quality, which suppression relies on.

    Args:
        logits: [..., K] of any precision; the loss is differentiable in them alone, and finite at any finite logit.
        classes: [...] int32, the class of each anchor, -1 for none.
        scores: [...] float32, 0 .. 1.

    Returns:
        [..., K]. Of arrays with K entries only the logits are kept for the gradient.
    """
    numbers = ops.arange(logits.shape[-1], dtype=classes.dtype)

    def terms(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        target = ops.where(classes[..., None] == numbers, scores[..., None], 0.0)
        # Both terms are at least 0, so that none cancels the other at large logits
        cross_entropy = target * ops.softplus(-logits) + (1.0 - target) * ops.softplus(logits)
        probability = ops.sigmoid(logits)
        return probability, probability - target, cross_entropy

    def loss(logits: Tensor) -> Tensor:
        _, error, cross_entropy = terms(logits)
        return ops.square(error) * cross_entropy

    def slope(logits: Tensor) -> Tensor:
        probability, error, cross_entropy = terms(logits)
        return error * (2.0 * probability * ops.sigmoid(-logits) * cross_entropy + ops.square(error))

    return _of_logits(logits, loss, slope)


def iou_loss(
    box_deltas: Tensor, targets: Targets | ScoredTargets, anchors: Tensor, box_coder: BoxCoder, *, kind: str
) -> Tensor:
    """Return 1 - IoU of the decoded boxes of positive anchors, 0 for the others.

    Args:
        box_deltas: [B, A, 4] float32; value and gradient are finite, also for boxes without an area.
        targets: [B, A] entries.
        anchors: [A, 4].
        box_coder: decodes box_deltas and the targets.
        kind: a penalty of `generalized_iou`.

    Returns:
        [B, A] float32.
    """
    predicted, assigned = _boxes_of_positives(box_deltas, targets, anchors, box_coder)
    return ops.where(targets.positive, 1.0 - generalized_iou(predicted, assigned, kind=kind), 0.0)


def iou_scores(box_deltas: Tensor, targets: Targets | ScoredTargets, anchors: Tensor, box_coder: BoxCoder) -> Tensor:
    """Return the IoU of the decoded boxes of positive anchors, 0 for the others, without gradient: [B, A] float32."""
    predicted, assigned = _boxes_of_positives(ops.stop_gradient(box_deltas), targets, anchors, box_coder)
    return ops.where(targets.positive, iou(predicted, assigned), 0.0)


def _boxes_of_positives(
    box_deltas: Tensor, targets: Targets | ScoredTargets, anchors: Tensor, box_coder: BoxCoder
) -> tuple[Tensor, Tensor]:
    """Return the predicted and the assigned box of each anchor, [B, A, 4] each.

    Where an anchor is not positive both boxes are the anchor itself, so that an infinite box cannot make the gradient
    of a masked term NaN.
    """
    if isinstance(box_coder, FasterRcnnBoxCoder) and box_coder.log_size_limit is None:
        box_coder = dataclasses.replace(box_coder, log_size_limit=_UNLIMITED_LOG_SIZE)
    predicted = box_coder.decode(ops.where(targets.positive[..., None], box_deltas, 0.0), anchors)
    return predicted, box_coder.decode(targets.box_deltas, anchors)
