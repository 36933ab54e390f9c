"""Exported files, each compared with the checkpoint that it was made of and timed, in one table."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dataset.files.image_files import read_image
from efficientdet.benchmark.inspection import compare_detections
from efficientdet.checkpoints.restore import Restored
from efficientdet.export.formats import FORMATS
from efficientdet.export.onnx_file import export_onnx
from efficientdet.export.saved_model import export_saved_model
from efficientdet.inference.artefact import artefact_detection
from efficientdet.inference.exported_network import ExportedNetwork
from efficientdet.inference.image_rows import Detect
from efficientdet.inference.opened_detection import detect_with_checkpoint, saved_model_detector
from efficientdet.inference.opening import ModelConfig, open_model
from efficientdet.machine.device import device_name, versions
from object_detection.atomic_files import write_text

_BATCHES = (1, 2, 8)
_PIXELS, _SCORE = 0.5, 1e-3  # within which a detection counts as the same
_LEAST_AGREEMENT = 0.98
_WARM_UP_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What to write where, and what to compare it on."""

    output_dir: str
    formats: Sequence[str]
    images: Sequence[str] = ()  # files; none: noise
    runs: int = 30


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """A line of the table."""

    format: str
    file: str
    megabytes: float
    median_ms: float  # of an image, resized and detected
    p99_ms: float
    compared: int  # detections of the checkpoint
    agreement: float  # share of these that the file finds too: the class, all sides within half a pixel
    score_difference: float  # the largest


def export_artefacts(model: ModelConfig, config: ExportConfig) -> None:
    """Write every format, compare and time it, and write artefacts.md and artefacts.json beside them.

    Raises RuntimeError where a file does not find what the checkpoint finds.
    """
    restored, _ = open_model(model)
    images = [read_image(path) for path in config.images] or _noise(restored)
    reference, _ = detect_with_checkpoint(restored, batch_size=1, compiled=False)
    wanted = [reference([image])[0] for image in images]
    print(f"the checkpoint finds {sum(map(len, (rows.scores for rows in wanted)))} objects in {len(images)} images")
    table = []
    for name in config.formats:
        path = Path(config.output_dir, FORMATS[name])
        _write(restored, name, path)
        table.append(_measured(restored, name, path, images=images, wanted=wanted, runs=config.runs))
        print(f"wrote {path}: {table[-1].agreement:.1%} of {table[-1].compared} detections agree, {table[-1].median_ms:.1f} ms "
              "an image")
    content = {"model": restored.description.model_name, "machine": device_name(), "versions": versions(),
               "artefacts": [asdict(line) for line in table]}
    write_text(Path(config.output_dir, "artefacts.json"), json.dumps(content, indent=1) + "\n")
    write_text(Path(config.output_dir, "artefacts.md"), _markdown(content, table))
    if wrong := [line for line in table if line.agreement < _LEAST_AGREEMENT or line.score_difference > _SCORE]:
        raise RuntimeError(f"{wrong[0].file} does not find what the checkpoint finds; {config.output_dir}/artefacts.md has "
                           "the differences")


def _write(restored: Restored, name: str, path: Path) -> None:
    if name == "savedmodel":
        export_saved_model(restored.detector, str(path), description=restored.description, resize=restored.resize)
    else:
        export_onnx(restored.detector, path, description=restored.description, resize=restored.resize, detects=name == "onnx")


def _measured(restored: Restored, name: str, path: Path, *, images, wanted, runs: int) -> Artefact:
    detect = _detection(restored, name, path)
    found = [rows for size in _BATCHES for rows in _in_batches(detect, images, 1 if name == "savedmodel" else size)]
    pairs = list(zip(found, wanted * len(_BATCHES), strict=True))
    agreements = [compare_detections(theirs, ours, pixels=_PIXELS) for ours, theirs in pairs]
    compared = sum(agreement.compared for agreement in agreements)
    share = sum(agreement.share * agreement.compared for agreement in agreements) / compared if compared else 1.0
    seconds = []
    for _ in range(_WARM_UP_RUNS + runs):
        start = time.perf_counter()
        detect(images[:1])
        seconds.append(time.perf_counter() - start)
    timed = 1e3 * np.array(seconds[_WARM_UP_RUNS:])
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return Artefact(format=name, file=path.name, megabytes=round(sum(file.stat().st_size for file in files) / 1e6, 2),
                    median_ms=round(float(np.median(timed)), 2), p99_ms=round(float(np.percentile(timed, 99)), 2),
                    compared=compared // len(_BATCHES), agreement=share,
                    score_difference=max((agreement.score_difference for agreement in agreements), default=0.0))


def _detection(restored: Restored, name: str, path: Path) -> Detect:
    """The file alone, from images to rows; of raw outputs with the checkpoint's own reading of them."""
    if name == "savedmodel":
        return saved_model_detector(str(path))[0]
    if name == "onnx":
        return artefact_detection(str(path))[0]
    network = ExportedNetwork(path.read_bytes(), runtime="onnxruntime")
    return detect_with_checkpoint(restored, batch_size=1, compiled=False, network=network)[0]


def _in_batches(detect: Detect, images: Sequence[np.ndarray], size: int) -> list:
    return [rows for first in range(0, len(images), size) for rows in detect(images[first : first + size])]


def _noise(restored: Restored) -> list[np.ndarray]:
    height, width = restored.detector.image_size
    return list(np.random.default_rng(0).integers(0, 256, (2, height * 3 // 4, width, 3), np.uint8))


def _markdown(content: dict, table: Sequence[Artefact]) -> str:
    lines = [f"# {content['model']} as files", "",
             f"{content['machine']}; " + ", ".join(f"{name} {version}" for name, version in content["versions"].items()) + ".",
             "Milliseconds: an image resized and detected, batch 1. Agreement: with the checkpoint's detections, the class and "
             f"all sides within {_PIXELS} pixels, in batches of {', '.join(map(str, _BATCHES))}.", "",
             "| format | file | MB | median ms | p99 ms | detections | agree | largest difference of a score |",
             "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {line.format} | {line.file} | {line.megabytes} | {line.median_ms} | {line.p99_ms} | {line.compared} | "
              f"{line.agreement:.1%} | {line.score_difference:.2g} |" for line in table]
    return "\n".join(lines) + "\n"
