"""The checkpoints of one training: `ckpt-STEP`, the last few of them, and which can be trusted after a crash."""

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from efficientdet.checkpoint import (
    BUNDLE_SUFFIXES,
    DESCRIPTION_SUFFIX,
    Description,
    checkpoint_prefix,
    write_arrays,
)
from efficientdet.weights import Source, read_source
from object_detection.errors import InputError

KEPT = 3
NEWEST = "ckpt"  # the name under which the reference's users look for the newest
_STEP = re.compile(r"ckpt-(\d+)\.index")
_SUFFIXES = (*BUNDLE_SUFFIXES, DESCRIPTION_SUFFIX)


class CheckpointStore:
    """The checkpoints in a model_dir."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def save(self, arrays: Mapping[str, np.ndarray], description: Description) -> str:
        """Write `ckpt-STEP`, link `ckpt` to it, drop all but the last three; returns the prefix."""
        prefix = self.folder / f"ckpt-{description.global_step}"
        write_arrays(str(prefix), arrays, description)
        self._link_newest(prefix)
        for step in self.steps()[KEPT:]:
            if step != description.global_step:
                _remove(self.folder / f"ckpt-{step}")
        return str(prefix)

    def steps(self) -> list[int]:
        """Steps after which there is a checkpoint, the newest first."""
        matches = (_STEP.fullmatch(file.name) for file in self.folder.glob("ckpt-*.index"))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def readable(self) -> Iterator[Source | InputError]:
        """The checkpoints from the newest back; one that is torn or corrupt comes as the error that says so."""
        for step in self.steps():
            prefix = str(self.folder / f"ckpt-{step}")
            try:
                yield _read_whole(prefix)
            except InputError as error:
                yield error

    def put_aside(self) -> Path | None:
        """Move the checkpoints of an earlier training into a folder of their own; None where there are none."""
        files = [file for file in self.folder.glob("ckpt*") if file.is_file()]
        if not files:
            return None
        aside = self.folder / f"before-{time.strftime('%Y-%m-%d-%H-%M-%S')}"
        aside.mkdir(exist_ok=True)
        for file in files:
            file.rename(aside / file.name)
        return aside

    def _link_newest(self, prefix: Path) -> None:
        for suffix in _SUFFIXES:
            link = self.folder / f".{NEWEST}{suffix}.{os.getpid()}"
            link.unlink(missing_ok=True)
            os.link(f"{prefix}{suffix}", link)
            link.replace(self.folder / f"{NEWEST}{suffix}")


def read_checkpoint(path: str) -> Source:
    """The training checkpoint that the user named; raises InputError where it is none or damaged."""
    return _read_whole(checkpoint_prefix(path))


def _read_whole(prefix: str) -> Source:
    """Read everything: each array's checksum is compared on the way."""
    source = read_source(prefix)
    if source.description is None or "global_step" not in source.arrays:
        raise InputError(f"{prefix}: is no checkpoint of a training that could go on (no {prefix}{DESCRIPTION_SUFFIX}, or "
                         "weights only)")
    return source


def _remove(prefix: Path) -> None:
    # The index first: without one there is no checkpoint, whatever a crash leaves of the rest.
    for suffix in reversed(BUNDLE_SUFFIXES):
        Path(f"{prefix}{suffix}").unlink(missing_ok=True)
    Path(f"{prefix}{DESCRIPTION_SUFFIX}").unlink(missing_ok=True)
