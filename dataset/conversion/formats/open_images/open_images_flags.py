"""The flags by which a part of Open Images is chosen, for its conversion and for its download alike."""

from pathlib import Path

from absl import flags

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.formats.open_images.open_images_labels import EXPECTED_IMAGES, read_open_images
from dataset.conversion.other_annotations import recognized
from dataset.files.file_kinds import FileKind
from program_support.errors import InputError


def define_choice_flags() -> None:
    """Define what to read and which of it is requested."""
    flags.DEFINE_string("object_annotations_file", "", "Csv of boxes: oidv6-train-annotations-bbox.csv, "
                        "validation-annotations-bbox.csv, test-annotations-bbox.csv.")
    flags.DEFINE_string("class_descriptions_file", "", "Csv of labels and names: class-descriptions-boxable.csv.")
    flags.DEFINE_string("classes", "", "mlperf (its 264), a file with one name a line, or names with commas between them; by "
                        "default all of the class descriptions.")
    flags.DEFINE_string("hierarchy_file", "", "bbox_labels_600_hierarchy.json, for --with_descendants.")
    flags.DEFINE_boolean("with_descendants", False, "Whether boxes of narrower labels count as boxes of the wanted class above "
                         "them (a Dog as an Animal).")
    flags.DEFINE_enum("expect", None, list(EXPECTED_IMAGES), "Refuse another number of images than this set has.")


def read_choice(index_folder: Path, *, image_ids_file: str = "") -> AnnotatedDataSet:
    """Read what the flags name."""
    values = flags.FLAGS
    for name in ("object_annotations_file", "class_descriptions_file"):
        if not values[name].value:
            raise InputError(f"give --{name}")
    with recognized(values.object_annotations_file, wanted=FileKind.OPEN_IMAGES):
        return read_open_images(
            object_annotations_file=values.object_annotations_file, class_descriptions_file=values.class_descriptions_file,
            index_folder=index_folder, classes=values.classes, hierarchy_file=values.hierarchy_file,
            with_descendants=values.with_descendants, image_ids_file=image_ids_file, expect=values.expect or "")
