"""Convert Pascal VOC annotations to TFRecords and to a COCO JSON file for evaluation.

A plain folder of images and XML files:

    python dataset/create_pascal_tfrecord.py --image_dir=photos --annotations_dir=xml --output_file_prefix=out/train

The VOC layout (DATA_DIR/VOC2012/Annotations, JPEGImages, ImageSets/Main/train.txt):

    python dataset/create_pascal_tfrecord.py --data_dir=VOCdevkit --year=VOC2012 --set=train --output_path=out/train
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
from dataset.conversion.formats.voc import read_voc
from program_support import command_line
from program_support.command_line import options_of_flags
from program_support.errors import InputError


def define_flags() -> None:
    """Define the flags of this script."""
    define_shared_flags()
    flags.DEFINE_alias("output_path", "output_file_prefix")
    flags.DEFINE_string("data_dir", "", "Root folder of the VOC data (VOCdevkit); not needed with --image_dir.")
    flags.DEFINE_enum("set", "train", ["train", "val", "trainval", "test"], "Image set, with --data_dir.")
    flags.DEFINE_enum("year", "VOC2007", ["VOC2007", "VOC2012"], "VOC year, with --data_dir.")
    flags.DEFINE_string(
        "annotations_dir",
        "",
        "Folder with the XML files. Default: the folder of the images. With "
        "--data_dir: relative to the folder of the year; default: Annotations.",
    )
    flags.DEFINE_string("image_set_file", "", "Text file with the names of the images to convert, without suffix.")
    flags.DEFINE_string(
        "label_map_json_path",
        "",
        'File with class ids: JSON as {"name": id, ...}, the .classes.json of another conversion, or YAML, .pbtxt '
        "or .txt. Default: the 20 VOC classes, or all names in the folder in alphabetical order.",
    )
    flags.DEFINE_alias("label_map_json", "label_map_json_path")
    flags.DEFINE_boolean("ignore_difficult_instances", False, "Skip objects marked as difficult.")
    flags.DEFINE_alias("ignore_difficult", "ignore_difficult_instances")


def main() -> None:
    """Convert the data set that the flags describe."""
    values = flags.FLAGS
    image_folder, annotations_folder, image_set_file = _places(values)
    options = options_of_flags(WritingOptions)
    config = conversion_config(
        options, image_folder=image_folder, output_prefix=values.output_file_prefix, keep_annotations=True
    )
    data = read_voc(
        annotations_folder=annotations_folder,
        images=ImageFolder(image_folder),
        image_set_file=image_set_file,
        label_map_file=values.label_map_json_path,
        ignore_difficult=values.ignore_difficult_instances,
    )
    refuse_without_usable_objects([data], crowds_as_objects=config.crowds_as_objects)
    convert_and_report(data, config, options)


def _places(values: flags.FlagValues) -> tuple[str, str, str]:
    """Return image folder, annotations folder and image set file ("" for all images)."""
    if bool(values.data_dir) == bool(values.image_dir):
        raise InputError("give either --data_dir (the VOC layout) or --image_dir (a plain folder)")
    if values.image_dir:
        return values.image_dir, values.annotations_dir or values.image_dir, values.image_set_file
    folder = Path(values.data_dir, values.year)
    return (
        str(folder / "JPEGImages"),
        str(folder / (values.annotations_dir or "Annotations")),
        values.image_set_file or str(folder / "ImageSets" / "Main" / f"{values.set}.txt"),
    )


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
