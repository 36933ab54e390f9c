"""What a process is reported to make one shard, and how that is brought whole to its name. Free of TensorFlow."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dataset.conversion.annotations import AnnotatedImage
from program_support.atomic_files import flush_to_disk


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """What a process needs to make one shard: the images with their objects, where to read and where to write."""

    images: Sequence[AnnotatedImage]
    source: str
    image_folder: str
    category_names: dict[int, str]
    include_masks: bool
    keep_annotations: bool
    keep_images_of_refused_boxes: bool
    fingerprint: str
    partial_path: Path
    finished_path: Path
    state_path: Path


def settle(partial: Path, finished: Path) -> int:
    """Bring a file to the disk and then to its name; returns its size in bytes."""
    flush_to_disk(partial)
    size = partial.stat().st_size
    os.replace(partial, finished)
    return size
