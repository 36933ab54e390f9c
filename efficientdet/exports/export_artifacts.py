"""Export of a checkpoint to files that are compared with it, evaluated and timed."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx

from dataset.files.image_files import read_image
from dataset.records.record_index import index_records
from efficientdet.artifacts.artifact_files import postprocessing_file
from efficientdet.artifacts.int8_calibration import CalibrationImages, calibration_of_files, calibration_of_records
from efficientdet.artifacts.onnx_efficientnms import efficientnms_model
from efficientdet.artifacts.onnx_file import (
    export_onnx,
    onnx_model,
    without_postprocessing,
    write_onnx,
    write_openvino,
)
from efficientdet.artifacts.quantization import last_convolutions, quantized
from efficientdet.artifacts.quantization_noise import signal_to_noise
from efficientdet.artifacts.saved_model import export_saved_model
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.artifact_formats import FORMATS, IN_8_BITS, RUNTIMES_OF
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import device_name, versions
from efficientdet.evaluation.evaluate import detect_images, read_evaluator
from efficientdet.exports.artifact_table import MOST_LOST, Artifact, ArtifactTable, Quality, QuantizationLoss
from efficientdet.exports.inspection import SAME_OBJECT_IOU, compare_detections, compare_plugin_inputs
from efficientdet.inference.artifact import artifact_detection, artifact_runtime
from efficientdet.inference.exported_network import ExportedNetwork, copied
from efficientdet.inference.image_rows import Detect
from efficientdet.inference.model_detection import detect_with_checkpoint, saved_model_detector
from efficientdet.inference.model_loading import load_model
from object_detection.coco.evaluation import CocoMeasures
from program_support.checked_fields import Count, CountOrZero, checked
from program_support.errors import InputError

_BATCHES = (1, 2, 8)
_PIXELS, _SCORE = 0.5, 1e-3  # tolerances of agreeing detections
_LEAST_AGREEMENT = 0.98
_MAX_IMAGES = 64  # that each file is compared on
_TRAINED = 0.05  # highest score below which a detector is considered untrained
_WARM_UP_RUNS = 3


@checked
class ExportConfig:
    """Configuration of an export and its comparison with the checkpoint."""

    output_dir: str
    formats: Sequence[str]
    images: Sequence[str] = ()  # image files for the comparison; (): random noise
    runs: Count = 30
    records: Sequence[str] = ()  # for AP; (): AP is not measured
    json_file: str | None = None  # COCO ground truth; None: boxes in the records
    samples: Annotated[CountOrZero, "eval_samples"] = 0  # number of records; 0: all
    calibration_images: Sequence[str] = ()  # image files; (): use `calibration_records`
    calibration_records: Sequence[str] = ()
    calibration_samples: Annotated[Count, "int8_samples"] = 100  # maximum number of calibration images
    list_layers: bool = False  # list layers by quantization error, even if AP is unaffected


def export_artifacts(model: ModelConfig, config: ExportConfig) -> ArtifactTable:
    """Export every format, compare, evaluate and time it; write the table to artifacts.md and artifacts.json.

    Raise InputError if a file cannot be written, and RuntimeError if a float32 file of a trained checkpoint has other
    detections in images than the checkpoint.
    """
    restored, _ = load_model(model)
    calibration = _calibration(config)
    reference = detect_with_checkpoint(restored, batch_size=1, compiled=False).detect
    comparison = _Comparison(restored, reference, config)
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
    quality = None if comparison.measures is None else _quality(comparison.measures, comparison.measures)
    table = ArtifactTable(
        model=restored.description.model_name,
        machine=device_name(),
        versions=versions(),
        checkpoint=quality,
        compared_in=f"{comparison.compared}: the fraction found by both checkpoint and file, of the same class and "
        f"with all sides within {_PIXELS} pixels (int8: with an IoU of {SAME_OBJECT_IOU} or more), in batches of "
        + ", ".join(map(str, _BATCHES)),
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
    if wrong and (comparison.best_score < _TRAINED or not config.images):
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


def _calibration(config: ExportConfig) -> CalibrationImages:
    most = config.calibration_samples
    if config.calibration_records:
        return calibration_of_records(index_records(config.calibration_records), most=most)
    return calibration_of_files(config.calibration_images, most=most)


def _write(restored: Restored, name: str, path: Path, *, calibration: CalibrationImages) -> None:
    detector = restored.detector
    stated: dict[str, Any] = {"description": restored.description, "resize": restored.resize}
    if name == "savedmodel":
        export_saved_model(detector, str(path), **stated)
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
    elif name == "openvino":
        write_openvino(onnx_model(detector, detects=True), path, **stated)
    else:
        export_onnx(detector, path, **stated, detects=name == "onnx")


class _Comparison:
    """Comparison of exported files with their checkpoint."""

    def __init__(self, restored: Restored, reference: Detect, config: ExportConfig):
        self.restored, self._config = restored, config
        self._images = [read_image(path) for path in config.images[:: max(1, -(-len(config.images) // _MAX_IMAGES))]]
        if len(self._images) < len(config.images):
            print(f"comparing on {len(self._images)} of {len(config.images)} images, evenly spaced")
        self._images = self._images or _noise(restored)
        self._expected = [reference([image])[0] for image in self._images]
        self.best_score = max((float(rows.scores.max(initial=0.0)) for rows in self._expected), default=0.0)
        self.measures: CocoMeasures | None = None
        if config.records:
            self._index = index_records(config.records)
            self._evaluator = read_evaluator(self._index, restored.class_names, json_file=config.json_file)
            self.measures = self._measured(reference)
            print(f"checkpoint: AP {self.measures.numbers['AP']:.4f} on {self.measures.images} images")
            if not restored.description.score_thresholds:
                self.restored = replace(
                    restored, description=replace(restored.description, score_thresholds=self.measures.score_thresholds)
                )
        self._thresholds: ScoreThresholds | None = ScoreThresholds.stored_in(self.restored.description)
        self.compared = f"detections from the score threshold on ({self._thresholds})"
        print(f"score threshold: {self._thresholds}")
        if not any(len(rows.drawn(self._thresholds.of(rows.category_ids), None).scores) for rows in self._expected):
            self._thresholds, self.compared = None, "all detections, as none reaches the score threshold"
            print(f"comparing {self.compared}; the highest score is {self.best_score:.3g}")

    def artifact(self, name: str, path: Path, *, calibration: CalibrationImages) -> Artifact:
        """Return the table row of a file."""
        detect = _detection(self.restored, name, path)
        batches = (1,) if detect is None or name == "savedmodel" else _BATCHES
        if detect is None:
            agreements = compare_plugin_inputs(self.restored, path, self._images, pixels=_PIXELS)
        else:
            found = [rows for size in batches for rows in _in_batches(detect, self._images, size)]
            pixels = None if name in IN_8_BITS else _PIXELS
            agreements = [
                compare_detections(theirs, ours, pixels=pixels, thresholds=self._thresholds)
                for ours, theirs in zip(found, self._expected * len(batches), strict=True)
            ]
        compared = sum(agreement.compared for agreement in agreements)
        share = sum(agreement.share * agreement.compared for agreement in agreements) / compared if compared else 1.0
        median, p99 = _times(lambda: detect(self._images[:1]), runs=self._config.runs) if detect else (None, None)
        network_ms, postprocessing_ms = self._split_times(name, path)
        quality = None if self.measures is None or detect is None else _quality(self._measured(detect), self.measures)
        loses = quality is not None and quality.ap_difference < -MOST_LOST
        lists = name == "onnx-int8" and (loses or self._config.list_layers)
        return Artifact(
            format=name,
            file=path.name,
            megabytes=round(sum(file.stat().st_size for file in _files(path)) / 1e6, 2),
            median_ms=median,
            p99_ms=p99,
            network_ms=network_ms,
            postprocessing_ms=postprocessing_ms,
            compared=compared // len(batches),
            agreement=share,
            box_difference=max((agreement.box_difference for agreement in agreements), default=0.0),
            score_difference=max((agreement.score_difference for agreement in agreements), default=0.0),
            quality=quality,
            loss=_loss(self.restored, path, calibration) if lists else None,
        )

    def _split_times(self, name: str, path: Path) -> tuple[float | None, float | None]:
        """Return milliseconds of network and post-processing of an image; None if the file cannot be divided."""
        if name not in ("onnx", "onnx-int8", "openvino"):
            return None, None
        model = onnx_model(self.restored.detector, detects=True) if name == "openvino" else onnx.load(path)
        network = without_postprocessing(model)
        if network is None:
            return None, None
        runtime = RUNTIMES_OF.get(name, "onnxruntime")
        both = [ExportedNetwork(one.SerializeToString(), runtime=runtime) for one in (network, model)]
        image, size, _ = (np.asarray(part)[None] for part in self.restored.resize(self._images[0]))
        network_ms, complete_ms = (_times(partial(run, image, size, copied), runs=self._config.runs)[0] for run in both)
        return network_ms, round(max(complete_ms - network_ms, 0.0), 2)

    def _measured(self, detect: Detect) -> CocoMeasures:
        return self._evaluator.evaluate(detect_images(detect, self._index, samples=self._config.samples))


def _detection(restored: Restored, name: str, path: Path) -> Detect | None:
    """Return the detection function of a file, with the checkpoint's post-processing of raw outputs.

    None if the file cannot be run here.
    """
    if name == "onnx-efficientnms":
        return None
    if name == "savedmodel":
        return saved_model_detector(str(path)).detect
    if name != "onnx-raw":
        return artifact_detection(str(path), runtime=artifact_runtime(str(path), "keras", asked_by="export.py")).detect
    network = ExportedNetwork(path.read_bytes(), runtime="onnxruntime")
    return detect_with_checkpoint(restored, batch_size=1, compiled=False, network=network).detect


def _in_batches(detect: Detect, images: list[np.ndarray], size: int) -> list:
    return [rows for first in range(0, len(images), size) for rows in detect(images[first : first + size])]


def _times(detect, *, runs: int) -> tuple[float, float]:
    """Return median and 99th percentile in milliseconds."""
    seconds = []
    for _ in range(_WARM_UP_RUNS + runs):
        start = time.perf_counter()
        detect()
        seconds.append(time.perf_counter() - start)
    timed = 1e3 * np.array(seconds[_WARM_UP_RUNS:])
    return round(float(np.median(timed)), 2), round(float(np.percentile(timed, 99)), 2)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file()]
    beside = {".xml": path.with_suffix(".bin"), ".tflite": postprocessing_file(path)}.get(path.suffix)
    return [path, beside] if beside and beside.exists() else [path]


def _quality(found: CocoMeasures, reference: CocoMeasures) -> Quality:
    losses = {name: reference.class_ap[name] - ap for name, ap in found.class_ap.items()}
    return Quality(
        ap=found.numbers["AP"],
        ap50=found.numbers["AP50"],
        ap_difference=found.numbers["AP"] - reference.numbers["AP"],
        class_losses={
            name: loss for name, loss in sorted(losses.items(), key=lambda entry: -entry[1]) if loss > MOST_LOST
        },
    )


def _loss(restored: Restored, path: Path, calibration: CalibrationImages) -> QuantizationLoss:
    layers, images = signal_to_noise(
        onnx_model(restored.detector, detects=True), onnx.load(path), calibration.inputs(restored.resize)
    )
    by_image = sorted(zip(calibration.names, images, strict=True), key=lambda entry: entry[1])
    return QuantizationLoss(layers=layers, images=dict(by_image))


def _noise(restored: Restored) -> list[np.ndarray]:
    height, width = restored.detector.image_size
    return list(np.random.default_rng(0).integers(0, 256, (2, height * 3 // 4, width, 3), np.uint8))


def _summary(line: Artifact) -> str:
    quality = f", AP {line.quality.ap:.4f} ({line.quality.ap_difference:+.4f})" if line.quality else ""
    time_of_one = "not timed (needs TensorRT)" if line.median_ms is None else f"{line.median_ms} ms per image"
    return f"{line.agreement:.1%} of {line.compared} detections agree, {time_of_one}{quality}"
