"""Flags that select a subset of Open Images, shared by its conversion and its download."""

from pathlib import Path

from absl import flags

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.formats.open_images.open_images_labels import EXPECTED_IMAGES, read_open_images
from dataset.conversion.other_annotations import recognized
from dataset.files.file_kinds import FileKind
from program_support.errors import InputError


def define_choice_flags() -> None:
    """Define the input files and the selection."""
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
    flags.DEFINE_string("hierarchy_file", "", "Path of bbox_labels_600_hierarchy.json; required by --with_descendants.")
    flags.DEFINE_boolean(
        "with_descendants",
        False,
        "Treat boxes of descendant labels as boxes of the nearest selected ancestor class (Dog as Animal).",
    )
    flags.DEFINE_enum(
        "expect", None, list(EXPECTED_IMAGES), "Fail unless the number of images is the number in this data set."
    )


def read_choice(index_folder: Path, *, image_ids_file: str = "") -> AnnotatedDataSet:
    """Read the annotations that the flags select."""
    values = flags.FLAGS
    for name in ("object_annotations_file", "class_descriptions_file"):
        if not values[name].value:
            raise InputError(f"--{name} is required")
    with recognized(values.object_annotations_file, expected=FileKind.OPEN_IMAGES):
        return read_open_images(
            object_annotations_file=values.object_annotations_file,
            class_descriptions_file=values.class_descriptions_file,
            index_folder=index_folder,
            classes=values.classes,
            hierarchy_file=values.hierarchy_file,
            with_descendants=values.with_descendants,
            image_ids_file=image_ids_file,
            expect=values.expect or "",
        )
