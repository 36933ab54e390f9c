"""The training loop: for each epoch the steps, checkpoint, calibration, evaluation and report."""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from efficientdet.checkpoints.checkpoint import prefixes
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.agreement import require_agreement
from efficientdet.devices.device import device_name
from efficientdet.devices.distributed import join_world
from efficientdet.devices.runtime import accelerator_count, skip_graph_rewriting, start_runtime
from efficientdet.devices.runtime_environment import announced_compilation
from efficientdet.optimization.build_step import build_train_step
from efficientdet.run_log.journal import Interval, Journal, input_stall
from efficientdet.run_log.loggers import open_loggers
from efficientdet.training.batch_norm_calibration import CalibrationOfAverages
from efficientdet.training.guards import StepFacts, StepGuard, one_line_errors, sole_training
from efficientdet.training.interruption import Interrupted, StopRequest, stop_message
from efficientdet.training.run import OWN_SETTINGS, SAVED_MODEL, Run, TimeBudget
from efficientdet.training.state import settings_at_start
from object_detection.structures import Batch, Tensor
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError, only_warning
from program_support.progress import Progress
from program_support.signals import exit_code

_START_FILES = ("config.json", "classes.json")
_REPORT_FILE = "report.html"
_SUBMISSION = "detections_test-dev2017_test_results.json"
# that determine the program of a step
_COMPILED_FACTS = (
    "ranks",
    "backend",
    "model",
    "image_size",
    "classes",
    "batch_size",
    "accumulate_steps",
    "precision",
    "use_xla",
)
_COMPILATION_FACTOR = 20.0  # allowed duration of the first step, as a multiple of the later ones

Started = tuple[StepFacts, dict[str, Tensor]]  # a step whose report has not been read


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """Result of `train`."""

    metrics: dict[str, float] = field(default_factory=dict)  # COCO metrics of the last evaluation; empty without one
    exit_code: int = 0  # of a process that a signal stopped, with its state saved; 0: the training has ended


def train(config: TrainingConfig, *, clock: Callable[[], float] = time.monotonic) -> TrainingOutcome:
    """Train, evaluate and write everything into model_dir; stop with everything saved after SIGTERM or Ctrl-C.

    `clock` returns seconds, for --max_minutes and the log. A user can fix each InputError.
    """
    with join_world(group_size=config.bn_group, num_devices=config.num_devices) as world:
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
        with (
            one_line_errors(config, runtime, world),
            sole_training(config.model_dir, world) as lock_warning,
            claimed_outputs(
                *(_outputs(config) if folder else ()), adopts=any(prefixes(Path(config.model_dir), "ckpt-*"))
            ),
            Journal(
                folder, file_name=config.log_filename, loggers=open_loggers(config, folder) if folder else ()
            ) as journal,
        ):
            for line in filter(None, (lock_warning, *lines)):
                journal.print(line)
            run = Run(config, runtime, journal, world, clock=clock)
            _report_start(run)
            with StopRequest(
                world, saved_step=lambda: run.saved_step, unsaved_steps=lambda: run.state.step - run.saved_step
            ) as stop_request:
                return Training(run, stop_request).train()


def _outputs(config: TrainingConfig) -> list[Path]:
    """Return the files that the first process replaces, without the checkpoints."""
    metrics = (f"metrics-{epoch}.json" for epoch in (*range(config.last_epoch + 1), "final"))
    names = (*_START_FILES, _REPORT_FILE, SAVED_MODEL, *metrics)
    submission = [Path(config.testdev_dir, _SUBMISSION)] if config.testdev_dir else []
    return [*(Path(config.model_dir, name) for name in names), *submission]


def _report_start(run: Run) -> None:
    """Log the facts of the run, and write model and classes beside the checkpoints."""
    config = run.config
    run.journal.log((), run.facts)
    if run.world.is_first:
        run.description.write(Path(config.model_dir, _START_FILES[0]))
        config.class_names.write(Path(config.model_dir, _START_FILES[1]))
    if not config.val_records and config.training_mode != "train300" and not config.benchmark:
        run.journal.print("no --val_file_pattern: training without evaluation")


def report_lag() -> int:
    """Return the number of steps that are started before the report of an earlier one is read.

    Reading a report waits for the accelerator, which would then be idle until the next step starts. On a CPU a step is
    complete when its call returns.
    """
    return 1 if accelerator_count() > 0 else 0


class Training:
    """The stages of one training; methods in the order in which they happen."""

    def __init__(self, run: Run, stop_request: StopRequest):
        config, state = run.config, run.state
        self._run, self._stop_request, self._report_lag = run, stop_request, report_lag()
        self._step = build_train_step(
            state.detector,
            state.optimizer,
            state.average,
            compiled=run.runtime.use_xla,
            world=run.world,
            accumulate_steps=config.accumulate_steps,
            seed=config.seed,
        )
        if state.progress.unfinished_epoch or state.step >= run.last_step:
            self._step.store()  # no step comes before a calibration, which on other devices would compute other bits
        self._calibration = CalibrationOfAverages(run, stop_request)
        self._guard = StepGuard(global_batch_size=run.global_batch_size)
        self._batches: Iterator[Batch] | None = None
        self._composed = False  # `_batches` composes
        self._stall_was_logged = False
        self._last_loss: float | None = None  # mean of the last epoch; None where no step was left

    # Imported when they run: a training reaches its first step without them.
    @cached_property
    def _validation(self):
        from efficientdet.training.validation import Validation

        return Validation(self._run, self._stop_request)

    @cached_property
    def _reporter(self):
        from efficientdet.training.validation import Reporter

        return Reporter(self._run, self._validation)

    def train(self) -> TrainingOutcome:
        """Train the remaining epochs, then write and evaluate the final weights."""
        run, config, code = self._run, self._run.config, 0
        run.start()
        self._budget = TimeBudget(run)
        try:
            self._train_epochs()
            run.journal.event("run_finished", success=not config.target_ap or run.target_reached)
            if not config.benchmark:
                self._finish()
        except Interrupted as interrupted:
            if not config.benchmark:
                run.save_if_changed()
            run.journal.print(f"stop requested: {stop_message(run.saved_step)}")
            code = exit_code(interrupted.signal)
        else:
            self._reporter.end(loss=self._last_loss)
        last = self._validation.last
        return TrainingOutcome(metrics=last.measures.numbers if last else {}, exit_code=code)

    def _train_epochs(self) -> None:
        """For each epoch: train, save, then calibrate, evaluate and report.

        What follows the checkpoint can be repeated with the same outcome, so the checkpoint names the epoch as
        unfinished. A process that resumes from it starts behind it.
        """
        run, progress = self._run, self._run.state.progress
        with Progress(
            "train",
            total=run.last_step,
            steps_per_epoch=run.steps_per_epoch,
            done=run.state.step,
            silent=not run.world.is_first,
        ) as bar:
            while True:
                epoch = progress.unfinished_epoch
                if not epoch:
                    if reason := run.reason_to_stop:
                        run.journal.print(reason)
                        return
                    if run.state.step >= run.last_step:
                        return
                    epoch = run.epoch + 1
                    self._train_epoch(epoch, bar)
                    if run.config.benchmark:
                        continue
                    with bar.pausing():
                        self._budget.plan()
                        run.save_unfinished(epoch)
                        self._stop_request.raise_if_agreed()
                        bar.end_at(run.last_step)
                with bar.pausing():
                    if run.uses_average(epoch):
                        self._calibration.calibrate()
                    self._validation.evaluate_epoch(epoch)
                    self._reporter.report_epoch(epoch)
                    run.save_finished(epoch)
                    run.world.barrier()

    def _train_epoch(self, epoch: int, bar: Progress) -> None:
        run = self._run
        run.journal.event("epoch_started", epoch=epoch)
        self._last_loss = self._take_steps(bar)
        self._step.store()
        if not self._stall_was_logged and (warning := self._input_stall()):
            self._stall_was_logged = True
            run.journal.print(warning)
        run.journal.event("epoch_finished", epoch=epoch, images_per_second=run.images_per_second)

    def _input_stall(self) -> str:
        watch, inputs = self._run.stopwatch, self._run.inputs
        waited = watch.total("input")
        bottleneck = inputs.bottleneck(waited=waited, in_steps=waited + watch.total("compute"))
        return input_stall(watch.recent_share("input"), bottleneck)

    def _take_steps(self, bar: Progress) -> float:
        """Take the steps up to the next multiple of steps_per_epoch, and return their mean loss.

        The report of a step is read while the next one runs. All of them are read before the state is saved, the epoch
        ends or the training stops, because these need a state that is known to be finite.

        Raises:
            Interrupted: a rank received a stop request, before the last step.
            InputError: a record cannot be used, or the loss, a gradient or a weight is NaN or infinite.
        """
        run, config, stop, pending = self._run, self._run.config, self._stop_request, deque[Started]()
        end = (run.epoch + 1) * run.steps_per_epoch
        log = _EpochLog(run, bar, end)
        for step in range(run.state.step + 1, end + 1):
            compiles = step <= run.first_step + 1 + self._report_lag
            with run.world.deadline(_COMPILATION_FACTOR if compiles else 1.0):
                pending.append(self._start(self._next_batch(pending)))
                saves = config.checkpoint_steps and step % config.checkpoint_steps == 0 and not config.benchmark
                while pending and (len(pending) > self._report_lag or saves or step == end or stop.agreed):
                    facts, report = self._read(pending.popleft())
                    stop.agreed = stop.agreed or report["stop_requests"] > 0
                    log.step(facts, report)
            if step < end and (saves or stop.agreed):
                self._step.store()
                stop.raise_if_agreed()
                run.save()
        return log.finish()

    def _next_batch(self, pending: deque[Started]) -> Batch:
        """Return the next batch; save the completed steps before an unusable record ends the training."""
        run = self._run
        if self._batches is None or self._composed != run.composes_images:
            self._composed = run.composes_images
            self._batches = run.inputs.batches(
                run.global_batch_size // run.world.size,
                first_position=run.state.progress.images_seen,
                composes=self._composed,
            )
        try:
            with run.stopwatch.measuring("input"), run.inputs.cpu.measuring("input"):
                return next(self._batches)
        except InputError:
            if run.world.size == 1 and not run.config.benchmark:  # other ranks are not informed
                while pending:
                    self._read(pending.popleft())
                self._step.store()
                run.save_if_changed()
            raise

    def _start(self, batch: Batch) -> Started:
        """Start a step, which on an accelerator may still run when this returns."""
        run, state, rate = self._run, self._run.state, self._run.learning_rate
        with contextlib.ExitStack() as stack:
            if (activity := self._activity(state.step + 1)) == "compilation":
                facts = f"{device_name()} {' '.join(str(run.facts[name]) for name in _COMPILED_FACTS)}"
                stack.enter_context(announced_compilation("the training step", facts, log=run.journal.print))
            stack.enter_context(run.stopwatch.measuring(activity))
            report = self._step(batch, rate, self._stop_request.requested)
        state.step += 1
        state.progress.images_seen += run.global_batch_size
        return StepFacts(step=state.step, learning_rate=rate, image_ids=np.asarray(batch.image_ids)), report

    def _read(self, started: Started) -> tuple[StepFacts, dict[str, float]]:
        """Wait for the report of a step, and check it."""
        facts, tensors = started
        with self._run.stopwatch.measuring(self._activity(facts.step)):
            report = {name: float(value) for name, value in tensors.items()}
        self._guard.check(report, facts)
        return facts, report

    def _activity(self, step: int) -> str:
        """Return the stopwatch's name of a step's time: the first one of a process is compiled."""
        return "compilation" if step == self._run.first_step + 1 else "compute"

    def _finish(self) -> None:
        """Write the last checkpoint and the exported model and, if requested, evaluate the final weights."""
        run, config, log = self._run, self._run.config, self._run.journal.print
        self._stop_request.raise_if_requested()
        run.save_if_changed()  # not calibrated: a resumed training with more epochs continues unchanged
        self._calibration.calibrate()
        run.save_final()
        if config.write_saved_model and run.world.is_first and keras.backend.backend() == "tensorflow":
            with only_warning(f"{config.model_dir}/{SAVED_MODEL} is not written", log), run.state.averaged_weights():
                from efficientdet.exports.saved_model import export_saved_model

                export_saved_model(
                    run.state.detector,
                    f"{config.model_dir}/{SAVED_MODEL}",
                    description=run.state.description(run.description, weights="averaged"),
                    resize=run.inputs.config(1).resize,
                )
        self._stop_request.raise_if_requested()
        if config.evaluates:
            with run.stopwatch.measuring("evaluation"):
                final = self._validation.final(log=log)
                self._reporter.report_final(run.epoch, final)
            with only_warning("no score thresholds beside the final weights", log):
                run.store_thresholds()
        self._reporter.write_page()
        log(f"report: {config.model_dir}/{_REPORT_FILE}")


class _EpochLog:
    """Log lines, curves and progress bar of the steps of one epoch."""

    def __init__(self, run: Run, bar: Progress, end: int):
        self._run, self._bar, self._end, self._sums = run, bar, end, Counter[str]()
        self._first = self._interval_start = run.state.step
        self._logged_at, self._waited = run.stopwatch.now(), run.stopwatch.total("input")

    def step(self, facts: StepFacts, report: dict[str, float]) -> None:
        """Log a step."""
        run, config, step = self._run, self._run.config, facts.step
        self._sums.update(report)
        self._rate = facts.learning_rate
        share = f"{run.stopwatch.recent_share('input'):.0%}"
        self._bar.show(loss=report["loss"], lr=self._rate, input=share)
        self._bar.advance(images=run.global_batch_size)
        if config.lr_tb:
            run.journal.curves(step, {"learning_rate": self._rate})
        if config.time_history and (step % config.log_steps == 0 or step == self._end):
            now, waited = run.stopwatch.now(), run.stopwatch.total("input")
            images = (step - self._interval_start) * run.global_batch_size
            run.journal.interval(
                Interval(self._interval_start, step, images, now - self._logged_at, waited - self._waited)
            )
            self._interval_start, self._logged_at, self._waited = step, now, waited

    def finish(self) -> float:
        """Log the means of the epoch, and return the mean loss."""
        run, end = self._run, self._end
        means = {name: value / (end - self._first) for name, value in self._sums.items()}
        losses = {f"train/{name}": value for name, value in means.items()}
        run.journal.curves(end, {**losses, "train/learning_rate": self._rate})
        run.journal.curves(end, {f"time/{name}_seconds": value for name, value in run.stopwatch.totals().items()})
        return means["loss"]
