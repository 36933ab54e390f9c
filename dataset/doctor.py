"""Examines a data set before anything is trained on it, and writes what it finds to doctor.html and doctor.json.

    python dataset/doctor.py --records='records/train-*' --val_records='records/val-*'
    python dataset/doctor.py --images=photos --annotations=instances_train.json --image_size=640 --model_name=efficientdet-d1
"""

import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # run as a script: see the project, and do not take our modules for somebody's package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; `run` listens

from absl import flags

from dataset import command_line
from dataset.labelled_images import LabelledImages
from dataset.progress import Progress
from efficientdet.configuration.hyperparameters import Hyperparameters, with_overrides
from efficientdet.flags.definitions import define_model_flags, hyperparameters
from efficientdet.flags.paths import class_names_for, existing_file, records_of, writable_folder
from object_detection.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this script."""
    define_model_flags()
    flags.DEFINE_string("records", None, "Glob of the training TFRecords.")
    flags.DEFINE_string("val_records", None, "Glob of the validation TFRecords.")
    flags.DEFINE_string("images", None, "Folder of images, in place of --records, with --annotations.")
    flags.DEFINE_string("annotations", None, "COCO json of the training images in --images.")
    flags.DEFINE_string("val_annotations", None, "COCO json of the validation images in --images.")
    flags.DEFINE_string("image_size", None, "The network's input: a side, or WIDTHxHEIGHT. Default: the model's.")
    flags.DEFINE_integer("images_read", 2000, "Pictures of each split that are decoded, evenly taken; boxes all count.",
                         lower_bound=1)
    flags.DEFINE_string("output_dir", ".", "Folder for doctor.html and doctor.json.")


def main() -> None:
    """Examine what the flags name."""
    hparams, folder = _hyperparameters(), writable_folder(FLAGS.output_dir, "output_dir")
    splits = _splits()
    from efficientdet.doctor.examination import examine
    from efficientdet.doctor.findings import as_hparams
    from efficientdet.doctor.page import write_page

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
        raise InputError("wanted --records=PATTERN, or --images=FOLDER with --annotations=FILE")
    if FLAGS.records:
        named = {"training": (FLAGS.records, "records"), "validation": (FLAGS.val_records, "val_records")}
        return {name: _of_records(records_of(pattern, flag)) for name, (pattern, flag) in named.items() if pattern}
    named = {"training": (FLAGS.annotations, "annotations"), "validation": (FLAGS.val_annotations, "val_annotations")}
    if not FLAGS.annotations:
        raise InputError("--annotations is missing; --images needs the COCO json of its images")
    return {name: _of_annotations(existing_file(path, flag)) for name, (path, flag) in named.items() if path}


def _of_records(paths: tuple[str, ...]) -> LabelledImages:
    from dataset.records.labelled_records import labelled_records
    from dataset.records.record_index import index_records

    return labelled_records(index_records(paths), class_names_for(paths, json_file=None))


def _of_annotations(path: str) -> LabelledImages:
    """Of a COCO json; a reader of another format gives an `AnnotatedDataSet` as well."""
    from dataset.conversion.coco import read_coco
    from dataset.conversion.labelled_annotations import labelled_annotations

    return labelled_annotations(read_coco(object_annotations_file=path), FLAGS.images)


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
