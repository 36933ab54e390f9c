"""State shared by the parts of one training: configuration, input, output and reporting."""

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import keras
import numpy as np

from dataset.input.decoded_cache import DecodedCache
from dataset.input.input_config import InputConfig
from dataset.input.order import epoch_length, repeat_factors
from dataset.input.pipeline import training_dataset
from dataset.input.record_batches import RecordBatches
from dataset.records.labeled_records import labeled_records
from dataset.records.record_index import RecordIndex, index_records
from dataset.records.verify import verify_records
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.checkpoints.store import CheckpointStore
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.agreement import require_agreement
from efficientdet.devices.device import device_prefetch
from efficientdet.devices.distributed import World
from efficientdet.devices.runtime import Runtime, accelerator_count
from efficientdet.families.inputs import input_config
from efficientdet.run_log.journal import Journal
from efficientdet.run_log.stopwatch import Stopwatch
from efficientdet.training.schedule import Schedule
from efficientdet.training.start import starting_state
from efficientdet.training.state import TrainingState
from model.detection_model import named_variables
from object_detection.structures import Batch
from program_support.processor import available_cores

OWN_SETTINGS = ("records", "val_records", "model_dir")  # paths on the machine of a process


@dataclass(kw_only=True)
class Run:
    """One training from its start, or from where it resumes, to its end."""

    config: TrainingConfig
    runtime: Runtime
    world: World
    journal: Journal
    index: RecordIndex
    factors: np.ndarray | None  # how often each record is repeated in an epoch; None: once
    global_batch_size: int  # sum over the ranks
    steps_per_epoch: int
    schedule: Schedule
    description: Description
    store: CheckpointStore
    cache: DecodedCache | None
    state: TrainingState
    first_step: int = field(init=False)  # the step after which this process starts
    clock: Callable[[], float]
    stopwatch: Stopwatch
    begun: float  # time.monotonic when the records were found
    _calibration_batches: RecordBatches | None = None
    _clock_zero: float | None = None  # clock time at which the training would have started in one process

    @classmethod
    def prepare(
        cls,
        config: TrainingConfig,
        runtime: Runtime,
        journal: Journal,
        world: World,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> "Run":
        """Find and, if requested, verify the records, derive the schedule, and create the state."""
        index = verify_records(
            index_records(config.records),
            when=config.verify_records,
            max_bad_fraction=config.max_bad_fraction,
            log=journal.print,
            category_ids=config.class_names.category_ids,
        )
        require_agreement(config, world, rank_fields=OWN_SETTINGS, index=index)
        assert config.batch_size is not None  # set by `with_batch_sizes`
        global_batch_size = config.batch_size * config.accumulate_steps * world.size * world.devices
        factors = _repeat_factors(config, index, log=journal.print)
        examples = config.num_examples_per_epoch or (len(index) if factors is None else epoch_length(factors))
        steps_per_epoch = config.benchmark_steps if config.benchmark else math.ceil(examples / global_batch_size)
        if world.size * world.devices > 1:
            journal.print(
                f"{world.size} processes, {world.size * world.devices} devices, {global_batch_size} images per step"
            )
        journal.event("initialization_started", processes=world.size)
        store = CheckpointStore(config.model_dir)
        return cls(
            config=config,
            runtime=runtime,
            world=world,
            journal=journal,
            index=index,
            factors=factors,
            global_batch_size=global_batch_size,
            steps_per_epoch=steps_per_epoch,
            store=store,
            schedule=Schedule.from_hyperparameters(
                config.hparams,
                steps_per_epoch=steps_per_epoch,
                peak_learning_rate=_peak_learning_rate(config, global_batch_size=global_batch_size, journal=journal),
            ),
            description=Description(
                model_name=config.hparams.model_name,
                hparams=config.hparams.to_dict(),
                categories=config.class_names.to_categories(),
                weights="raw and averaged",
                steps_per_epoch=steps_per_epoch,
            ),
            cache=DecodedCache(log=journal.print) if config.cache == "decoded" else None,
            clock=clock,
            stopwatch=Stopwatch(clock),
            begun=time.monotonic(),
            state=starting_state(
                config,
                precision=runtime.precision,
                world=world,
                store=store,
                global_batch_size=global_batch_size,
                log=journal.print,
            ),
        )

    def __post_init__(self):
        self.first_step = self.state.step

    @property
    def epoch(self) -> int:
        """Number of epochs whose steps are done."""
        return self.state.step // self.steps_per_epoch

    @property
    def schedule_steps(self) -> int:
        """Number of steps of the training without --max_minutes."""
        return (1 if self.config.benchmark else self.config.last_epoch) * self.steps_per_epoch

    @property
    def last_step(self) -> int:
        """The step at which the training ends, as planned so far."""
        return self.state.progress.planned_end or self.schedule_steps

    @property
    def schedule_position(self) -> float:
        """Schedule step whose learning rate the next step uses: its own number, or the one that a plan maps it to."""
        return self._position_of(self.state.step)

    def _position_of(self, step: int) -> float:
        plan = self.state.progress
        if not plan.planned_end:
            return step
        share = (step - plan.planned_at) / max(plan.planned_end - plan.planned_at, 1)
        return plan.planned_position + share * (self.schedule_steps - plan.planned_position)

    @property
    def composes_images(self) -> bool:
        """True if images of the current epoch are composed of several; decided at its first step, to resume exactly."""
        hparams = self.config.hparams
        if not (hparams.mosaic_probability or hparams.copy_paste_probability):
            return False  # a change of epoch would restart the input
        return self._position_of(self.epoch * self.steps_per_epoch) < hparams.mosaic_share * self.schedule_steps

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.schedule(self.schedule_position) * self.state.progress.rate_factor

    @property
    def images_per_second(self) -> float:
        """Mean throughput since the start of this process, without evaluation and checkpoints."""
        seconds = sum(self.stopwatch.total(name) for name in ("input", "compute", "compilation"))
        return (self.state.step - self.first_step) * self.global_batch_size / max(seconds, 1e-9)

    def start(self, evaluated_images: int) -> None:
        """Log the start, and start the clock, which continues from the last checkpoint of an earlier process."""
        assert self.config.batch_size is not None  # set by `with_batch_sizes`
        self.journal.event(
            "run_started",
            schedule=self.schedule,
            global_batch_size=self.global_batch_size,
            images=len(self.index),
            evaluated_images=evaluated_images,
            images_of_batch_statistics=self.config.batch_size * self.world.sharing_statistics,
            weight_names=list(named_variables(self.state.detector.network)),
        )
        self._clock_zero = self.clock() - self.state.progress.seconds

    @property
    def seconds(self) -> float:
        """Seconds of training with evaluations and compilation; of killed processes up to their last checkpoint."""
        return self.state.progress.seconds if self._clock_zero is None else self.clock() - self._clock_zero

    def input_config(self, batch_size: int) -> InputConfig:
        """Return the configuration of the input pipeline of this rank."""
        config = self.config
        # The ranks of a machine share its cores, unless the launcher has bound each to its own.
        cores = min(available_cores(), (os.cpu_count() or 4) // self.world.local_size)
        spare = 2 if accelerator_count() > 0 and config.set_num_threads else 0
        threads = max(2, cores - spare) if spare or self.world.local_size > 1 else 0
        inputs = input_config(
            config.hparams,
            class_names=config.class_names,
            batch_size=batch_size,
            seed=config.seed,
            pad_to_batch_maximum=not self.runtime.use_xla and keras.backend.backend() == "tensorflow",
            use_fake_data=config.use_fake_data,
            num_threads=threads if config.enable_map_parallelization else 1,
        )
        return inputs if self.composes_images else replace(inputs, composition=None)

    def batches(self) -> Iterator[Batch]:
        """Return the batches of this rank from the next image on."""
        world = self.world
        batches = self._training_data(
            self.input_config(self.global_batch_size // world.size),
            first_position=self.state.progress.images_seen,
            rank=world.rank,
            world_size=world.size,
        )
        return device_prefetch(iter(batches), devices=world.devices, processes=world.size)

    def calibration_batches(self, batch_size: int) -> RecordBatches:
        """Return the batches of the stream from its beginning, on all ranks the same; the size of the first call."""
        if self._calibration_batches is None:  # a pipeline that is made again is traced again
            self._calibration_batches = self._training_data(replace(self.input_config(batch_size), use_fake_data=False))
        return self._calibration_batches

    def _training_data(self, inputs: InputConfig, **place: int) -> RecordBatches:
        return training_dataset(self.index, inputs, cache=self.cache, factors=self.factors, **place)

    def ends_period(self, epoch: int) -> bool:
        """Return whether averaged weights are written after this epoch."""
        return epoch % self.config.checkpoint_period == 0


def _repeat_factors(config: TrainingConfig, index: RecordIndex, *, log: Callable[[str], None]) -> np.ndarray | None:
    """Return how often --balance repeats each record in an epoch; None if it repeats none."""
    if config.balance == "none":
        return None
    factors = repeat_factors(labeled_records(index, config.class_names), config.balance_threshold)
    if factors.max() == 1.0:
        log(
            f"warning: --balance=repeat_factor has no effect: every class is in a larger share of the images than "
            f"--balance_threshold={config.balance_threshold:g}"
        )
        return None
    log(
        f"--balance=repeat_factor: {np.sum(factors > 1)} of {len(index)} images are repeated within an epoch, up to "
        f"{factors.max():.1f} times; {epoch_length(factors)} images per epoch"
    )
    return factors


def _peak_learning_rate(config: TrainingConfig, *, global_batch_size: int, journal: Journal) -> float:
    """Return the configured peak learning rate, by default the published one for this global batch size."""
    rule, rate = config.hparams.published_rate(global_batch_size), config.hparams.learning_rate
    if config.lr_per_64 is not None:
        rate = config.lr_per_64 * global_batch_size / 64
    if config.warn_of_lr and rate is not None and rate > 2 * rule:
        journal.print(
            f"warning: the learning rate {rate:g} is {rate / rule:.1f} times the published one for {global_batch_size} "
            f"images per step ({rule:g})"
        )
    return rule if rate is None else rate
