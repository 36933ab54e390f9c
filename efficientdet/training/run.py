"""One training: its configuration, inputs, state and schedule, where it is in them, and its checkpoints."""

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dataset.input.examples import InputConfig
from dataset.input.pipeline import epoch_length, training_dataset
from dataset.input.record_batches import RecordBatches
from dataset.input.tiling import Tiling, tiles_per_epoch
from dataset.records.labeled_records import labeled_records
from dataset.records.record_index import RecordIndex, index_records
from dataset.records.verify import verify_records
from efficientdet.checkpoints.checkpoint import write_arrays
from efficientdet.checkpoints.description import DESCRIPTION_FILE, Description, store_thresholds
from efficientdet.checkpoints.store import CheckpointStore
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.agreement import require_agreement
from efficientdet.devices.device import device_prefetch
from efficientdet.devices.distributed import World
from efficientdet.devices.runtime import Runtime, accelerator_count
from efficientdet.families.inputs import input_config
from efficientdet.optimization.optimizer import Schedule
from efficientdet.run_log.journal import Journal, Stopwatch
from efficientdet.training.state import starting_state
from model.detection_model import named_variables
from object_detection.structures import Batch
from program_support.processor import available_cores

# Paths on the machine of a process
OWN_SETTINGS = ("records", "val_records", "model_dir")
SAVED_MODEL = "emackpt-final"  # folder
_LOGGED_FROM = 0.25  # smaller changes of the remaining epochs are not logged
_LOGGED_EVERY = 0.1  # least share of the time budget between two logged plans
_OTHER_ACTIVITIES = ("compilation", "calibration", "evaluation")  # names of the stopwatch
_BUSY = 0.5  # share of the time from which a stage of the input is its bottleneck
# Epochs of a few images would otherwise mostly write
_SECONDS_BETWEEN_EPOCH_SAVES, _SAVING_SHARE = 10.0, 0.01  # at least, and of the time


class TrainingInputs:
    """The records of a training, and the batches of this rank."""

    def __init__(self, config: TrainingConfig, runtime: Runtime, world: World, *, log: Callable[[str], None]):
        """Find and, if requested, verify the records.

        Raises:
            InputError: a record cannot be used, or the processes have different records.
        """
        self._config, self._runtime, self._world = config, runtime, world
        self.index = verify_records(
            index_records(config.records),
            when=config.verify_records,
            max_bad_fraction=config.max_bad_fraction,
            log=log,
            category_ids=config.class_names.category_ids,
        )
        require_agreement(config, world, rank_fields=OWN_SETTINGS, index=self.index)
        self._factors = _repeat_factors(config, self.index, log=log)
        self._calibration: dict[bool, RecordBatches] = {}
        self.stages, self.cpu = Stopwatch(), Stopwatch(time.process_time)

    @cached_property
    def validation_index(self) -> RecordIndex:
        """The validation records."""
        return index_records(self._config.val_records)

    @property
    def evaluated_images(self) -> int:
        """Number of images of an evaluation; 0 where the training has none."""
        if not self._config.evaluates:
            return 0
        return min(self._config.eval_samples or len(self.validation_index), len(self.validation_index))

    @property
    def images_per_epoch(self) -> int:
        """Number of images or tiles of an epoch."""
        records = len(self.index) if self._factors is None else epoch_length(self._factors)
        return self._config.num_examples_per_epoch or records

    def config(self, batch_size: int, *, composes: bool = True) -> InputConfig:
        """Return the configuration of the input pipeline; `composes`: with images composed of several, if any are."""
        config, local_size = self._config, self._world.local_size
        # The ranks of a machine share its cores, unless the launcher has bound each to its own.
        cores = min(available_cores(), (os.cpu_count() or 4) // local_size)
        spare = 2 if accelerator_count() > 0 and config.set_num_threads else 0
        threads = max(2, cores - spare) if spare or local_size > 1 else 0
        inputs = input_config(
            config.hparams,
            class_names=config.class_names,
            batch_size=batch_size,
            seed=config.seed,
            pad_to_batch_maximum=not self._runtime.use_xla and keras.backend.backend() == "tensorflow",
            use_fake_data=config.use_fake_data,
            num_threads=threads if config.enable_map_parallelization else 1,
        )
        return inputs if composes else replace(inputs, copy_paste=None)

    def batches(self, batch_size: int, *, first_position: int, composes: bool) -> Iterator[Batch]:
        """Return the batches of this rank from an image of the stream on."""
        world = self._world
        batches = self._dataset(
            self.config(batch_size, composes=composes),
            first_position=first_position,
            rank=world.rank,
            world_size=world.size,
            measuring=self.stages.measuring,
        )
        return device_prefetch(
            iter(batches), devices=world.devices, processes=world.size, measuring=self.stages.measuring
        )

    def bottleneck(self, *, waited: float, in_steps: float) -> str:
        """Return the slowest stage of the input: reading, copying (to the devices), decoding or assembling.

        Reading waits for the storage in one thread, and so does copying for the devices. Decoding occupies the cores
        while the training waits.

        Args:
            waited: seconds in which the training waited for input; `cpu` has its "input" of all threads.
            in_steps: seconds of the steps, waiting included.
        """
        for stage in ("reading", "copying"):
            if self.stages.total(stage) > _BUSY * in_steps:
                return stage
        return "decoding" if self.cpu.total("input") > _BUSY * waited * available_cores() else "assembling"

    def calibration_batches(self, batch_size: int, *, composes: bool) -> RecordBatches:
        """Return the batches of the stream from its beginning, on all ranks the same, always of the first size."""
        if composes not in self._calibration:  # a pipeline that is made again is traced again
            inputs = replace(self.config(batch_size, composes=composes), use_fake_data=False)
            self._calibration[composes] = self._dataset(inputs)
        return self._calibration[composes]

    def _dataset(self, inputs: InputConfig, **place: Any) -> RecordBatches:
        return training_dataset(self.index, inputs, factors=self._factors, **place)


def _repeat_factors(config: TrainingConfig, index: RecordIndex, *, log: Callable[[str], None]) -> np.ndarray | None:
    """Return how many tiles of each record an epoch shows; None for complete images."""
    tiling = Tiling.of_hyperparameters(vars(config.hparams))
    if tiling is None:
        return None
    images = labeled_records(index, config.class_names)
    tiles = tiles_per_epoch(images, tiling)
    height, width = tiling.size
    log(f"an epoch has {int(tiles.sum())} tiles of {width}x{height} pixels, of {len(images)} images")
    return tiles


class Run:
    """One training from its start, or from where it resumes, to its end.

    Attributes:
        inputs, state: the records, and what the steps change.
        global_batch_size: number of images per step, of all ranks and devices.
        steps_per_epoch, schedule: how often the learning rate changes, and how.
        description, store: what checkpoints state, and where they are.
        begun: clock time when the records were found.
        first_step: the step after which this process starts.
        saved_step: the step of the last checkpoint.
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
        self.first_step = self.saved_step = self.state.step
        self._saved_at, self._pause = time.monotonic(), _SECONDS_BETWEEN_EPOCH_SAVES
        self._clock_zero: float | None = None  # clock time at which the training would have started in one process

    # --- where it is

    @property
    def seconds(self) -> float:
        """Seconds of training with evaluations and compilation; of killed processes up to their last checkpoint."""
        return self.state.progress.seconds if self._clock_zero is None else self.stopwatch.now() - self._clock_zero

    @property
    def images_per_second(self) -> float:
        """Mean throughput since the start of this process, without evaluation and checkpoints."""
        seconds = sum(self.stopwatch.total(name) for name in ("input", "compute", "compilation"))
        return (self.state.step - self.first_step) * self.global_batch_size / max(seconds, 1e-9)

    def start(self) -> None:
        """Log the start, and start the clock, which continues from the last checkpoint of an earlier process."""
        self.journal.event(
            "run_started",
            schedule=self.schedule,
            global_batch_size=self.global_batch_size,
            images=len(self.inputs.index),
            evaluated_images=self.inputs.evaluated_images,
            images_of_batch_statistics=self.batch_size * self.world.sharing_statistics,
            weight_names=list(named_variables(self.state.detector.network)),
        )
        self._clock_zero = self.stopwatch.now() - self.state.progress.seconds

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the log and the report."""
        config, trained = self.config, self.state.detector.network.trainable_variables
        return {
            "model": config.hparams.name,
            "image_size": config.hparams.input_size,
            "classes": len(config.class_names),
            "trainable_parameters": sum(math.prod(variable.shape) for variable in trained),
            "records": len(self.inputs.index),
            "batch_size": config.batch_size,
            "accumulate_steps": config.accumulate_steps,
            "ranks": self.world.size,
            "steps_per_epoch": self.steps_per_epoch,
            "epochs": config.last_epoch,
            "peak_learning_rate": self.schedule.peak_learning_rate,
            "precision": self.runtime.precision,
            "use_xla": self.runtime.use_xla,
            "backend": keras.backend.backend(),
            "seed": config.seed,
            "deterministic": config.deterministic,
        }

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

    @property
    def target_reached(self) -> bool:
        """True if the best AP reaches --target_ap."""
        return 0 < self.config.target_ap <= self.state.progress.best_ap

    @property
    def time_to_target(self) -> float | None:
        """Minutes of training until the end of the evaluation that reached --target_ap; None if none has reached it."""
        return self.state.progress.best_seconds / 60 or None if self.target_reached else None

    @property
    def reason_to_stop(self) -> str:
        """The reason to stop before the end of the schedule: --target_ap or --patience; empty without one."""
        config, progress = self.config, self.state.progress
        if config.evaluates and self.target_reached:
            return (
                f"AP {progress.best_ap:.4f} reaches --target_ap={config.target_ap:g} after epoch {self.epoch}, "
                f"time to target {self.time_to_target:.2f} minutes"
            )
        if config.evaluates and 0 < config.patience <= progress.evaluations_since_best:
            return f"AP has not improved in {config.patience} evaluations: stopping after epoch {self.epoch}"
        return ""

    # --- checkpoints: all ranks call these methods together, the first one writes

    def save(self) -> None:
        """Save the state that a resumed training needs."""
        begin = time.monotonic()
        self._write(self.store.save)
        self.saved_step, self._saved_at = self.state.step, time.monotonic()
        self._pause = max(_SECONDS_BETWEEN_EPOCH_SAVES, (self._saved_at - begin) / _SAVING_SHARE)

    def save_if_changed(self) -> None:
        """Save if steps were done since the last checkpoint."""
        if self.saved_step != self.state.step:
            self.save()

    def save_unfinished(self, epoch: int) -> None:
        """Save, before calibration and evaluation, a checkpoint that names the epoch as unfinished."""
        self.state.average_batch_statistics()
        self.state.progress.unfinished_epoch = epoch
        if self.uses_average(epoch):
            self.save()

    def save_finished(self, epoch: int) -> None:
        """Write the averaged weights of a period, and a checkpoint that names no unfinished epoch."""
        if self.ends_period(epoch) and self.state.average is not None and self.world.is_first:
            write_arrays(
                str(Path(self.config.model_dir, "ema_weights", f"emackpt-{epoch}")),
                self.state.averages_by_name(),
                self.state.description(self.description, weights="averaged"),
            )
        self.state.progress.unfinished_epoch = 0
        is_due = self.world.gather(time.monotonic() - self._saved_at > self._pause)[0]  # by the clock of the first rank
        if self.uses_average(epoch) or self.config.checkpoint_steps or is_due:
            self.save()

    def save_final(self) -> None:
        """Write the final state as ckpt-final, beside the checkpoints for resuming."""
        self._write(partial(write_arrays, str(Path(self.config.model_dir, "ckpt-final"))))

    def store_thresholds(self) -> None:
        """Write the score thresholds of the last evaluation beside the final weights, which were saved before it."""
        folder = Path(self.config.model_dir)
        if self.world.is_first:
            store_thresholds(folder / "ckpt-final", self.state.score_thresholds)
            if (exported := folder / SAVED_MODEL / DESCRIPTION_FILE).exists():
                self.state.description(self.description, weights="averaged").write(exported)

    def _write(self, write: Callable[[dict, Description], object]) -> None:
        """Write the state in the first rank; the other ranks wait for it."""
        self.state.progress.seconds = self.seconds
        with self.stopwatch.measuring("checkpoints"):
            arrays = self.state.arrays()
            if self.world.is_first:
                write(arrays, self.state.description(self.description, weights="raw and averaged"))
            self.world.barrier()


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


class TimeBudget:
    """Planner of a run with --max_minutes; without the flag it changes nothing. All ranks call it together.

    After each epoch the remaining schedule is planned for the remaining time. A plan maps the remaining steps to the
    remaining part of the schedule: the learning rate continues from its value and decays faster or more slowly. The
    plan is a part of `TrainingProgress` and therefore of every checkpoint, so that a resumed training continues with
    the same learning rates.
    """

    def __init__(self, run: Run):
        """Plan again if --max_minutes changed since the last process, as if it had been known from the start."""
        self._run, self._first_epoch, progress = run, run.epoch, run.state.progress
        self._seconds = 60.0 * (run.config.max_minutes or 0.0)
        self._logged_end, self._logged_seconds = 0, 0.0  # the end of the last logged plan, in steps, and its time
        self._last = self._spent()
        if progress.planned_seconds == self._seconds:
            return
        step, position = run.state.step, run.schedule_position(run.state.step)
        progress.planned_seconds, progress.planned_end = self._seconds, 0
        if self._seconds and step:
            epochs = self._fitting_epochs(self._seconds - progress.seconds, seconds_per_step=progress.seconds / step)
            end = step + epochs * run.steps_per_epoch
            self._set_end(end, position=min(position, run.schedule_steps * step / end))
            run.journal.print(
                f"time budget: {progress.seconds / 60:.1f} of {self._seconds / 60:.1f} minutes used: {epochs} "
                "epochs left"
            )

    def plan(self) -> None:
        """Decide and log how many epochs follow, after the steps of an epoch and before its evaluation."""
        run, progress = self._run, self._run.state.progress
        if not self._seconds or run.state.step >= run.last_step:
            return  # the learning rate is at the end of its schedule: further epochs would train nothing
        used, seconds_per_step, evaluation = run.world.gather(self._measured())[0]
        epochs = self._fitting_epochs(self._seconds - used, seconds_per_step=seconds_per_step, evaluation=evaluation)
        planned = ((self._logged_end or run.last_step) - run.state.step) // run.steps_per_epoch
        is_due = used - self._logged_seconds >= _LOGGED_EVERY * self._seconds
        if not progress.planned_end or (is_due and abs(epochs - planned) > max(1.0, _LOGGED_FROM * planned)):
            run.journal.print(
                f"time budget: {used / 60:.1f} of {self._seconds / 60:.1f} minutes used, {seconds_per_step:.2g} s "
                f"per step: {epochs} epochs left instead of {planned}; the learning rate schedule ends with them"
            )
            self._logged_end, self._logged_seconds = run.state.step + epochs * run.steps_per_epoch, used
        self._set_end(run.state.step + epochs * run.steps_per_epoch, position=run.schedule_position(run.state.step))

    def _set_end(self, end: int, *, position: float) -> None:
        progress = self._run.state.progress
        progress.planned_at, progress.planned_position, progress.planned_end = self._run.state.step, position, end

    def _fitting_epochs(self, seconds: float, *, seconds_per_step: float, evaluation: float = 0.0) -> int:
        """Return how many epochs fit into the seconds, with their evaluations and the current epoch's evaluation."""
        run, config = self._run, self._run.config
        needed = evaluation * config.evaluates_after(run.epoch)
        for epoch in range(run.epoch + 1, config.last_epoch + 1):
            needed += run.steps_per_epoch * seconds_per_step + evaluation * config.evaluates_after(epoch)
            final = 0.0 if config.evaluates_after(epoch) else evaluation  # the last epoch is always evaluated
            if needed + final > seconds:
                return epoch - 1 - run.epoch
        return max(config.last_epoch - run.epoch, 0)

    def _measured(self) -> tuple[float, float, float]:
        """Return the seconds of training so far, per step since the last call, and per evaluation."""
        run, previous = self._run, self._last
        self._last = self._spent()
        steps = self._last[1] - previous[1]
        seconds_per_step = (self._last[0] - previous[0]) / steps if steps > 0 else run.stopwatch.total("compilation")
        return run.seconds, seconds_per_step, self._evaluation_seconds(seconds_per_step)

    def _evaluation_seconds(self, seconds_per_step: float) -> float:
        """Return the mean seconds of an evaluation with its calibration, before the first one an estimate."""
        run, config = self._run, self._run.config
        done = sum(config.evaluates_after(epoch) for epoch in range(self._first_epoch + 1, run.epoch))
        if done:
            return (run.stopwatch.total("evaluation") + run.stopwatch.total("calibration")) / done
        images = run.inputs.evaluated_images + (config.calibration_images or 0)
        return images / run.global_batch_size * seconds_per_step

    def _spent(self) -> tuple[float, int]:
        """Return the seconds and number of this process's steps without the first one, which includes the compilation.

        The seconds include other work of each epoch, such as checkpoints.
        """
        run = self._run
        seconds = run.seconds - sum(run.stopwatch.total(name) for name in _OTHER_ACTIVITIES)
        return seconds, max(run.state.step - run.first_step - 1, 0)
