"""The time budget of --max_minutes: after each epoch the remaining schedule is planned for the remaining time.

A plan maps the remaining steps to the remaining part of the schedule: the learning rate continues from its value and
decays faster or more slowly. The plan is a part of `TrainingProgress` and therefore of every checkpoint, so that a
training that is killed and resumed continues with the same learning rates.
"""

from efficientdet.training.run import Run

_LOGGED_FROM = 0.25  # smaller changes of the remaining epochs are not logged
_LOGGED_EVERY = 0.1  # least share of the time budget between two logged plans
_OTHER_ACTIVITIES = ("compilation", "calibration", "evaluation")  # names of the stopwatch


class TimeBudget:
    """Planner of a run with --max_minutes; without the flag it changes nothing. All ranks call it together."""

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
        """Return the mean seconds of an evaluation, before the first one an estimate for raw and averaged weights."""
        run, config = self._run, self._run.config
        done = sum(config.evaluates_after(epoch) for epoch in range(self._first_epoch + 1, run.epoch))
        if done:
            return (run.stopwatch.total("evaluation") + run.stopwatch.total("calibration")) / done
        return 2 * run.inputs.evaluated_images / run.global_batch_size * seconds_per_step

    def _spent(self) -> tuple[float, int]:
        """Return the seconds and number of this process's steps without the first one, which includes the compilation.

        The seconds include other work of each epoch, such as checkpoints.
        """
        run = self._run
        seconds = run.seconds - sum(run.stopwatch.total(name) for name in _OTHER_ACTIVITIES)
        return seconds, max(run.state.step - run.first_step - 1, 0)
