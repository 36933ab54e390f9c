"""The last checkpoints `ckpt-STEP` of a training, and recovery after a crash.

The step does not determine the newest checkpoint: a larger batch size makes steps smaller, and `--resume=OLDER` goes
back. The order of writing does, see checkpoint.py; of two checkpoints with the same step the later one is kept.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from efficientdet.checkpoints.checkpoint import (
    INDEX_SUFFIX,
    checkpoint_prefix,
    prefixes,
    remove_bundle,
    remove_unused_data_files,
    write_arrays,
    write_second_name,
    writing_order,
)
from efficientdet.checkpoints.description import DESCRIPTION_SUFFIX, Description, read_description
from efficientdet.checkpoints.restore import Source, read_source
from program_support.errors import InputError

KEPT = 3
NEWEST = "ckpt"  # name of the newest checkpoint in the reference
_NAME = re.compile(r"ckpt-\d+")


@dataclass
class TrainingProgress:
    """Progress of a training; stored as JSON in each checkpoint."""

    images_seen: int = 0  # sum over the processes: position in the endless stream of records
    global_batch_size: int = 0
    ranks: int = 1  # number of processes with batch statistics of their own
    best_ap: float = -1.0
    best_epoch: int = 0
    best_seconds: float = 0.0  # training time of the best evaluation
    seconds: float = 0.0  # training time with evaluations and compilation, without interruptions
    evaluations_since_best: int = 0
    rate_factor: float = 1.0  # learning rate multiplier; below 1 in some trainings of earlier versions
    planned_seconds: float = 0.0  # time budget of the plan in the next three fields; 0: none
    planned_at: int = 0  # step after which the plan was made
    planned_position: float = 0.0  # position of that step in the schedule
    planned_end: int = 0  # step at which the schedule and the training end; 0: no plan
    unfinished_epoch: int = 0  # epoch without its calibration and evaluation; 0: none

    @classmethod
    def from_json(cls, content: Mapping) -> "TrainingProgress":
        """Return the progress from a checkpoint's description, without values that were removed since."""
        return cls(**{item.name: content[item.name] for item in fields(cls) if item.name in content})


class CheckpointStore:
    """The checkpoints in a model_dir. Every process may have a store; only the first process writes."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def save(self, arrays: Mapping[str, np.ndarray], description: Description) -> str:
        """Write `ckpt-STEP` with the second name `ckpt`, remove all but the last three, and return the prefix.

        Raises:
            InputError: the folder is not writable; earlier checkpoints are then unchanged.
        """
        prefix = str(self.folder / f"ckpt-{description.global_step}")
        written = write_arrays(prefix, arrays, description)
        write_second_name(str(self.folder / NEWEST), prefix, written)
        try:
            self._remove_older()
        except OSError as error:
            raise InputError(f"{self.folder}: an older checkpoint cannot be removed ({error.strerror})") from error
        return prefix

    def prefixes(self) -> list[Path]:
        """Return the prefixes of the checkpoints, the newest first."""
        bundles = [prefix for prefix in prefixes(self.folder) if _NAME.fullmatch(prefix.name)]
        return sorted(bundles, key=writing_order, reverse=True)

    def newest(self, *, log: Callable[[str], None]) -> Source | None:
        """Return the newest intact checkpoint; None without any. Log damaged ones.

        Raises:
            InputError: all are damaged.
        """
        if not (bundles := self.prefixes()):
            return None
        # A damaged description sorts last, but is reported even where a later checkpoint is intact.
        for prefix in sorted(bundles, key=_is_described):
            try:
                return read_checkpoint(prefix)
            except InputError as error:
                log(f"warning: {error}; using the previous checkpoint")
        raise InputError(
            f"{self.folder}: none of its {len(bundles)} checkpoints can be read; remove them, or use --resume=never"
        )

    def move_to_subfolder(self) -> Path | None:
        """Move the checkpoints of an earlier training to a subfolder and return it; None if there are none."""
        files = [file for pattern in ("ckpt*", "checkpoint") for file in self.folder.glob(pattern) if file.is_file()]
        if not any(file.name != "checkpoint" for file in files):
            return None
        subfolder = self.folder / f"before-{time.strftime('%Y-%m-%d-%H-%M-%S')}"
        subfolder.mkdir(exist_ok=True)
        for file in files:
            file.rename(subfolder / file.name)
        return subfolder

    def _remove_older(self) -> None:
        for prefix in self.prefixes()[KEPT:]:
            remove_bundle(prefix)
        for prefix in prefixes(self.folder):  # left by a save or removal that was killed
            remove_unused_data_files(prefix)
        for file in self.folder.glob("ckpt-*"):
            of_bundle = file.suffix.startswith(".data-") or file.suffix == DESCRIPTION_SUFFIX
            if of_bundle and _NAME.fullmatch(file.stem) and not file.with_suffix(INDEX_SUFFIX).exists():
                file.unlink()


def _is_described(prefix: Path) -> bool:
    try:
        read_description(prefix)
    except InputError:
        return False
    return True


def read_checkpoint(path: str | Path) -> Source:
    """Read a training checkpoint with all arrays, whose checksums are verified.

    Raises:
        InputError: there is none, it is damaged, or it has weights only.
    """
    prefix = checkpoint_prefix(path)
    source = read_source(prefix)
    if source.description is None or "global_step" not in source.arrays:
        raise InputError(
            f"{prefix}: is no training checkpoint from which to resume (no {prefix}{DESCRIPTION_SUFFIX}, or "
            "weights only)"
        )
    if (step := int(source.arrays["global_step"])) != source.description.global_step:
        raise InputError(
            f"{prefix}: its arrays are of step {step}, but {prefix}{DESCRIPTION_SUFFIX} is of step "
            f"{source.description.global_step}"
        )
    return source
