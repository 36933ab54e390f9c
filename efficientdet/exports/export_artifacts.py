"""Export of a checkpoint to files that are compared with it, evaluated and timed."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataset.records.record_index import index_records
from efficientdet.artifacts.int8_calibration import CalibrationImages, calibration_of_files, calibration_of_records
from efficientdet.artifacts.onnx_efficientnms import efficientnms_model
from efficientdet.artifacts.onnx_file import export_onnx, onnx_model, write_onnx, write_openvino
from efficientdet.artifacts.quantization import last_convolutions, quantized
from efficientdet.artifacts.saved_model import export_saved_model
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.artifact_formats import FLOAT32_OF, FORMATS, FULL_INTEGER, IN_8_BITS, RUNTIMES_OF
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import backend_name, device_name, versions
from efficientdet.exports.artifact_comparison import BATCHES, PIXELS, ArtifactComparison, quality_of
from efficientdet.exports.artifact_table import Artifact, ArtifactTable
from efficientdet.exports.export_config import ExportConfig
from efficientdet.exports.inspection import SAME_OBJECT_IOU
from efficientdet.exports.web_page import write_web_page
from efficientdet.inference.model_detection import detect_with_checkpoint
from efficientdet.inference.model_loading import load_model
from model.detector import Detector
from program_support.atomic_files import report_write_errors
from program_support.errors import InputError

_SCORE = 1e-3  # tolerance of the scores of agreeing detections
_LEAST_AGREEMENT = 0.98
_TRAINED = 0.05  # highest score below which a detector is considered untrained


def export_artifacts(model: ModelConfig, config: ExportConfig) -> ArtifactTable:
    """Export every format, compare, evaluate and time it; write the table to artifacts.md and artifacts.json.

    Raise InputError if a file cannot be written, and RuntimeError if a float32 file of a trained checkpoint has other
    detections in images than the checkpoint.
    """
    calibration = _calibration(config)
    restored, _ = load_model(model)
    check_formats(restored.detector, config.formats)
    reference = detect_with_checkpoint(restored, batch_size=1, compiled=False).detect
    comparison = ArtifactComparison(restored, reference, config)
    restored = comparison.restored
    lines = []
    for name in config.formats:
        path = Path(config.output_dir, FORMATS[name])
        try:
            _write(restored, name, path, calibration=calibration)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
        lines.append(comparison.artifact(name, path, calibration=calibration))
        print(f"wrote {path}: {_summary(lines[-1])}")
    for name in filter(FLOAT32_OF.get, config.formats):
        _warn_unless_faster(comparison, name, config)
    quality = None if comparison.measures is None else quality_of(comparison.measures, comparison.measures)
    table = ArtifactTable(
        model=restored.description.model_name,
        machine=device_name(),
        versions=versions(),
        checkpoint=quality,
        compared_in=f"{comparison.compared}: the fraction found by both checkpoint and file, of the same class and "
        f"with all sides within {PIXELS} pixels (int8: with an IoU of {SAME_OBJECT_IOU} or more), in batches of "
        + ", ".join(map(str, BATCHES)),
        validation_images=comparison.measures.images if comparison.measures else 0,
        calibration_images=len(calibration.names),
        artifacts=lines,
    )
    table.write(config.output_dir)
    wrong = [
        line
        for line in lines
        if line.format not in IN_8_BITS and (line.agreement < _LEAST_AGREEMENT or line.score_difference > _SCORE)
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


def check_formats(detector: Detector, formats: Sequence[str]) -> None:
    """Raise InputError for a format that cannot be written, before the files of the others are."""
    for name in formats:
        is_litert = RUNTIMES_OF.get(name) == "litert"
        if (is_litert or name == "savedmodel") and (backend := backend_name()) != "tensorflow":
            raise InputError(f"--formats={name}: needs the TensorFlow backend; KERAS_BACKEND is {backend}")
        if is_litert and detector.litert_obstacle:
            raise InputError(f"--formats={name}: {detector.litert_obstacle}; use --formats=onnx,openvino")


def _calibration(config: ExportConfig) -> CalibrationImages:
    most = config.calibration_samples
    if config.calibration_records:
        return calibration_of_records(index_records(config.calibration_records), most=most)
    return calibration_of_files(config.calibration_images, most=most)


def _warn_unless_faster(comparison: ArtifactComparison, name: str, config: ExportConfig) -> None:
    """Print a warning if a file in 8 bits is not faster than the same in float32, in the runtime that it is for."""
    float32, folder = FLOAT32_OF[name], Path(config.output_dir)
    with tempfile.TemporaryDirectory() as temporary:
        other = Path(temporary, FORMATS[float32])
        if float32 in config.formats:
            other = folder / other.name
        else:
            with report_write_errors(other):
                _write(comparison.restored, float32, other, calibration=_calibration(config))
        took, took_float32 = comparison.milliseconds({name: folder / FORMATS[name], float32: other})
    if took >= took_float32:
        print(
            f"warning: {FORMATS[name]} is not faster than float32 in {RUNTIMES_OF[name]} on this machine: "
            f"{took} ms per image, {FORMATS[float32]} {took_float32} ms"
        )


def _write(restored: Restored, name: str, path: Path, *, calibration: CalibrationImages) -> None:
    detector = restored.detector
    stated: dict[str, Any] = {"description": restored.description, "resize": restored.resize}
    if name == "savedmodel":
        export_saved_model(detector, str(path), **stated)
    elif name == "web":
        write_web_page(detector, path, **stated)
    elif name == "onnx-int8":
        # 7-bit kernels work on every CPU. The last layers are a small part of the work and sensitive to rounding.
        model = onnx_model(detector, detects=True)
        inputs = calibration.inputs(restored.resize)
        write_onnx(quantized(model, inputs, narrow=True, exact=last_convolutions(model)), path, **stated)
    elif name == "onnx-efficientnms":
        write_onnx(efficientnms_model(detector), path, **stated)
    elif name in ("litert", "litert-int8"):
        from efficientdet.artifacts.litert_file import write_litert

        images = calibration.inputs(restored.resize) if name in IN_8_BITS else None
        write_litert(detector, path, **stated, calibration=images)
    elif name in FULL_INTEGER:
        from efficientdet.artifacts.litert_integer import write_full_integer

        write_full_integer(detector, path, **stated, calibration=calibration, detects=name == FULL_INTEGER[0])
    elif name == "openvino":
        write_openvino(onnx_model(detector, detects=True), path, **stated)
    else:
        export_onnx(detector, path, **stated, detects=name == "onnx")


def _summary(line: Artifact) -> str:
    quality = f", AP {line.quality.ap:.4f} ({line.quality.ap_difference:+.4f})" if line.quality else ""
    needed = "a browser" if line.format == "web" else "TensorRT"
    time_of_one = f"not timed (needs {needed})" if line.median_ms is None else f"{line.median_ms} ms per image"
    return f"{line.agreement:.1%} of {line.compared} detections agree, {time_of_one}{quality}"
