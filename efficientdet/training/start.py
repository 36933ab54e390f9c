"""Initial state of a training: random weights, the weights of a file, or a checkpoint to resume from."""

import re
from collections.abc import Callable

from efficientdet.checkpoints.description import SCORE_CALIBRATION
from efficientdet.checkpoints.pretrained_weights import Source, load_backbone, load_matching_weights, read_source
from efficientdet.checkpoints.store import CheckpointStore, read_checkpoint
from efficientdet.configuration.training_config import PRETRAINED_BACKBONE, TrainingConfig
from efficientdet.devices.distributed import World
from efficientdet.families.registry import build_detector
from efficientdet.optimization.optimizer import build_optimizer, weights_rate_factors
from efficientdet.optimization.weight_average import WeightAverage
from efficientdet.training.state import TrainingState
from model.batch_norm import BatchNormalization, divide_statistics, join_statistics
from model.detection_model import DetectionModel, decaying_weights, named_variables
from program_support.errors import InputError

Log = Callable[[str], None]


def starting_state(
    config: TrainingConfig, *, precision: str, world: World, store: CheckpointStore, global_batch_size: int, log: Log
) -> TrainingState:
    """Return a state with random weights, weights of a file or a resumed checkpoint; the same on all ranks."""
    state = initial_state(config, precision=precision, world=world, log=log)
    state.broadcast()
    resume(state, config, store=store, global_batch_size=global_batch_size, log=log)
    warn_of_frozen_random_weights(state, config, log=log)
    return state


def initial_state(config: TrainingConfig, *, precision: str, world: World, log: Log) -> TrainingState:
    """Return detector, optimizer and moving average before the first step."""
    init, family = config.backbone_init, config.hparams.family
    detector = build_detector(config.hparams, num_classes=len(config.class_names), precision=precision)
    if init:
        for line in load_backbone(detector.network, read_source(init), family=family):
            log(line)
    if config.pretrained_ckpt:
        source = read_source(config.pretrained_ckpt)
        lines = load_matching_weights(
            detector.network,
            source,
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
    decay, parts = config.hparams.moving_average_decay, world.state_parts
    variables = list(named_variables(detector.network).values())
    average = WeightAverage(variables, decay=decay, parts=parts) if decay else None
    optimizer = build_optimizer(config.hparams, precision=precision)
    optimizer.build(
        detector.network.trainable_variables,
        weights_rate_factors(config.hparams, detector.network),
        decaying_weights(detector.network, config.hparams.decayed_weights),
        parts=parts,
    )
    return TrainingState(detector, optimizer, average, world=world)


def resume(
    state: TrainingState, config: TrainingConfig, *, store: CheckpointStore, global_batch_size: int, log: Log
) -> None:
    """Resume as `--resume` specifies: from the newest intact checkpoint in the store, from a named one, or not at all.

    With another batch size or number of ranks the number of images seen is kept; the step is computed from it.
    """
    state.progress.global_batch_size, state.progress.ranks = global_batch_size, state.world.replicas
    if config.benchmark:
        return
    source = None
    if config.resume == "auto":
        source = _newest(store, log=log)
    elif config.resume != "never":
        source = read_checkpoint(config.resume)
    elif state.world.is_first and (subfolder := store.move_to_subfolder()):
        log(f"starts from scratch; the earlier checkpoints were moved to {subfolder}")
    if source is not None:
        restore_checkpoint(state, source, config, store=store, global_batch_size=global_batch_size, log=log)
    steps = state.world.gather(state.step)  # all ranks have read: from here on the first may write
    if len(set(steps)) > 1:
        steps_by_rank = ", ".join(f"rank {rank}: {step}" for rank, step in enumerate(steps[:8]))
        steps_by_rank += ", ..." if len(steps) > 8 else ""
        raise InputError(
            f"{config.model_dir}: the ranks found checkpoints of different steps ({steps_by_rank}); expected "
            "a folder shared by all machines"
        )


def restore_checkpoint(
    state: TrainingState,
    source: Source,
    config: TrainingConfig,
    *,
    store: CheckpointStore,
    global_batch_size: int,
    log: Log,
) -> None:
    """Restore a checkpoint into the state; later checkpoints of the store continue it.

    Raises:
        InputError: it belongs to another training.
    """
    assert source.description is not None  # every training checkpoint has one, see `read_checkpoint`
    if source.class_names != config.class_names:
        raise InputError(f"{source.prefix}: written for other classes; use another --model_dir or remove it")
    state.restore(source.arrays, source.description.run, prefix=source.prefix)
    stored = source.description.score_thresholds
    of_weights = ("miss_rate", SCORE_CALIBRATION)  # hold for the weights that they were measured with
    state.score_thresholds = {kind: value for kind, value in stored.items() if kind not in of_weights}
    store.continue_from(source.prefix)
    progress = state.progress
    log(f"resumes from {source.prefix} after step {state.step}, {progress.images_seen} images")
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
    progress.global_batch_size, progress.ranks = global_batch_size, state.world.replicas


def _newest(store: CheckpointStore, *, log: Log) -> Source | None:
    for bundle in store.readable():
        if isinstance(bundle, InputError):
            log(f"warning: {bundle}; using the previous checkpoint")
        else:
            return bundle
    if names := store.names():
        raise InputError(
            f"{store.folder}: none of its {len(names)} checkpoints can be read; remove them, or use --resume=never"
        )
    return None


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


def warn_of_frozen_random_weights(state: TrainingState, config: TrainingConfig, *, log: Log) -> None:
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
