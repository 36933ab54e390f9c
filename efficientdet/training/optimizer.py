"""Optimizers over one vector of all trained weights: clipping, update rules, loss scaling, as functions of explicit state.

A rule takes gradients and its state and returns what the weights move by; whoever calls it assigns the results. So the same
code runs inside TensorFlow's step, which assigns to variables, and inside JAX's, which has none.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from efficientdet.families.hyperparameters import OptimizerHyperparameters
from efficientdet.families.rate_factors import rate_factors
from efficientdet.training.packing import Packing
from model import tensorflow_cpu
from model.detector import named_variables
from object_detection.structures import Tensor
from program_support.errors import InputError

State = dict[str, Tensor]
_GROWTH_STEPS = 2000  # without an overflow, after which the loss scale doubles


class PackedOptimizer:
    """What all rules share; a rule has names of slots, each a vector of all weights, and `move`.

    Each gradient's norm is cut to `clip_gradients_norm`, then that of all together (0: none). With a loss scale (for float16)
    gradients come multiplied by it; a step whose gradient is not finite changes nothing and halves the scale.
    """

    slots: tuple[str, ...] = ()  # as TensorFlow's checkpoints call them
    reads_weights = False
    is_linear = False  # whether a step grows with the gradient, so that a factor of the rate can be one of the gradient

    def __init__(self, *, clip_gradients_norm: float = 0.0, loss_scale: float | None = None):
        self.clip_gradients_norm, self.scales_loss = clip_gradients_norm, loss_scale is not None
        self.iterations = _variable(np.int32(0), "iterations")
        self.dynamic_scale = _variable(np.float32(loss_scale), "current_loss_scale") if self.scales_loss else None
        self.good_steps = _variable(np.int32(0), "good_steps") if self.scales_loss else None

    def build(self, variables: list[keras.Variable], rate_factors: Sequence[float] | None = None) -> None:
        """Make the state for these weights, whose gradients come in their order; only the first call counts.

        rate_factors: what the learning rate of each weight is multiplied by.
        """
        if not hasattr(self, "packing"):
            self.packing = Packing([variable.shape for variable in variables])
            self._rate_factors = list(rate_factors or [1.0] * len(variables))
            self.slot_variables = {name: _variable(np.zeros(self.packing.size, np.float32), name) for name in self.slots}

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """Its state by name: slots, counters, loss scale."""
        scaling = {"dynamic_scale": self.dynamic_scale, "good_steps": self.good_steps} if self.scales_loss else {}
        return {**self.slot_variables, "iterations": self.iterations, **scaling}

    def updated(self, state: State, gradients: Sequence[Tensor], learning_rate: Tensor, *,
                weights: Tensor | None = None) -> tuple[Tensor, State, Tensor]:
        """-> what the packed weights move by [size], the state afterwards, and whether the step was applied (bool).

        `weights`: the packed ones, for a rule that reads them.
        """
        if not self.scales_loss:
            move, slots = self.move(state, self._clipped(gradients), learning_rate, weights=weights)
            return move, {**state, **slots, "iterations": state["iterations"] + 1}, ops.convert_to_tensor(True)
        finite = ops.isfinite(ops.sum(ops.stack([ops.sum(ops.abs(ops.cast(part, "float32"))) for part in gradients])))
        clipped = self._clipped([ops.cast(part, "float32") / state["dynamic_scale"] for part in gradients])
        move, slots = self.move(state, clipped, learning_rate, weights=weights)
        kept = {name: ops.where(finite, slot, state[name]) for name, slot in slots.items()}
        # Minus zero, as to add it leaves every number as it is, zeros of either sign included.
        return ops.where(finite, move, -ops.zeros_like(move)), {
            **state, **kept, **_next_scale(state, finite),
            "iterations": state["iterations"] + ops.cast(finite, "int32")}, finite

    def move(self, state: State, gradient: Tensor, learning_rate: Tensor, *, weights: Tensor | None) -> tuple[Tensor, State]:
        """Of a packed gradient [size]: what the packed weights move by, and the slots afterwards."""
        raise NotImplementedError

    def _clipped(self, gradients: Sequence[Tensor]) -> Tensor:
        if self.clip_gradients_norm:
            factors = _clipping_factors(gradients, self.clip_gradients_norm)
            gradients = [gradient * ops.cast(factors[i], gradient.dtype) for i, gradient in enumerate(gradients)]
        return self.packing.pack(self._by_rate_factors(gradients) if self.is_linear else gradients)

    def _by_rate_factors(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor if factor == 1.0 else tensor * factor
                for tensor, factor in zip(tensors, self._rate_factors, strict=True)]


class SGD(PackedOptimizer):
    """v = momentum v - rate g; w += v (Polyak 1964), as the published models were trained."""

    slots = ("Momentum",)
    is_linear = True

    def __init__(self, *, momentum: float, **settings):
        super().__init__(**settings)
        self.momentum = momentum

    def move(self, state, gradient, learning_rate, *, weights=None):
        """See `PackedOptimizer.move`."""
        move = self.momentum * state["Momentum"] - learning_rate * gradient
        return move, {"Momentum": move}


class Adam(PackedOptimizer):
    """Kingma and Ba 2015, algorithm 1; with `weight_decay` Loshchilov and Hutter 2019, algorithm 2: w -= rate decay w."""

    slots = ("Adam", "Adam_1")

    def __init__(self, *, beta_1: float, beta_2: float, epsilon: float, weight_decay: float = 0.0, **settings):
        super().__init__(**settings)
        self.beta_1, self.beta_2, self.epsilon, self.weight_decay = beta_1, beta_2, epsilon, weight_decay
        self.reads_weights = weight_decay > 0
        self._moved = tensorflow_cpu.in_one_pass(self._moments_and_move) if tensorflow_cpu.applies() else self._moments_and_move

    def move(self, state, gradient, learning_rate, *, weights=None):
        """See `PackedOptimizer.move`."""
        step = ops.cast(state["iterations"] + 1, "float32")
        first, second, move = self._moved(state["Adam"], state["Adam_1"], gradient, learning_rate, step, weights)
        if any(factor != 1.0 for factor in self._rate_factors):
            move = self.packing.pack(self._by_rate_factors(self.packing.unpack(move)))
        return move, {"Adam": first, "Adam_1": second}

    def _moments_and_move(self, first, second, gradient, learning_rate, step, weights):
        first = self.beta_1 * first + (1.0 - self.beta_1) * gradient
        second = self.beta_2 * second + (1.0 - self.beta_2) * ops.square(gradient)
        unbiased = first / (1.0 - ops.power(self.beta_1, step))
        deviation = ops.sqrt(second / (1.0 - ops.power(self.beta_2, step)))
        move = -learning_rate * unbiased / (deviation + self.epsilon)
        if self.reads_weights:
            move = move - learning_rate * self.weight_decay * weights
        return first, second, move


def build_optimizer(hparams: OptimizerHyperparameters, *, precision: str) -> PackedOptimizer:
    """The optimizer that the hyperparameters name; with dynamic loss scaling under mixed_float16."""
    settings = {"clip_gradients_norm": hparams.clip_gradients_norm,
                "loss_scale": hparams.loss_scale if precision == "mixed_float16" else None}
    if hparams.optimizer == "sgd":
        return SGD(momentum=hparams.momentum, **settings)
    decay = hparams.weight_decay if hparams.optimizer == "adamw" else 0.0
    return Adam(beta_1=hparams.beta_1, beta_2=hparams.beta_2, epsilon=hparams.epsilon, weight_decay=decay, **settings)


def weights_rate_factors(hparams: OptimizerHyperparameters, network: keras.Model) -> list[float]:
    """Return what the learning rate of each trainable weight is multiplied by.

    Raises InputError if a pattern of `learning_rate_factors` matches no trainable weight.
    """
    names_of = {id(variable): name for name, variable in named_variables(network).items()}
    names = [names_of[id(variable)] for variable in network.trainable_variables]
    try:
        factors = rate_factors(hparams.learning_rate_factors, names)
    except ValueError as error:
        raise InputError(f"hparam learning_rate_factors: {error}") from error
    return [factor * (hparams.bias_rate_factor if name.endswith("/bias") else 1.0)
            for name, factor in zip(names, factors, strict=True)]


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together, float32 scalar."""
    return ops.sqrt(ops.sum(_squared_norms(gradients)))


def _variable(value: np.ndarray, name: str) -> keras.Variable:
    return keras.Variable(value, trainable=False, dtype=value.dtype.name, name=name)


def _next_scale(state: State, finite: Tensor) -> State:
    """Halved after an overflow, doubled after `_GROWTH_STEPS` without one."""
    scale, good_steps = state["dynamic_scale"], state["good_steps"]
    grows = good_steps >= _GROWTH_STEPS - 1
    return {"dynamic_scale": scale * ops.where(finite, ops.where(grows, 2.0, 1.0), 0.5),
            "good_steps": ops.where(ops.logical_and(finite, ops.logical_not(grows)), good_steps + 1, 0)}


def _squared_norms(gradients: Sequence[Tensor]) -> Tensor:
    """[n] float32."""
    return ops.stack([ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in gradients])


def _clipping_factors(gradients: Sequence[Tensor], limit: float) -> Tensor:
    """What each gradient is multiplied by, [n]: first its own norm is cut to `limit`, then that of all the cut ones."""
    norms = ops.sqrt(_squared_norms(gradients))
    alone = limit / ops.maximum(norms, limit)
    together = ops.sqrt(ops.sum(ops.square(norms * alone)))
    return alone * (limit / ops.maximum(together, limit))
