"""Mutable state of a training, and its conversion to and from named arrays."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import keras
import numpy as np

from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.training_progress import TrainingProgress
from efficientdet.devices.distributed import World, average_over_ranks, is_batch_statistic
from efficientdet.optimization.optimizer import PackedOptimizer
from efficientdet.optimization.packing import Packing
from efficientdet.optimization.weight_average import WeightAverage
from model.detection_model import SEED_STATE, DetectionModel, named_variables
from model.weight_arrays import AVERAGE_SUFFIX
from program_support.errors import InputError


@dataclass
class TrainingState:
    """State of a training between two steps."""

    detector: DetectionModel
    optimizer: PackedOptimizer
    average: WeightAverage | None
    world: World = field(default_factory=World)
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    step: int = 0  # steps done
    score_thresholds: dict[str, Any] = field(default_factory=dict)  # measured with the averaged weights

    @property
    def version(self) -> tuple[int, int]:
        """Numbers of steps and rollbacks done, which differ if the weights differ."""
        return self.step, self.progress.rollbacks

    @contextlib.contextmanager
    def averaged_weights(self):
        """Use the averaged weights in a block, for evaluation; the raw weights are restored bit for bit."""
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

    def change_averages(self, change: Callable[[], None]) -> None:
        """Call `change` with the averaged weights in the network, and keep the changed weights as the average."""
        with self.averaged_weights():
            change()
            if self.average is not None:
                changed = self.average.packing.pack([variable.value for variable in self.average.variables])
        if self.average is not None:
            self.average.packed.assign(changed)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays for resuming, by the names of the published checkpoints; all ranks must call it."""
        arrays = self.rank_arrays()
        if self.world.replicas > 1:
            for rank, statistics in enumerate(self.world.gather(_batch_statistics(arrays))):
                arrays |= {_of_rank(name, rank): array for name, array in statistics.items()} if rank else {}
        arrays["global_step"] = np.asarray(self.step, np.int64)
        return arrays

    def averages_by_name(self) -> dict[str, np.ndarray]:
        """Return the averaged weights by the names of the weights."""
        assert self.average is not None  # no caller asks for averages of a training without them
        names = _names_of(self.average.variables, self.detector)
        return dict(zip(names, self.average.packing.arrays(self.average.packed.value), strict=True))

    def raw_by_name(self) -> dict[str, np.ndarray]:
        """Return the raw weights by name."""
        return {name: np.asarray(variable.value) for name, variable in named_variables(self.detector.network).items()}

    def description(self, template: Description, *, weights: str) -> Description:
        """Return the description that is stored with arrays of this state."""
        return replace(
            template,
            weights=weights,
            global_step=self.step,
            run=asdict(self.progress),
            score_thresholds=self.score_thresholds,
        )

    def restore(self, arrays: Mapping[str, np.ndarray], progress: Mapping, *, prefix: str) -> None:
        """Restore the arrays of a checkpoint; raise InputError for one that is missing or has another shape."""
        self.progress = TrainingProgress.from_json(progress, where=prefix)
        of_rank = _for_rank(arrays, self.world, saved_by=self.progress.ranks)

        def read(name, shape):
            if name not in of_rank or tuple(of_rank[name].shape) != tuple(shape):
                problem = (
                    f"has shape {of_rank[name].shape}, expected {tuple(shape)}" if name in of_rank else "is missing"
                )
                raise InputError(
                    f"{prefix}: {name} {problem}; the checkpoint is of another training; use another --model_dir"
                )
            return of_rank[name]

        for name, variable in self._variables().items():
            variable.assign(read(name, variable.shape))
        for names, packing, packed in self._packed_parts():
            packed.assign(packing.pack([read(name, shape) for name, shape in zip(names, packing.shapes, strict=True)]))
        self.step = int(arrays["global_step"])

    def broadcast(self) -> None:
        """Broadcast weights, batch statistics, optimizer state and average from the first rank to all."""
        average = [self.average.packed] if self.average is not None else []
        self.world.broadcast([*self.detector.network.variables, *self.optimizer.variables.values(), *average])

    def average_batch_statistics(self) -> None:
        """Set the batch statistics of all ranks to their mean; the trained weights are already equal on all ranks."""
        if self.world.replicas == 1:
            return
        variables = [
            variable for name, variable in named_variables(self.detector.network).items() if is_batch_statistic(name)
        ]

        def average() -> None:
            _assign_all(variables, average_over_ranks(self.world, [np.asarray(each.value) for each in variables]))

        average()
        if self.average is not None:
            self.change_averages(average)

    def rank_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of this rank by the names of the published checkpoints."""
        arrays = {name: np.asarray(variable.value) for name, variable in self._variables().items()}
        for names, packing, packed in self._packed_parts():
            arrays |= dict(zip(names, packing.arrays(packed.value), strict=True))
        return arrays

    def _packed_parts(self) -> list[tuple[list[str], Packing, keras.Variable]]:
        """Return names, packing and variable of the averages and of each slot of the optimizer."""
        parts = []
        if self.average is not None:
            names = [f"{name}{AVERAGE_SUFFIX}" for name in _names_of(self.average.variables, self.detector)]
            parts.append((names, self.average.packing, self.average.packed))
        trained = _names_of(self.detector.network.trainable_variables, self.detector)
        for slot, packed in self.optimizer.slot_variables.items():
            parts.append(([f"{name}/{slot}" for name in trained], self.optimizer.packing, packed))
        return parts

    def _variables(self) -> dict[str, keras.Variable]:
        """Return weights, the optimizer's counters, and the state of random layers."""
        network, optimizer = self.detector.network, self.optimizer
        variables = {**named_variables(network), "optimizer/iterations": optimizer.iterations}
        if optimizer.scales_loss:
            variables["optimizer/loss_scale/current_loss_scale"] = optimizer.dynamic_scale
            variables["optimizer/loss_scale/good_steps"] = optimizer.good_steps
        seeds = [variable for variable in network.variables if variable.name == SEED_STATE]
        return variables | {f"run/seed_{number}": variable for number, variable in enumerate(seeds)}


def _assign_all(variables: list[keras.Variable], values: list) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _names_of(variables: list[keras.Variable], detector: DetectionModel) -> list[str]:
    names = {id(variable): name for name, variable in named_variables(detector.network).items()}
    return [names[id(variable)] for variable in variables]


def _of_rank(name: str, rank: int) -> str:
    return f"run/rank_{rank}/{name}"


def _batch_statistics(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if is_batch_statistic(name.removesuffix(AVERAGE_SUFFIX))}


def _for_rank(arrays: Mapping[str, np.ndarray], world: World, *, saved_by: int) -> dict[str, np.ndarray]:
    """Return a checkpoint with this rank's statistics, or their mean if another number of ranks wrote it."""
    of_rank = dict(arrays)
    for name in _batch_statistics({name: array for name, array in arrays.items() if not name.startswith("run/")}):
        versions = [arrays[name], *(arrays[_of_rank(name, rank)] for rank in range(1, saved_by))]
        same = world.replicas == saved_by
        of_rank[name] = versions[world.rank % saved_by] if same else np.stack(versions).mean(0, dtype=np.float32)
    return of_rank
