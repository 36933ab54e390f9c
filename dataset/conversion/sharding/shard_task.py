"""The task of converting one shard, and its atomic publication. Does not import TensorFlow."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dataset.conversion.annotations import AnnotatedImage
from dataset.conversion.conversion_options import ConversionConfig
from program_support.atomic_files import HOST, flush_to_disk

PARTIAL, FINISHED = ".partial", ".finished"  # ends of the names of unpublished shards


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Input of a worker for one shard: the images with their objects, and input and output paths."""

    images: Sequence[AnnotatedImage]
    source: str
    category_names: dict[int, str]
    config: ConversionConfig  # with the white level that was found
    fingerprint: str
    finished_path: Path
    state_path: Path
    fatal: frozenset[str] = frozenset()  # file names of images that kill the process which decodes them

    def partial_path(self) -> Path:
        """Return where this process writes the shard: two nodes may have the same task, if one seemed to be lost."""
        name = self.finished_path.name.removesuffix(FINISHED)
        return self.finished_path.with_name(f"{name}.{HOST}-{os.getpid()}{PARTIAL}")


def flush_and_rename(partial: Path, finished: Path) -> int:
    """Flush a file to disk and rename it; return its size in bytes."""
    flush_to_disk(partial)
    size = partial.stat().st_size
    os.replace(partial, finished)
    return size
