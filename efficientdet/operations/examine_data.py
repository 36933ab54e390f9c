"""The operation of doctor.py and of `efficientdet.examine`: turn options into a configuration and run it."""

from dataclasses import replace
from pathlib import Path

from dataset.records.labeled_records import LabeledImages
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.configuration.flag_paths import class_names_for, records_of, writable_folder
from efficientdet.configuration.model_config import hyperparameters, parse_overrides
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.operations.results import ExaminationResult
from efficientdet.options.doctor import ExamineOptions
from program_support.claimed_outputs import claimed_outputs


def examine(options: ExamineOptions) -> ExaminationResult:
    """Examine the data set that the options name."""
    hparams, fixed = _hyperparameters(options)
    folder = writable_folder(options.output_dir, "output_dir") if options.output_dir else None
    splits = read_splits(options)  # a mistake in the files is reported before TensorFlow is imported
    prepare_environment()
    from efficientdet.data_checks.examination import check_data

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
    from efficientdet.checkpoints.restore import read_source

    given = parse_overrides(options.hparams)
    fixed = read_source(checkpoint).fixed_settings(hparams, given)
    return with_overrides(hparams, {key: fixed[key] for key in fixed if key not in given}), frozenset(fixed)


def read_splits(options: ExamineOptions) -> dict[str, LabeledImages]:
    """Return the training images and, if given, the validation images; does not import TensorFlow.

    Raises:
        InputError: for unreadable files.
    """
    records = {"training": records_of(options.records, "records")}
    if options.val_records:
        records["validation"] = records_of(options.val_records, "val_records")
    every = tuple(path for paths in records.values() for path in paths)
    return {name: _read_records(paths, others=every) for name, paths in records.items()}


def _read_records(paths: tuple[str, ...], *, others: tuple[str, ...]) -> LabeledImages:
    from dataset.conversion.conversion_report import left_out_at_conversion
    from dataset.records.labeled_records import labeled_records
    from dataset.records.record_index import index_records

    names = class_names_for(paths, json_file=None, json_flag=None, other_records=others)
    images = labeled_records(index_records(paths), names)
    boxes_left_out, images_left_out = left_out_at_conversion(paths)
    return replace(images, left_out=[*images.left_out, *boxes_left_out], images_left_out=images_left_out)
