"""The operation of export.py and of `efficientdet.export`: turn options into a configuration and run it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataset.files.image_files import find_images
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    images_or_records,
    records_of,
    required,
    writable_folder,
)
from efficientdet.configuration.model_config import checked_overrides, model_config
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import checked_formats, need_calibration
from efficientdet.operations.results import ExportResult
from efficientdet.options.export import ExportOptions
from program_support.errors import InputError


def export(options: ExportOptions) -> ExportResult:
    """Write the formats of a checkpoint, and return their files and their agreement with it."""
    overrides = checked_overrides(options)
    formats = checked_formats(options.formats)
    images = find_images(options.images, flag="images") if options.images else ()
    json_file = existing_file(options.val_json_file, "val_json_file")
    records = _validation(options, json_file=json_file)
    calibrated = _calibration(records, formats, options)
    prefix = existing_checkpoint(required(options.ckpt, "ckpt"), "ckpt")
    output_dir = writable_folder(options.output_dir, "output_dir")
    resolved: dict[str, Any] = {
        "output_dir": output_dir,
        "formats": formats,
        "images": images,
        "records": records,
        "val_json_file": json_file,
        **calibrated,
    }
    prepare_environment()
    from efficientdet.exports.export_artifacts import ExportConfig, export_artifacts

    table = export_artifacts(
        model_config(prefix, overrides, options, precision="float32", use_xla=False),
        ExportConfig(**{**vars(options), **resolved}),
    )
    lines = {line.format: line for line in table.artifacts}
    return ExportResult(
        files={name: Path(output_dir, line.file) for name, line in lines.items()},
        agreement={name: line.agreement for name, line in lines.items()},
        median_ms={name: line.median_ms for name, line in lines.items() if line.median_ms is not None},
        ap={name: line.quality.ap for name, line in lines.items() if line.quality},
        table=Path(output_dir, "README.md"),
    )


def _validation(options: ExportOptions, *, json_file: str | None) -> tuple[str, ...]:
    """Return the records of the AP measurement, () if there is none."""
    if not options.val_file_pattern:
        if json_file or options.eval_samples:
            raise InputError("--val_file_pattern is missing: --val_json_file and --eval_samples need it")
        return ()
    records = records_of(options.val_file_pattern, "val_file_pattern")
    class_names_for(records, json_file=json_file)
    return records


def _calibration(records: tuple[str, ...], formats: Sequence[str], options: ExportOptions) -> dict:
    """Return the settings of the int8 calibration, empty if no format needs it."""
    named = options.int8_images
    if not need_calibration(formats):
        if named:
            raise InputError(f"--int8_images is for int8 formats; --formats={','.join(formats)} has none")
        return {}
    images, chosen = images_or_records(named, "int8_images") if named else ((), ())
    if images:
        return {"calibration_images": images}
    if not named:
        chosen = _training_records(records)
        print(f"int8 calibration: {chosen[0]}" + (f" and {len(chosen) - 1} more" if len(chosen) > 1 else ""))
    if {*chosen} & {*records}:
        print("warning: AP is measured on the calibration images; pass training images with --int8_images")
    return {"calibration_records": chosen}


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
