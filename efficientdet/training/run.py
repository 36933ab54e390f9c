"""One training: its configuration, inputs, state and schedule, and where it is in them."""

import math
from collections.abc import Callable

from efficientdet.checkpoints.checkpoint import Description
from efficientdet.checkpoints.store import CheckpointStore
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.distributed import World
from efficientdet.devices.runtime import Runtime
from efficientdet.optimization.schedule import Schedule
from efficientdet.run_log.journal import Journal
from efficientdet.run_log.stopwatch import Stopwatch
from efficientdet.training.inputs import TrainingInputs
from efficientdet.training.start import starting_state
from model.detection_model import named_variables


class Run:
    """One training from its start, or from where it resumes, to its end.

    Attributes:
        inputs, state: the records, and what the steps change.
        global_batch_size: number of images per step, of all ranks and devices.
        steps_per_epoch, schedule: how often the learning rate changes, and how.
        description, store: what checkpoints state, and where they are.
        begun: clock time when the records were found.
        first_step: the step after which this process starts.
    """

    def __init__(
        self,
        config: TrainingConfig,
        runtime: Runtime,
        journal: Journal,
        world: World,
        *,
        clock: Callable[[], float],
    ):
        """Find the records, derive the schedule, and create or restore the state."""
        self.config, self.runtime, self.journal, self.world = config, runtime, journal, world
        self.inputs = TrainingInputs(config, runtime, world, log=journal.print)
        self.stopwatch, devices = Stopwatch(clock), world.size * world.devices
        self.global_batch_size = self.batch_size * config.accumulate_steps * devices
        self.steps_per_epoch = math.ceil(self.inputs.images_per_epoch / self.global_batch_size)
        if config.benchmark:
            self.steps_per_epoch = config.benchmark_steps
        if devices > 1:
            journal.print(f"{world.size} processes, {devices} devices, {self.global_batch_size} images per step")
        journal.event("initialization_started", processes=world.size)
        self.store = CheckpointStore(config.model_dir)
        self.schedule = Schedule.from_hyperparameters(
            config.hparams,
            steps_per_epoch=self.steps_per_epoch,
            peak_learning_rate=_peak_learning_rate(config, global_batch_size=self.global_batch_size, log=journal.print),
        )
        self.description = Description(
            model_name=config.hparams.model_name,
            hparams=config.hparams.to_dict(),
            categories=config.class_names.to_categories(),
            weights="raw and averaged",
            steps_per_epoch=self.steps_per_epoch,
        )
        self.begun = self.stopwatch.now()
        self.state = starting_state(
            config,
            precision=runtime.precision,
            world=world,
            store=self.store,
            global_batch_size=self.global_batch_size,
            log=journal.print,
        )
        self.first_step = self.state.step
        self._clock_zero: float | None = None  # clock time at which the training would have started in one process

    @property
    def seconds(self) -> float:
        """Seconds of training with evaluations and compilation; of killed processes up to their last checkpoint."""
        return self.state.progress.seconds if self._clock_zero is None else self.stopwatch.now() - self._clock_zero

    @property
    def images_per_second(self) -> float:
        """Mean throughput since the start of this process, without evaluation and checkpoints."""
        seconds = sum(self.stopwatch.total(name) for name in ("input", "compute", "compilation"))
        return (self.state.step - self.first_step) * self.global_batch_size / max(seconds, 1e-9)

    def start(self, *, evaluated_images: int) -> None:
        """Log the start, and start the clock, which continues from the last checkpoint of an earlier process."""
        self.journal.event(
            "run_started",
            schedule=self.schedule,
            global_batch_size=self.global_batch_size,
            images=len(self.inputs.index),
            evaluated_images=evaluated_images,
            images_of_batch_statistics=self.batch_size * self.world.sharing_statistics,
            weight_names=list(named_variables(self.state.detector.network)),
        )
        self._clock_zero = self.stopwatch.now() - self.state.progress.seconds

    @property
    def batch_size(self) -> int:
        """Number of images per process, or device, whose batch statistics are computed together."""
        assert self.config.batch_size is not None  # set by `with_batch_sizes`
        return self.config.batch_size

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

    def schedule_position(self, step: int) -> float:
        """Return the schedule step whose learning rate a step uses: its own number, or the one of a plan."""
        plan = self.state.progress
        if not plan.planned_end:
            return step
        share = (step - plan.planned_at) / max(plan.planned_end - plan.planned_at, 1)
        return plan.planned_position + share * (self.schedule_steps - plan.planned_position)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.schedule(self.schedule_position(self.state.step)) * self.state.progress.rate_factor

    @property
    def composes_images(self) -> bool:
        """True if images of the current epoch are composed of several; decided at its first step, to resume exactly."""
        hparams = self.config.hparams
        if not hparams.copy_paste_probability:
            return False  # never True: a change would restart the input
        first = self.epoch * self.steps_per_epoch
        return self.schedule_position(first) < hparams.copy_paste_share * self.schedule_steps

    def ends_period(self, epoch: int) -> bool:
        """Return whether averaged weights are written after this epoch."""
        return epoch % self.config.checkpoint_period == 0

    def uses_average(self, epoch: int) -> bool:
        """Return whether averaged weights are evaluated or written after this epoch."""
        return self.config.evaluates_after(epoch) or self.ends_period(epoch)


def _peak_learning_rate(config: TrainingConfig, *, global_batch_size: int, log: Callable[[str], None]) -> float:
    """Return the configured peak learning rate, by default the published one for this global batch size."""
    rule, rate = config.hparams.published_rate(global_batch_size), config.hparams.learning_rate
    if config.lr_per_64 is not None:
        rate = config.lr_per_64 * global_batch_size / 64
    if config.warn_of_lr and rate is not None and rate > 2 * rule:
        log(
            f"warning: the learning rate {rate:g} is {rate / rule:.1f} times the published one for {global_batch_size} "
            f"images per step ({rule:g})"
        )
    return rule if rate is None else rate
