"""Losses of dense detectors, unreduced, in float32, finite in value and gradient at any logit."""

from keras import ops

from object_detection.structures import Tensor


def focal_loss(
    logits: Tensor, targets: Tensor, *, alpha: float, gamma: float, label_smoothing: float = 0.0
) -> Tensor:
    """Focal loss of each entry, unreduced (Lin et al. 2017, eq. 5), finite at any logit.

    logits float32 and targets (bool, True for the entry's class) of one shape; differentiable in the logits. The smoothed
    target enters the cross entropy only, not the modulator, as in the published training.
    """
    smoothing = 0.5 * label_smoothing

    def terms(logits):
        wrong_by = ops.where(targets, -logits, logits)
        wrong = ops.sigmoid(wrong_by)  # 1 - p_t
        weight = ops.where(targets, alpha, 1.0 - alpha) * _power(wrong, gamma)
        return wrong, weight, ops.softplus(wrong_by) - smoothing * wrong_by

    @ops.custom_gradient
    def of_logits(logits):
        """With a gradient that keeps nothing but the logits, in a third of the passes over memory of a derived one."""
        def gradient(*arguments, upstream=None):
            outer = arguments[-1] if upstream is None else upstream
            wrong, weight, cross_entropy = terms(logits)
            slope = weight * (gamma * (1.0 - wrong) * cross_entropy + wrong - smoothing)
            return outer * ops.where(targets, -slope, slope)

        _, weight, cross_entropy = terms(logits)
        return weight * cross_entropy, gradient

    return of_logits(logits)


def _power(base: Tensor, exponent: float) -> Tensor:
    """base (at least 0) to the exponent; whole and half ones, such as 1.5, without a logarithm."""
    halves = round(2 * exponent)
    if halves != 2 * exponent or not 0 <= halves <= 8:
        return ops.power(base, exponent)
    result = ops.sqrt(base) if halves % 2 else ops.ones_like(base)
    for _ in range(halves // 2):
        result = result * base
    return result


def huber_loss(errors: Tensor, *, delta: float) -> Tensor:
    """0.5 e^2 within delta, delta (|e| - delta / 2) beyond, of each entry."""
    size = ops.abs(errors)
    inside = ops.minimum(size, delta)
    return 0.5 * ops.square(inside) + delta * (size - inside)
