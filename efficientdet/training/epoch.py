"""The steps of one epoch: batches in, reports out, checked and logged."""

from collections import Counter, deque
from collections.abc import Iterator

import numpy as np

from efficientdet.devices.runtime import accelerator_count
from efficientdet.optimization.step import TrainStep
from efficientdet.run_log.journal import Interval
from efficientdet.run_log.stopwatch import input_stall
from efficientdet.training.guards import StepFacts, StepGuard
from efficientdet.training.interruption import StopRequest
from efficientdet.training.run import Run
from efficientdet.training.saving import Saver
from object_detection.structures import Batch, Tensor
from program_support.errors import InputError
from program_support.progress import Progress

_COMPILATION_FACTOR = 20.0  # allowed duration of the first step, as a multiple of the later ones

Started = tuple[StepFacts, dict[str, Tensor]]  # a step whose report has not been read


def report_lag() -> int:
    """Return the number of steps that are started before the report of an earlier one is read.

    Reading a report waits for the accelerator, which would then be idle until the next step starts. On a CPU a step is
    complete when its call returns.
    """
    return 1 if accelerator_count() > 0 else 0


class EpochSteps:
    """The steps of epochs, one epoch after the other from an open stream of batches."""

    def __init__(self, run: Run, step: TrainStep, *, saver: Saver, stop_request: StopRequest):
        self._run, self._step, self._saver, self._stop_request = run, step, saver, stop_request
        self._report_lag = report_lag()
        self._stall_was_logged = False
        self.restart()

    def restart(self) -> None:
        """Continue from a state that was restored."""
        self._batches: Iterator[Batch] | None = None
        self._composed = False  # `_batches` composes
        self._guard = StepGuard(global_batch_size=self._run.global_batch_size)

    def train(self, bar: Progress) -> float:
        """Take the steps up to the next multiple of steps_per_epoch, and return their mean loss.

        The report of a step is read while the next one runs. All of them are read before the state is saved, the epoch
        ends or the training stops, because these need a state that is known to be finite.

        Raises:
            NotFinite: the loss, a gradient or a weight is NaN or infinite.
            Interrupted: a rank received a stop request, before the last step.
            InputError: a record cannot be used.
        """
        run, state, stop, pending = self._run, self._run.state, self._stop_request, deque[Started]()
        end = (run.epoch + 1) * run.steps_per_epoch
        log = _EpochLog(run, bar, end)
        for step in range(state.step + 1, end + 1):
            compiles = step <= run.first_step + 1 + self._report_lag
            with run.world.deadline(_COMPILATION_FACTOR if compiles else 1.0):
                pending.append(self._start(self._next_batch(pending)))
                saves = self._saver.is_due_within_epoch(step)
                while pending and (len(pending) > self._report_lag or saves or step == end or stop.agreed):
                    facts, report = self._read(pending.popleft())
                    stop.agreed = stop.agreed or report["stop_requests"] > 0
                    log.step(facts, report)
            if step < end and stop.agreed:
                raise stop.interrupted()
            if step < end and saves:
                self._step.store()
                self._saver.save()
        if not self._stall_was_logged and (warning := input_stall(run.stopwatch.recent_share("input"))):
            self._stall_was_logged = True
            run.journal.print(warning)
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
            with run.stopwatch.measuring("input"):
                return next(self._batches)
        except InputError:
            if run.world.size == 1 and not run.config.benchmark:  # other ranks are not informed
                while pending:
                    self._read(pending.popleft())
                self._step.store()
                self._saver.save_if_changed()
            raise

    def _start(self, batch: Batch) -> Started:
        """Start a step, which on an accelerator may still run when this returns."""
        run, state, rate = self._run, self._run.state, self._run.learning_rate
        with run.stopwatch.measuring(self._activity(state.step + 1)):
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
