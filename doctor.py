"""Examines a data set before anything is trained on it, and writes what it finds to doctor.html and doctor.json.

    python doctor.py --records='records/train-*' --val_records='records/val-*'
    python doctor.py --images=photos --annotations=labels --image_size=640 --model_name=efficientdet-d1
"""

from absl import flags

from efficientdet.configuration.flag_definitions import define_model_flags, hyperparameters
from efficientdet.configuration.flag_paths import records_of, writable_folder
from efficientdet.data_checks.data_check import DataCheckConfig, check_data, read_splits
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from program_support.command_line import run
from program_support.errors import InputError
from program_support.field_flags import define_flags_of

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of this script."""
    define_model_flags()
    flags.DEFINE_string("records", None, "Glob of the training TFRecords.")
    flags.DEFINE_string("val_records", None, "Glob of the validation TFRecords.")
    define_flags_of(DataCheckConfig, {
        "images": "Folder of images, in place of --records.",
        "annotations": "Labels of the images, of any format that create_tfrecord.py reads. Default: the folder of the images.",
        "label_format": "Format of the labels. Default: recognized by content.",
        "val_annotations": "The same of the validation images, where --annotations has none.",
        "images_read": "Pictures of each split that are decoded, evenly taken; boxes all count.",
    })
    flags.DEFINE_string("image_size", None, "The network's input: a side, or WIDTHxHEIGHT. Default: the model's.")
    flags.DEFINE_string("output_dir", ".", "Folder for doctor.html and doctor.json.")


def main() -> None:
    """Examine what the flags name."""
    if bool(FLAGS.records) == bool(FLAGS.images):
        raise InputError("wanted --records=PATTERN, or --images=FOLDER with --annotations=LABELS")
    patterns = {"training": "records", "validation": "val_records"} if FLAGS.records else {}
    config = DataCheckConfig(
        hparams=_hyperparameters(), images=FLAGS.images, annotations=FLAGS.annotations, val_annotations=FLAGS.val_annotations,
        records={name: records_of(FLAGS[flag].value, flag) for name, flag in patterns.items() if FLAGS[flag].value},
        label_format=FLAGS.format, images_read=FLAGS.images_read, output_dir=writable_folder(FLAGS.output_dir, "output_dir"))
    splits = read_splits(config)  # a mistake in the files is reported before TensorFlow is imported
    prepare_environment()
    check_data(splits, config)


def _hyperparameters() -> Hyperparameters:
    hparams, size = hyperparameters(), FLAGS.image_size
    return with_overrides(hparams, {"image_size": int(size) if size.isdigit() else size}) if size else hparams


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
