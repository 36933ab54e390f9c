"""The last checkpoints `ckpt-STEP` of a training, and recovery after a crash.

The step does not determine the newest checkpoint: a larger batch size makes steps smaller, and `--resume=OLDER` and
rollbacks go back. The order of writing does, see checkpoint.py; of two checkpoints with the same step the later one is
kept. Each checkpoint names the previous one that its training has written or read (`continues`). The lineage of a
training consists of its own checkpoints, the checkpoint from which it resumed, the one that this continues, and so on.
A rollback stays in the lineage.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from efficientdet.checkpoints.bundle_files import INDEX_SUFFIX, remove_bundle, remove_unused_data_files
from efficientdet.checkpoints.checkpoint import (
    checkpoint_prefix,
    prefixes,
    write_arrays,
    write_second_name,
    writing_order,
)
from efficientdet.checkpoints.description import DESCRIPTION_SUFFIX, Description, read_description
from efficientdet.checkpoints.pretrained_weights import Source, read_source
from efficientdet.checkpoints.training_progress import TrainingProgress
from program_support.errors import InputError

KEPT = 3
NEWEST = "ckpt"  # name of the newest checkpoint in the reference
_NAME = re.compile(r"ckpt-\d+")


class _Saved(NamedTuple):
    """A checkpoint of the folder."""

    prefix: Path
    description: Description | None  # None: third-party, or damaged
    damage: InputError | None

    @property
    def save_number(self) -> int:
        return self.description.save_number if self.description else 0


class CheckpointStore:
    """The checkpoints in a model_dir. Every process may have a store; only the first process writes."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._resumed: Path | None = None  # the checkpoint from which this training resumed
        self._last_number = 0  # last save number at that time; higher ones are of this training

    def continue_from(self, prefix: str | Path) -> None:
        """Set the checkpoint, in this or another folder, that the lineage continues; all ranks must call it."""
        prefix = Path(prefix)
        self._resumed = self.folder / prefix.name if prefix.parent.resolve() == self.folder.resolve() else prefix
        self._last_number = max((saved.save_number for saved in self._saved()), default=0)

    def save(self, arrays: Mapping[str, np.ndarray], description: Description) -> str:
        """Write `ckpt-STEP` with the second name `ckpt`, remove older checkpoints and return the prefix.

        Keeps the last three checkpoints of the folder and the last three of the lineage.

        Raises:
            InputError: the folder is not writable; earlier checkpoints are then unchanged.
        """
        prefix = self.folder / f"ckpt-{description.global_step}"
        predecessor = next((earlier for earlier in self._lineage() if earlier != prefix), None)
        continues = predecessor.name if predecessor and predecessor.parent == self.folder else ""
        written = write_arrays(str(prefix), arrays, replace(description, continues=continues))
        write_second_name(str(self.folder / NEWEST), str(prefix), written)
        try:
            self._remove_older()
        except OSError as error:
            raise InputError(f"{self.folder}: an older checkpoint cannot be removed ({error.strerror})") from error
        return str(prefix)

    def names(self) -> list[str]:
        """Return the names of the checkpoints, the newest first."""
        return [saved.prefix.name for saved in self._saved()]

    def readable(self) -> Iterator[Source | InputError]:
        """Yield the checkpoints from the newest on; for a damaged one, yield its error.

        Errors of damaged descriptions come first, then the newest checkpoint and its lineage, then the others.
        """
        saved = self._saved()
        intact = [one for one in saved if not one.damage]
        yield from (one.damage for one in saved if one.damage)
        yield from _read_each(
            dict.fromkeys(one.prefix for one in (*_lineage_of(next(iter(intact), None), intact), *intact))
        )

    def readable_lineage(self) -> Iterator[Source | InputError]:
        """Yield the checkpoints of this training's lineage, as `readable` does."""
        yield from _read_each(self._lineage())

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

    def _saved(self) -> list[_Saved]:
        """Return the checkpoints, the newest first; those with a damaged description come last."""
        bundles = [prefix for prefix in prefixes(self.folder) if _NAME.fullmatch(prefix.name)]
        saved = [_saved(prefix) for prefix in sorted(bundles, key=writing_order, reverse=True)]
        return sorted(saved, key=lambda one: one.damage is not None)

    def _lineage(self) -> list[Path]:
        """Return the lineage, the newest first."""
        saved = [one for one in self._saved() if not one.damage]
        lineage = [one for one in saved if one.save_number > self._last_number]
        if self._resumed is not None:
            if self._resumed.parent != self.folder:
                saved = [one for one in CheckpointStore(self._resumed.parent)._saved() if not one.damage]
            start = _saved(self._resumed) if Path(f"{self._resumed}{INDEX_SUFFIX}").exists() else None
            lineage += _lineage_of(start, saved)
        return list(dict.fromkeys(one.prefix for one in lineage))

    def _remove_older(self) -> None:
        saved = [one.prefix for one in self._saved()]
        kept = {*saved[:KEPT], *self._lineage()[:KEPT]}
        for prefix in saved:
            if prefix not in kept:
                remove_bundle(prefix)
        for prefix in prefixes(self.folder):  # left by a save or removal that was killed
            remove_unused_data_files(prefix)
        for file in self.folder.glob("ckpt-*"):
            of_bundle = file.suffix.startswith(".data-") or file.suffix == DESCRIPTION_SUFFIX
            if of_bundle and _NAME.fullmatch(file.stem) and not file.with_suffix(INDEX_SUFFIX).exists():
                file.unlink()


def read_checkpoint(path: str) -> Source:
    """Read a training checkpoint.

    Raises:
        InputError: there is none or it is damaged.
    """
    return _read_training_checkpoint(checkpoint_prefix(path))


def _saved(prefix: Path) -> _Saved:
    try:
        return _Saved(prefix, read_description(prefix), None)
    except InputError as error:
        return _Saved(prefix, None, error)


def _lineage_of(start: _Saved | None, saved: list[_Saved]) -> Iterator[_Saved]:
    """Yield a checkpoint and those that it continues. `saved`: all checkpoints of its folder."""
    by_name = {one.prefix.name: one for one in saved}
    current = start
    while current:
        yield current
        predecessor = by_name.get(current.description.continues) if current.description else None
        # A higher number: another training has overwritten that checkpoint.
        current = predecessor if predecessor and predecessor.save_number < current.save_number else None


def _read_each(bundles: Iterable[Path]) -> Iterator[Source | InputError]:
    for prefix in bundles:
        try:
            yield _read_training_checkpoint(str(prefix))
        except InputError as error:
            yield error


def _read_training_checkpoint(prefix: str) -> Source:
    """Read a training checkpoint with all arrays, whose checksums are verified."""
    source = read_source(prefix)
    if source.description is None or "global_step" not in source.arrays:
        raise InputError(
            f"{prefix}: is no training checkpoint from which to resume (no {prefix}{DESCRIPTION_SUFFIX}, or "
            "weights only)"
        )
    TrainingProgress.from_json(source.description.run, where=f"{prefix}{DESCRIPTION_SUFFIX}")
    if (step := int(source.arrays["global_step"])) != source.description.global_step:
        raise InputError(
            f"{prefix}: its arrays are of step {step}, but {prefix}{DESCRIPTION_SUFFIX} is of step "
            f"{source.description.global_step}"
        )
    return source
