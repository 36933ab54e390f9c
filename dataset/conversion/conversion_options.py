"""Options of the converters: the flags of create_tfrecord.py and the arguments of `efficientdet.convert`."""

from typing import Annotated

from dataset.conversion.conversion_config import ShardCount, WritingSettings
from dataset.conversion.format_recognition import FORMATS
from program_support.checked_fields import Count, CountOrZero, Help, between, checked, one_of

MOST_DEFAULT_SHARDS = 32  # the reference's default
IMAGES_WORTH_A_SHARD = 100


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


@checked
class ConvertOptions(WritingOptions):
    """All options of create_tfrecord.py."""

    images: Annotated[str, Help("Folder with the images, searched recursively.")] = ""
    annotations: Annotated[str, Help("File or folder with the labels. Default: the folder of the images.")] = ""
    format: Annotated[str, one_of("auto", *FORMATS), Help("Label format; auto detects it from the content.")] = "auto"
    output_dir: Annotated[str, Help("Output folder for the records: train-*, val-* and test-*.")] = "records"
    val_fraction: Annotated[
        float,
        between(0, 0.9),
        Help("Fraction of the images used for validation if the data set has no val split; 0: no val split."),
    ] = 0.1
    split_seed: Annotated[CountOrZero, Help("Random seed that selects the validation images.")] = 0
    include_masks: Annotated[bool, Help("Store instance masks as PNG.")] = False
    label_map_json_path: Annotated[
        str,
        Help(
            'JSON file with class ids, {"name": id, ...}, or the .classes.json of another conversion. Default: the ids '
            "of the data set, or names numbered from 1 in alphabetical order."
        ),
    ] = ""
