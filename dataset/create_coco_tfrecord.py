"""Convert a COCO data set to TFRecords.

    python dataset/create_coco_tfrecord.py --image_dir=coco/train2017 \
        --object_annotations_file=coco/annotations/instances_train2017.json \
        --output_file_prefix=coco/records/train --num_shards=256
"""

import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:  # run by path: sys.path[0] is dataset/, not the repository
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from absl import flags

from dataset.conversion.conversion_flags import (
    conversion_config,
    convert_and_report,
    define_shared_flags,
    refuse_without_usable_objects,
)
from dataset.conversion.conversion_options import WritingOptions
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.coco import read_coco
from program_support import command_line
from program_support.command_line import options_of_flags


def define_flags() -> None:
    """Define the flags of this script."""
    define_shared_flags()
    flags.DEFINE_boolean("include_masks", False, "Store instance masks as PNG.")
    flags.DEFINE_string(
        "image_info_file",
        "",
        "COCO JSON file that lists the images. Default: the object annotations. "
        "Give only this file for images without annotations, such as test sets.",
    )
    flags.DEFINE_string("object_annotations_file", "", "COCO JSON file with boxes: instances_*.json.")
    flags.DEFINE_string(
        "caption_annotations_file", "", "COCO JSON file with captions, stored in addition to the boxes."
    )


def main() -> None:
    """Convert the data set that the flags describe."""
    values = flags.FLAGS
    options = options_of_flags(WritingOptions)
    config = conversion_config(
        options,
        image_folder=values.image_dir,
        output_prefix=values.output_file_prefix,
        include_masks=values.include_masks,
    )
    data = read_coco(
        object_annotations_file=values.object_annotations_file,
        image_info_file=values.image_info_file,
        caption_annotations_file=values.caption_annotations_file,
        with_segmentation=values.include_masks and bool(values.object_annotations_file),
        file_name=ImageFolder(values.image_dir).named,
    )
    refuse_without_usable_objects([data], crowds_as_objects=config.crowds_as_objects)
    convert_and_report(data, config, options)


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
