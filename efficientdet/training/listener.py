"""Interface of what a training does between the steps of two epochs: budget, calibration, evaluation, report, stop."""


class Listener:
    """Part of a training that the loop calls on all ranks, in the order of its list of listeners."""

    def training_started(self) -> None:
        """Prepare, when the clock has started and before the first step of this process."""

    def steps_finished(self, epoch: int) -> None:
        """Act on the state after the last step of an epoch, up to the checkpoint that names the epoch as unfinished."""

    def epoch_finished(self, epoch: int) -> None:
        """Act after that checkpoint.

        A process that resumes from it, or a rollback to it, starts here; it must have the same outcome again.
        """
