"""The operation of doctor.py and of `efficientdet.examine`: turn options into a configuration and run it."""

from pathlib import Path

from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_paths import program, writable_folder
from efficientdet.configuration.model_config import hyperparameters, parse_overrides
from efficientdet.data_checks.data_check import read_splits
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
    hparams, fixed = _hyperparameters(options)
    folder = writable_folder(options.output_dir, "output_dir") if options.output_dir else None
    splits = read_splits(options)  # a mistake in the files is reported before TensorFlow is imported
    prepare_environment()
    from efficientdet.data_checks.check_report import check_data

    files = [Path(folder, name) for name in ("doctor.html", "doctor.json")] if folder else []
    with claimed_outputs(*files):
        examination, page = check_data(splits, hparams, fixed=fixed, images_read=options.images_read, output_dir=folder)
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
