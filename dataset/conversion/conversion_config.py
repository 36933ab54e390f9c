"""What a conversion is asked for, and the names of the files that it makes."""

import os
from pathlib import Path
from typing import Annotated

from dataset.files.untrusted_values import storable_text
from program_support.checked_fields import Count, Share, between, checked
from program_support.errors import InputError

ShardCount = Annotated[int, between(1, 99999)]


@checked
class ConversionConfig:
    """Where to read images and how to write them; `processes` 1 means this very process."""

    image_folder: str
    output_prefix: str
    num_shards: ShardCount
    processes: Annotated[Count, "num_threads"]
    max_bad_fraction: Share = 0.01
    include_masks: bool = False
    keep_annotations: bool = False
    keep_images_of_refused_boxes: bool = False

    def __post_init__(self):
        if not Path(self.output_prefix).name or self.output_prefix.endswith("/"):
            raise InputError(f"--output_file_prefix={self.output_prefix}: expected FOLDER/name")
        storable_text(self.output_prefix, "--output_file_prefix")  # TensorFlow opens no other
        if not os.path.isdir(self.image_folder):
            raise InputError(f"{self.image_folder or 'image folder'}: no such folder; expected the folder with the images")

    def shard_path(self, index: int) -> Path:
        """The final name of shard `index`, counted from 0."""
        return Path(f"{self.output_prefix}-{index:05d}-of-{self.num_shards:05d}.tfrecord")

    def beside(self, suffix: str) -> Path:
        """A file of the data set that `<prefix>-*` does not catch, such as .report.json."""
        return Path(f"{self.output_prefix}{suffix}")

    @property
    def state_folder(self) -> Path:
        """Where a run leaves for the next one what its shards were made from."""
        prefix = Path(self.output_prefix)
        return prefix.with_name(f".{prefix.name}.conversion")
