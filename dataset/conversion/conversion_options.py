"""Options of the converters: the flags of create_tfrecord.py and the arguments of `efficientdet.convert`."""

import re
from typing import Annotated

from dataset.conversion.conversion_config import ShardCount, WritingSettings
from dataset.files.file_kinds import LABEL_FORMATS
from program_support.checked_fields import Count, CountOrZero, Help, Limit, between, checked, one_of
from program_support.engines import LOCAL, Engine

MOST_DEFAULT_SHARDS = 32  # the reference's default
IMAGES_WORTH_A_SHARD = 100
BY_FOLDER = "folder"


def _is_grouping(text: str) -> bool:
    try:
        return text == BY_FOLDER or re.compile(text).groups == 1
    except re.error:
        return False


FoldCount = Annotated[int, between(2, 10)]  # numbers of one digit, so that a pattern of shards can leave one out
GroupBy = Annotated[
    str | None,
    Limit(_is_grouping, f"{BY_FOLDER}, or a regular expression with one group, such as '([^_/]+)_[0-9]+'"),
    Help(
        "Images that must stay in one split or fold, in addition to near-duplicates: 'folder', or a regular expression "
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
    format: Annotated[str, one_of("auto", *LABEL_FORMATS), Help("Label format; auto detects it from the content.")] = (
        "auto"
    )
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
    folds: Annotated[
        FoldCount | None,
        Help(
            "Number of folds of a cross-validation, 2 to 10: images of train and val are divided into them, stratified "
            "by class, and each fold is one shard of the train records. Default: no folds."
        ),
    ] = None
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
    pseudo_labels: Annotated[
        str | None,
        Help("With --labeled_classes: COCO JSON of infer.py --format=coco with detected objects of the other classes."),
    ] = None
    label_map_json_path: Annotated[
        str,
        Help(
            'JSON file with class ids, {"name": id, ...}, or the .classes.json of another conversion. Default: the ids '
            "of the data set, or names numbered from 1 in alphabetical order."
        ),
    ] = ""
