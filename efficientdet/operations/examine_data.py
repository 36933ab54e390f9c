"""The operation of doctor.py and of `efficientdet.examine`: turn flags into a configuration and run it."""

from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import FLAGS, FlagValues, define_model_flags, hyperparameters
from efficientdet.configuration.flag_paths import records_of, writable_folder
from efficientdet.configuration.overrides import parse_overrides
from efficientdet.data_checks.data_check import DataCheckConfig, check_data, read_splits
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.operations.results import ExaminationResult
from program_support.command_line import Define
from program_support.errors import InputError
from program_support.field_flags import define_flags_of


def define_flags(values: FlagValues = FLAGS) -> None:
    """Define the flags of doctor.py."""
    define = Define(values)
    define_model_flags(values)
    define.string("records", None, "Glob pattern of the training TFRecords.")
    define.string("val_records", None, "Glob pattern of the validation TFRecords.")
    define_flags_of(
        DataCheckConfig,
        {
            "images": "Folder of labeled images, instead of --records.",
            "annotations": "File or folder of the labels, in any format that create_tfrecord.py reads. Default: the "
            "folder of the images.",
            "label_format": "Format of the labels. Default: detected from the content.",
            "val_annotations": "File or folder of the validation labels, if --annotations has no validation split.",
            "images_read": "Number of images to decode per split, evenly spaced. The boxes of all images are counted.",
        },
        values,
    )
    define.string(
        "image_size",
        None,
        "Input size of the network in pixels: the side of a square, or WIDTHxHEIGHT. Default: the model's.",
    )
    define.string(
        "pretrained_ckpt",
        None,
        "Checkpoint or published weights that the training will start from: anchors and normalization are those of its "
        "weights, and no others are suggested.",
    )
    define.string("output_dir", ".", "Output folder for doctor.html and doctor.json.")


def main(values: FlagValues = FLAGS) -> ExaminationResult:
    """Examine the data set that the flags name."""
    if bool(values.records) == bool(values.images):
        raise InputError("expected --records=PATTERN, or --images=FOLDER with --annotations=LABELS")
    patterns = {"training": "records", "validation": "val_records"} if values.records else {}
    hparams, fixed = _hyperparameters(values)
    config = DataCheckConfig(
        hparams=hparams,
        fixed=fixed,
        images=values.images,
        annotations=values.annotations,
        val_annotations=values.val_annotations,
        records={name: records_of(values[flag].value, flag) for name, flag in patterns.items() if values[flag].value},
        label_format=values.format,
        images_read=values.images_read,
        output_dir=writable_folder(values.output_dir, "output_dir"),
    )
    splits = read_splits(config)  # a mistake in the files is reported before TensorFlow is imported
    prepare_environment()
    examination, page = check_data(splits, config)
    return ExaminationResult(
        findings=tuple(examination.findings),
        settings=examination.settings,
        page=page,
        numbers=page.with_name("doctor.json"),
    )


def _hyperparameters(values: FlagValues) -> tuple[Hyperparameters, frozenset[str]]:
    """Return the hyperparameters, and the keys of those that a checkpoint determines."""
    hparams, size = hyperparameters(values), values.image_size
    if size:
        hparams = with_overrides(hparams, {"image_size": int(size) if size.isdigit() else size})
    if (checkpoint := existing_checkpoint(values.pretrained_ckpt, "pretrained_ckpt")) is None:
        return hparams, frozenset()
    prepare_environment()
    from efficientdet.checkpoints.pretrained_weights import read_source

    fixed = read_source(checkpoint).fixed_settings(hparams)
    given = parse_overrides(values.hparams)
    return with_overrides(hparams, {key: fixed[key] for key in fixed if key not in given}), frozenset(fixed)
