"""Losses of dense detectors, unreduced, in float32, finite in value and gradient at any logit."""

from keras import ops

from object_detection.structures import Tensor


def focal_loss(
    logits: Tensor, targets: Tensor, *, alpha: float, gamma: float, label_smoothing: float = 0.0
) -> Tensor:
    """Focal loss of each entry, unreduced (Lin et al. 2017, eq. 5), finite at any logit.

    logits and targets (0 or 1) of one shape. The smoothed target enters the cross entropy only, not the modulator, as
    in the published training.
    """
    # -ln of the probability given to the true label is softplus of the margin by which the logit is wrong.
    wrong_by = ops.where(targets > 0.5, -logits, logits)
    log_wrong = -ops.softplus(-wrong_by)  # ln(1 - p_t)
    smoothed = targets * (1.0 - label_smoothing) + 0.5 * label_smoothing
    cross_entropy = ops.softplus(logits) - smoothed * logits
    weight = ops.where(targets > 0.5, alpha, 1.0 - alpha)
    return weight * ops.exp(gamma * log_wrong) * cross_entropy


def huber_loss(errors: Tensor, *, delta: float) -> Tensor:
    """0.5 e^2 within delta, delta (|e| - delta / 2) beyond, of each entry."""
    size = ops.abs(errors)
    inside = ops.minimum(size, delta)
    return 0.5 * ops.square(inside) + delta * (size - inside)
