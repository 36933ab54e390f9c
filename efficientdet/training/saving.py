"""Checkpoints of a training, and the rollback to the last one."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.checkpoints.description import DESCRIPTION_FILE, store_thresholds
from efficientdet.training.guards import NotFinite
from efficientdet.training.listener import Listener
from efficientdet.training.run import Run
from efficientdet.training.start import restore_checkpoint
from program_support.errors import InputError

SAVED_MODEL = "emackpt-final"  # folder
_MOST_ROLLBACKS = 3
_SECONDS_BETWEEN_EPOCH_SAVES = 10.0  # otherwise epochs of a few images would mostly write


class Saver(Listener):
    """Writer of the checkpoints of one run; all ranks call it together, the first one writes."""

    def __init__(self, run: Run):
        self._run = run
        self.step, self._at = run.state.step, time.monotonic()

    def steps_finished(self, epoch: int) -> None:
        """Save, before calibration and evaluation, a checkpoint that names the epoch as unfinished."""
        run = self._run
        run.state.average_batch_statistics()
        run.state.progress.unfinished_epoch = epoch
        if run.uses_average(epoch):
            self.save()

    def epoch_finished(self, epoch: int) -> None:
        """Write the averaged weights of a period, and a checkpoint that names no unfinished epoch."""
        run = self._run
        if run.ends_period(epoch) and run.state.average is not None and run.world.is_first:
            write_arrays(
                str(Path(run.config.model_dir) / "ema_weights" / f"emackpt-{epoch}"),
                run.state.averages_by_name(),
                run.state.description(run.description, weights="averaged"),
            )
        run.state.progress.unfinished_epoch = 0
        since_save = run.world.gather(time.monotonic() - self._at)[0]  # all ranks go by the clock of the first
        if run.uses_average(epoch) or run.config.checkpoint_steps or since_save > _SECONDS_BETWEEN_EPOCH_SAVES:
            self.save()

    def is_due_within_epoch(self, step: int) -> bool:
        """Return whether --checkpoint_steps asks for a checkpoint after a step."""
        config = self._run.config
        return bool(config.checkpoint_steps) and step % config.checkpoint_steps == 0 and not config.benchmark

    def save(self) -> None:
        """Save the state that a resumed training needs."""
        self._write(self._run.store.save)
        self.step, self._at = self._run.state.step, time.monotonic()

    def save_if_changed(self) -> None:
        """Save if steps were done since the last checkpoint."""
        if self.step != self._run.state.step:
            self.save()

    def save_final(self) -> None:
        """Write the final state as ckpt-final, beside the checkpoints for resuming."""
        self._write(partial(write_arrays, str(Path(self._run.config.model_dir) / "ckpt-final")))

    def store_thresholds(self) -> None:
        """Write the score thresholds of the last evaluation beside the final weights, which were saved before it."""
        state, folder = self._run.state, Path(self._run.config.model_dir)
        if self._run.world.is_first:
            store_thresholds(folder / "ckpt-final", state.score_thresholds)
            if (exported := folder / SAVED_MODEL / DESCRIPTION_FILE).exists():
                state.description(self._run.description, weights="averaged").write(exported)

    def roll_back(self, error: NotFinite) -> None:
        """Restore the last checkpoint and halve the learning rate, if requested and at most `_MOST_ROLLBACKS` times."""
        run, state = self._run, self._run.state
        rollbacks, factor = state.progress.rollbacks + 1, state.progress.rate_factor / 2
        if run.config.on_nan != "rollback" or rollbacks > _MOST_ROLLBACKS:
            raise error
        run.journal.print(f"warning: {error}")
        for source in run.store.readable_lineage():
            if not isinstance(source, InputError):
                restore_checkpoint(
                    state,
                    source,
                    run.config,
                    store=run.store,
                    global_batch_size=run.global_batch_size,
                    log=run.journal.print,
                )
                break
        else:
            raise error
        state.progress.rollbacks, state.progress.rate_factor = rollbacks, factor
        self.step = state.step
        run.world.barrier()  # otherwise some ranks would start the next step long before others
        run.journal.print(
            f"rollback {rollbacks} of {_MOST_ROLLBACKS}: restored step {state.step}, learning rate multiplied by "
            f"{factor:g}"
        )

    def _write(self, write: Callable[[dict, Description], object]) -> None:
        """Write the state in the first rank; the other ranks wait for it."""
        run = self._run
        run.state.progress.seconds = run.seconds
        with run.stopwatch.measuring("checkpoints"):
            arrays = run.state.arrays()
            if run.world.is_first:
                write(arrays, run.state.description(run.description, weights="raw and averaged"))
            run.world.barrier()
