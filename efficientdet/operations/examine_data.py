"""The operation of doctor.py and of `efficientdet.examine`: flags to configuration to one call."""

from efficientdet.configuration.flag_definitions import FLAGS, FlagValues, define_model_flags, hyperparameters
from efficientdet.configuration.flag_paths import records_of, writable_folder
from efficientdet.data_checks.data_check import DataCheckConfig, check_data, read_splits
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.operations.results import ExaminationResult
from program_support.command_line import Define
from program_support.errors import InputError
from program_support.field_flags import define_flags_of


def define_flags(values: FlagValues = FLAGS) -> None:
    """Define the flags of this script."""
    define = Define(values)
    define_model_flags(values)
    define.string("records", None, "Glob of the training TFRecords.")
    define.string("val_records", None, "Glob of the validation TFRecords.")
    define_flags_of(DataCheckConfig, {
        "images": "Folder of images, in place of --records.",
        "annotations": "Labels of the images, of any format that create_tfrecord.py reads. Default: the folder of the images.",
        "label_format": "Format of the labels. Default: recognized by content.",
        "val_annotations": "The same of the validation images, where --annotations has none.",
        "images_read": "Images of each split that are decoded, evenly taken; boxes all count.",
    }, values)
    define.string("image_size", None, "The network's input: a side, or WIDTHxHEIGHT. Default: the model's.")
    define.string("output_dir", ".", "Folder for doctor.html and doctor.json.")


def main(values: FlagValues = FLAGS) -> ExaminationResult:
    """Examine what the flags name."""
    if bool(values.records) == bool(values.images):
        raise InputError("wanted --records=PATTERN, or --images=FOLDER with --annotations=LABELS")
    patterns = {"training": "records", "validation": "val_records"} if values.records else {}
    config = DataCheckConfig(
        hparams=_hyperparameters(values), images=values.images, annotations=values.annotations,
        val_annotations=values.val_annotations,
        records={name: records_of(values[flag].value, flag) for name, flag in patterns.items() if values[flag].value},
        label_format=values.format, images_read=values.images_read, output_dir=writable_folder(values.output_dir, "output_dir"))
    splits = read_splits(config)  # a mistake in the files is reported before TensorFlow is imported
    prepare_environment()
    examination, page = check_data(splits, config)
    return ExaminationResult(findings=tuple(examination.findings), settings=examination.settings, page=page,
                             numbers=page.with_name("doctor.json"))


def _hyperparameters(values: FlagValues) -> Hyperparameters:
    hparams, size = hyperparameters(values), values.image_size
    return with_overrides(hparams, {"image_size": int(size) if size.isdigit() else size}) if size else hparams
