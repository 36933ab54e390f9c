"""A training from first to last: steps, checkpoints, evaluations."""

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import keras
import tensorflow as tf

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.data_checks.at_start import with_suggestions
from efficientdet.devices.distributed import World, join_world
from efficientdet.devices.memory import is_out_of_memory, out_of_memory, with_batch_sizes
from efficientdet.devices.runtime import Runtime, skip_graph_rewriting, start_runtime
from efficientdet.inference.predict import build_predict
from efficientdet.run_log.journal import Journal
from efficientdet.training.batch_norm_calibration import IMAGES, SMALL_BATCH, Calibration, calibration_batch
from efficientdet.training.build_step import build_train_step
from efficientdet.training.conventions import with_conventions_of_start
from efficientdet.training.epoch import EpochOfSteps
from efficientdet.training.guards import NotFinite, StepGuard
from efficientdet.training.interruption import Interrupted, StopWish, farewell
from efficientdet.training.model_dir_lock import sole_training
from efficientdet.training.run import Run
from efficientdet.training.run_logging import announce, announce_end, announce_report, announce_to_mlperf, write_run_report
from efficientdet.training.saving import Saver
from efficientdet.training.start import initial_state, resume, warn_of_frozen_random_weights
from efficientdet.training.time_budget import TimeBudget
from efficientdet.training.validation import Validation
from program_support.errors import InputError
from program_support.progress import Progress

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def train(config: TrainingConfig, *, clock: Callable[[], float] = time.monotonic) -> dict[str, float]:
    """Train, evaluate, write everything into model_dir; returns the final COCO numbers (empty without evaluation).

    `clock` gives seconds, for --max_minutes and for what is logged.

    Raises `Interrupted`, with everything saved, after SIGTERM and Ctrl-C.
    """
    world = join_world(group_size=config.bn_group)
    runtime = start_runtime(precision=config.precision, amp=config.amp, use_xla=config.use_xla, seed=config.seed,
                            deterministic=config.deterministic)
    config, doctor_said = with_suggestions(config)
    config, batch_sizes_said = with_batch_sizes(config, runtime, world)
    skip_graph_rewriting()
    if config.debug:
        tf.config.run_functions_eagerly(True)
    config, lines = with_conventions_of_start(config)
    folder = config.model_dir if world.is_first else None
    with _users_errors(config, runtime, world), sole_training(config.model_dir, world) as lock_said, Journal(
            folder, file_name=config.log_filename, loggers=() if config.benchmark else config.loggers,
            settings=config.hparams.to_dict(), project=config.hparams.family.name) as journal:
        for line in (lock_said, *doctor_said, *lines, batch_sizes_said):
            if line:
                journal.say(line)
        return Training(Run.prepare(config, runtime, journal, world, clock=clock)).run()


@contextlib.contextmanager
def _users_errors(config: TrainingConfig, runtime: Runtime, world: World) -> Iterator[None]:
    """One line for what the machine has too little of."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError, tf.errors.OpError) as error:
        if getattr(error, "errno", None) in _FULL or "No space left" in str(error):
            raise InputError(f"{config.model_dir}: no space left on device; the checkpoints in it are whole: make room and "
                             "start again") from error
        if getattr(error, "errno", None) in _NOT_WRITABLE:
            raise InputError(f"{error.filename or config.model_dir}: {error.strerror}; the checkpoints in "
                             f"{config.model_dir} are whole") from error
        if is_out_of_memory(error):
            raise out_of_memory(config, runtime, local_ranks=world.local_size) from error
        raise


class Training:
    """One training; methods in the order in which they happen."""

    def __init__(self, run: Run):
        self._run, self._config, self._calibrated_step = run, run.config, -1

    def run(self) -> dict[str, float]:
        """Everything, in order."""
        run, started = self._run, time.monotonic()
        self._start()
        with StopWish(run.world, saved_step=lambda: self._saver.step,
                      unsaved_steps=lambda: run.state.step - self._saver.step) as self._stop_wish:
            self._build()
            try:
                last_loss = self._epochs()
                run.mlperf.run_stops(success=not self._config.target_ap or self._validation.target_reached)
                numbers = {} if self._config.benchmark else self._finish()
            except Interrupted:
                if not self._config.benchmark:
                    self._saver.save_what_is_not()
                run.journal.say(f"asked to stop: {farewell(self._saver.step)}")
                raise
        announce_end(run, self._validation, loss=last_loss, seconds=time.monotonic() - started)
        return numbers

    def _start(self) -> None:
        """Random weights, those of a file, or where the training was left; the same on all ranks."""
        run = self._run
        run.state = initial_state(self._config, precision=run.runtime.precision, world=run.world, say=run.journal.say)
        run.state.align()
        resume(run.state, self._config, store=run.store, images_a_step=run.images_a_step, say=run.journal.say)
        warn_of_frozen_random_weights(run.state, self._config, say=run.journal.say)
        run.first_step = run.state.step
        self._saver = Saver(run)
        announce(run)

    def _build(self) -> None:
        """What a step, an evaluation and a calibration are done with."""
        run, config, compiled = self._run, self._config, self._run.runtime.use_xla
        step = build_train_step(run.state.detector, run.state.optimizer, run.state.average, compiled=compiled,
                                world=run.world, accumulate_steps=config.accumulate_steps, seed=config.seed)
        self._validation = Validation(
            config, run.state, run.journal, inputs=run.input_config(config.eval_batch_size),
            predict=build_predict(run.state.detector, compiled=compiled), description=run.description,
            stop_wish=self._stop_wish, seconds=lambda: run.seconds)
        self._calibration = Calibration(run.state.detector, use_xla=compiled)
        self._epoch_of_steps = EpochOfSteps(run, step, saver=self._saver, stop_wish=self._stop_wish)
        evaluated_images = self._validation.samples if config.evaluates else 0
        announce_to_mlperf(run, validation_samples=evaluated_images)
        run.starts()
        self._time_budget = TimeBudget(run, evaluated_images=evaluated_images)

    def _epochs(self) -> float | None:
        """All steps that are left; returns the mean loss of the last epoch, None where no step was left."""
        run, config, state = self._run, self._config, self._run.state
        batches, guard, loss = run.batches(), StepGuard(images_a_step=run.images_a_step), None
        with Progress("train", total=run.last_step, steps_per_epoch=run.steps_per_epoch, done=state.step,
                      silent=not run.world.is_first, first_counts=False) as bar:
            self._finish_epoch()
            while not self._goal_is_reached() and state.step < run.last_step:
                run.mlperf.epoch_starts(run.epoch + 1)
                if state.step == run.first_step:
                    run.journal.say("compiling the training step; the first step may take minutes")
                try:
                    loss = self._epoch_of_steps(batches, guard=guard, bar=bar)
                except NotFinite as error:
                    self._saver.roll_back(error)
                    self._calibrated_step = -1
                    self._finish_epoch()
                    bar.go_back(state.step)
                    batches, guard = run.batches(), StepGuard(images_a_step=run.images_a_step)
                    continue
                run.mlperf.epoch_stops(run.epoch)
                run.mlperf.throughput(run.images_per_second, epoch=run.epoch)
                if not config.benchmark:
                    with bar.pausing():
                        self._time_budget.plan()
                        bar.end_at(run.last_step)
                        self._end_epoch(run.epoch)
                        self._finish_epoch()
        return loss

    def _goal_is_reached(self) -> bool:
        """Whether there is no point in going on; tells why."""
        reason = self._validation.reason_to_stop(self._run.epoch) if self._config.evaluates else ""
        if reason:
            self._run.journal.say(reason)
        return bool(reason)

    def _end_epoch(self, epoch: int) -> None:
        """Save before what takes long, and stop where any rank was asked to."""
        state = self._run.state
        state.average_batch_statistics()
        state.progress.unfinished_epoch = epoch
        if self._config.evaluates_after(epoch) or self._run.ends_period(epoch):
            self._saver.save()
        if self._epoch_of_steps.stopping:
            raise self._stop_wish.interrupted()

    def _finish_epoch(self) -> None:
        """What an epoch whose steps are done still needs, perhaps left to this process by one that was killed: calibration,
        evaluation, and a checkpoint that says they are done. Until then all of it can be done again with the same outcome.
        """
        run, config, state = self._run, self._config, self._run.state
        epoch = state.progress.unfinished_epoch
        if not epoch:
            return
        due, period_ends = config.evaluates_after(epoch), run.ends_period(epoch)
        if due or period_ends:
            self._calibrate()
        if due:
            run.mlperf.evaluation_starts(epoch)
            with run.stopwatch.measuring("evaluation"):
                average_precision = self._validation.evaluate(epoch)
            run.mlperf.evaluation_stops(epoch, accuracy=average_precision)
        if config.validate:
            self._validation.losses(epoch)
        if period_ends and state.average is not None:
            self._saver.save_average(epoch)
        state.progress.unfinished_epoch = 0
        if period_ends or due or config.checkpoint_steps or self._saver.is_long_ago():
            self._saver.save()
        if due or not config.evaluates:
            write_run_report(run, self._validation)
        run.world.meet()

    def _calibrate(self) -> None:
        """Once after a step, before anything measures or writes the averaged weights."""
        run, config = self._run, self._config
        images, asked_for = config.calibration_images, config.calibration_images is not None
        if not asked_for:
            images = min(IMAGES, len(run.index)) if config.batch_size * config.bn_group < SMALL_BATCH else 0
        batch_size = calibration_batch(config.hparams.input_size, images, training_batch=config.batch_size)
        worthwhile = images > 0 and (asked_for or batch_size >= 2 * config.batch_size)
        if not worthwhile or self._calibrated_step == run.state.step:
            return
        inputs = replace(run.input_config(batch_size), use_fake_data=False)
        batches = islice(run.training_data(inputs), images // batch_size)
        with run.stopwatch.measuring("calibration"):
            run.state.change_averages(lambda: self._calibration(self._stop_wish.watched(batches)))
        self._calibrated_step = run.state.step

    def _finish(self) -> dict[str, float]:
        """The last checkpoint, the exported model and, where wanted, the final numbers."""
        run, state = self._run, self._run.state
        self._stop_wish.heed()
        self._saver.save_what_is_not()  # before the calibration: with more epochs the training goes on as if it had not ended
        self._calibrate()
        self._saver.save_final()
        with state.averaged_weights():
            if run.world.is_first and keras.backend.backend() == "tensorflow":
                from efficientdet.artifacts.saved_model import export_saved_model

                export_saved_model(state.detector, f"{self._config.model_dir}/emackpt-final",
                                   description=state.description(run.description, weights="averaged"),
                                   resize=run.input_config(1).resize)
        self._stop_wish.heed()
        measures = None
        if self._config.evaluates:
            with run.stopwatch.measuring("evaluation"):
                measures = self._validation.finish(run.epoch)
            self._saver.store_thresholds()
        write_run_report(run, self._validation)
        announce_report(run)
        return measures.numbers if measures else {}
