"""SGD with momentum as the published models were trained: gradients clipped one by one, then together."""

import keras
from keras import ops

from efficientdet.hyperparameters import Hyperparameters


@keras.saving.register_keras_serializable("efficientdet")
class ClippedSGD(keras.optimizers.SGD):
    """Momentum SGD; each gradient's norm is cut to `clip_gradients_norm`, then that of all of them. 0: no clipping."""

    def __init__(self, *, clip_gradients_norm: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.clip_gradients_norm = clip_gradients_norm

    def apply(self, grads, trainable_variables=None):
        """Clip and update."""
        if self.clip_gradients_norm:
            factors = _clipping_factors(grads, self.clip_gradients_norm)
            grads = [gradient * ops.cast(factors[i], gradient.dtype) for i, gradient in enumerate(grads)]
        super().apply(grads, trainable_variables)

    def get_config(self):
        """What `from_config` needs."""
        return {**super().get_config(), "clip_gradients_norm": self.clip_gradients_norm}


def build_optimizer(hparams: Hyperparameters, *, precision: str) -> keras.optimizers.Optimizer:
    """The optimizer; with dynamic loss scaling under mixed_float16. Its learning rate is set every step."""
    sgd = ClippedSGD(learning_rate=0.0, momentum=hparams.momentum, clip_gradients_norm=hparams.clip_gradients_norm)
    if precision != "mixed_float16":
        return sgd
    return keras.optimizers.LossScaleOptimizer(sgd, initial_scale=hparams.loss_scale)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> ClippedSGD:
    """The SGD, with or without loss scaling around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def global_norm(gradients: list) -> object:
    """Euclidean norm of all gradients together, float32 scalar."""
    return ops.sqrt(ops.sum(_squared_norms(gradients)))


def _squared_norms(gradients: list) -> object:
    """[n] float32."""
    return ops.stack([ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in gradients])


def _clipping_factors(gradients: list, limit: float) -> object:
    """What each gradient is multiplied by, [n]: first its own norm is cut to `limit`, then that of all the cut ones."""
    norms = ops.sqrt(_squared_norms(gradients))
    alone = limit / ops.maximum(norms, limit)
    together = ops.sqrt(ops.sum(ops.square(norms * alone)))
    return alone * (limit / ops.maximum(together, limit))
