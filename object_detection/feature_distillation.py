"""Losses between the feature maps of a student and a teacher, for knowledge distillation."""

from keras import ops

from object_detection.structures import Tensor

_EPSILON = 1e-6  # keeps channels without variance finite: they are 0 after standardization


def feature_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the distance of two feature maps of one level, a float32 scalar, without gradient to the teacher.

    Both are standardized over (B, h, w), so that neither scale nor offset of a channel matters. With equal numbers of
    channels it is PKD (Cao et al. 2022): half the mean squared error, which is 1 minus the mean Pearson correlation of
    channels with the same index. Otherwise no index corresponds to another, and it is 1 minus the RV coefficient
    (Robert and Escoufier 1976; the linear CKA of Kornblith et al. 2019) of the standardized channels, which uses the
    correlations of all pairs of channels. It needs no trained adapter between the widths.

    Args:
        student: features [B, h, w, C].
        teacher: features [B, h, w, D].

    Returns:
        0 for equal features; about 1 for unrelated ones.
    """
    ours, theirs = _standardized(student), ops.stop_gradient(_standardized(teacher))
    if ours.shape[1] == theirs.shape[1]:
        return 0.5 * ops.mean(ops.square(ours - theirs))
    shared = _squared_correlations(ours, theirs)
    norms = _squared_correlations(ours, ours) * _squared_correlations(theirs, theirs)
    return 1.0 - shared / ops.sqrt(norms)


def _standardized(features: Tensor) -> Tensor:
    """Return [B, h, w, C] as float32 [B h w, C] with mean 0 and standard deviation 1 of each channel."""
    flat = ops.reshape(ops.cast(features, "float32"), (-1, features.shape[-1]))
    centered = flat - ops.mean(flat, axis=0)
    return centered * ops.rsqrt(ops.mean(ops.square(centered), axis=0) + _EPSILON)


def _squared_correlations(first: Tensor, second: Tensor) -> Tensor:
    """Return the sum of the squared correlations of all pairs of channels of [N, C] and [N, D], above 0."""
    count = ops.cast(ops.shape(first)[0], "float32")
    return ops.sum(ops.square(ops.matmul(ops.transpose(first), second) / count)) + _EPSILON
