"""Convert Open Images (V4 to V7) to TFRecords.

    python dataset/create_open_images_tfrecord.py --image_dir=open_images/validation \
        --object_annotations_file=open_images/validation-annotations-bbox.csv \
        --class_descriptions_file=open_images/class-descriptions-boxable.csv --classes=mlperf --expect=mlperf-validation
            \
        --output_file_prefix=open_images/records/validation
"""

import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:  # run by path: sys.path[0] is dataset/, not the repository
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from absl import flags

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.conversion_flags import (
    conversion_config,
    convert_and_report,
    define_shared_flags,
    ending_when_interrupted,
)
from dataset.conversion.conversion_options import WritingOptions
from program_support import command_line
from program_support.atomic_files import unfinished_folder, write_text
from program_support.command_line import options_of_flags
from program_support.errors import InputError
from program_support.plugins import load_plugin


def define_flags() -> None:
    """Define the flags of this script."""
    define_shared_flags()
    flags.DEFINE_string(
        "image_ids_file",
        "",
        "Text file with the ids of the images to convert, one per line. Default: all "
        "images with a box of the selected classes.",
    )
    flags.DEFINE_string(
        "list_images", "", "Output text file for the ids of the selected images, one per line; nothing is converted."
    )
    flags.DEFINE_boolean(
        "write_instances",
        False,
        "Also write the contents of the records as a COCO JSON file. Takes 1.3 GB of memory per million boxes.",
    )
    flags.DEFINE_string(
        "object_annotations_file",
        "",
        "CSV file with the boxes: oidv6-train-annotations-bbox.csv, "
        "validation-annotations-bbox.csv or test-annotations-bbox.csv.",
    )
    flags.DEFINE_string(
        "class_descriptions_file", "", "CSV file with labels and class names: class-descriptions-boxable.csv."
    )
    flags.DEFINE_string(
        "classes",
        "",
        "Classes to select: mlperf (the 264 classes of MLPerf), a file with one name per line, "
        "or comma-separated names. Default: all classes in the class descriptions.",
    )
    flags.DEFINE_enum(
        "expect",
        None,
        ["mlperf-train", "mlperf-validation"],
        "Fail unless the number of images is the number in this data set.",
    )


def _read_choice(index_folder: Path) -> AnnotatedDataSet:
    """Read the annotations that the flags select."""
    values = flags.FLAGS
    for name in ("object_annotations_file", "class_descriptions_file"):
        if not values[name].value:
            raise InputError(f"--{name} is required")
    return load_plugin("efficientdet.open_images", "reader")(
        object_annotations_file=values.object_annotations_file,
        class_descriptions_file=values.class_descriptions_file,
        index_folder=index_folder,
        classes=values.classes,
        image_ids_file=values.image_ids_file,
        expect=values.expect or "",
    )


def main() -> None:
    """Convert the data set that the flags describe."""
    values = flags.FLAGS
    try:
        if values.list_images:
            with unfinished_folder(Path(f"{values.list_images}.index")) as folder:
                images = _read_choice(folder).images
                write_text(values.list_images, "".join(f"{Path(image.file_name).stem}\n" for image in images))
            return
        options = options_of_flags(WritingOptions)
        config = conversion_config(
            options,
            image_folder=values.image_dir,
            output_prefix=values.output_file_prefix,
            keep_annotations=values.write_instances,
        )
        with ending_when_interrupted(), unfinished_folder(config.beside(".index")) as folder:
            convert_and_report(_read_choice(folder), config, options)
    except OSError as error:
        raise InputError(
            f"cannot write to the folder of {values.list_images or values.output_file_prefix}: {error}"
        ) from error


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
