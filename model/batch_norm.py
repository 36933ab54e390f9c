"""Batch normalization with float32 moments under any dtype policy, by the fused kernel if the backend has one."""

from collections.abc import Callable

import keras
from keras import ops

from object_detection.structures import Tensor


@keras.saving.register_keras_serializable("efficientdet")
class BatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization over the last axis of [B, H, W, C].

    Keras's own layer is not fused on the TensorFlow backend (a third of the training speed on a CPU) and rounds the
    batch moments to 16 bits under a 16-bit policy. The running variance is the biased variance of the batch.

    mean_over_ranks: a differentiable mean of a float32 vector over processes. If set, the layer normalizes by the
    moments of all these processes together, each with the same number of values (see `join_statistics`).
    groups: the number of equal parts of a batch that are normalized by moments of their own; the running statistics
    take the means of these.
    """

    mean_over_ranks: Callable[[Tensor], Tensor] | None = None
    groups: int = 1

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None) -> Tensor:
        """Normalize [B, H, W, C]; with training=True by the batch's moments, which also update the running ones."""
        learns = bool(training) and self.trainable
        alone = not learns or (self.mean_over_ranks is None and self.groups == 1)
        normalize = _fused if alone and keras.backend.backend() == "tensorflow" else _by_moments
        outputs, mean, variance = normalize(self, inputs, learns)
        if learns:
            _approach(self.moving_mean, mean, 1.0 - self.momentum)
            _approach(self.moving_variance, variance, 1.0 - self.momentum)
        return outputs


def _fused(layer: BatchNormalization, inputs: Tensor, learns: bool) -> tuple[Tensor, Tensor, Tensor]:
    import tensorflow as tf

    # The kernel takes 16-bit images with float32 parameters, so the policy's automatic casts are undone.
    mean, variance = (tf.zeros([0]),) * 2 if learns else (_float32(layer.moving_mean), _float32(layer.moving_variance))
    outputs, *of_batch = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=_float32(layer.gamma),
        offset=_float32(layer.beta),
        mean=mean,
        variance=variance,
        epsilon=layer.epsilon,
        is_training=learns,
    )
    if learns:
        values = inputs.shape.num_elements() or tf.cast(tf.size(inputs), tf.float32)
        mean, variance = of_batch[0], of_batch[1] * (1.0 - inputs.shape[-1] / values)  # the kernel's is unbiased
    return outputs, mean, variance


def _approach(running: keras.Variable, of_batch: Tensor, share: float) -> None:
    """Move running statistics by a share of the way to those of a batch."""
    change = (of_batch - running.value) * share
    if keras.backend.backend() == "tensorflow":  # where Keras's addition is three operations, in a hundred layers
        running.value.assign_add(change, read_value=False)
    else:
        running.assign_add(change)


def _by_moments(layer: BatchNormalization, inputs: Tensor, learns: bool) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = _float32(layer.moving_mean), _float32(layer.moving_variance)
    if not learns:
        return _normalized(layer, inputs, mean, variance), mean, variance
    if layer.groups > 1:
        parts = ops.reshape(inputs, (layer.groups, -1, *inputs.shape[1:]))  # [G, B / G, H, W, C]
        mean, variance = moments(parts, mean, axes=(1, 2, 3))  # [G, 1, 1, 1, C]
        outputs = ops.reshape(_normalized(layer, parts, mean, variance), ops.shape(inputs))
        return outputs, ops.mean(mean, axis=(0, 1, 2, 3)), ops.mean(variance, axis=(0, 1, 2, 3))
    mean, variance = (ops.squeeze(one, (0, 1, 2)) for one in moments(inputs, mean, axes=(0, 1, 2)))
    if layer.mean_over_ranks is not None:
        mean, variance = _joined(mean, variance, layer.mean_over_ranks)
    return _normalized(layer, inputs, mean, variance), mean, variance


def _normalized(layer: BatchNormalization, inputs: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    # Centered before it is scaled: with a large mean, the gradient of the scale would be a difference of large sums.
    scale = _float32(layer.gamma) * ops.rsqrt(variance + layer.epsilon)
    return ops.cast((ops.cast(inputs, mean.dtype) - mean) * scale + _float32(layer.beta), inputs.dtype)


def moments(inputs: Tensor, near: Tensor, *, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance over some axes, which remain with length 1, reading the inputs once.

    In float32 for inputs of up to 32 bits. near [C]: values near the means, such as the running means: the moments are
    of differences from them, as a large mean would cancel the variance. The gradient is the closed form, in one read
    as well; automatic differentiation of a variance would sum all deviations again.
    """
    dtype = "float64" if keras.backend.standardize_dtype(inputs.dtype) == "float64" else "float32"
    near = ops.stop_gradient(ops.cast(near, dtype))

    @ops.custom_gradient
    def of_inputs(inputs: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        shifted = ops.cast(inputs, dtype) - near
        # Sums, as Keras's mean of float64 is float32
        total = ops.sum(shifted, axis=axes, keepdims=True)
        count = ops.cast(ops.size(inputs) / ops.size(total), dtype)
        mean = total / count
        squares = ops.sum(ops.square(shifted), axis=axes, keepdims=True) / count

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            of_mean, of_variance = ops.unstack(arguments[-1] if upstream is None else upstream)
            slope = of_mean + 2.0 * of_variance * (ops.cast(inputs, dtype) - near - mean)
            return ops.cast(slope / count, inputs.dtype)

        return ops.stack([near + mean, ops.maximum(squares - ops.square(mean), 0.0)]), gradient

    mean, variance = ops.unstack(of_inputs(inputs))
    return mean, variance


def _joined(mean: Tensor, variance: Tensor, mean_over_ranks: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and variance over all processes from those of each, in one collective operation."""
    both = mean_over_ranks(ops.concatenate([mean, variance + ops.square(mean)]))
    mean, squares = ops.split(both, 2)
    return mean, ops.maximum(squares - ops.square(mean), 0.0)


def join_statistics(network: keras.Model, mean_over_ranks: Callable[[Tensor], Tensor]) -> None:
    """Make every layer use the batch statistics of all processes in training (MegDet, Peng et al. 2018)."""
    for layer in network.layers:
        if isinstance(layer, BatchNormalization):
            layer.mean_over_ranks = mean_over_ranks


def divide_statistics(network: keras.Model, groups: int) -> None:
    """Make every layer use the batch statistics of each of `groups` equal parts of a batch by itself in training."""
    for layer in network.layers:
        if isinstance(layer, BatchNormalization):
            layer.groups = groups


def scale_and_shift(layer: BatchNormalization) -> tuple[Tensor, Tensor]:
    """Return scale and shift, [C] float32 each, such that inference computes inputs * scale + shift."""
    scale = _float32(layer.gamma) * ops.rsqrt(_float32(layer.moving_variance) + layer.epsilon)
    return scale, _float32(layer.beta) - _float32(layer.moving_mean) * scale


def _float32(variable: keras.Variable) -> Tensor:
    return ops.convert_to_tensor(variable.value, dtype="float32")
