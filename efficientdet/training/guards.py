"""Checks that stop a training that cannot succeed and report the reason, and the lock of its folder."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.distributed import World
from efficientdet.devices.memory import is_out_of_memory, out_of_memory
from efficientdet.devices.runtime import Runtime
from program_support.command_line import USER_ERROR_EXIT_CODE
from program_support.errors import InputError
from program_support.file_lock import LockedError, held_lock

IMAGES_TO_SEE_A_POSITIVE = 1000
SKIPS_IN_A_ROW = 30  # each halves the loss scale: from 2^15 to nearly 0
_COLLAPSED = 0.2  # fraction of the best AP below which a training counts as diverged
_WORTH_LOSING = 0.05  # lowest best AP for which this is checked
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


class StepFacts(NamedTuple):
    """Facts about a step that messages report."""

    step: int
    learning_rate: float
    image_ids: np.ndarray  # only this rank's

    def __str__(self) -> str:
        ids = ", ".join(map(str, self.image_ids[:8].tolist())) + (", .." if len(self.image_ids) > 8 else "")
        return f"step {self.step}, learning rate {self.learning_rate:.4g}, images {ids}"


class StepGuard:
    """A check of the report of every step; reports, and therefore results, are equal on all ranks."""

    def __init__(self, *, global_batch_size: int):
        self._global_batch_size, self._images, self._positives, self._skips = global_batch_size, 0, 0.0, 0

    def check(self, report: dict[str, float], facts: StepFacts) -> None:
        """Raise InputError for NaN or infinite numbers, or if the first 1,000 images had no positive anchor."""
        if not report["finite"]:
            terms = ", ".join(f"{name} {value:.4g}" for name, value in report.items() if name.endswith("loss"))
            raise InputError(
                f"the loss, a gradient, a weight or an average is not finite at {facts} ({terms}; gradient norm "
                f"{report['gradient_norm']:.4g}, loss scale {report.get('loss_scale', 1.0):g}): lower --lr, "
                "lengthen --warmup_epochs, or use --precision=float32"
            )
        self._skips = 0 if report["applied"] else self._skips + 1
        if self._skips >= SKIPS_IN_A_ROW:
            raise InputError(
                f"gradients overflowed in {self._skips} consecutive steps, the last at {facts}: lower --lr, or use "
                "--precision=float32"
            )
        self._positives += report.get("positives", 1.0)
        self._images += self._global_batch_size
        if not self._positives and self._images >= IMAGES_TO_SEE_A_POSITIVE:
            raise InputError(
                f"no positive anchor in the first {self._images} images: the records contain no boxes (were they "
                "converted from captions_*.json?) or no box overlaps an anchor (see hparam anchor_scale)"
            )


def check_collapse(average_precision: float, *, best: float, epoch: int) -> None:
    """Raise InputError if the AP has fallen to a small fraction of the best AP."""
    if best >= _WORTH_LOSING and average_precision < _COLLAPSED * best:
        raise InputError(
            f"epoch {epoch}: AP fell to {average_precision:.4f} from {best:.4f}: the training has diverged; "
            "start again from emackpt-best with --pretrained_ckpt and a lower --lr"
        )


@contextlib.contextmanager
def one_line_errors(config: TrainingConfig, runtime: Runtime, world: World) -> Iterator[None]:
    """Raise InputError in place of an exception caused by a lack of memory or disk space, a file or a lost process."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError, tf.errors.OpError) as error:
        if getattr(error, "errno", None) in _FULL or "No space left" in str(error):
            raise InputError(
                f"{config.model_dir}: no space left on device; the checkpoints in it are intact; free disk "
                "space and run the command again"
            ) from error
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            raise InputError(
                f"{error.filename or config.model_dir}: {error.strerror}; the checkpoints in "
                f"{config.model_dir} are intact"
            ) from error
        if is_out_of_memory(error):
            raise out_of_memory(config, runtime, local_ranks=world.local_size) from error
        if world.size > 1 and "Horovod has been shut down" in str(error):
            raise InputError(
                f"process {world.rank} of {world.size} has lost the connection to another process, which has ended; "
                "the same command resumes from the last checkpoint"
            ) from error
        raise


@contextlib.contextmanager
def sole_training(model_dir: str, world: World) -> Iterator[str]:
    """Hold the lock of a model_dir during a block; yield a warning if the file system has no locks, else "".

    The first rank holds it for all.

    Raises:
        InputError: on the first rank where another training holds it; the other ranks exit with the same code and
            without a message.
    """
    with contextlib.ExitStack() as stack:
        refused, warning = world.gather(_lock(Path(model_dir), stack) if world.is_first else None)[0]
        if refused and not world.is_first:
            raise SystemExit(USER_ERROR_EXIT_CODE)
        if refused:
            raise InputError(refused)
        yield warning


def _lock(folder: Path, stack: contextlib.ExitStack) -> tuple[str, str]:
    """Acquire the lock until the stack is closed; return an error message and a warning, each "" if there is none."""
    try:
        locked = stack.enter_context(held_lock(folder / "lock"))
    except LockedError as holder:
        return (
            f"{folder}: another training ({holder}) writes into this folder; wait until it ends or use another "
            "--model_dir"
        ), ""
    return "", "" if locked else f"warning: {folder}: no file locks here: a second training in it would go undetected"
