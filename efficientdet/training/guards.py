"""Checks that stop a training that cannot succeed and report the reason."""

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.distributed import World
from efficientdet.devices.memory import is_out_of_memory, out_of_memory
from efficientdet.devices.runtime import Runtime
from program_support.errors import InputError

IMAGES_TO_SEE_A_POSITIVE = 1000
SKIPS_IN_A_ROW = 30  # each halves the loss scale: from 2^15 to nearly 0
_COLLAPSED = 0.2  # fraction of the best AP below which a training counts as diverged
_WORTH_LOSING = 0.05  # lowest best AP for which this is checked
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


class NotFinite(InputError):
    """A NaN or infinite loss, gradient, weight or moving average."""


@dataclass(frozen=True, kw_only=True)
class StepFacts:
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
        """Raise NotFinite, or InputError if the first 1,000 images had no positive anchor."""
        if not report["finite"]:
            terms = ", ".join(f"{name} {value:.4g}" for name, value in report.items() if name.endswith("loss"))
            raise NotFinite(
                f"the loss, a gradient, a weight or an average is not finite at {facts} ({terms}; gradient norm "
                f"{report['gradient_norm']:.4g}, loss scale {report.get('loss_scale', 1.0):g}): lower --lr, "
                "lengthen --warmup_epochs, use --precision=float32, or --on_nan=rollback"
            )
        self._skips = 0 if report["applied"] else self._skips + 1
        if self._skips >= SKIPS_IN_A_ROW:
            raise NotFinite(
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
