"""Export of a checkpoint to files that are compared with it, evaluated and timed."""

import tempfile
from pathlib import Path

import numpy as np

from dataset.files.image_files import read_image
from dataset.records.record_index import index_records
from efficientdet.checkpoints.provenance import (
    checksums,
    code_version,
    machine,
    read_provenance,
    without_folders,
    write_provenance,
)
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import device_name, versions
from efficientdet.exports.artifact_comparison import (
    BATCHES,
    PIXELS,
    SAME_OBJECT_IOU,
    ArtifactComparison,
    ExportConfig,
    compare_detections,
    quality_of,
)
from efficientdet.exports.artifact_pages import (
    CARD_FILES,
    TABLE_FILES,
    Artifact,
    ArtifactTable,
    ModelCard,
    tiling_note,
    write_model_card,
)
from efficientdet.exports.export_format import ExportFormat
from efficientdet.exports.formats import export_formats
from efficientdet.inference.calibration import CalibrationImages, calibration_of_files, calibration_of_records
from efficientdet.inference.checkpoint_model import checkpoint_detector, load_model
from program_support.atomic_files import report_write_errors
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError, only_warning

_SCORE = 1e-3  # tolerance of the scores of agreeing detections
_LEAST_AGREEMENT = 0.98
_TRAINED = 0.05  # highest score below which a detector is considered untrained
_LEAST_AGREEMENT_ON_NOISE = 0.95  # rounding may change the order of near-equal scores, and so the last detections
# Score and pixels by precision
_TOLERANCES = {"float32": (1e-3, 0.5), "mixed_float16": (2e-2, 4.0), "mixed_bfloat16": (5e-2, 8.0)}


def export_artifacts(model: ModelConfig, config: ExportConfig) -> ArtifactTable:
    """Export every format, compare, evaluate and time it; write the table to artifacts.md and artifacts.json.

    Raises:
        InputError: a file cannot be written, or is the user's.
        RuntimeError: a float32 file of a trained checkpoint has other detections in images than the checkpoint.
    """
    folder, formats = Path(config.output_dir), export_formats()
    files = [file for name in config.formats for file in formats[name].files(folder / formats[name].file)]
    names = {file.relative_to(folder).parts[0] for file in files} | {formats[name].file for name in config.formats}
    with claimed_outputs(*(folder / name for name in (*sorted(names), *CARD_FILES, *TABLE_FILES))):
        return _export(model, config)


def _export(model: ModelConfig, config: ExportConfig) -> ArtifactTable:
    calibration = _calibration(config)
    restored, _ = load_model(model)
    formats = [export_formats()[name] for name in config.formats]
    for form in formats:
        form.check(restored.detector)
    comparison = ArtifactComparison(restored, checkpoint_detector(restored).detect, config)
    restored = comparison.restored
    if restored.description.tiling:
        print(f"note: {tiling_note(restored.description)}")
    lines = []
    for form in formats:
        path = Path(config.output_dir, form.file)
        try:
            form.write(restored, path, calibration)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
        lines.append(comparison.artifact(form, path))
        print(f"wrote {path}: {_summary(lines[-1], form)}")
    for form in formats:
        if form.float32:
            _warn_unless_faster(comparison, form, config)
    table = ArtifactTable(
        model=restored.description.model_name,
        machine=device_name(),
        versions=versions(),
        checkpoint=None if comparison.measures is None else quality_of(comparison.measures, comparison.measures),
        compared_in=f"{comparison.compared}: the fraction found by both checkpoint and file, of the same class and "
        f"with all sides within {PIXELS} pixels (int8: with an IoU of {SAME_OBJECT_IOU} or more), in batches of "
        + ", ".join(map(str, BATCHES)),
        validation_images=comparison.measures.images if comparison.measures else 0,
        calibration_images=len(calibration.names),
        artifacts=lines,
    )
    table.write(config.output_dir)
    with only_warning("the model card is incomplete", print):
        _write_card(comparison, table, config, checkpoint=model.ckpt_path)
    wrong = [
        line
        for line, form in zip(lines, formats, strict=True)
        if not form.calibrates and (line.agreement < _LEAST_AGREEMENT or line.score_difference > _SCORE)
    ]
    if wrong and (comparison.best_score < _TRAINED or not (config.images or config.records)):
        print(
            f"warning: {wrong[0].file} does not find all detections of the checkpoint, whose highest score is "
            f"{comparison.best_score:.3f}: rounding changes the order of uncertain boxes; compare on images of the "
            "data with --images"
        )
    elif wrong:
        raise RuntimeError(
            f"{wrong[0].file} does not find the detections of the checkpoint; see "
            f"{config.output_dir}/artifacts.md for the differences"
        )
    return table


def export_file(config: ModelConfig, name: str, path: Path, *, input_image: str | None) -> None:
    """Write a file or folder of a format, open it and compare its detections with those of the detector in memory.

    Compares on `input_image`, else on random pixels.

    Raises:
        InputError: the backend or the format cannot express the detector.
        RuntimeError: the detections differ.
    """
    restored, runtime = load_model(config)
    height, width = restored.detector.image_size
    noise = np.random.default_rng(0).integers(0, 256, (height * 3 // 4, width * 5 // 4, 3), np.uint8)
    image = read_image(input_image) if input_image else noise
    form = export_formats()[name]
    form.write(restored, path)
    print(f"wrote {path}")
    reloaded = form.open_for(restored, path)
    assert reloaded is not None  # the formats that inspector.py writes run here
    score_tolerance, pixels = _TOLERANCES[runtime.precision]
    detected = checkpoint_detector(restored).detect([image])[0]
    agreement = compare_detections(detected, reloaded([image])[0], pixels=pixels)
    print(
        f"read back: {agreement.share:.1%} of {agreement.compared} detections agree within {pixels} pixels; "
        f"largest difference of scores {agreement.score_difference:.2g}"
    )
    if agreement.share < _LEAST_AGREEMENT_ON_NOISE or agreement.score_difference > score_tolerance:
        raise RuntimeError(f"{path}: has other detections than the detector in memory")
    if not agreement.compared:
        print("no detections to compare in this image; use --input_image=FILE with an image of objects")


def _write_card(
    comparison: ArtifactComparison, table: ArtifactTable, config: ExportConfig, *, checkpoint: str | None
) -> None:
    """Write the provenance of the checkpoint with the checksums of the exported files, and what is made of it."""
    folder = Path(config.output_dir)
    assert checkpoint is not None  # export.py requires one
    provenance = without_folders(read_provenance(checkpoint) or {"weights": checksums([checkpoint])})
    files = [file for line in table.artifacts for file in export_formats()[line.format].files(folder / line.file)]
    exported = {str(Path(file).relative_to(folder)): value for file, value in checksums(files).items()}
    provenance["exported"] = {"code": code_version(), "machine": machine(), "files": exported}
    write_provenance(folder, provenance)
    card = ModelCard(comparison.restored.description, table, provenance, comparison.measures, comparison.drawn_image())
    write_model_card(folder, card)


def _calibration(config: ExportConfig) -> CalibrationImages:
    if config.calibration_records:
        return calibration_of_records(index_records(config.calibration_records), most=config.int8_samples)
    return calibration_of_files(config.calibration_images, most=config.int8_samples)


def _warn_unless_faster(comparison: ArtifactComparison, form: ExportFormat, config: ExportConfig) -> None:
    """Print a warning if a file in 8 bits is not faster than the same in float32, in the runtime that it is for."""
    float32 = export_formats()[form.float32 or ""]
    with tempfile.TemporaryDirectory() as temporary:
        other = Path(config.output_dir if float32.name in config.formats else temporary, float32.file)
        if float32.name not in config.formats:
            with report_write_errors(other):
                float32.write(comparison.restored, other)
        took, took_float32 = comparison.milliseconds([(form, Path(config.output_dir, form.file)), (float32, other)])
    if took >= took_float32:
        print(
            f"warning: {form.file} is not faster than float32 in {form.needs} on this machine: "
            f"{took} ms per image, {float32.file} {took_float32} ms"
        )


def _summary(line: Artifact, form: ExportFormat) -> str:
    quality = f", AP {line.quality.ap:.4f} ({line.quality.change})" if line.quality else ""
    time_of_one = f"not timed (needs {form.runs_in})" if line.median_ms is None else f"{line.median_ms} ms per image"
    return f"{line.agreement:.1%} of {line.compared} detections agree, {time_of_one}{quality}"
