"""What changes while a training runs, and its way into named arrays and back."""

import contextlib
from dataclasses import dataclass

import keras
import numpy as np

from efficientdet.optimizer import ClippedSGD, inner_optimizer
from efficientdet.weight_average import WeightAverage
from model.dense_detector import DenseDetector
from model.detector import named_variables
from model.import_weights import AVERAGE_SUFFIX
from object_detection.errors import InputError

_MOMENTUM_SUFFIX = "/Momentum"


@dataclass
class TrainingState:
    """A training between two steps."""

    detector: DenseDetector
    optimizer: keras.optimizers.Optimizer
    average: WeightAverage | None
    step: int = 0  # steps done

    @contextlib.contextmanager
    def averaged_weights(self):
        """The network with its averaged weights, for evaluation; the raw ones are put back bit for bit."""
        if self.average is None:
            yield
            return
        variables = self.average.variables
        raw = [keras.ops.copy(variable.value) for variable in variables]
        _assign_all(variables, self.average.averages)
        try:
            yield
        finally:
            _assign_all(variables, raw)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything a training needs to go on, by the names of the published checkpoints."""
        variables = named_variables(self.detector.network)
        arrays = {name: np.asarray(variable.value) for name, variable in variables.items()}
        if self.average is not None:
            arrays |= {f"{name}{AVERAGE_SUFFIX}": array for name, array in self.averages_by_name().items()}
        arrays |= dict(zip(self._momentum_names(), map(np.asarray, self._packed_momentum_parts()), strict=True))
        arrays |= {name: np.asarray(variable.value) for name, variable in self._counters().items()}
        arrays["global_step"] = np.int64(self.step)
        return arrays

    def averages_by_name(self) -> dict[str, np.ndarray]:
        """The averaged weights by the names of the weights."""
        names = _names_of(self.average.variables, self.detector)
        return dict(zip(names, map(np.asarray, self.average.averages), strict=True))

    def restore(self, arrays: dict[str, np.ndarray], *, prefix: str) -> None:
        """Put a checkpoint's arrays back; raises InputError naming one that is missing or of another shape."""
        def read(name, shape):
            if name not in arrays or tuple(arrays[name].shape) != tuple(shape):
                found = f"has shape {arrays[name].shape}, wanted {tuple(shape)}" if name in arrays else "is missing"
                raise InputError(f"{prefix}: {name} {found}; this training is another one: use another --model_dir")
            return arrays[name]

        def read_packed(names, packing):
            return packing.pack([read(name, shape) for name, shape in zip(names, packing.shapes, strict=True)])

        for name, variable in {**named_variables(self.detector.network), **self._counters()}.items():
            variable.assign(read(name, variable.shape))
        if self.average is not None:
            names = [f"{name}{AVERAGE_SUFFIX}" for name in _names_of(self.average.variables, self.detector)]
            self.average.packed.assign(read_packed(names, self.average.packing))
        self._sgd.packed_momentum.assign(read_packed(self._momentum_names(), self._sgd.packing))
        self.step = int(arrays["global_step"])

    @property
    def _sgd(self) -> ClippedSGD:
        return inner_optimizer(self.optimizer)

    def _momentum_names(self) -> list[str]:
        trained = self.detector.network.trainable_variables
        return [f"{name}{_MOMENTUM_SUFFIX}" for name in _names_of(trained, self.detector)]

    def _packed_momentum_parts(self) -> list:
        return self._sgd.packing.unpack(self._sgd.packed_momentum.value)

    def _counters(self) -> dict[str, keras.Variable]:
        """The optimizer's own variables of one number each."""
        counters = {"optimizer/iterations": self._sgd.iterations}
        if self._sgd is not self.optimizer:
            counters["optimizer/loss_scale/current_loss_scale"] = self.optimizer.dynamic_scale
            counters["optimizer/loss_scale/good_steps"] = self.optimizer.step_counter
        return counters


def _assign_all(variables: list[keras.Variable], values: list) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _names_of(variables: list[keras.Variable], detector: DenseDetector) -> list[str]:
    names = {id(variable): name for name, variable in named_variables(detector.network).items()}
    return [names[id(variable)] for variable in variables]
