"""The steps of one epoch: batches in, reports out, checked and logged."""

from collections import Counter, deque
from collections.abc import Iterator

import numpy as np

from efficientdet.devices.runtime import accelerator_count
from efficientdet.run_log.journal import Interval
from efficientdet.run_log.stopwatch import input_stall
from efficientdet.training.guards import StepFacts, StepGuard
from efficientdet.training.interruption import StopRequest
from efficientdet.training.run import Run
from efficientdet.training.saving import Saver
from efficientdet.training.step import TrainStep
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
    """The training steps of an epoch: each call runs up to the next multiple of steps_per_epoch."""

    def __init__(self, run: Run, step: TrainStep, *, saver: Saver, stop_request: StopRequest):
        self._run, self._step, self._saver, self._stop_request = run, step, saver, stop_request
        self._report_lag = report_lag()
        self._batches: Iterator[Batch] | None = None
        self._composed = run.composes_images  # `_batches` composes
        self._guard = StepGuard(global_batch_size=run.global_batch_size)
        self._stall_was_logged = False
        self.stopping = False  # agreed by all ranks

    def restart(self, bar: Progress) -> None:
        """Continue from the state that a rollback restored."""
        bar.go_back(self._run.state.step)
        self._batches, self._guard = None, StepGuard(global_batch_size=self._run.global_batch_size)

    def __call__(self, bar: Progress) -> float:
        """Return the mean loss of the steps.

        Raises:
          NotFinite: the loss, a gradient or a weight is NaN or infinite.
          InputError: a record cannot be used.
        """
        run = self._run
        run.journal.event("epoch_started", epoch=run.epoch + 1)
        if run.state.step == run.first_step:
            run.journal.print("compiling the training step; the first step may take minutes")
        if self._batches is None or self._composed != run.composes_images:
            self._batches, self._composed = run.batches(), run.composes_images
        try:
            loss = self._train(bar)
        finally:
            self._step.store()
        run.journal.event("epoch_finished", epoch=run.epoch, images_per_second=run.images_per_second)
        return loss

    def _train(self, bar: Progress) -> float:
        run, watch, sums = self._run, self._run.stopwatch, Counter[str]()
        first, end = run.state.step, (run.epoch + 1) * run.steps_per_epoch
        logged, logged_at, waited = first, watch.now(), watch.total("input")
        for facts, report in self._reports(end):
            sums.update(report)
            bar.show(loss=report["loss"], lr=facts.learning_rate, input=f"{watch.recent_share('input'):.0%}")
            bar.advance(images=run.global_batch_size)
            if run.config.lr_tb:
                run.journal.curves(facts.step, {"learning_rate": facts.learning_rate})
            if run.config.time_history and (facts.step % run.config.log_steps == 0 or facts.step == end):
                logged_at, seconds = watch.now(), watch.now() - logged_at
                waited, input_seconds = watch.total("input"), watch.total("input") - waited
                run.journal.interval(
                    Interval(logged, facts.step, (facts.step - logged) * run.global_batch_size, seconds, input_seconds)
                )
                logged = facts.step
        means = {name: value / (end - first) for name, value in sums.items()}
        run.journal.curves(
            end,
            {f"train/{name}": value for name, value in means.items()} | {"train/learning_rate": facts.learning_rate},
        )
        if not self._stall_was_logged and (warning := input_stall(watch.recent_share("input"))):
            self._stall_was_logged = True
            run.journal.print(warning)
        run.journal.curves(end, {f"time/{name}_seconds": value for name, value in watch.totals().items()})
        return means["loss"]

    def _reports(self, end: int) -> Iterator[tuple[StepFacts, dict[str, float]]]:
        """Take the steps up to `end` and yield the checked report of each.

        The report of a step is read while the next one runs. All of them are read before the state is saved, the epoch
        ends or the training stops, because these need a state that is known to be finite.
        """
        run, state, pending = self._run, self._run.state, deque[Started]()
        while state.step < end:
            compiles = state.step <= run.first_step + self._report_lag
            factor = _COMPILATION_FACTOR if compiles else 1.0
            with run.world.deadline(factor):
                pending.append(self._start_step(pending))
            while pending and (
                len(pending) > self._report_lag or state.step == end or self.stopping or self._saves_here()
            ):
                with run.world.deadline(factor):
                    facts, report = self._finish_step(pending.popleft())
                self.stopping = self.stopping or report["stop_requests"] > 0
                yield facts, report
            if not pending and state.step < end:
                self._between_steps()

    def _saves_here(self) -> bool:
        every = self._run.config.checkpoint_steps
        return bool(every) and self._run.state.step % every == 0 and not self._run.config.benchmark

    def _start_step(self, pending: deque[Started]) -> Started:
        """Take the next batch and start its step, which on an accelerator may still run when this returns."""
        run, state = self._run, self._run.state
        assert self._batches is not None  # opened by `__call__`
        try:
            with run.stopwatch.measuring("input"):
                batch = next(self._batches)
        except InputError:
            self._save_completed_steps(pending)
            raise
        rate = run.learning_rate
        with run.stopwatch.measuring(self._measured_as(state.step + 1)):
            report = self._step(batch, rate, self._stop_request.requested)
        state.step += 1
        state.progress.images_seen += run.global_batch_size
        return StepFacts(step=state.step, learning_rate=rate, image_ids=np.asarray(batch.image_ids)), report

    def _measured_as(self, step: int) -> str:
        """Return the stopwatch's name of a step's time: the first one of a process is compiled."""
        return "compilation" if step == self._run.first_step + 1 else "compute"

    def _save_completed_steps(self, pending: deque[Started]) -> None:
        """Save before an unusable record ends the training; only without other ranks, which are not informed."""
        if self._run.world.size == 1 and not self._run.config.benchmark:
            while pending:
                self._finish_step(pending.popleft())
            self._step.store()
            self._saver.save_if_changed()

    def _finish_step(self, started: Started) -> tuple[StepFacts, dict[str, float]]:
        """Wait for the report of a step, and check it."""
        facts, tensors = started
        with self._run.stopwatch.measuring(self._measured_as(facts.step)):
            report = {name: float(value) for name, value in tensors.items()}
        self._guard.check(report, facts)
        return facts, report

    def _between_steps(self) -> None:
        """Stop within an epoch if any rank received a stop request, and save if a checkpoint is due."""
        if self.stopping:
            raise self._stop_request.interrupted()
        if self._saves_here():
            self._step.store()
            self._saver.save()
