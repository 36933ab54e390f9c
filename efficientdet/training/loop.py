"""The training loop: for each epoch the steps, checkpoint, calibration, evaluation and report."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import keras
import tensorflow as tf

from efficientdet.checkpoints.checkpoint import prefixes
from efficientdet.checkpoints.provenance import FILE_NAME as PROVENANCE
from efficientdet.checkpoints.provenance import write_provenance
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.agreement import require_agreement
from efficientdet.devices.distributed import World
from efficientdet.devices.launchers import join_world
from efficientdet.devices.runtime import skip_graph_rewriting, start_runtime
from efficientdet.inference.predictor import keras_predictor
from efficientdet.loggers.registry import open_loggers
from efficientdet.optimization.build_step import build_train_step
from efficientdet.reports.training_report import FILE_NAME as REPORT_FILE
from efficientdet.run_log.journal import Journal
from efficientdet.training.batch_norm_calibration import CalibrationOfAverages
from efficientdet.training.epoch import EpochSteps
from efficientdet.training.guards import NotFinite, one_line_errors
from efficientdet.training.inputs import OWN_SETTINGS
from efficientdet.training.interruption import Interrupted, StopRequest, stop_message
from efficientdet.training.listener import Listener
from efficientdet.training.model_dir_lock import sole_training
from efficientdet.training.reporter import START_FILES, Reporter, report_start, training_provenance
from efficientdet.training.run import Run
from efficientdet.training.saving import SAVED_MODEL, Saver
from efficientdet.training.settings import settings_at_start
from efficientdet.training.time_budget import TimeBudget
from efficientdet.training.validation import Evaluator, Validation
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import only_warning
from program_support.progress import Progress
from program_support.signals import exit_code


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """Result of `train`."""

    metrics: dict[str, float] = field(default_factory=dict)  # COCO metrics of the last evaluation; empty without one
    exit_code: int = 0  # of a process that a signal stopped, with its state saved; 0: the training has ended


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
    lines: list[str] = []  # the log file is opened last
    config = settings_at_start(config, runtime, world, log=lines.append)
    skip_graph_rewriting()
    tf.config.run_functions_eagerly(config.debug)
    folder = config.model_dir if world.is_first else None
    outputs = _outputs(config) if folder else ()
    with (
        one_line_errors(config, runtime, world),
        sole_training(config.model_dir, world) as lock_warning,
        claimed_outputs(*outputs, adopts=any(prefixes(Path(config.model_dir), "ckpt-*"))),
        Journal(
            folder,
            file_name=config.log_filename,
            loggers=open_loggers(config, folder) if folder else (),
        ) as journal,
    ):
        for line in filter(None, (lock_warning, *lines)):
            journal.print(line)
        run = Run(config, runtime, journal, world, clock=clock)
        report_start(run)
        saver = Saver(run)
        with StopRequest(
            world, saved_step=lambda: saver.step, unsaved_steps=lambda: run.state.step - saver.step
        ) as stop_request:
            return Training(run, saver, stop_request).run()


def _outputs(config: TrainingConfig) -> list[Path]:
    """Return the files that the first process replaces, without the checkpoints."""
    metrics = (f"metrics-{epoch}.json" for epoch in (*range(config.last_epoch + 1), "final"))
    names = (*START_FILES, REPORT_FILE, PROVENANCE, SAVED_MODEL, *metrics)
    submission = [Path(config.testdev_dir, TESTDEV_FILE_NAME)] if config.testdev_dir else []
    return [*(Path(config.model_dir, name) for name in names), *submission]


class Training:
    """The stages of one training; methods in the order in which they happen."""

    def __init__(self, run: Run, saver: Saver, stop_request: StopRequest):
        config, state, compiled = run.config, run.state, run.runtime.use_xla
        assert config.eval_batch_size is not None  # set by `with_batch_sizes`
        self._run, self._saver, self._stop_request = run, saver, stop_request
        self._step = build_train_step(
            state.detector,
            state.optimizer,
            state.average,
            compiled=compiled,
            world=run.world,
            accumulate_steps=config.accumulate_steps,
            seed=config.seed,
        )
        if state.progress.unfinished_epoch or state.step >= run.last_step:
            self._step.store()  # no step comes before a calibration, which on other devices would compute other bits
        self._epoch_steps = EpochSteps(run, self._step, saver=saver, stop_request=stop_request)
        self._evaluator = Evaluator(
            config,
            state,
            predict=keras_predictor(state.detector, compiled=compiled),
            inputs=run.inputs.config(config.eval_batch_size, composes=False),
            stop_request=stop_request,
        )
        self._evaluated_images = self._evaluator.samples if config.evaluates else 0
        self._calibration = CalibrationOfAverages(run, stop_request)
        self._validation = Validation(run, self._evaluator)
        self._reporter = Reporter(run, self._validation, self._evaluator)
        self._listeners: list[Listener] = [
            TimeBudget(run, evaluated_images=self._evaluated_images),
            self._calibration,
            self._validation,
            self._reporter,
            saver,
            stop_request,
        ]
        self._last_loss: float | None = None  # mean of the last epoch; None where no step was left

    def run(self) -> TrainingOutcome:
        """Train the remaining epochs, then write and evaluate the final weights."""
        run, config, code = self._run, self._run.config, 0
        run.start(evaluated_images=self._evaluated_images)
        for listener in self._listeners:
            listener.training_started()
        try:
            self._train_epochs()
            run.journal.event("run_finished", success=not config.target_ap or self._validation.target_reached)
            if not config.benchmark:
                self._finish()
        except Interrupted as interrupted:
            if not config.benchmark:
                self._saver.save_if_changed()
            run.journal.print(f"stop requested: {stop_message(self._saver.step)}")
            code = exit_code(interrupted.signal)
        else:
            self._reporter.end(loss=self._last_loss)
        metrics = self._evaluator.last.numbers if self._evaluator.last else {}
        return TrainingOutcome(metrics=metrics, exit_code=code)

    def _train_epochs(self) -> None:
        """For each epoch: train, save, then what the listeners do.

        What follows the checkpoint can be repeated with the same outcome, so the checkpoint names the epoch as
        unfinished. A process that resumes from it, or a rollback to it, starts behind it.
        """
        run = self._run
        with Progress(
            "train",
            total=run.last_step,
            steps_per_epoch=run.steps_per_epoch,
            done=run.state.step,
            silent=not run.world.is_first,
        ) as bar:
            for epoch in self._remaining_epochs():
                if not run.state.progress.unfinished_epoch:
                    try:
                        self._train_epoch(epoch, bar)
                    except NotFinite as error:
                        self._saver.roll_back(error)
                        bar.go_back(run.state.step)
                        self._epoch_steps.restart()
                        continue
                    if run.config.benchmark:
                        continue
                    with bar.pausing():
                        for listener in self._listeners:
                            listener.steps_finished(epoch)
                        bar.end_at(run.last_step)
                with bar.pausing():
                    for listener in self._listeners:
                        listener.epoch_finished(epoch)
                    run.world.barrier()

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
            if reason := self._validation.reason_to_stop(run.epoch):
                run.journal.print(reason)
                return
            if run.state.step >= run.last_step:
                return
            yield run.epoch + 1

    def _train_epoch(self, epoch: int, bar: Progress) -> None:
        run = self._run
        run.journal.event("epoch_started", epoch=epoch)
        if run.state.step == run.first_step:
            run.journal.print("compiling the training step; the first step may take minutes")
        try:
            self._last_loss = self._epoch_steps.train(bar)
        finally:
            self._step.store()
        run.journal.event("epoch_finished", epoch=epoch, images_per_second=run.images_per_second)

    def _finish(self) -> None:
        """Write the last checkpoint and the exported model and, if requested, evaluate the final weights."""
        run, config, log = self._run, self._run.config, self._run.journal.print
        self._stop_request.raise_if_requested()
        self._saver.save_if_changed()  # not calibrated: a resumed training with more epochs continues unchanged
        self._calibration.calibrate()
        self._saver.save_final()
        with only_warning(f"{config.model_dir}/{SAVED_MODEL} is not written", log), run.state.averaged_weights():
            if run.world.is_first and keras.backend.backend() == "tensorflow":
                from efficientdet.exports.saved_model import export_saved_model

                export_saved_model(
                    run.state.detector,
                    f"{config.model_dir}/{SAVED_MODEL}",
                    description=run.state.description(run.description, weights="averaged"),
                    resize=run.inputs.config(1).resize,
                )
        self._stop_request.raise_if_requested()
        final = None
        if config.evaluates:
            with run.stopwatch.measuring("evaluation"):
                final = self._evaluator.final(log=log)
                self._reporter.final_evaluation(run.epoch, final)
            with only_warning("no score thresholds beside the final weights", log):
                self._saver.store_thresholds()
        self._reporter.write_page()
        if run.world.is_first:
            with only_warning("no provenance.json", log):
                write_provenance(config.model_dir, training_provenance(run, final and final.measures))
        log(f"report: {config.model_dir}/{REPORT_FILE}")
