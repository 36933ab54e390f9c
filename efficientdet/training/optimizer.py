"""SGD with momentum as the published models were trained: gradients clipped one by one, then together."""

import keras
from keras import ops

from efficientdet.configuration.hyperparameters import OptimizerHyperparameters
from efficientdet.training.packing import Packing


class ClippedSGD(keras.optimizers.SGD):
    """Momentum SGD over one packed vector; each gradient's norm is cut to `clip_gradients_norm`, then that of all (0: none)."""

    def __init__(self, *, clip_gradients_norm: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.clip_gradients_norm = clip_gradients_norm

    def build(self, variables: list[keras.Variable]) -> None:
        """One vector of momentum for all `variables`; it holds what they move by at each step."""
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)  # not SGD's, which makes one momentum for each variable
        self.packing = Packing([variable.shape for variable in variables])
        self.packed_momentum = self.add_variable((self.packing.size,), dtype="float32", name="momentum")

    def apply(self, grads, trainable_variables=None):
        """Clip, and update all variables the optimizer was built for; `grads` are in their order."""
        if self.clip_gradients_norm:
            factors = _clipping_factors(grads, self.clip_gradients_norm)
            grads = [gradient * ops.cast(factors[i], gradient.dtype) for i, gradient in enumerate(grads)]
        move = self.momentum * self.packed_momentum - self.learning_rate * self.packing.pack(grads)
        self.packed_momentum.assign(move)
        for variable, part in zip(self._trainable_variables, self.packing.unpack(move), strict=True):
            variable.assign_add(ops.cast(part, variable.dtype))
        self.iterations.assign_add(1)


def build_optimizer(hparams: OptimizerHyperparameters, *, precision: str) -> keras.optimizers.Optimizer:
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
