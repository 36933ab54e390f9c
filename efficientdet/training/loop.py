"""The training loop: for each epoch the steps, checkpoint, calibration, evaluation and report."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import keras
import tensorflow as tf

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.data_checks.at_start import with_suggestions
from efficientdet.devices.agreement import require_agreement
from efficientdet.devices.distributed import World
from efficientdet.devices.launchers import join_world
from efficientdet.devices.memory import with_batch_sizes
from efficientdet.devices.runtime import skip_graph_rewriting, start_runtime
from efficientdet.inference.predict import build_predict
from efficientdet.loggers.registry import open_loggers
from efficientdet.run_log.journal import Journal
from efficientdet.training.batch_norm_calibration import Calibration, calibration_size
from efficientdet.training.build_step import build_train_step
from efficientdet.training.conventions import with_conventions_of_resumed, with_conventions_of_start
from efficientdet.training.epoch import EpochSteps
from efficientdet.training.guards import NotFinite, one_line_errors
from efficientdet.training.interruption import Interrupted, StopRequest, stop_message
from efficientdet.training.model_dir_lock import sole_training
from efficientdet.training.reporter import Reporter
from efficientdet.training.run import OWN_SETTINGS, Run
from efficientdet.training.saving import Saver
from efficientdet.training.start import with_teacher
from efficientdet.training.time_budget import TimeBudget
from efficientdet.training.validation import BestWeights, Evaluator
from program_support.progress import Progress
from program_support.signals import exit_code


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """Result of `train`: where its files are and how it ended."""

    model_dir: str
    metrics: dict[str, float] = field(default_factory=dict)  # COCO metrics of the last evaluation; empty without one
    stop_signal: int = 0  # the signal that stopped the training, with its state saved; 0: none

    @property
    def stopped(self) -> bool:
        """True if a signal stopped the training; the same configuration resumes it."""
        return self.stop_signal != 0

    @property
    def exit_code(self) -> int:
        """The exit code of a process that ends with this outcome."""
        return exit_code(self.stop_signal) if self.stopped else 0


def train(config: TrainingConfig, *, clock: Callable[[], float] = time.monotonic) -> TrainingOutcome:
    """Train, evaluate and write everything into model_dir; stop with everything saved after SIGTERM or Ctrl-C.

    `clock` returns seconds, for --max_minutes and the log. A user can fix each InputError.
    """
    with join_world(
        group_size=config.bn_group, num_devices=config.num_devices, shard_state=config.shard_optimizer_state
    ) as world:
        return _train(config, world, clock=clock)


def _train(config: TrainingConfig, world: World, *, clock: Callable[[], float]) -> TrainingOutcome:
    runtime = start_runtime(
        precision=config.precision,
        amp=config.amp,
        use_xla=config.use_xla,
        seed=config.seed,
        deterministic=config.deterministic,
    )
    require_agreement(config, world, rank_fields=OWN_SETTINGS)
    given = config.hparams_given
    config, lines = with_conventions_of_start(config)
    config, data_check_lines = with_suggestions(config)
    config, resumed_lines = with_conventions_of_resumed(config, given=given)
    config, batch_size_line = with_batch_sizes(config, runtime, world)
    skip_graph_rewriting()
    tf.config.run_functions_eagerly(config.debug)
    folder = config.model_dir if world.is_first else None
    with (
        one_line_errors(config, runtime, world),
        sole_training(config.model_dir, world) as lock_warning,
        Journal(
            folder,
            file_name=config.log_filename,
            loggers=open_loggers(config, folder) if folder else (),
        ) as journal,
    ):
        for line in (lock_warning, *data_check_lines, *lines, *resumed_lines, batch_size_line):
            if line:
                journal.print(line)
        run = Run.prepare(config, runtime, journal, world, clock=clock)
        saver, reporter = Saver(run), Reporter(run)
        reporter.start()
        with StopRequest(
            world, saved_step=lambda: saver.step, unsaved_steps=lambda: run.state.step - saver.step
        ) as stop_request:
            training = Training(run, saver, reporter, stop_request)
            outcome = training.run()
        if not outcome.stopped:
            reporter.end(training.best, loss=training.last_loss)
        return outcome


class Training:
    """The stages of one training; methods in the order in which they happen."""

    def __init__(self, run: Run, saver: Saver, reporter: Reporter, stop_request: StopRequest):
        config, state, compiled = run.config, run.state, run.runtime.use_xla
        assert config.eval_batch_size is not None  # set by `with_batch_sizes`
        self._run, self._config, self._saver = run, config, saver
        self._reporter, self._stop_request = reporter, stop_request
        step = build_train_step(
            with_teacher(state.detector, config, precision=run.runtime.precision, log=run.journal.print),
            state.optimizer,
            state.average,
            compiled=compiled,
            world=run.world,
            accumulate_steps=config.accumulate_steps,
            seed=config.seed,
        )
        if state.progress.unfinished_epoch or state.step >= run.last_step:
            step.store()  # no step comes before a calibration, which on other devices would compute other bits
        self._epoch_steps = EpochSteps(run, step, saver=saver, stop_request=stop_request)
        self._calibration = Calibration(state.detector, use_xla=compiled)
        self._calibrated_version: tuple[int, int] | None = None
        self._evaluator = Evaluator(
            config,
            state,
            predict=build_predict(state.detector, compiled=compiled),
            inputs=run.input_config(config.eval_batch_size),
            stop_request=stop_request,
        )
        self.best = BestWeights(run)
        self.last_loss: float | None = None  # mean of the last epoch; None where no step was left

    def run(self) -> TrainingOutcome:
        """Train the remaining epochs, then write and evaluate the final weights."""
        run, config = self._run, self._config
        evaluated_images = self._evaluator.samples if config.evaluates else 0
        run.start(evaluated_images)
        self._time_budget = TimeBudget(run, evaluated_images=evaluated_images)
        signal = 0
        try:
            self._train_epochs()
            run.journal.event("run_finished", success=not config.target_ap or self.best.target_reached)
            if not config.benchmark:
                self._finish()
        except Interrupted as interrupted:
            if not config.benchmark:
                self._saver.save_if_changed()
            run.journal.print(f"stop requested: {stop_message(self._saver.step)}")
            signal = interrupted.signal
        metrics = self._evaluator.last.numbers if self._evaluator.last else {}
        return TrainingOutcome(model_dir=config.model_dir, metrics=metrics, stop_signal=signal)

    def _train_epochs(self) -> None:
        """For each epoch: train, checkpoint, calibrate, evaluate, complete, report.

        What follows the checkpoint can be repeated with the same outcome, so the checkpoint names the epoch as
        unfinished. A process that resumes from it, or a rollback to it, starts at the calibration.
        """
        run = self._run
        with Progress(
            "train",
            total=run.last_step,
            steps_per_epoch=run.steps_per_epoch,
            done=run.state.step,
            silent=not run.world.is_first,
            first_counts=False,
        ) as bar:
            for epoch in self._remaining_epochs():
                if not run.state.progress.unfinished_epoch:
                    try:
                        self.last_loss = self._epoch_steps(bar)
                    except NotFinite as error:
                        self._saver.roll_back(error)
                        self._epoch_steps.restart(bar)
                        continue
                    if self._config.benchmark:
                        continue
                    with bar.pausing():
                        self._time_budget.plan()
                        bar.end_at(run.last_step)
                        self._checkpoint(epoch)
                with bar.pausing():
                    self._calibrate(epoch)
                    self._evaluate(epoch)
                    self._complete(epoch)
                    self._report(epoch)

    def _remaining_epochs(self) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, first the one that the checkpoint names as unfinished.

        Stop at the end of the schedule, when the target AP is reached, or after --patience evaluations without
        improvement.
        """
        run = self._run
        while True:
            if epoch := run.state.progress.unfinished_epoch:
                yield epoch
                continue
            if self._config.evaluates and (reason := self.best.reason_to_stop(run.epoch)):
                run.journal.print(reason)
                return
            if run.state.step >= run.last_step:
                return
            yield run.epoch + 1

    def _checkpoint(self, epoch: int) -> None:
        """Save before calibration and evaluation, and stop if any rank received a stop request."""
        run = self._run
        run.state.average_batch_statistics()
        run.state.progress.unfinished_epoch = epoch
        if self._uses_average(epoch):
            self._saver.save()
        if self._epoch_steps.stopping:
            raise self._stop_request.interrupted()

    def _uses_average(self, epoch: int) -> bool:
        """Return whether averaged weights are evaluated or written after the epoch."""
        return self._config.evaluates_after(epoch) or self._run.ends_period(epoch)

    def _calibrate(self, epoch: int | None = None) -> None:
        """Calibrate the batch statistics of the averaged weights, once per step; `epoch` None: after the last epoch."""
        run = self._run
        available = min(len(run.index), run.schedule_steps * run.global_batch_size)
        seen, sharing = run.state.progress.images_seen, run.world.sharing_statistics
        images, batch_size = calibration_size(self._config, sharing_statistics=sharing, available=available, seen=seen)
        due = epoch is None or self._uses_average(epoch)
        if not due or not images or self._calibrated_version == run.state.version:
            return
        batches = islice(run.calibration_batches(batch_size), images // batch_size)
        with run.stopwatch.measuring("calibration"):
            run.state.change_averages(lambda: self._calibration(self._stop_request.interruptible(batches)))
        self._calibrated_version = run.state.version

    def _evaluate(self, epoch: int) -> None:
        """Evaluate averaged and raw weights, keep the better ones if they are a new best, and log validation losses."""
        run = self._run
        if self._config.evaluates_after(epoch):
            run.journal.event("evaluation_started", epoch=epoch)
            with run.stopwatch.measuring("evaluation"):
                evaluated = self._evaluator.evaluate()
                average_precision = self.best.keep(epoch, evaluated)
                # Last: where metrics exist, the best weights are not older than they.
                self._reporter.evaluation(epoch, evaluated, self._evaluator)
            run.journal.event("evaluation_finished", epoch=epoch, average_precision=average_precision)
        if self._config.validate:
            self._reporter.validation_losses(epoch, self._evaluator.mean_losses())

    def _complete(self, epoch: int) -> None:
        """Write the averaged weights of a period, and a checkpoint that names no unfinished epoch."""
        run, config, saver = self._run, self._config, self._saver
        if run.ends_period(epoch) and run.state.average is not None:
            saver.save_average(epoch)
        run.state.progress.unfinished_epoch = 0
        if self._uses_average(epoch) or config.checkpoint_steps or saver.is_long_ago():
            saver.save()

    def _report(self, epoch: int) -> None:
        """Write the report page if there are new results, then synchronize all ranks."""
        if self._config.evaluates_after(epoch) or not self._config.evaluates:
            self._reporter.write_page(self.best)
        self._run.world.barrier()

    def _finish(self) -> None:
        """Write the last checkpoint and the exported model and, if requested, evaluate the final weights."""
        run, config = self._run, self._config
        self._stop_request.raise_if_requested()
        self._saver.save_if_changed()  # not calibrated: a resumed training with more epochs continues unchanged
        self._calibrate()
        self._saver.save_final()
        with run.state.averaged_weights():
            if run.world.is_first and keras.backend.backend() == "tensorflow":
                from efficientdet.exports.saved_model import export_saved_model

                export_saved_model(
                    run.state.detector,
                    f"{config.model_dir}/emackpt-final",
                    description=run.state.description(run.description, weights="averaged"),
                    resize=run.input_config(1).resize,
                )
        self._stop_request.raise_if_requested()
        if config.evaluates:
            with run.stopwatch.measuring("evaluation"):
                self._reporter.final_evaluation(run.epoch, self._evaluator.averaged(), self._evaluator)
            self._saver.store_thresholds()
        self._reporter.write_page(self.best)
        self._reporter.log_page_path()
