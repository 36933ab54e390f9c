"""The operation of export.py and of `efficientdet.export`: turn flags into a configuration and run it."""

from collections.abc import Sequence
from pathlib import Path

from dataset.files.image_files import find_images
from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import (
    FLAGS,
    FlagValues,
    checked_overrides,
    define_class_names_flag,
    define_model_flags,
    finish_flags,
    model_config,
)
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    images_or_records,
    records_of,
    required,
    writable_folder,
)
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import DEFAULT_FORMATS, checked_formats, export_formats
from efficientdet.operations.results import ExportResult
from program_support.checked_fields import Count, CountOrZero
from program_support.command_line import Define
from program_support.errors import InputError
from program_support.field_flags import define_flag


def define_flags(values: FlagValues = FLAGS) -> None:
    """Define the flags of export.py."""
    define = Define(values)
    define_model_flags(values)
    define_class_names_flag(values)
    define.string("ckpt", None, "Checkpoint to export: a prefix, a folder or the name of published weights.")
    define.string("output_dir", None, "Output folder for the exported files, artifacts.md and artifacts.json.")
    define.list("formats", list(DEFAULT_FORMATS), f"Formats to export, comma-separated: {', '.join(export_formats())}.")
    define.multi_string(
        "images",
        None,
        "Images on which each file is compared with the checkpoint: an image, a folder or "
        "a glob pattern; of more than 64 an evenly spaced part. Default: 16 of the validation "
        "records, else random noise.",
    )
    define.enum(
        "weights",
        "averaged",
        ["averaged", "raw"],
        "Weights to use if the checkpoint has both: the moving average, or the raw weights.",
    )
    define_flag("runs", Count, 30, "Number of timed runs of each file on one image.", values)
    define.string(
        "val_file_pattern",
        None,
        "Glob pattern of TFRecords on which the AP of the checkpoint and of each file is measured.",
    )
    define.string("val_json_file", None, "COCO JSON file with the ground truth. Default: the boxes in the records.")
    define_flag("eval_samples", CountOrZero, 0, "Number of records to evaluate, from the first; 0: all.", values)
    define.multi_string(
        "int8_images",
        None,
        "Calibration images for the int8 formats; use training images. An image, a "
        "folder, or a glob pattern of images or TFRecords. Default: the records train* in the folder "
        "of --val_file_pattern.",
    )
    define_flag("int8_samples", Count, 100, "Maximum number of calibration images, evenly spaced.", values)
    define.bool("list_layers", False, "List the layers with the largest quantization error, even if AP is unaffected.")
    finish_flags("export", values)


def main(values: FlagValues = FLAGS) -> ExportResult:
    """Export as the flags state."""
    overrides = checked_overrides(values=values)
    formats = checked_formats(values.formats)
    images = find_images(values.images, flag="images") if values.images else ()
    measured = _validation(values)
    calibrated = _calibration(measured["records"], formats, values=values)
    prefix = existing_checkpoint(required(values.ckpt, "ckpt"), "ckpt")
    output_dir = writable_folder(values.output_dir, "output_dir")
    prepare_environment()
    from efficientdet.exports.export_artifacts import ExportConfig, export_artifacts

    table = export_artifacts(
        model_config(prefix, overrides, values=values, precision="float32", use_xla=False),
        ExportConfig(
            output_dir=output_dir,
            formats=formats,
            images=images,
            runs=values.runs,
            list_layers=values.list_layers,
            **measured,
            **calibrated,
        ),
    )
    lines = {line.format: line for line in table.artifacts}
    return ExportResult(
        files={name: Path(output_dir, line.file) for name, line in lines.items()},
        agreement={name: line.agreement for name, line in lines.items()},
        median_ms={name: line.median_ms for name, line in lines.items() if line.median_ms is not None},
        ap={name: line.quality.ap for name, line in lines.items() if line.quality},
        table=Path(output_dir, "artifacts.md"),
    )


def _validation(values: FlagValues) -> dict:
    """Return the settings of the AP measurement, without records if there is none."""
    json_file = existing_file(values.val_json_file, "val_json_file")
    if not values.val_file_pattern:
        if json_file or values.eval_samples:
            raise InputError("--val_file_pattern is missing: --val_json_file and --eval_samples need it")
        return {"records": ()}
    records = records_of(values.val_file_pattern, "val_file_pattern")
    class_names_for(records, json_file=json_file)
    return {"records": records, "json_file": json_file, "samples": values.eval_samples}


def _calibration(records: tuple[str, ...], formats: Sequence[str], *, values: FlagValues) -> dict:
    """Return the settings of the int8 calibration, empty if no format needs it."""
    named = values.int8_images or []
    if not any(export_formats()[name].calibrates for name in formats):
        if named:
            raise InputError(f"--int8_images is for int8 formats; --formats={','.join(formats)} has none")
        return {}
    details = {"calibration_samples": values.int8_samples}
    images, chosen = images_or_records(named, "int8_images") if named else ((), ())
    if images:
        return {**details, "calibration_images": images}
    if not named:
        chosen = _training_records(records)
        print(f"int8 calibration: {chosen[0]}" + (f" and {len(chosen) - 1} more" if len(chosen) > 1 else ""))
    if {*chosen} & {*records}:
        print("warning: AP is measured on the calibration images; pass training images with --int8_images")
    return {**details, "calibration_records": chosen}


def _training_records(records: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shards train* beside the validation records, without these.

    Raises:
        InputError: there are none.
    """
    folders = sorted({Path(path).parent for path in records})
    files = sorted({str(path) for folder in folders for path in folder.glob("train*-of-*")} - {*records})
    if not files:
        where = f"; {folders[0]} has no train* records" if folders else ""
        raise InputError(f"--int8_images is missing: int8 formats need training images{where}")
    return tuple(files)
