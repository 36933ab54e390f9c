"""Examines a data set before anything is trained on it, and writes what it finds to doctor.html and doctor.json.

    python dataset/doctor.py --records='records/train-*' --val_records='records/val-*'
    python dataset/doctor.py --images=photos --annotations=labels --image_size=640 --model_name=efficientdet-d1
"""

import signal
import sys
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__" and not __package__:  # run by its path: Python finds dataset/'s files, not the project's packages
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; `run` listens

from absl import flags

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.format_recognition import FORMATS, recognise
from dataset.labelled_images import LabelledImages
from efficientdet.configuration.flag_definitions import define_model_flags, hyperparameters
from efficientdet.configuration.flag_paths import class_names_for, records_of, writable_folder
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from program_support import command_line
from program_support.errors import InputError
from program_support.progress import Progress

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this script."""
    define_model_flags()
    flags.DEFINE_string("records", None, "Glob of the training TFRecords.")
    flags.DEFINE_string("val_records", None, "Glob of the validation TFRecords.")
    flags.DEFINE_string("images", None, "Folder of images, in place of --records.")
    flags.DEFINE_string("annotations", None, "Labels of the images, of any format that create_tfrecord.py reads. "
                                             "Default: the folder of the images.")
    flags.DEFINE_enum("format", "auto", ["auto", *FORMATS], "Format of the labels. Default: recognized by content.")
    flags.DEFINE_string("val_annotations", None, "The same of the validation images, where --annotations has none.")
    flags.DEFINE_string("image_size", None, "The network's input: a side, or WIDTHxHEIGHT. Default: the model's.")
    flags.DEFINE_integer("images_read", 2000, "Pictures of each split that are decoded, evenly taken; boxes all count.",
                         lower_bound=1)
    flags.DEFINE_string("output_dir", ".", "Folder for doctor.html and doctor.json.")


def main() -> None:
    """Examine what the flags name."""
    hparams, folder = _hyperparameters(), writable_folder(FLAGS.output_dir, "output_dir")
    splits = _splits()
    prepare_environment()
    from efficientdet.data_checks.check_report import write_page
    from efficientdet.data_checks.examination import examine
    from efficientdet.data_checks.findings import as_hparams

    total = sum(min(len(images), FLAGS.images_read) for images in splits.values())
    with Progress("doctor", total=total, noun="image", patient=True) as bar:
        examination = examine(splits, hparams, images_read=FLAGS.images_read, done=lambda: bar.advance(images=1))
    for finding in examination.findings:
        print(f"{finding.level:8} {finding.line}")
    if not examination.warnings:
        print("nothing alarming")
    if examination.settings:
        print(f"suggests --hparams={as_hparams(examination.settings)}")
    print(f"wrote    {write_page(folder, examination)}")


def _hyperparameters() -> Hyperparameters:
    hparams, size = hyperparameters(), FLAGS.image_size
    return with_overrides(hparams, {"image_size": int(size) if size.isdigit() else size}) if size else hparams


def _splits() -> dict[str, LabelledImages]:
    """The training images and, if given, those of validation. Raises InputError for flags that do not go together."""
    if bool(FLAGS.records) == bool(FLAGS.images):
        raise InputError("wanted --records=PATTERN, or --images=FOLDER with --annotations=LABELS")
    if FLAGS.records:
        named = {"training": (FLAGS.records, "records"), "validation": (FLAGS.val_records, "val_records")}
        return {name: _of_records(records_of(pattern, flag)) for name, (pattern, flag) in named.items() if pattern}
    return _of_annotations()


def _of_records(paths: tuple[str, ...]) -> LabelledImages:
    from dataset.conversion.conversion_report import left_out_at_conversion
    from dataset.records.labelled_records import labelled_records
    from dataset.records.record_index import index_records

    images = labelled_records(index_records(paths), class_names_for(paths, json_file=None))
    boxes_left_out, images_left_out = left_out_at_conversion(paths)
    return replace(images, left_out=[*images.left_out, *boxes_left_out], images_left_out=images_left_out)


def _of_annotations() -> dict[str, LabelledImages]:
    """The parts of --annotations, and those of --val_annotations in place of its val."""
    from dataset.conversion.folder_files import ImageFolder
    from dataset.conversion.label_parts import read_labels
    from dataset.conversion.labelled_annotations import labelled_annotations
    from dataset.files.image_files import image_folder

    images = ImageFolder(image_folder(FLAGS.images))

    def parts(path: str) -> dict[str, AnnotatedDataSet]:
        labels = recognise(path, wanted=FLAGS.format)
        print(labels.reason)
        return read_labels(labels, path, images, with_masks=False, label_map=None, output_folder=FLAGS.output_dir)

    found = parts(FLAGS.annotations or FLAGS.images)
    if FLAGS.val_annotations:
        found["val"] = next(iter(parts(FLAGS.val_annotations).values()))
    named = {"training": found.get("", found.get("train")), "validation": found.get("val")}
    if named["training"] is None:
        raise InputError(f"--annotations={FLAGS.annotations}: has {', '.join(found)} and no train")
    return {name: labelled_annotations(part, FLAGS.images) for name, part in named.items() if part is not None}


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
