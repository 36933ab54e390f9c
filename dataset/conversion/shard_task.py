"""What a process is told to make one shard, and how a file is brought whole to its name. Free of TensorFlow."""

import os
from dataclasses import dataclass
from pathlib import Path

from dataset.conversion.annotations import AnnotatedImage


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Everything a process needs to make one shard."""

    images: list[AnnotatedImage]
    source: str
    image_folder: str
    category_names: dict[int, str]
    include_masks: bool
    keep_annotations: bool
    fingerprint: str
    partial_path: Path
    finished_path: Path
    state_path: Path


def settle(partial: Path, finished: Path) -> int:
    """Bring a file to the disk and then to its name; returns its size in bytes."""
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    os.replace(partial, finished)
    return size


def write_atomically(path: Path, text: str) -> None:
    """Write a text file that is whole or absent, whatever happens; undecodable bytes of a path become \\udcXX, as in json."""
    partial = path.with_name(f".{path.name.lstrip('.')}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        settle(partial, path)
    finally:
        partial.unlink(missing_ok=True)
