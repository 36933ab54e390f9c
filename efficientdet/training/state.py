"""State of a training: its settings, its start from random weights, a file or a checkpoint, its named arrays."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.checkpoints.description import SCORE_CALIBRATION, Description, read_description
from efficientdet.checkpoints.restore import load_backbone, load_matching_weights, read_source
from efficientdet.checkpoints.store import CheckpointStore, TrainingProgress, read_checkpoint
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.data_checks.examination import with_suggestions
from efficientdet.devices.device import assign
from efficientdet.devices.distributed import World, average_over_ranks, is_batch_statistic
from efficientdet.devices.memory import with_batch_sizes
from efficientdet.devices.runtime import Runtime
from efficientdet.families.hyperparameters import Hyperparameters, stated_classes, with_overrides
from efficientdet.families.registry import build_detector
from efficientdet.optimization.optimizer import (
    PackedOptimizer,
    Packing,
    WeightAverage,
    build_optimizer,
    weights_rate_factors,
)
from efficientdet.options.train import PRETRAINED_BACKBONE
from model.batch_norm import BatchNormalization, divide_statistics, join_statistics
from model.detection_model import SEED_STATE, DetectionModel, decaying_weights, named_variables
from model.weight_arrays import AVERAGE_SUFFIX
from program_support.errors import InputError

Log = Callable[[str], None]


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

    @contextlib.contextmanager
    def averaged_weights(self):
        """Use the averaged weights in a block, for evaluation; the raw weights are restored bit for bit."""
        if self.average is None:
            yield
            return
        variables = self.average.variables
        raw = [np.asarray(variable.value).copy() for variable in variables]
        assign(variables, self.average.averages)
        try:
            yield
        finally:
            assign(variables, raw)

    def change_averages(self, change: Callable[[], None]) -> None:
        """Call `change` with the averaged weights in the network, and keep the changed weights as the average."""
        with self.averaged_weights():
            change()
            if self.average is not None:
                changed = self.average.packing.vector(variable.value for variable in self.average.variables)
        if self.average is not None:
            assign([self.average.packed], [changed])

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
        return dict(zip(names, self.average.averages, strict=True))

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
        self.progress = TrainingProgress.from_json(progress)
        of_rank = _for_rank(arrays, self.world, saved_by=self.progress.ranks)

        def read(name, shape):
            array = of_rank.get(name)
            if array is None or array.shape != tuple(shape):
                problem = "is missing" if array is None else f"has shape {array.shape}, expected {tuple(shape)}"
                raise InputError(
                    f"{prefix}: {name} {problem}; the checkpoint is of another training; use another --model_dir"
                )
            return array

        for name, variable in self._variables().items():
            variable.assign(read(name, variable.shape))
        for names, packing, packed in self._packed_parts():
            packed.assign(packing.vector(read(name, shape) for name, shape in zip(names, packing.shapes, strict=True)))
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
            assign(variables, average_over_ranks(self.world, [np.asarray(each.value) for each in variables]))

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


def starting_state(
    config: TrainingConfig, *, precision: str, world: World, store: CheckpointStore, global_batch_size: int, log: Log
) -> TrainingState:
    """Return a state with random weights, weights of a file or a resumed checkpoint; the same on all ranks."""
    state = initial_state(config, precision=precision, world=world, log=log)
    state.broadcast()
    _resume(state, config, store=store, global_batch_size=global_batch_size, log=log)
    state.progress.global_batch_size, state.progress.ranks = global_batch_size, world.replicas
    _warn_of_frozen_random_weights(state, config, log=log)
    return state


def initial_state(config: TrainingConfig, *, precision: str, world: World, log: Log) -> TrainingState:
    """Return detector, optimizer and moving average before the first step."""
    init, family = config.backbone_init, config.hparams.family
    detector = build_detector(config.hparams, num_classes=len(config.class_names), precision=precision)
    lines: list[str] = []
    if init:
        lines += load_backbone(detector.network, read_source(init), family=family)
    if config.pretrained_ckpt:
        lines += load_matching_weights(
            detector.network,
            read_source(config.pretrained_ckpt),
            family=family,
            class_names=config.class_names,
            aliases=config.class_aliases,
        )
    for line in lines:
        log(line)
    if expression := config.hparams.var_freeze_expr:
        _freeze(detector, expression, log=log)
    if world.groups > 1:
        divide_statistics(detector.network, world.groups)
    elif world.group_size > 1:
        join_statistics(detector.network, world.mean_of_group)
    decay = config.hparams.moving_average_decay
    variables = list(named_variables(detector.network).values())
    average = WeightAverage(variables, decay=decay) if decay else None
    optimizer = build_optimizer(config.hparams, precision=precision)
    optimizer.build(
        detector.network.trainable_variables,
        weights_rate_factors(config.hparams, detector.network),
        decaying_weights(detector.network, config.hparams.decayed_weights),
    )
    return TrainingState(detector, optimizer, average, world=world)


def _resume(
    state: TrainingState, config: TrainingConfig, *, store: CheckpointStore, global_batch_size: int, log: Log
) -> None:
    """Resume as `--resume` specifies: from the newest intact checkpoint in the store, from a named one, or not at all.

    With another batch size or number of ranks the number of images seen is kept; the step is computed from it.

    Raises:
        InputError: the checkpoint belongs to another training, or the ranks see different folders.
    """
    if config.benchmark:
        return
    source = None
    if config.resume == "auto":
        source = store.newest(log=log)
    elif config.resume != "never":
        source = read_checkpoint(config.resume)
    elif state.world.is_first and (subfolder := store.move_to_subfolder()):
        log(f"starts from scratch; the earlier checkpoints were moved to {subfolder}")
    if source is not None:
        if source.class_names != config.class_names:
            raise InputError(f"{source.prefix}: written for other classes; use another --model_dir or remove it")
        assert source.description is not None  # every training checkpoint has one, see `read_checkpoint`
        state.restore(source.arrays, source.description.run, prefix=source.prefix)
        stored = source.description.score_thresholds
        of_weights = ("miss_rate", SCORE_CALIBRATION)  # hold for the weights that they were measured with
        state.score_thresholds = {kind: value for kind, value in stored.items() if kind not in of_weights}
        _adapt_progress(state, prefix=source.prefix, global_batch_size=global_batch_size, log=log)
    steps = state.world.gather(state.step)  # all ranks have read: from here on the first may write
    if len(set(steps)) > 1:
        raise InputError(
            f"{config.model_dir}: the ranks found checkpoints of different steps ({', '.join(map(str, steps[:8]))}); "
            "expected a folder shared by all machines"
        )


def _adapt_progress(state: TrainingState, *, prefix: str, global_batch_size: int, log: Log) -> None:
    """Log a resumed state, and adapt its step to the global batch size."""
    progress = state.progress
    log(f"resumes from {prefix} after step {state.step}, {progress.images_seen} images")
    if progress.global_batch_size != global_batch_size:
        state.step = progress.images_seen // global_batch_size
        progress.planned_seconds, progress.planned_end = 0.0, 0  # counted in steps of another batch size
        log(
            f"global batch size changed from {progress.global_batch_size} to {global_batch_size}: "
            f"{progress.images_seen} images seen correspond to step {state.step}"
        )
    if progress.ranks != state.world.replicas:
        log(
            f"{state.world.size} processes resume a training of {progress.ranks}; "
            "batch statistics are averaged over them"
        )


def _freeze(detector: DetectionModel, expression: str, *, log: Log) -> None:
    """Freeze weights whose name begins with the expression: they are neither trained nor decayed.

    The statistics of a batch normalization layer are frozen with its weights; otherwise later layers would be trained
    on other features than the saved ones.
    """
    variables = named_variables(detector.network)
    frozen = [variable for name, variable in variables.items() if variable.trainable and re.match(expression, name)]
    if not frozen:
        raise InputError(
            f"hparam var_freeze_expr is {expression!r}: matches no weight; expected the beginning of a name such "
            f"as {next(iter(variables))}"
        )
    for variable in frozen:
        variable.trainable = False
    still = [
        layer
        for layer in detector.network.layers
        if isinstance(layer, BatchNormalization) and layer.trainable and not layer.trainable_weights
    ]
    for layer in still:
        layer.trainable = False
    trainable = len(detector.network.trainable_variables)
    if not trainable:
        raise InputError(
            f"hparam var_freeze_expr is {expression!r}: freezes all weights; expected some to remain trainable"
        )
    log(
        f"var_freeze_expr freezes {len(frozen)} weights and the statistics of {len(still)} batch norms; "
        f"{trainable} are trainable"
    )


def _warn_of_frozen_random_weights(state: TrainingState, config: TrainingConfig, *, log: Log) -> None:
    """Warn if convolutions with random weights are frozen."""
    if state.step or config.pretrained_ckpt or config.backbone_init:
        return
    frozen = [
        name
        for name, variable in named_variables(state.detector.network).items()
        if name.endswith("kernel") and not variable.trainable
    ]
    if frozen:
        log(
            f"warning: {len(frozen)} convolutions are frozen at random weights ({frozen[0]}, ..); expected "
            f"--backbone_init={PRETRAINED_BACKBONE}, --pretrained_ckpt, or --hparams that leave them trainable"
        )


def settings_at_start(config: TrainingConfig, runtime: Runtime, world: World, *, log: Log) -> TrainingConfig:
    """Return the configuration with all that is decided when a training starts; log what the user did not set.

    In this order: conventions of the checkpoint that a new training starts from, with --suggest the suggestions of the
    data check, conventions of the checkpoint that the training resumes from, and batch sizes.

    Raises:
        InputError: --hparams contradicts a checkpoint, or no object of the records can be used.
    """
    given = config.hparams_given
    config = with_conventions_of_start(config, log=log)
    config = with_suggestions(config, log=log)
    config = with_conventions_of_resumed(config, given=given, log=log)
    return with_batch_sizes(config, runtime, world, log=log)


def with_conventions_of_start(config: TrainingConfig, *, log: Log) -> TrainingConfig:
    """Return the configuration with the conventions of the checkpoint that a new training starts from.

    The data check suggests no other values for them: they are in `hparams_given` of the result.
    --backbone_init=imagenet is replaced by the file that the family uses for it.

    Raises:
        InputError: --hparams has other values, unless --override_checkpoint is set.
    """
    hparams, family, given = config.hparams, config.hparams.family, config.hparams_given
    if config.backbone_init == PRETRAINED_BACKBONE:
        if (file := family.imagenet_backbone(hparams)) is None:
            raise InputError(
                f"--backbone_init={PRETRAINED_BACKBONE}: no backbone is published for {hparams.model_name}"
            )
        config = replace(config, backbone_init=file)
    if line := stated_classes(hparams.num_classes, config.class_names):
        log(line)
    if (path := config.pretrained_ckpt or config.backbone_init) is None:
        return config
    source, values = read_source(path), {key: getattr(hparams, key, None) for key in given}
    if config.pretrained_ckpt:
        known = source.fixed_settings(hparams, values)
    else:
        known = _only(source.conventions(family, values), family.backbone_conventions)
    trained = "was trained with" if source.description else "was trained, as far as its arrays show, with"
    config = _with_conventions(config, known, prefix=source.prefix, given=given, trained=trained, log=log)
    return replace(config, hparams_given=given.union(known))


def with_conventions_of_resumed(config: TrainingConfig, *, given: frozenset[str], log: Log) -> TrainingConfig:
    """Return the configuration with the conventions of the checkpoint that the training resumes from, if there is one.

    `given`: the keys in --hparams; with other values for them than the checkpoint's, as `with_conventions_of_start`.
    """
    if config.benchmark or config.resume == "never":
        return config
    bundles = CheckpointStore(config.model_dir).prefixes()
    if config.resume != "auto":
        bundles = [Path(checkpoint_prefix(config.resume))]
    for prefix in map(str, bundles):
        with contextlib.suppress(InputError):  # damaged; reading it as a checkpoint reports the error
            if description := read_description(prefix):
                known = _only(description.hparams, config.hparams.family.conventions)
                break
    else:
        return config
    return _with_conventions(config, known, prefix=prefix, given=given, trained="was trained with", log=log)


def _with_conventions(
    config: TrainingConfig, known: dict[str, Any], *, prefix: str, given: frozenset[str], trained: str, log: Log
) -> TrainingConfig:
    """Return the configuration with the known conventions, except given ones.

    Raises:
        InputError: given ones differ.
    """
    chosen = {key: value for key, value in known.items() if key in given}
    taken = {key: value for key, value in known.items() if key not in given}
    hparams = with_overrides(config.hparams, taken)
    if changed := _differences(hparams, config.hparams, taken):
        log(f"hyperparameters taken from {prefix}: {_shown(hparams, changed)}")
    of_checkpoint = with_overrides(hparams, chosen)
    if other := _differences(of_checkpoint, hparams, chosen):
        refused = [key for key in other if key not in config.hparams.family.adaptable_conventions]
        if refused and not config.override_checkpoint:
            raise InputError(
                f"{prefix}: {trained} {_shown(of_checkpoint, refused)}; --hparams sets "
                f"{_shown(hparams, refused)}, with which its weights mean something "
                "else: leave this out, or add --override_checkpoint if it is meant"
            )
        log(f"warning: {prefix} {trained} {_shown(of_checkpoint, other)}; --hparams sets {_shown(hparams, other)}")
    return replace(config, hparams=hparams)


def _only(hparams: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: hparams[key] for key in keys if key in hparams}


def _differences(one: Hyperparameters, other: Hyperparameters, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if one.comparable(key) != other.comparable(key)]


def _shown(hparams: Hyperparameters, keys: Iterable[str]) -> str:
    return ", ".join(f"{key} {getattr(hparams, key)}" for key in keys)
