"""The steps of one epoch: batches in, reports out, checked and logged."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from efficientdet.devices.runtime import accelerator_count
from efficientdet.run_log.journal import Interval
from efficientdet.run_log.stopwatch import input_stall
from efficientdet.training.guards import StepFacts, StepGuard
from efficientdet.training.interruption import StopWish
from efficientdet.training.run import Run
from efficientdet.training.saving import Saver
from efficientdet.training.step import TrainStep
from object_detection.structures import Batch, Tensor
from program_support.errors import InputError
from program_support.progress import Progress

_COMPILATION_FACTOR = 20.0  # how much longer than others a first step may take


class _StartedStep(NamedTuple):
    """A step whose report has not been read."""

    facts: StepFacts
    report: dict[str, Tensor]


def reports_behind() -> int:
    """How many steps are started before the report of one is read: reading waits for an accelerator, which would then wait
    for the next step. On a CPU a step has ended when its call returns."""
    return 1 if accelerator_count() > 0 else 0


class EpochOfSteps:
    """Runs the steps up to the next multiple of steps_per_epoch, as often as it is called."""

    def __init__(self, run: Run, step: TrainStep, *, saver: Saver, stop_wish: StopWish):
        self._run, self._step, self._saver, self._stop_wish = run, step, saver, stop_wish
        self._reports_behind = reports_behind()
        self._waiting: deque[_StartedStep] = deque()
        self._stall_was_told = False
        self.stopping = False  # agreed by all ranks

    def __call__(self, batches: Iterator[Batch], *, guard: StepGuard, bar: Progress) -> float:
        """Returns the mean loss of the steps. Raises NotFinite, and InputError for a record that cannot be used."""
        try:
            return self._steps(batches, guard, bar)
        finally:
            self._step.store()

    def _steps(self, batches: Iterator[Batch], guard: StepGuard, bar: Progress) -> float:
        run, state, watch = self._run, self._run.state, self._run.stopwatch
        end, first, sums = (run.epoch + 1) * run.steps_per_epoch, state.step, Counter()
        logged, watch_at, waited = first, watch.lap(), watch.total("input")
        self._waiting.clear()
        while state.step < end or self._waiting:
            compiles = state.step <= run.first_step + self._reports_behind
            with run.world.deadline(_COMPILATION_FACTOR if compiles else 1.0):
                if not self._waiting or not self._must_wait(end):
                    self._start_step(batches, guard)
                if len(self._waiting) <= self._reports_behind and not self._must_wait(end):
                    continue
                facts, report = self._finish_step(guard)
            sums.update(report)
            bar.show(loss=report["loss"], lr=facts.learning_rate, input=f"{watch.recent_share('input'):.0%}")
            bar.advance(images=run.images_a_step)
            if run.config.lr_tb:
                run.journal.curves(facts.step, {"learning_rate": facts.learning_rate})
            if run.config.time_history and (facts.step % run.config.log_steps == 0 or facts.step == end):
                watch_at, seconds = watch.lap(), watch.lap() - watch_at
                waited, input_seconds = watch.total("input"), watch.total("input") - waited
                run.journal.interval(Interval(logged, facts.step, (facts.step - logged) * run.images_a_step, seconds,
                                              input_seconds))
                logged = facts.step
            self.stopping = self.stopping or report["stop_wishes"] > 0
            if not self._waiting and state.step < end:
                self._between_steps()
        return self._log_epoch(end, {name: value / (end - first) for name, value in sums.items()} | {
            "learning_rate": facts.learning_rate})

    def _must_wait(self, end: int) -> bool:
        """For all reports, as what comes next needs a state that is known to be sound."""
        return self.stopping or self._run.state.step == end or self._saves_here()

    def _saves_here(self) -> bool:
        every = self._run.config.checkpoint_steps
        return bool(every) and self._run.state.step % every == 0 and not self._run.config.benchmark

    def _start_step(self, batches: Iterator[Batch], guard: StepGuard) -> None:
        """Next batch and step; on an accelerator it has only begun when this returns."""
        run, state = self._run, self._run.state
        try:
            with run.stopwatch.measuring("input"):
                batch = next(batches)
        except InputError:
            self._keep_what_is_done(guard)
            raise
        rate = run.learning_rate
        with run.stopwatch.measuring(self._measured_as(state.step + 1)):
            report = self._step(batch, rate, self._stop_wish.wished)
        state.step += 1
        state.progress.images_seen += run.images_a_step
        facts = StepFacts(step=state.step, learning_rate=rate, image_ids=np.asarray(batch.image_ids))
        self._waiting.append(_StartedStep(facts, report))

    def _measured_as(self, step: int) -> str:
        """The stopwatch's name of a step's time: the first one of a process is compiled."""
        return "compilation" if step == self._run.first_step + 1 else "compute"

    def _keep_what_is_done(self, guard: StepGuard) -> None:
        """Before a record that cannot be used ends the training; of several ranks the others know nothing of it."""
        if self._run.world.size == 1 and not self._run.config.benchmark:
            while self._waiting:
                self._finish_step(guard)
            self._step.store()
            self._saver.save_what_is_not()

    def _finish_step(self, guard: StepGuard) -> tuple[StepFacts, dict[str, float]]:
        """Wait for the report of the first that waits, and check it."""
        started = self._waiting.popleft()
        with self._run.stopwatch.measuring(self._measured_as(started.facts.step)):
            report = {name: float(value) for name, value in started.report.items()}
        guard.check(report, started.facts)
        return started.facts, report

    def _between_steps(self) -> None:
        """In the middle of an epoch: save where it is due, and stop where any rank was asked to."""
        if self.stopping:
            raise self._stop_wish.interrupted()
        if self._saves_here():
            self._step.store()
            self._saver.save()

    def _log_epoch(self, step: int, means: dict[str, float]) -> float:
        journal, watch = self._run.journal, self._run.stopwatch
        journal.curves(step, {f"train/{name}": value for name, value in means.items()})
        if not self._stall_was_told and (warning := input_stall(watch.recent_share("input"))):
            self._stall_was_told = True
            journal.say(warning)
        journal.curves(step, {f"time/{name}_seconds": value for name, value in watch.totals().items()})
        return means["loss"]
