"""Options of the converters and of `efficientdet.convert`, and the configuration that follows from them."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dataset.files.file_kinds import FORMAT_NAMES, FormatName
from dataset.files.untrusted_values import storable_text
from program_support.checked_fields import Count, CountOrZero, FiniteNumber, Help, Limit, Share, between, checked
from program_support.engines import LOCAL, Engine
from program_support.errors import InputError
from program_support.remote_addresses import is_remote

if TYPE_CHECKING:
    from dataset.files.pixel_values import ValueRange

MOST_DEFAULT_SHARDS = 32  # the reference's default
IMAGES_WORTH_A_SHARD = 100
BY_FOLDER = "folder"
ShardCount = Annotated[int, between(1, 99999)]


@checked
class WritingSettings:
    """Options of all converters that a conversion uses as they are given."""

    max_bad_fraction: Annotated[
        Share, Help("Maximum fraction of images, and of boxes, that may be skipped as unusable.")
    ] = 0.01
    crowds_as_objects: Annotated[
        bool,
        Help(
            "Read objects that are marked as crowd (iscrowd, IsGroupOf) or difficult as ordinary objects. Training "
            "ignores crowds, and evaluation ignores both."
        ),
    ] = False
    white_level: Annotated[
        FiniteNumber | None,
        Help(
            "Value of images with more than 8 bits per channel that is converted to white (255). Stored with the "
            "records and with models trained on them. Images with floats or negative values need it. Default: all bits "
            "that the largest value has, such as 4095, up to 14 bits; 65535 for larger values."
        ),
    ] = None
    black_level: Annotated[
        FiniteNumber,
        Help("Value of images with more than 8 bits per channel that is converted to black (0), stored as well."),
    ] = 0.0


@checked
class ConversionConfig(WritingSettings):
    """Input and output settings of a conversion; `processes` 1: convert in this process, unless on a cluster."""

    image_folder: str
    output_prefix: str
    num_shards: ShardCount
    processes: Annotated[Count, "num_threads"]
    include_masks: bool = False
    keep_annotations: bool = False
    engine: Engine = LOCAL
    remote_output: str | None = None  # address of the folder of `output_prefix`, which is then a local copy

    def __post_init__(self):
        if not Path(self.output_prefix).name or self.output_prefix.endswith("/"):
            raise InputError(f"--output_file_prefix={self.output_prefix}: expected FOLDER/name")
        if is_remote(self.output_prefix):
            raise InputError(
                f"{self.output_prefix}: expected a path of this machine; create_tfrecord.py writes to remote addresses"
            )
        if self.white_level is not None and self.black_level >= self.white_level:
            raise InputError(
                f"--black_level={self.black_level:g}: expected less than --white_level={self.white_level:g}"
            )
        storable_text(self.output_prefix, "--output_file_prefix")  # TensorFlow opens no other
        if not (is_remote(self.image_folder) or os.path.isdir(self.image_folder)):
            raise InputError(
                f"{self.image_folder or 'image folder'}: no such folder; expected the folder with the images"
            )

    def shard_path(self, index: int) -> Path:
        """Return the final path of shard `index`, counted from 0."""
        return Path(f"{self.output_prefix}-{index:05d}-of-{self.num_shards:05d}.tfrecord")

    def beside(self, suffix: str) -> Path:
        """Return the path of another output file, such as .report.json, which `<prefix>-*` does not match."""
        return Path(f"{self.output_prefix}{suffix}")

    @property
    def value_range(self) -> "ValueRange":
        """Return the values that become black and white."""
        from dataset.files.pixel_values import WHITE_LEVEL, ValueRange  # NumPy and Pillow, which --help does not need

        return ValueRange(self.black_level, WHITE_LEVEL if self.white_level is None else self.white_level)

    @property
    def state_folder(self) -> Path:
        """Folder in which a run stores the settings of its shards for the next run."""
        prefix = Path(self.output_prefix)
        return prefix.with_name(f".{prefix.name}.conversion")


def _is_grouping(text: str) -> bool:
    try:
        return text == BY_FOLDER or re.compile(text).groups == 1
    except re.error:
        return False


GroupBy = Annotated[
    str | None,
    Limit(_is_grouping, f"{BY_FOLDER}, or a regular expression with one group, such as '([^_/]+)_[0-9]+'"),
    Help(
        "Images that must stay in one split, in addition to near-duplicates: 'folder', or a regular expression "
        "with one group, whose match in the file name is the same for them."
    ),
]


@checked
class WritingOptions(WritingSettings):
    """Options of the record writer of all converters."""

    num_shards: Annotated[
        ShardCount | None,
        Help(
            "Number of output shards. Default: the number of existing shards with this prefix, else one for every "
            f"{IMAGES_WORTH_A_SHARD} images, at most {MOST_DEFAULT_SHARDS}."
        ),
    ] = None
    num_threads: Annotated[
        Count | None, Help("Number of worker processes. Default: one per CPU core, fewer for small data sets.")
    ] = None
    engine: Engine = LOCAL


@checked
class ConvertOptions(WritingOptions):
    """All options of create_tfrecord.py."""

    images: Annotated[str, Help("Folder with the images, searched recursively.")] = ""
    annotations: Annotated[str, Help("File or folder with the labels. Default: the folder of the images.")] = ""
    format: Annotated[
        FormatName,
        Help(
            f"Label format, {', '.join(FORMAT_NAMES)} or that of an installed package; auto: detected from the content."
        ),
    ] = "auto"
    output_dir: Annotated[str, Help("Output folder for the records: train-*, val-* and test-*.")] = "records"
    val_fraction: Annotated[
        float,
        between(0, 0.9),
        Help("Fraction of the images used for validation if the data set has no val split; 0: no val split."),
    ] = 0.1
    split_seed: Annotated[CountOrZero, Help("Random seed that selects the validation images.")] = 0
    splits_of: Annotated[
        tuple[str, ...],
        Help(
            "Folder of records of an earlier conversion: images that were in train or val stay there, also renamed, "
            "and only other images are split. Default: all are split.",
            repeats=True,
        ),
    ] = ()
    group_by: GroupBy = None
    include_masks: Annotated[bool, Help("Store instance masks as PNG.")] = False
    labeled_classes: Annotated[
        tuple[str, ...],
        Help(
            "Classes whose objects are labeled in these images, comma-separated; the others are marked as unlabeled (a "
            "crowd box of the complete image), which evaluation ignores, and training with ignore_in_crowds. Default: "
            "all."
        ),
    ] = ()
    label_map_json_path: Annotated[
        str,
        Help(
            'File with class ids: JSON as {"name": id, ...}, the .classes.json of another conversion, or YAML, .pbtxt '
            "or .txt. Default: the ids of the data set, or names numbered from 1 in alphabetical order."
        ),
    ] = ""
