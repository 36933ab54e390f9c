"""Optimizers and the moving average over one vector of all weights, as pure functions.

With small images the update of weights and averages, thousands of kernels of a few microseconds each, takes longer than
the network. Packed, it is a few passes over one vector, and several processes sum their gradients in one message.

An update rule takes gradients and its state and returns the change of the weights; the caller assigns the results. The
same code therefore runs in TensorFlow's step, which assigns to variables, and in JAX's step, which has none.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import keras
import numpy as np
from keras import ops

from efficientdet.families.hyperparameters import OptimizerHyperparameters, ScheduleHyperparameters, rate_factors
from model import tensorflow_cpu
from model.detection_model import named_variables
from object_detection.structures import Tensor
from program_support.errors import InputError

State = dict[str, Tensor]
_GROWTH_STEPS = 2000  # the loss scale doubles after this number without an overflow


class Packing:
    """Layout of tensors in a vector: one after the other in the order of `shapes`, in row-major order."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        self.shapes = [tuple(shape) for shape in shapes]
        sizes = [math.prod(shape) for shape in self.shapes]
        self.size = sum(sizes)
        self._ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]

    def pack(self, tensors: Sequence, dtype: str = "float32"):
        """Return the tensors as one vector, [size]."""
        return ops.concatenate([_reshaped(ops.cast(tensor, dtype), (-1,)) for tensor in tensors])

    def unpack(self, vector) -> list:
        """Return the tensors of a vector [size], with its dtype."""
        # TensorFlow cannot split at an empty list of places
        parts = ops.split(vector, self._ends) if self._ends else [vector]
        return [_reshaped(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def vector(self, arrays: Iterable) -> np.ndarray:
        """Return `pack` as a NumPy array: outside of a program, an accelerator would compile each of its operations."""
        return np.concatenate([np.ravel(np.asarray(array, np.float32)) for array in arrays])

    def arrays(self, vector) -> list[np.ndarray]:
        """Return `unpack` as NumPy arrays, with one copy from the device."""
        parts = np.split(np.asarray(vector), self._ends)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class PackedOptimizer:
    """Base class of update rules; a rule has names of slots, each a vector over all weights, and `weight_change`.

    Each gradient's norm is clipped to `clip_gradients_norm`, then the global norm (0: no clipping). With a loss scale
    (for float16) gradients are multiplied by it; a step with a NaN or infinite gradient changes nothing and halves the
    scale.
    """

    slots: tuple[str, ...] = ()  # their names in TensorFlow checkpoints
    reads_weights = False
    is_linear = False  # whether factors of the learning rate multiply gradients, and are part of the slots

    def __init__(self, *, clip_gradients_norm: float = 0.0, loss_scale: float | None = None):
        self.clip_gradients_norm, self.scales_loss = clip_gradients_norm, loss_scale is not None
        self.iterations = _variable(np.int32(0), "iterations")
        self.dynamic_scale = _variable(np.float32(loss_scale), "current_loss_scale") if self.scales_loss else None
        self.good_steps = _variable(np.int32(0), "good_steps") if self.scales_loss else None

    def build(
        self,
        variables: list[keras.Variable],
        rate_factors: Sequence[float] | None = None,
        decays: Sequence[bool] | None = None,
    ) -> None:
        """Create the state for these weights, whose gradients come in the same order; later calls do nothing.

        rate_factors: factor of the learning rate for each weight. decays: whether a decoupled weight decay applies to
        each weight; None: to all.
        """
        if not hasattr(self, "packing"):
            self.packing = Packing([variable.shape for variable in variables])
            self._rate_factors = list(rate_factors or [1.0] * len(variables))
            self._decays = list(decays or [True] * len(variables))
            self.slot_variables = {
                name: _variable(np.zeros(self.packing.size, np.float32), name) for name in self.slots
            }

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """The state by name: slots, counters, loss scale."""
        scaling = {"dynamic_scale": self.dynamic_scale, "good_steps": self.good_steps} if self.scales_loss else {}
        return {**self.slot_variables, "iterations": self.iterations, **scaling}

    def packed_weights(self, weights: Sequence[Tensor]) -> Tensor | None:
        """Return the weights [size] for `updated`, zero where they do not decay; None for a rule that reads none."""
        if not self.reads_weights:
            return None
        return self.packing.pack(
            [weight if decays else ops.zeros_like(weight) for weight, decays in zip(weights, self._decays, strict=True)]
        )

    def updated(
        self,
        state: State,
        gradients: Sequence[Tensor],
        learning_rate: Tensor,
        *,
        squared_norms: Tensor,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, State, Tensor]:
        """Return the packed change [size] for `changes`, the new state, and whether the step was applied (bool).

        `squared_norms`: of the gradients; `weights`: `packed_weights`.
        """
        if not self.scales_loss:
            clipped = self._clipped(gradients, squared_norms)
            change, slots = self.weight_change(state, clipped, learning_rate, weights=weights)
            return change, {**state, **slots, "iterations": state["iterations"] + 1}, ops.convert_to_tensor(True)
        finite, scale = ops.isfinite(ops.sum(squared_norms)), state["dynamic_scale"]
        unscaled = [ops.cast(part, "float32") / scale for part in gradients]
        clipped = self._clipped(unscaled, squared_norms / ops.square(scale))
        change, slots = self.weight_change(state, clipped, learning_rate, weights=weights)
        new_slots = {name: ops.where(finite, slot, state[name]) for name, slot in slots.items()}
        # Minus zero: adding it leaves every number unchanged, including zeros of either sign.
        return (
            ops.where(finite, change, -ops.zeros_like(change)),
            {
                **state,
                **new_slots,
                **_next_scale(state, finite),
                "iterations": state["iterations"] + ops.cast(finite, "int32"),
            },
            finite,
        )

    def weight_change(
        self, state: State, gradient: Tensor, learning_rate: Tensor, *, weights: Tensor | None
    ) -> tuple[Tensor, State]:
        """Return the change of the packed weights for a packed gradient [size], and the new slots."""
        raise NotImplementedError

    def _clipped(self, gradients: Sequence[Tensor], squared_norms: Tensor) -> Tensor:
        if self.clip_gradients_norm:
            factors = ops.unstack(_clipping_factors(squared_norms, self.clip_gradients_norm), len(gradients))
            gradients = [
                gradient * ops.cast(factor, gradient.dtype) for gradient, factor in zip(gradients, factors, strict=True)
            ]
        return self.packing.pack(self._by_rate_factors(gradients) if self.is_linear else gradients)

    def changes(self, packed: Tensor) -> Sequence[Tensor]:
        """Return the change of each weight, with its factor of the learning rate, for that of the packed weights."""
        parts = self.packing.unpack(packed)
        return parts if self.is_linear else self._by_rate_factors(parts)

    def _by_rate_factors(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [
            tensor if factor == 1.0 else tensor * factor
            for tensor, factor in zip(tensors, self._rate_factors, strict=True)
        ]


class SGD(PackedOptimizer):
    """Gradient descent with momentum, v = momentum v - rate g; w += v (Polyak 1964), as in the published models."""

    slots = ("Momentum",)
    is_linear = True

    def __init__(self, *, momentum: float, **settings):
        super().__init__(**settings)
        self.momentum = momentum

    def weight_change(self, state, gradient, learning_rate, *, weights=None):
        """See `PackedOptimizer.weight_change`."""
        change = self.momentum * state["Momentum"] - learning_rate * gradient
        return change, {"Momentum": change}


class Adam(PackedOptimizer):
    """Adam (Kingma and Ba 2015, algorithm 1); with `weight_decay` AdamW (Loshchilov and Hutter 2019, algorithm 2)."""

    slots = ("Adam", "Adam_1")

    def __init__(self, *, beta_1: float, beta_2: float, epsilon: float, weight_decay: float = 0.0, **settings):
        super().__init__(**settings)
        self.beta_1, self.beta_2, self.epsilon, self.weight_decay = beta_1, beta_2, epsilon, weight_decay
        self.reads_weights = weight_decay > 0
        self._rule = tensorflow_cpu.in_one_pass(self._moments_and_change)

    def weight_change(self, state, gradient, learning_rate, *, weights=None):
        """See `PackedOptimizer.weight_change`."""
        step = ops.cast(state["iterations"] + 1, "float32")
        first, second, change = self._rule(state["Adam"], state["Adam_1"], gradient, learning_rate, step, weights)
        return change, {"Adam": first, "Adam_1": second}

    def _moments_and_change(self, first, second, gradient, learning_rate, step, weights):
        first = self.beta_1 * first + (1.0 - self.beta_1) * gradient
        second = self.beta_2 * second + (1.0 - self.beta_2) * ops.square(gradient)
        unbiased = first / (1.0 - ops.power(self.beta_1, step))
        deviation = ops.sqrt(second / (1.0 - ops.power(self.beta_2, step)))
        change = -learning_rate * unbiased / (deviation + self.epsilon)
        if self.reads_weights:
            change = change - learning_rate * self.weight_decay * weights
        return first, second, change


class WeightAverage:
    """Exponential moving average (EMA) of all weights, batch statistics included; published metrics are of the average.

    average += (1 - d) (weight - average) after each applied step t.

    d = min(decay, (1 + t) / (10 + t)). The average starts at the initial weights, whose influence vanishes within a few
    dozen steps because d starts small.
    """

    def __init__(self, variables: list[keras.Variable], *, decay: float):
        self.decay = decay
        self.variables = variables
        self.packing = Packing([variable.shape for variable in variables])
        values = self.packing.vector(variable.value for variable in variables)
        self.packed = keras.Variable(values, trainable=False, name="average")
        self._rule = tensorflow_cpu.in_one_pass(self._approached)

    @property
    def averages(self) -> list[np.ndarray]:
        """The average of each variable, float32."""
        return self.packing.arrays(self.packed.value)

    def update(self, step, *, applied=True):
        """Update the average after step `step` (1 is the first) if `applied`; return the packed averages."""
        values = [variable.value for variable in self.variables]
        packed = self.updated(self.packed.value, values, step=step, applied=applied)
        self.packed.assign(packed)
        return packed

    def updated(self, packed, values: list, *, step, applied=True):
        """Return the packed averages after one more step, as a pure function."""
        return self._rule(packed, self.packing.pack(values), ops.cast(step, "float32"), applied)

    def _approached(self, packed, values, step, applied):
        share = 1.0 - ops.minimum(self.decay, (1.0 + step) / (10.0 + step))
        # Selected, not multiplied by 0: a skipped step may leave NaN in the batch statistics.
        return ops.where(applied, packed + share * (values - packed), packed)


def build_optimizer(hparams: OptimizerHyperparameters, *, precision: str) -> PackedOptimizer:
    """Return the optimizer of the hyperparameters, with dynamic loss scaling under mixed_float16."""
    settings = {
        "clip_gradients_norm": hparams.clip_gradients_norm,
        "loss_scale": hparams.loss_scale if precision == "mixed_float16" else None,
    }
    if hparams.optimizer == "sgd":
        return SGD(momentum=hparams.momentum, **settings)
    decay = hparams.weight_decay if hparams.optimizer == "adamw" else 0.0
    return Adam(beta_1=hparams.beta_1, beta_2=hparams.beta_2, epsilon=hparams.epsilon, weight_decay=decay, **settings)


def weights_rate_factors(hparams: OptimizerHyperparameters, network: keras.Model) -> list[float]:
    """Return the factor of the learning rate for each trainable weight.

    Raises:
        InputError: a pattern of `learning_rate_factors` matches no trainable weight.
    """
    names_of = {id(variable): name for name, variable in named_variables(network).items()}
    names = [names_of[id(variable)] for variable in network.trainable_variables]
    try:
        return rate_factors(hparams.learning_rate_factors, names)
    except ValueError as error:
        raise InputError(f"hparam learning_rate_factors: {error}") from error


def squared_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the squared Euclidean norm of each gradient, [n] float32."""
    return 2.0 * ops.stack([tensorflow_cpu.half_squared_norm(gradient) for gradient in gradients])


def _variable(value: np.ndarray | np.generic, name: str) -> keras.Variable:
    return keras.Variable(value, trainable=False, dtype=value.dtype.name, name=name)


def _next_scale(state: State, finite: Tensor) -> State:
    """Halve the loss scale after an overflow, double it after `_GROWTH_STEPS` steps without one."""
    scale, good_steps = state["dynamic_scale"], state["good_steps"]
    grows = good_steps >= _GROWTH_STEPS - 1
    return {
        "dynamic_scale": scale * ops.where(finite, ops.where(grows, 2.0, 1.0), 0.5),
        "good_steps": ops.where(ops.logical_and(finite, ops.logical_not(grows)), good_steps + 1, 0),
    }


def _reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor in a shape, itself if it is a vector and remains one, as most weights are."""
    return tensor if len(tensor.shape) == len(shape) == 1 else ops.reshape(tensor, shape)


def _clipping_factors(squared_norms: Tensor, limit: float) -> Tensor:
    """Return factors [n] that clip each gradient's norm to `limit`, then the global norm of the clipped gradients."""
    norms = ops.sqrt(squared_norms)
    alone = limit / ops.maximum(norms, limit)
    together = ops.sqrt(ops.sum(ops.square(norms * alone)))
    return alone * (limit / ops.maximum(together, limit))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate as a function of the step.

    Before W = warmup_steps: warmup_init + s / W * (peak_learning_rate - warmup_init). Then peak_learning_rate times the
    factor of `method` (Loshchilov and Hutter 2017, eq. 5, for cosines), up to T = total_steps:
    - "cosine": e + (1 - e) (1 + cos(pi (s - W) / (T - W))) / 2 with e = end_factor; from T on e, where T exceeds W;
    - "stepwise": 1, and drop_factor times less from each of drop_steps on;
    - "constant": 1.
    """

    peak_learning_rate: float
    warmup_init: float
    warmup_steps: int
    total_steps: int
    method: str = "cosine"
    drop_steps: tuple[int, ...] = ()
    drop_factor: float = 0.1
    end_factor: float = 0.0

    @classmethod
    def from_hyperparameters(
        cls, hparams: ScheduleHyperparameters, *, peak_learning_rate: float, steps_per_epoch: int
    ) -> "Schedule":
        """Return the schedule of hyperparameters in epochs; fractions of a step are truncated as in the reference."""

        def steps(epochs: float) -> int:
            return int(epochs * steps_per_epoch)

        return cls(
            peak_learning_rate=peak_learning_rate,
            warmup_init=hparams.lr_warmup_init,
            warmup_steps=max(steps(hparams.lr_warmup_epoch), hparams.lr_warmup_least_steps),
            total_steps=steps(hparams.num_epochs),
            method=hparams.lr_decay_method,
            drop_factor=hparams.lr_drop_factor,
            end_factor=hparams.lr_end_factor,
            drop_steps=(steps(hparams.first_lr_drop_epoch), steps(hparams.second_lr_drop_epoch)),
        )

    def __call__(self, step: float) -> float:
        """Return the learning rate of step `step` (0 is the first), which a plan may place between two steps."""
        if step < self.warmup_steps:
            return self.warmup_init + step / self.warmup_steps * (self.peak_learning_rate - self.warmup_init)
        if self.method == "stepwise":
            return self.peak_learning_rate * self.drop_factor ** sum(step >= drop for drop in self.drop_steps)
        if self.method == "constant" or self.total_steps <= self.warmup_steps:
            return self.peak_learning_rate  # warm-up takes all steps: none are left for the decay
        progress = min((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        rest = (1.0 - self.end_factor) * self.peak_learning_rate
        return self.end_factor * self.peak_learning_rate + 0.5 * rest * (1.0 + math.cos(math.pi * progress))
