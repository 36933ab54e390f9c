"""The operation of doctor.py and of `efficientdet.examine`: turn options into a configuration and run it."""

from pathlib import Path

from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_paths import program, records_of, writable_folder
from efficientdet.configuration.model_config import hyperparameters, parse_overrides
from efficientdet.data_checks.check_report import NUMBERS, PAGE
from efficientdet.data_checks.data_check import DataCheckConfig, check_data, read_splits
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.operations.results import ExaminationResult
from efficientdet.options.doctor import ExamineOptions
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError


def examine(options: ExamineOptions) -> ExaminationResult:
    """Examine the data set that the options name."""
    if bool(options.records) == bool(options.images):
        raise InputError("expected --records=PATTERN, or --images=FOLDER with --annotations=LABELS")
    patterns = {"training": options.records, "validation": options.val_records} if options.records else {}
    hparams, fixed = _hyperparameters(options)
    config = DataCheckConfig(
        hparams=hparams,
        fixed=fixed,
        images=options.images,
        annotations=options.annotations,
        val_annotations=options.val_annotations,
        records={name: records_of(pattern, "records") for name, pattern in patterns.items() if pattern},
        label_format=options.format,
        images_read=options.images_read,
        output_dir=writable_folder(options.output_dir, "output_dir") if options.output_dir else None,
    )
    splits = read_splits(config)  # a mistake in the files is reported before TensorFlow is imported
    prepare_environment()
    files = [Path(config.output_dir, name) for name in (PAGE, NUMBERS)] if config.output_dir else []
    with claimed_outputs(*files):
        examination, page = check_data(splits, config)
    return ExaminationResult(
        findings=tuple(examination.findings),
        settings=examination.settings,
        page=page,
        numbers=page and page.with_name("doctor.json"),
    )


def _hyperparameters(options: ExamineOptions) -> tuple[Hyperparameters, frozenset[str]]:
    """Return the hyperparameters, and the keys of those that a checkpoint determines."""
    hparams, size = hyperparameters(options), options.image_size
    if size:
        hparams = with_overrides(hparams, {"image_size": int(size) if size.isdigit() else size})
    if (checkpoint := existing_checkpoint(options.pretrained_ckpt, "pretrained_ckpt")) is None:
        return hparams, frozenset()
    prepare_environment()
    from efficientdet.checkpoints.pretrained_weights import read_source

    given = parse_overrides(options.hparams)
    fixed = read_source(checkpoint).fixed_settings(hparams, given)
    return with_overrides(hparams, {key: fixed[key] for key in fixed if key not in given}), frozenset(fixed)


define_flags, main = program("doctor", ExamineOptions, examine)
